"""`gpu-ami doctor`: the Packer that builds use, and what to install."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami import cli
from gpu_ami.cloud import preflight
from gpu_ami.cloud.preflight import examination, identity, network, resources
from gpu_ami.region import Prerequisite
from localregion import host

_PLUGIN = "/home/x/.config/packer/plugins/github.com/hashicorp/{0}/packer-plugin-{0}_v{1}_x5.0_linux_amd64"


# As Packer 1.16.0 writes it: the path of each installed version that fits is at the line's end.
_REQUIRED = 'amazon github.com/hashicorp/amazon "~> 1.8"{0}\nansible github.com/hashicorp/ansible "~> 1.1"{1}'


def packer(tmp_path: Path, version: str, plugins: str = "", required: str = _REQUIRED.format("", "")) -> str:
    program = tmp_path / "packer"
    (tmp_path / "required").write_text(required)
    of_plugins = f'plugins\\ installed) echo "{plugins}";; plugins\\ required) cat {tmp_path}/required;;'
    cases = f'version) echo "{version}";; {of_plugins}'
    program.write_text(f'#!/bin/sh\ncase "$1${{2:+ $2}}" in {cases} esac\n')
    program.chmod(0o755)
    return str(program)


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str) -> tuple[int, str]:
    monkeypatch.setenv("PACKER", program)
    finding = Prerequisite("packer", True, "/usr/bin/packer", "apt-get install packer", "every build")
    monkeypatch.setattr(host, "examine", lambda home: [finding])
    return cli.main(["doctor"]), capsys.readouterr().out


def test_packer_is_the_one_that_builds_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugins = "\n".join((_PLUGIN.format("amazon", "1.8.2"), _PLUGIN.format("ansible", "1.1.4")))
    required = _REQUIRED.format(*(f" {path}" for path in plugins.splitlines()))
    program = packer(tmp_path, "Packer v1.16.0", plugins, required)
    code, out = shown(monkeypatch, capsys, program)
    assert code == 0 and f"{program} 1.16.0, plugins amazon 1.8.2, ansible 1.1.4\n" in out


def test_what_only_recipes_of_arm64_need_is_named_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PACKER", packer(tmp_path, "Packer v1.6.6"))
    found, remedy = "not installed: qemu-user-static", "apt-get install qemu-user-static"
    of_arm64 = Prerequisite("arm64", False, found, remedy, "recipes of arm64")
    monkeypatch.setattr(host, "examine", lambda home: [of_arm64])
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"absent  arm64                    {found}\n")
    assert f"arm64 (recipes of arm64): {remedy}\n" in out and "install all" not in out
    of_all = Prerequisite("rpmbuild", False, "missing", "apt-get install rpm", "the local region")
    monkeypatch.setattr(host, "examine", lambda home: [of_arm64, of_all])
    assert cli.main(["doctor"]) == 2
    assert "\nMISSING rpmbuild" in capsys.readouterr().out


def test_a_plugin_of_another_version_is_not_the_required_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a network, the build ends with it: `packer init` cannot download the required one."""
    plugins = "\n".join((_PLUGIN.format("amazon", "1.7.0"), _PLUGIN.format("ansible", "1.1.4")))
    program = packer(tmp_path, "Packer v1.16.0", plugins, _REQUIRED.format("", f" {plugins.splitlines()[1]}"))
    code, out = shown(monkeypatch, capsys, program)
    assert code == 0 and "plugins amazon 1.7.0, ansible 1.1.4 (`packer init` downloads amazon ~> 1.8 before" in out


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("Packer v1.6.6", "plugins built in"),
        ("Packer v1.16.0", "no plugins (`packer init` downloads amazon ~> 1.8, ansible ~> 1.1 before"),
    ],
)
def test_plugins_are_built_in_or_not_there_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, told: str
) -> None:
    code, out = shown(monkeypatch, capsys, packer(tmp_path, version))
    assert code == 0 and told in out


def test_another_program_called_packer_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = shown(monkeypatch, capsys, packer(tmp_path, "cracklib 2.9"))
    assert code == 2 and out.startswith("MISSING packer") and "cracklib 2.9" in out


@pytest.mark.parametrize("name", ["nowhere/packer", ".", "a-file"])
def test_a_packer_that_is_no_program_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """A folder ended doctor with "Permission denied" (exit code 4), and a wrong path in "apt-get install packer"."""
    (tmp_path / "a-file").write_text("no program")
    code, out = shown(monkeypatch, capsys, str(tmp_path / name))
    assert code == 2 and f"MISSING packer                   PACKER={tmp_path / name}: no such program" in out
    assert "PACKER names Packer's executable file" in out


@pytest.fixture
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what moto has not: the policy simulator, and settings of the account."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(identity, "simulate", lambda *_, **__: [])
    monkeypatch.setattr(resources, "volume_key", lambda cloud: cloud.place.kms_key_id or resources.AWS_EBS)
    checks = {name: check for name, check in examination.CHECKS.items() if check is not network.public_access}
    monkeypatch.setattr(examination, "CHECKS", checks)


