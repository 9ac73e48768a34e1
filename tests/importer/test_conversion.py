"""Templates of the former pipeline become recipes, and what could not be carried over is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.cloud.place import load_place
from gpu_ami.errors import UsageError
from gpu_ami.importer import import_template, place_text, recipe_text
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import read_recipe
from gpu_ami.recipes.resolver import resolve

FACTS = load_facts()
NETWORK = {
    "region": "us-east-1",
    "subnet_id": "subnet-0123456789abcdef0",
    "security_groupids": "sg-0123456789abcdef0,sg-0123456789abcdef1",
    "build_ami": "ami-0123456789abcdef0",
}


def template(folder: Path, name: str, builder: str = "g5.12xlarge", **variables: str) -> Path:
    path = folder / name
    builders = [{"type": "amazon-ebs", "instance_type": builder, "ssh_username": "ec2-user"}]
    path.write_text(json.dumps({"variables": variables, "builders": builders}), encoding="utf-8")
    return path


# The nine templates of aws-efa-nccl-baseami-pipeline 9d8a9273, by the values that their variables block had.
SEED: dict[str, dict[str, str]] = {
    "nvidia-efa-ml-al2.yml": {
        "flag": "al2-base", "nvidia_version": "515.86.01", "cuda_version": "cuda-toolkit-11-6",
        "cudnn_version": "libcudnn8", "nccl_version": "v2.12.7-1",
    },
    "nvidia-efa-ml-al2-ecs.yml": {"flag": "ecs", "nvidia_version": "515.86.01", "cuda_version": "cuda-toolkit-11-7"},
    "nvidia-efa-ml-al2-eks.yml": {
        "flag": "eks-1.23", "nvidia_version": "525.60.13", "cuda_version": "cuda-toolkit-11-8",
        "nccl_version": "v2.16.2-1",
    },
    "nvidia-efa-ml-al2-enroot_pyxis.yml": {
        "flag": "al2-pyxis", "nvidia_version": "515.86.01", "cuda_version": "cuda-toolkit-11-7",
        "slurm_version": "22.05.6", "docker_image": "nvcr.io/nvidia/cuda:11.0.3-runtime-ubuntu18.04",
    },
    "nvidia-efa-ml-al2022.yml": {"flag": "al2022-base", "nvidia_version": "515.86.01"},
    "nvidia-efa-ml-ubuntu1804.yml": {
        "flag": "ubuntu1804-base", "nvidia_version": "cuda-drivers-fabricmanager-520",
        "cuda_version": "cuda-toolkit-11-8 nvidia-gds-11-8", "cudnn_version": "libcudnn8",
    },
    "nvidia-efa-ml-ubuntu2004.yml": {
        "flag": "ubuntu2004-base", "nvidia_version": "cuda-drivers-fabricmanager-520",
        "cuda_version": "cuda-toolkit-11-8 nvidia-gds-11-8", "cudnn_version": "libcudnn8",
    },
    "nvidia-efa-ml-ubuntu2004-eks.yml": {
        "flag": "ubuntu2004-eks1.23", "nvidia_version": "cuda-drivers-fabricmanager-520",
    },
    "nvidia-efa-ml-ubuntu2204.yml": {"flag": "ubuntu2204-base", "nvidia_version": "cuda-drivers-fabricmanager-520"},
}  # fmt: skip


@pytest.mark.parametrize("name", SEED)
def test_every_former_template_becomes_a_recipe(name: str, tmp_path: Path) -> None:
    common = {"efa_pkg": "aws-efa-installer-latest.tar.gz", "intel_mkl_version": "intel-mkl-2020.0-088", **NETWORK}
    path = template(tmp_path, name, **common, **SEED[name])
    imported = import_template(path, FACTS)
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(recipe_text(imported, path), encoding="utf-8")
    read_recipe(recipe, FACTS)  # the grammar has nothing against it
    assert imported.recipe["efa"] == {"version": "newest"}
    assert imported.recipe["mkl"] == {"version": "2020.0-088"}
    assert set(imported.place) == {"region", "subnet_id", "security_group_ids", "source_ami"}
    for value in NETWORK.values():
        assert value not in recipe.read_text()


@pytest.mark.parametrize(
    "name", ["nvidia-efa-ml-al2.yml", "nvidia-efa-ml-ubuntu1804.yml", "nvidia-efa-ml-ubuntu2004.yml"]
)
def test_plain_templates_resolve_at_once(name: str, tmp_path: Path) -> None:
    path = template(tmp_path, name, **SEED[name])
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(recipe_text(import_template(path, FACTS), path), encoding="utf-8")
    plan = resolve(read_recipe(recipe, FACTS), FACTS)
    assert plan["nvidia_driver"]["version"].startswith(("515", "520"))


def test_conflict_that_a_template_always_had_is_seen(tmp_path: Path) -> None:
    """Driver 515 under CUDA 12 was a build of 45 minutes before it was an error."""
    path = template(tmp_path, "al2.yml", nvidia_version="515.86.01", cuda_version="cuda-toolkit-12-0")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(recipe_text(import_template(path, FACTS), path), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        resolve(read_recipe(recipe, FACTS), FACTS)
    assert any("driver 515.86.01 cannot run CUDA 12.0" in line for line in caught.value.details)


@pytest.mark.parametrize(
    "variable, text, key, expected, remark",
    [
        ("nvidia_version", "515.86.01", "nvidia_driver", "515.86.01", None),
        ("nvidia_version", "NVIDIA-Linux-x86_64-525.60.13.run", "nvidia_driver", "525.60.13", None),
        ("nvidia_version", "cuda-drivers-fabricmanager-520", "nvidia_driver", "520", "becomes branch 520"),
        ("nvidia_version", "nvidia-driver-535-server", "nvidia_driver", "535", "becomes branch 535"),
        ("nvidia_version", "latest", "nvidia_driver", "newest", "'latest' becomes newest"),
        ("nvidia_version", "the one", "nvidia_driver", None, "nvidia_version: 'the one' is not understood"),
        ("cuda_version", "cuda-toolkit-11-8", "cuda", "11.8", None),
        ("cuda_version", "cuda-toolkit-11-8 nvidia-gds-11-8", "cuda", "11.8", "'nvidia-gds-11-8' is not understood"),
        ("cuda_version", "cuda-toolkit-11-8 cuda-toolkit-12-4", "cuda", "12.4", "12.4 is carried over, 11.8 is not"),
        ("cuda_version", "12.4.1", "cuda", "12.4", None),
        ("cuda_version", "latest", "cuda", "newest", None),
        ("cudnn_version", "libcudnn8", "cudnn", "8", "becomes branch 8"),
        ("cudnn_version", "libcudnn8=8.6.0.163-1+cuda11.8", "cudnn", "8.6.0", None),
        ("cudnn_version", "libcudnn9-cuda-12", "cudnn", "9", "becomes branch 9"),
        ("cudnn_version", "?", "cudnn", None, "cudnn_version: '?' is not understood"),
        ("nccl_version", "v2.12.7-1", "nccl", "2.12.7", None),
        ("nccl_version", "master", "nccl", None, "nccl_version: 'master' is not understood"),
        ("efa_pkg", "aws-efa-installer-1.25.1.tar.gz", "efa", "1.25.1", None),
        ("efa_pkg", "aws-efa-installer-latest.tar.gz", "efa", "newest", "'latest' becomes newest"),
        ("efa_pkg", "efa.zip", "efa", None, "efa_pkg: 'efa.zip' is not understood"),
        (
            "intel_mkl_version",
            "intel-mkl-2020.0-088",
            "mkl",
            "2020.0-088",
            "no template of the former pipeline installed it",
        ),
        (
            "docker_image",
            "nvcr.io/nvidia/cuda",
            "docker_image",
            None,
            "docker_image: 'nvcr.io/nvidia/cuda' has no place",
        ),
    ],
)
def test_value_is_understood_or_said(
    variable: str, text: str, key: str, expected: str | None, remark: str | None, tmp_path: Path
) -> None:
    imported = import_template(template(tmp_path, "ubuntu2004.yml", **{variable: text}), FACTS)
    assert imported.recipe.get(key) == ({"version": expected} if expected else None)
    if remark:
        assert any(remark in line for line in imported.remarks), imported.remarks


@pytest.mark.parametrize(
    "name, flag, system",
    [
        ("nvidia-efa-ml-al2.yml", "", "al2"),
        ("nvidia-efa-ml-al2022.yml", "", "al2023"),
        ("nvidia-efa-ml-ubuntu2204.yml", "", "ubuntu2204"),
        ("x.json", "ul18-base", "ubuntu1804"),
        ("x.json", "ubuntu-24.04", "ubuntu2404"),
        ("x.json", "", "al2023"),
    ],
)
def test_system_comes_from_name_or_flag(name: str, flag: str, system: str, tmp_path: Path) -> None:
    imported = import_template(template(tmp_path, name, flag=flag), FACTS)
    assert imported.recipe["os"] == system
    assert any("is assumed from the login user" in remark for remark in imported.remarks) is (
        name == "x.json" and not flag
    )


def test_builder_without_gpu_is_said(tmp_path: Path) -> None:
    imported = import_template(template(tmp_path, "ubuntu2004.yml", builder="r5n.12xlarge"), FACTS)
    assert imported.recipe["build"] == {"instance_type": "r5n.12xlarge"}
    assert any("names no GPU type (r5n.12xlarge builds the image)" in remark for remark in imported.remarks)


def test_end_of_life_is_said_with_its_cost(tmp_path: Path) -> None:
    imported = import_template(template(tmp_path, "ubuntu1804.yml"), FACTS)
    assert any("reached its end of life on 2023-05-31" in remark for remark in imported.remarks)


def test_place_is_a_where_file(tmp_path: Path) -> None:
    imported = import_template(template(tmp_path, "al2.yml", **NETWORK), FACTS)
    where = tmp_path / "aws.yml"
    where.write_text(place_text(imported))
    place = load_place(where)
    assert (place.region, place.network.subnet_id) == ("us-east-1", "subnet-0123456789abcdef0")
    assert place.network.security_group_ids == ("sg-0123456789abcdef0", "sg-0123456789abcdef1")
    assert place.source_ami == "ami-0123456789abcdef0"


def test_type_through_a_variable_is_read(tmp_path: Path) -> None:
    """A template that said p2.xlarge through a variable got p4d.24xlarge, and `it resolves`."""
    path = template(tmp_path, "ubuntu2004.yml", builder="{{user `kind`}}", kind="{{user `size`}}", size="p2.xlarge")
    imported = import_template(path, FACTS)
    assert imported.recipe["instance_types"] == ["p2.xlarge"]
    assert imported.recipe["build"] == {"instance_type": "p2.xlarge"}


def test_type_that_nobody_knows_is_not_replaced(tmp_path: Path) -> None:
    imported = import_template(template(tmp_path, "ubuntu2004.yml", builder="p5.1xlarge"), FACTS)
    assert imported.recipe["instance_types"] == ["p5.1xlarge"]  # refused by name when it is resolved


@pytest.mark.parametrize(
    "system, volumes, size",
    [
        ("al2023", [("/dev/sdf", 900), ("/dev/xvda", 80)], 80),
        ("ubuntu2204", [("/dev/sda1", 90), ("/dev/sdf", 900)], 90),
        ("ubuntu2204", [("/dev/xvda", 90), ("/dev/sdf", 900)], None),
        ("al2023", [("/dev/sdf", 900)], None),
        ("al2023", [(None, 70)], 70),
        ("al2023", [("/dev/xvda", "{{user `gib`}}")], 55),
    ],
)
def test_root_volume_is_that_of_the_root_device(
    system: str, volumes: list[tuple[str | None, object]], size: int | None, tmp_path: Path
) -> None:
    path = tmp_path / f"{system}.json"
    mapped = [{"device_name": device, "volume_size": gib} for device, gib in volumes]
    builder = {"type": "amazon-ebs", "launch_block_device_mappings": mapped}
    path.write_text(json.dumps({"variables": {"gib": "55"}, "builders": [builder]}))
    imported = import_template(path, FACTS)
    assert imported.recipe.get("build") == ({"root_volume_gib": size} if size else None)
    dropped = [line for line in imported.remarks if line.startswith("builders[0].launch_block_device_mappings[")]
    assert len(dropped) == len(volumes) - (size is not None)


def test_names_of_the_eks_template(tmp_path: Path) -> None:
    """amazon-eks-ami: every variable null in the template, values in two files."""
    folder = tmp_path / "al2023"
    folder.mkdir()
    names = ["aws_region", "kubernetes_version", "nvidia_driver_major_version", "source_ami_filter_name",
             "source_ami_owners", "source_ami_id", "arch", "subnet_id", "instance_type", "ami_description"]  # fmt: skip
    source = {"filters": {"name": "{{user `source_ami_filter_name`}}", "architecture": "{{user `arch`}}"},
              "owners": ["{{user `source_ami_owners`}}"]}  # fmt: skip
    builder = {"type": "amazon-ebs", "region": "{{user `aws_region`}}", "instance_type": "{{user `instance_type`}}",
               "source_ami": "{{user `source_ami_id`}}", "source_ami_filter": source}  # fmt: skip
    path, defaults, release = folder / "template.json", folder / "default.json", folder / "1.33.json"
    path.write_text(json.dumps({"variables": dict.fromkeys(names), "builders": [builder]}))
    defaults.write_text(
        json.dumps({"aws_region": "us-west-2", "nvidia_driver_major_version": "580", "source_ami_id": "",
                    "source_ami_owners": "137112412989", "source_ami_filter_name": "al2023-ami-minimal-2023.*"})
    )  # fmt: skip
    release.write_text(json.dumps({"kubernetes_version": "1.33.4", "arch": "x86_64", "instance_type": "g5.xlarge"}))
    imported = import_template(path, FACTS, [defaults, release])
    recipe = imported.recipe
    assert (recipe["flag"], recipe["os"], recipe["architecture"]) == ("al2023", "al2023", "x86_64")
    assert (recipe["node"], recipe["node_version"]) == ("eks", "1.33")
    assert recipe["nvidia_driver"] == {"version": "580"}
    assert recipe["instance_types"] == ["g5.xlarge"]
    assert imported.place == {"region": "us-west-2"}
    assert "source_ami" not in recipe  # a node starts from AWS's own AMI
    assert not [line for line in imported.remarks if "None" in line]


@pytest.mark.parametrize("version", ["12", "13"])
def test_source_ami_filter_of_a_plain_instance_is_carried_over(version: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    variables = {"source_ami_filter_name": f"debian-{version}-amd64-*", "source_ami_owners": "136693071363"}
    path.write_text(json.dumps({"variables": variables, "builders": [{"type": "amazon-ebs"}]}))
    imported = import_template(path, FACTS)
    assert imported.recipe["source_ami"] == {"owner": "136693071363", "name": f"debian-{version}-amd64-*"}
    assert imported.recipe["os"] == f"debian{version}"


def test_second_version_of_a_component_is_said(tmp_path: Path) -> None:
    path = template(
        tmp_path, "al2023.yml", nvidia_driver_lts_version="580", nvidia_driver_pb_version="595", other_version="1"
    )
    imported = import_template(path, FACTS)
    assert imported.recipe["nvidia_driver"] == {"version": "580"}
    assert any(line.startswith("nvidia_driver_pb_version: '595' is a second version of") for line in imported.remarks)


def test_names_with_line_breaks_stay_comments(tmp_path: Path) -> None:
    path = tmp_path / "al2023.json"
    path.write_text(json.dumps({"variables": {"a\nroles: []": "x"}, "builders": [{"type": "amazon-ebs"}]}))
    assert yaml.safe_load(recipe_text(import_template(path, FACTS), path)).get("roles") is None


@pytest.mark.parametrize(
    "text, message",
    [("[]", "no `variables` block"), ('{"builders": []}', "no `variables` block"), ("a: [", "not YAML")],
)
def test_what_is_no_template_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        import_template(path, FACTS)
    with pytest.raises(UsageError, match="cannot be read"):
        import_template(tmp_path / "y.json", FACTS)


def call(*words: str) -> Any:
    """The command itself, below the command line's frame."""
    import argparse

    from gpu_ami.commands import import_
    from gpu_ami.progress import Progress

    parser = argparse.ArgumentParser()
    import_.register(parser.add_subparsers())
    args = parser.parse_args(["import", *words])
    return args.execute(args, Progress("quiet"))


