"""plan.json and its readers: digest, mirror and endpoint of a place, Packer's and Ansible's files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.lock import locked_plan
from gpu_ami.place import Mirror, Place
from gpu_ami.plan import Plan, ansible_variables, canonical_json, digest_of, make_plan, packer_variables, sealed
from gpu_ami.run import find_tool, run

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "variables" / "recipes").glob("*.yml"))
RECIPE = ROOT / "variables" / "recipes" / "debian12-gpu.yml"
AWS = Place(name="aws", region="eu-central-1", subnet_id="subnet-0123456789abcdef0", tags={"team": "gpu"})
LOCAL = Place(
    name="local",
    region="us-east-1",
    endpoint="http://127.0.0.1:4566",
    mirror=Mirror("http://169.254.169.252", "A" * 40),
    guest_endpoint="http://169.254.169.251",
    ssh_interface="private_ip",
    ssh_port=2222,
    simulated=True,
)


def urls(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [url for key, item in value.items() if key not in ("sources", "notes") for url in urls(item)]
    if isinstance(value, list):
        return [url for item in value for url in urls(item)]
    return [value] if isinstance(value, str) and value.startswith("http") else []


def test_plan_on_aws_fetches_from_the_vendors() -> None:
    plan = make_plan(RECIPE, AWS)
    hosts = {url.split("/")[2] for url in urls(plan.document)}
    assert {"developer.download.nvidia.com", "amazoncloudwatch-agent.s3.amazonaws.com"} <= hosts
    assert all(url.startswith("https://") for url in urls(plan.document))
    assert "endpoint_override" not in json.dumps(plan.document)


def test_plan_at_a_mirror_fetches_from_nowhere_else() -> None:
    plan = make_plan(RECIPE, LOCAL)
    for url in urls(plan.document):
        assert url.startswith(("http://169.254.169.252/", "http://169.254.169.251")), url
    assert plan["nvidia_driver"]["repository"]["url"] == (
        "http://169.254.169.252/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    )
    assert plan["nvidia_driver"]["repository"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == "http://169.254.169.251"
    assert plan["cloudwatch_agent"]["gpu_config"]["metrics"]["endpoint_override"] == "http://169.254.169.251"


def test_citations_stay_what_they_are_at_a_mirror() -> None:
    assert make_plan(RECIPE, LOCAL)["sources"] == make_plan(RECIPE, AWS)["sources"]


def test_agent_configuration_keeps_what_others_rely_on() -> None:
    agent = make_plan(RECIPE, AWS)["cloudwatch_agent"]
    raw, events = agent["config"]["logs"]["logs_collected"]["files"]["collect_list"]
    assert (raw["file_path"], raw["log_group_name"], raw["log_stream_name"]) == (
        "/var/log/gpuevent.log", "/ec2/accelerated/accel-event-log", "{instance_id}",
    )  # fmt: skip
    assert events["timestamp_format"] == "%Y-%m-%dT%H:%M:%S.%f"
    assert events["log_group_name"] != raw["log_group_name"]
    assert agent["config"]["agent"]["run_as_user"] == "root"
    metrics = agent["gpu_config"]["metrics"]
    assert metrics["append_dimensions"]["AutoScalingGroupName"] == "${aws:AutoScalingGroupName}"
    assert metrics["aggregation_dimensions"] == [["InstanceId"]]
    assert metrics["namespace"] == "CWAgent"
    # The agent's schema has no `metrics` that collects nothing, so it all stands in the part that needs a GPU.
    assert "metrics" not in agent["config"]
    assert metrics["metrics_collected"]["nvidia_gpu"]["metrics_collection_interval"] == 10


def test_image_without_gpu_metrics_has_no_gpu_config() -> None:
    plan = make_plan(ROOT / "variables" / "recipes" / "al2023-neuron.yml", AWS)
    assert plan["cloudwatch_agent"]["gpu_config"] == {}
    assert "nvidia_driver" not in plan.document


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned_at_a_mirror(recipe: Path) -> None:
    plan = make_plan(recipe, LOCAL)
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == LOCAL.guest_endpoint


def test_own_endpoint_has_no_auto_scaling_groups() -> None:
    """The agent asks AWS itself for that name, and publishes nothing until it is told."""
    placed = make_plan(RECIPE, LOCAL)["cloudwatch_agent"]["gpu_config"]["metrics"]["append_dimensions"]
    assert set(placed) == {"ImageId", "InstanceId", "InstanceType"}


def test_place_may_name_the_source_ami() -> None:
    plan = make_plan(RECIPE, Place(name="x", region="us-east-1", source_ami="ami-0123456789abcdef0"))
    assert plan["source_ami"] == {"id": "ami-0123456789abcdef0"}
    assert packer_variables(plan, AWS, Path("/x"))["source_ami"] == "ami-0123456789abcdef0"


def test_digest_covers_everything_else() -> None:
    document = dict(make_plan(RECIPE, AWS).document)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["digest"])
    for key in document:
        if key not in ("digest", "schema", "image"):
            assert digest_of({**document, key: "changed"}) != document["digest"], key
    assert digest_of(dict(reversed(document.items()))) == document["digest"]
    assert canonical_json({"b": "ü", "a": [1]}) == '{"a":[1],"b":"ü"}'


def test_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(RECIPE, LOCAL)
    path = plan.write(tmp_path / "out" / "x", LOCAL)
    assert Plan.load(path).document == plan.document
    assert sorted(file.name for file in path.parent.iterdir()) == ["ansible.json", "packer.pkrvars.json", "plan.json"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not a plan"),
        ("[]", "expected schema gpu-ami/plan/1, found list"),
        ('{"schema": "gpu-ami/plan/0"}', "expected schema gpu-ami/plan/1, found gpu-ami/plan/0"),
        ('{"schema": "gpu-ami/plan/1", "digest": "sha256:0"}', "does not match its digest"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Plan.load(path)
    with pytest.raises(UsageError, match="no such file"):
        Plan.load(tmp_path / "other.json")


def test_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_ami.plan import write_json

    write_json(tmp_path / "x.json", {"old": True})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "x.json", {"new": True})
    assert json.loads((tmp_path / "x.json").read_text()) == {"old": True}
    assert len(list(tmp_path.iterdir())) == 1


def test_ansible_variables_are_the_roles_keys_and_nothing_else() -> None:
    plan = make_plan(RECIPE, LOCAL)
    variables = ansible_variables(plan)
    assert variables.pop("gpu_ami_roles") == plan["roles"]
    expected = {f"{role}_{key}": value for role in plan["roles"] for key, value in plan[role].items()}
    assert variables == expected
    assert variables["cuda_version"] == "12.4"
    kept = make_plan(ROOT / "variables" / "recipes" / "pcluster-3.16-ubuntu2404.yml", LOCAL)
    assert "efa_version" not in ansible_variables(kept)  # the base AMI's: recorded, not installed


def test_component_of_a_base_ami_is_recorded_not_installed() -> None:
    plan = make_plan(ROOT / "variables" / "recipes" / "dlami-ubuntu2204.yml", AWS)
    assert plan["nvidia_driver"] == {"version": "595.91.07", "provided_by": "dlami 20261006"}
    assert "nvidia_driver" not in plan["roles"]


def declared_variables() -> set[str]:
    text = (ROOT / "packer" / "variables.pkr.hcl").read_text(encoding="utf-8")
    return set(re.findall(r'^variable "(\w+)"', text, flags=re.MULTILINE))


def required_variables() -> set[str]:
    text = (ROOT / "packer" / "variables.pkr.hcl").read_text(encoding="utf-8")
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, flags=re.MULTILINE | re.DOTALL)
    return {name for name, body in blocks if not re.search(r"^  default\s+=", body, flags=re.MULTILINE)}


@pytest.mark.parametrize("place", [AWS, LOCAL], ids=["aws", "local"])
def test_packer_variables_are_those_that_the_template_declares(place: Place) -> None:
    given = packer_variables(make_plan(RECIPE, place), place, Path("/out/ansible.json"))
    assert set(given) <= declared_variables()
    assert required_variables() <= set(given), "packer build by hand would ask for more"
    assert len(required_variables()) >= 5


def test_packer_variables_carry_the_former_pipelines_versions() -> None:
    given = packer_variables(make_plan(RECIPE, AWS), AWS, Path("/x"))
    assert {name: given[name] for name in given if name.endswith("_version")} == {
        "nvidia_version": "550.163.01", "cuda_version": "12.4", "cudnn_version": "9.1.0", "nccl_version": "2.21.5",
        "efa_version": "1.38.0", "intel_mkl_version": "2020.0-088",
    }  # fmt: skip
    assert given["subnet_id"] == "subnet-0123456789abcdef0"
    assert given["tags"] == {"team": "gpu"}


def packer_refuses(folder: Path) -> str:
    """What packer validate has against a var-file; empty: nothing. It asks for Ansible's version, so a word answers."""
    ansible = folder / "ansible-playbook"
    ansible.write_text("#!/bin/sh\necho 'ansible-playbook [core 2.19.0]'\n")
    ansible.chmod(0o755)
    variables = [f"-var-file={folder / 'packer.pkrvars.json'}", f"-var=ansible_command={ansible}"]
    found = run(
        [find_tool("packer", package="packer"), "validate", *variables, ROOT / "packer"],
        timeout=120,
        env={"CHECKPOINT_DISABLE": "1", "PACKER_CONFIG_DIR": str(folder), "PACKER_CACHE_DIR": str(folder)},
        check=False,
    )
    return "" if found.returncode == 0 else found.stdout + found.stderr