@pytest.mark.usefixtures("without_settings")
def test_where_lists_all_findings_of_a_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = tmp_path / "aws.yml"
    where.write_text(
        "region: us-east-1\nsubnet_id: subnet-00000000\ninstance_profile: nobody\nkms_key_id: alias/none\n"
    )
    with mock_aws():
        code = cli.main(["doctor", "--where", str(where), "--json"])
    findings = json.loads(capsys.readouterr().out)
    errors = {row["subject"] for row in findings if row["level"] == "error"}
    assert code == 2
    assert errors == {"subnet_id", "instance_profile", "kms_key_id"}
    assert set(findings[0]) == {"level", "subject", "found", "expected", "remedy", "refused"}


@pytest.mark.usefixtures("without_settings")
def test_nodes_ask_for_traffic_between_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """moto's default group lets its members in, as AWS's does, and everything out."""
    where = tmp_path / "aws.yml"
    where.write_text("region: us-east-1\n")
    found = {}
    for words in ([], ["--nodes", "2"]):
        with mock_aws():
            cli.main(["doctor", "--where", str(where), "--json", *words])
        rows = json.loads(capsys.readouterr().out)
        found[len(words)] = [row for row in rows if row["subject"] == "traffic between nodes"]
    assert found[0] == [] and found[2]
    assert cli.main(["doctor", "--nodes", "2"]) == 2
    assert "--nodes is of a place" in capsys.readouterr().err


def test_recipe_needs_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "debian12-gpu"]) == 2
    assert "RECIPE together with --where" in capsys.readouterr().err


def test_a_cluster_is_of_an_image_at_a_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = tmp_path / "aws.yml"
    where.write_text("region: us-east-1\n")
    place = ["doctor", "--where", str(where)]
    for words, told in (
        (["doctor", "--join", "x"], "--join is of a place"),
        ([*place, "--join", "x"], "--join is of an image"),
        ([*place, "debian12-gpu", "--join", "x"], "an image of node family ec2 is no node of a cluster"),
        ([*place, "pcluster-3.16-al2023", "--join", "x"], "ParallelCluster launches the nodes of its clusters itself"),
    ):
        assert cli.main(words) == 2
        assert told in capsys.readouterr().err


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`doctor` at a place on AWS; nothing is examined there, because the command line is refused."""
    monkeypatch.setattr(preflight, "examine", lambda *_, **__: pytest.fail("AWS was asked"))
    where = tmp_path / "aws.yml"
    where.write_text("region: us-east-1\n")
    return ["doctor", "--where", str(where)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--instance-type g5.12xlarge", "--instance-type is of an image"),
        ("debian12-gpu --instance-type p5.48xlarge", "--instance-type p5.48xlarge: not in the plan"),
        ("debian12-gpu --nodes 1", "expected a number from 2 to 64, got '1'"),
        ("debian12-gpu --nodes 2", "--nodes 2: expected one instance type, got g5.12xlarge, p4d.24xlarge"),
        (
            "debian12-gpu --nodes 2 --instance-type g5.12xlarge --instance-type p4d.24xlarge",
            "--nodes 2: expected one instance type, got g5.12xlarge, p4d.24xlarge",
        ),
        ("al2023-neuron --nodes 2 --instance-type inf2.48xlarge", "inf2.48xlarge has no EFA interface"),
        ("dlami-ubuntu2204 --join x", "an image of node family dlami is no node of a cluster"),
        ("eks-1.34-al2023-gpu --join a/b", "expected the name of a cluster"),
    ],
)
def test_what_a_run_would_refuse(place: list[str], capsys: pytest.CaptureFixture[str], words: str, told: str) -> None:
    assert cli.main([*place, *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_instance_types_are_of_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--instance-type", "g5.12xlarge"]) == 2
    assert "--instance-type is of a place" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "types"), [("", ["g5.12xlarge", "p4d.24xlarge"]), ("p4d.24xlarge", ["p4d.24xlarge"])]
)
def test_the_instance_types_that_are_examined(
    place: list[str], monkeypatch: pytest.MonkeyPatch, words: str, types: list[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(preflight, "examine", lambda _cloud, plan, *_, **__: seen.append(plan) or [])
    chosen = [f"--instance-type={name}" for name in words.split()]
    assert cli.main([*place, "debian12-gpu", *chosen]) == 0
    assert [row["name"] for row in seen[0]["instance_types"]] == types


@pytest.mark.parametrize(("release", "code"), [("3.16.3", 0), ("3.16.1", 2)])
def test_pcluster_has_the_release_of_the_base_ami(
    place: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    release: str,
    code: int,
) -> None:
    program = tmp_path / "pcluster"
    program.write_text(f'#!/bin/sh\necho \'{{"version": "{release}"}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PCLUSTER", str(program))
    if code == 0:
        monkeypatch.setattr(preflight, "examine", lambda *_, **__: [])
    assert cli.main([*place, "pcluster-3.16-al2023", "--join"]) == code
    told = capsys.readouterr().err
    assert (f"expected release 3.16.3, that of the base AMI, got {release}" in told) is (code == 2)
    monkeypatch.setattr(preflight, "examine", lambda *_, **__: [])
    assert cli.main([*place, "pcluster-3.16-al2023"]) == 0  # without --join no pcluster is asked