def test_command_writes_recipe_and_place(tmp_path: Path) -> None:
    path = template(tmp_path, "nvidia-efa-ml-al2.yml", **NETWORK, **SEED["nvidia-efa-ml-al2.yml"])
    out, where = tmp_path / "al2.yml", tmp_path / "aws.yml"
    outcome = call(str(path), "-o", str(out), "--where-file", str(where))
    assert "It resolves." in outcome.text
    assert yaml.safe_load(out.read_text())["nvidia_driver"] == {"version": "515.86.01"}
    assert load_place(where).region == "us-east-1"
    with pytest.raises(UsageError, match="is there already"):
        call(str(path), "-o", str(out))


def test_printed_recipe_is_as_the_written_one(tmp_path: Path) -> None:
    """-o - resolves, writes the place and returns the exit code, as -o FILE does; what it prints stays YAML."""
    path = template(tmp_path, "al2.yml", nvidia_version="515.86.01", cuda_version="cuda-toolkit-12-0", **NETWORK)
    out, where, other = (tmp_path / name for name in ("out.yml", "aws.yml", "other.yml"))
    written = call(str(path), "-o", str(out), "--where-file", str(where))
    printed = call(str(path), "-o", "-", "--where-file", str(other))
    assert printed.text.startswith("# Imported from al2.yml.") and "# It does not resolve yet:" in printed.text
    assert yaml.safe_load(printed.text) == yaml.safe_load(out.read_text())
    assert other.read_text() == where.read_text()
    assert printed.exit_code == written.exit_code == 2
    assert len(printed.data["conflicts"]) == len(written.data["conflicts"]) > 0


def test_command_says_what_does_not_resolve(tmp_path: Path) -> None:
    path = template(tmp_path, "al2.yml", nvidia_version="515.86.01", cuda_version="cuda-toolkit-12-0")
    text = call(str(path), "-o", str(tmp_path / "out.yml")).text
    assert "It does not resolve yet:" in text
    assert "cannot run CUDA 12.0" in text
