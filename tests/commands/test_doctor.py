"""`gpu-ami doctor`: the Packer that builds use, and what to install."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moto import mock_aws

from gpu_ami import cli
from gpu_ami.cloud.preflight import identity
from gpu_ami.local import prerequisites
from gpu_ami.local.prerequisites import Finding

_PLUGIN = "/home/x/.config/packer/plugins/github.com/hashicorp/{0}/packer-plugin-{0}_v{1}_x5.0_linux_amd64"


def packer(tmp_path: Path, version: str, plugins: str = "") -> str:
    program = tmp_path / "packer"
    program.write_text(f'#!/bin/sh\ncase $1 in version) echo "{version}";; plugins) echo "{plugins}";; esac\n')
    program.chmod(0o755)
    return str(program)


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str) -> tuple[int, str]:
    monkeypatch.setenv("PACKER", program)
    finding = Finding("packer", True, "/usr/bin/packer", "apt-get install packer", "every build")
    monkeypatch.setattr(prerequisites, "examine", lambda home: [finding])
    return cli.main(["doctor"]), capsys.readouterr().out


def test_packer_is_the_one_that_builds_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plugins = "\n".join((_PLUGIN.format("amazon", "1.8.2"), _PLUGIN.format("ansible", "1.1.4")))
    program = packer(tmp_path, "Packer v1.16.0", plugins)
    code, out = shown(monkeypatch, capsys, program)
    assert code == 0 and f"{program} 1.16.0, plugins amazon 1.8.2, ansible 1.1.4" in out


@pytest.mark.parametrize(
    ("version", "told"), [("Packer v1.6.6", "plugins built in"), ("Packer v1.16.0", "no plugins (`packer init`")]
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


def test_where_lists_all_findings_of_a_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(identity, "_simulate", lambda *_, **__: [])  # moto has no policy simulator
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


def test_nodes_ask_for_traffic_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """moto's default group lets its members in, as AWS's does, and everything out."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(identity, "_simulate", lambda *_, **__: [])  # moto has no policy simulator
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
