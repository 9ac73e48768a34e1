"""What is installed on a machine against the signed bill of materials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import observe
from gpu_ami.errors import MachineError
from gpu_ami.recipes.components import components
from gpu_ami.release import verification_host
from gpu_ami.release.verification import Findings
from tests.observe import foreign_images as foreign
from tests.release import examples
from tests.release.test_verification_host import verified
from tests.scripted_host import ScriptedConnection

MODULE = f"module {examples.MODULE.removeprefix('/usr')}"
INSTALLED = {"package nvidia-utils 580.1 amd64", "package libc6 2:2.36-9+deb12u10 amd64", MODULE}
OTHER = "module /lib/modules/6.1.0/kernel/fs/ext4/ext4.ko"


def compare(tmp_path: Path, installed: set[str]) -> Findings:
    findings = Findings("out")
    verification_host.compare_materials(verified(tmp_path), installed, findings)
    return findings


def test_the_machine_has_what_was_signed(tmp_path: Path) -> None:
    findings = compare(tmp_path, INSTALLED | {OTHER})
    assert findings.exit_code == 0 and findings.points[0].text == "2 packages and 1 kernel modules, as signed"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (INSTALLED | {"package nmap 7 amd64"}, "package nmap 7 amd64: installed, not in the bill"),
        (INSTALLED - {"package nvidia-utils 580.1 amd64"}, "package nvidia-utils 580.1 amd64: in the bill, not inst"),
        (INSTALLED - {MODULE}, f"{MODULE}: in the bill, not installed"),
    ],
    ids=["new package", "package gone", "module gone"],
)
def test_another_machine_is_refused(tmp_path: Path, installed: set[str], said: str) -> None:
    findings = compare(tmp_path, installed)
    assert [point.name for point in findings.refused] == ["other-materials"] and said in findings.refused[0].text


@pytest.mark.parametrize(
    ("loaded", "state", "said"),
    [
        ("580.178.04", "held", "driver: every source names the planned version"),
        ("580.159.03", "refused", "driver by its module loaded: expected 580.178.04, got 580.159.03"),
    ],
)
def test_what_runs_is_compared_with_the_plan(loaded: str, state: str, said: str, tmp_path: Path) -> None:
    """A driver that was replaced and put back: its files are the certified ones, and the other one still runs."""
    certificate = verified(tmp_path / "signed")
    plan = dict(certificate.report.plan) | {"nvidia_driver": {"version": "580.178.04"}}
    certificate = replace(certificate, report=replace(certificate.report, plan=plan))
    root = foreign.vendor_without_holds(tmp_path / "root")
    document = dict(observe.read_files(root).document)
    reading = {"version": loaded, "where": "/sys/module/nvidia", "source": "module loaded"}
    driver = [*document["readings"]["nvidia_driver"], reading]
    document["readings"] = {**document["readings"], "nvidia_driver": driver}
    findings = Findings("out")
    verification_host.compare_components(certificate, observe.Observation(document, components()), findings)
    (point,) = findings.points
    assert (point.state, point.text) == (state, said)


def test_a_host_without_its_components_says_so(tmp_path: Path) -> None:
    findings = Findings("out")
    verification_host.compare_components(verified(tmp_path), SimpleNamespace(found={}), findings)  # type: ignore[arg-type]
    assert [(point.name, point.state) for point in findings.points] == [("components", "not looked at")]


def test_a_certificate_without_a_bill_says_so(tmp_path: Path) -> None:
    certificate = verified(tmp_path)
    certificate.statement.files.pop("bom.cdx.json")  # type: ignore[attr-defined]
    findings = Findings("out")
    verification_host.compare_materials(certificate, INSTALLED, findings)
    assert [(point.name, point.state) for point in findings.points] == [("materials", "not looked at")]


def connected(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], bytes]) -> Any:
    monkeypatch.setattr("validator.transport.ssh.connect", lambda _target: ScriptedConnection(answer))
    return SimpleNamespace(address="192.0.2.1")


def test_the_machine_is_asked_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = b"installed\tnvidia-utils\t580.1\tamd64\ninstalled\tlibc6\t2:2.36-9+deb12u10\tamd64\n"
    target = connected(monkeypatch, lambda command: packages if "dpkg-query" in command else examples.MODULE.encode())
    assert verification_host.take_materials(target) == INSTALLED


def test_a_machine_that_lists_nothing_is_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match="lists no packages"):
        verification_host.take_materials(connected(monkeypatch, lambda _command: b""))
