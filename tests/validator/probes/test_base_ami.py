"""What a base AMI brought, compared by sha256sum itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import testinfra

from tests.scripted_host import table_host
from validator.observe import Observe
from validator.probes import base_ami
from validator.results import RunningCheck


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files of a base AMI and the build's record of them, on this machine."""
    monkeypatch.setattr(base_ami, "RECORDS", str(tmp_path))
    files = [tmp_path / "kubelet", tmp_path / "two words"]
    for file in files:
        file.write_text(file.name)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}\n" for file in files]
    (tmp_path / "node_eks.sha256").write_text("".join(lines))
    return files


def test_unchanged_files(recorded: list[Path], observe: Observe, running: RunningCheck) -> None:
    base_ami.check_unchanged(testinfra.get_host("local://"), "node_eks", observe)
    assert running.record.observed == {"files": [str(file) for file in recorded], "changed": []}


def test_changed_file_is_named(recorded: list[Path], observe: Observe, running: RunningCheck) -> None:
    recorded[1].write_text("other")
    with pytest.raises(pytest.fail.Exception, match=f"differs from the base AMI: {recorded[1]}$"):
        base_ami.check_unchanged(testinfra.get_host("local://"), "node_eks", observe)
    assert running.record.observed["changed"] == [str(recorded[1])]


def test_missing_file_is_named(recorded: list[Path], observe: Observe) -> None:
    recorded[0].unlink()
    with pytest.raises(pytest.fail.Exception, match=f"differs from the base AMI: {recorded[0]}"):
        base_ami.check_unchanged(testinfra.get_host("local://"), "node_eks", observe)


def test_damaged_record_fails(recorded: list[Path], observe: Observe) -> None:
    with (recorded[0].parent / "node_eks.sha256").open("a") as record:
        record.write("no checksum\n")
    with pytest.raises(pytest.fail.Exception, match=r"differs from the base AMI: .*improperly formatted"):
        base_ami.check_unchanged(testinfra.get_host("local://"), "node_eks", observe)


def test_missing_record_fails(recorded: list[Path], observe: Observe) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no .*/node_ecs\.sha256: the build did not record"):
        base_ami.check_unchanged(testinfra.get_host("local://"), "node_ecs", observe)


def test_units_start_at_boot(observe: Observe) -> None:
    table = {"systemctl is-enabled kubelet": "enabled\n", "systemctl is-enabled ecs": (1, "disabled\n")}
    base_ami.check_enabled(table_host(table), ["kubelet"], observe)
    with pytest.raises(pytest.fail.Exception, match=r"units of the node at boot: expected .* got .*'ecs': 'disabled'"):
        base_ami.check_enabled(table_host(table), ["kubelet", "ecs"], observe)


def test_programs_can_be_run(tmp_path: Path, observe: Observe) -> None:
    program, plain = tmp_path / "program", tmp_path / "plain"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plain.touch(0o644)
    host = testinfra.get_host("local://")
    base_ami.check_executable(host, [str(program)], observe)
    with pytest.raises(pytest.fail.Exception, match=f"missing or not executable: {plain}, {tmp_path}/none$"):
        base_ami.check_executable(host, [str(program), str(plain), f"{tmp_path}/none"], observe)