def test_packer_accepts_the_variables_of_every_lock(tmp_path: Path) -> None:
    folders = []
    for recipe in RECIPES:
        folder = tmp_path / recipe.stem
        plan = locked_plan(recipe.stem)
        plan.write(folder, AWS)
        folders.append(folder)
        for role in plan["roles"]:
            assert all(f"{role}_{key}" in ansible_variables(plan) for key in plan[role])
    with ThreadPoolExecutor(max_workers=2) as pool:
        refused = {folder.name: text for folder, text in zip(folders, pool.map(packer_refuses, folders), strict=True)}
    assert {name: text for name, text in refused.items() if text} == {}


def test_packer_refuses_a_wrong_flag(tmp_path: Path) -> None:
    """The check above can fail."""
    document = dict(make_plan(RECIPE, AWS).document) | {"flag": "NOT A FLAG"}
    Plan(sealed(document)).write(tmp_path, AWS)
    assert "The flag must be" in packer_refuses(tmp_path)


def test_recipe_folder_lists_at_least_twenty_images_of_every_family() -> None:
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RECIPES]
    assert len(documents) >= 20
    assert {document.get("node", "ec2") for document in documents} == {"ec2", "eks", "ecs", "parallelcluster", "dlami"}
    assert {"al2023", "ubuntu2204", "ubuntu2404", "debian12", "al2", "ubuntu1804", "ubuntu2004"} == {
        document["os"] for document in documents
    }
    assert {document.get("architecture", "x86_64") for document in documents} == {"x86_64", "arm64"}
    assert {document.get("telemetry", {}).get("profile", "compute") for document in documents} == {
        "compute", "graphics", "neuron",
    }  # fmt: skip


def test_a_place_with_a_kernel_of_its_own_says_so() -> None:
    """The kernel's packages are of the series that really boots, and the plan says what that does not prove."""
    recipe = ROOT / "variables" / "recipes" / "eks-1.33-al2023-gpu.yml"
    assumed = make_plan(recipe, AWS)
    booted = make_plan(recipe, dataclasses.replace(LOCAL, kernel="6.1"))
    assert assumed["kernel"] == {
        "version": "6.12",
        "package": "kernel6.12",
        "headers": "kernel6.12-devel-{release}",
        "hold": ["kernel6.12", "kernel6.12-devel", "kernel6.12-headers"],
    }
    assert booted["kernel"] == {
        "version": "6.1",
        "package": "kernel",
        "headers": "kernel-devel-{release}",
        "hold": ["kernel", "kernel-devel", "kernel-headers"],
    }
    note = "not proven here: kernel 6.12; machines of local boot 6.1"
    assert note in booted["notes"] and note not in assumed["notes"]
    assert make_plan(RECIPE, dataclasses.replace(LOCAL, kernel="6.1"))["notes"] == make_plan(RECIPE, LOCAL)["notes"]
