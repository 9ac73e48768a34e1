"""The planned DCGM runs, starts at boot, and lists every GPU of the instance type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from validator import remote
from validator.observe import Observe, unproven
from validator.plan import OBSERVED, planned_instance_type
from validator.plan_document import Component, PlanDocument, section
from validator.probes import MachineUnderTest, packages, pci_address

pytestmark = pytest.mark.planned("dcgm")

_UNIT = "nvidia-dcgm.service"
_PACKAGE = "datacenter-gpu-manager"
# Level 2 takes about two minutes (DCGM User Guide, Diagnostics); on eight GPUs more.
_DIAGNOSTICS_SECONDS = 900.0


def version(text: str) -> str:
    """The version in the output of `dcgmi --version` or `nv-hostengine --version`; "" if there is none."""
    match = re.search(r"(?:^|\s)version\s*:\s*(\d+\.\d+\.\d+)", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def discovered(text: str) -> list[str]:
    """PCI addresses of the GPUs that `dcgmi discovery -l` lists, as nvidia-smi writes them."""
    return re.findall(r"PCI Bus ID:\s*([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.\d)", text)


def unnamed(text: str) -> list[str]:
    """PCI addresses of the GPUs that the host engine has no name of, in the output of `dcgmi discovery -l`.

    DCGM keeps NVML's answers under such names where it could not read them: it has no other value of the GPU either.
    """
    rows = re.findall(r"Name:\s*(<<<\w*>>>|)\s*\|?\s*\n[^\n]*PCI Bus ID:\s*([0-9A-Fa-f:.]+)", text)
    return [address for _, address in rows]


# DCGM_ERROR_CONFIG: how the machine is set up, not its hardware; of DCGM 4. Source: NVIDIA/DCGM 72fa3fe, dcgm_errors.h.
_CONFIGURATION = 5


@dataclass(frozen=True)
class Result:
    """One test of the diagnostics on one entity. where: such as GPU 3; "" is the whole machine.

    severities: of its warnings, -1 where DCGM gives none.
    """

    test: str
    status: str
    where: str = ""
    warnings: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()

    @property
    def is_configuration(self) -> bool:
        """Whether it failed only for how the machine is set up, such as persistence mode that is off."""
        return bool(self.severities) and set(self.severities) == {_CONFIGURATION}

    def text(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.test}{where}: {self.status}{': ' if self.warnings else ''}{' '.join(self.warnings)}"


def diagnostics(text: str) -> list[Result]:
    """What `dcgmi diag --json` prints: {title: {"test_categories": […]}}, of DCGM 3 and 4. ValueError: no result."""
    document = json.loads(text)
    sections = document.values() if isinstance(document, dict) else ()
    found = [row["test_categories"] for row in sections if isinstance(row, dict) and "test_categories" in row]
    if not found or not isinstance(found[0], list):
        raise ValueError("expected test_categories")
    try:
        results = [one for category in found[0] for test in category["tests"] for one in _results(test)]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected form of a test: {error!r}") from error
    if not results:
        raise ValueError("it has no test")
    return results


def _results(test: Mapping[str, Any]) -> list[Result]:
    """Of each entity, and of the summary what no entity has: DCGM 4 has there what it found of the machine.

    A test that did not run has neither. Source: NVIDIA/DCGM 4, dcgmi/Diag.cpp (HelperJsonAddResult).
    """
    found = [_result(test["name"], row) for row in test.get("results") or ()]
    if "test_summary" not in test:
        return found or [Result(str(test["name"]), "Not Run")]
    whole, told = _result(test["name"], test["test_summary"]), {text for one in found for text in one.warnings}
    pairs = zip(whole.warnings, whole.severities, strict=True)
    own = [(text, severity) for text, severity in pairs if text not in told]  # newer ones repeat all
    whole = replace(whole, warnings=tuple(one for one, _ in own), severities=tuple(one for _, one in own))
    is_told = whole.status in {one.status for one in found} and not own
    return found if is_told else [*found, whole]


def _result(test: str, row: Mapping[str, Any]) -> Result:
    entity = row.get("entity_id", row.get("gpu_id", row.get("gpu_ids", "")))
    where = f"{row.get('entity_group', 'GPU')} {entity}" if str(entity) else ""
    warnings = row.get("warnings") or []
    rows = [item if isinstance(item, dict) else {"warning": item} for item in warnings]
    texts = tuple(str(item.get("warning", item)) for item in rows)
    return Result(str(test), str(row["status"]), where, texts, tuple(item.get("error_severity", -1) for item in rows))


@pytest.mark.needs("promise")
@pytest.mark.parametrize("program", ["dcgmi", "nv-hostengine"])
def test_program_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe, program: str) -> None:
    """dcgmi and the host engine are the planned version. They do not work with another version of each other."""
    done = host.run(f"{program} --version")
    if done.rc != 0 and not version(done.stdout):
        observe.fail(f"{program} --version exited with status {done.rc}: {(done.stderr or done.stdout).strip()}")
    observe.same(version(done.stdout), section(plan, "dcgm", Component)["version"], f"{program} --version")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_host_engine_starts_at_boot(host: Any, observe: Observe) -> None:
    """The host engine starts at boot."""
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), "enabled", f"{_UNIT} at boot")


@pytest.mark.needs("promise")
@pytest.mark.tier("T2")
def test_host_engine_runs(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """The host engine runs on machines with GPUs and was not restarted; without a GPU it is inactive."""
    promised = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    shown = host.run("systemctl show -p ActiveState -p NRestarts %s", _UNIT).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    expected = {"ActiveState": "active" if promised else "inactive", "NRestarts": "0"}
    observe.same({key: state.get(key, "") for key in expected}, expected, _UNIT)


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_every_gpu_is_discovered(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """dcgmi lists every GPU of the instance type by its name. The host engine enumerates GPUs once, when it starts."""
    promised = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    done = host.run("dcgmi discovery -l")
    if done.rc != 0:
        observe(None, promised)
        observe.fail(f"dcgmi discovery -l exited with status {done.rc}: {(done.stdout + done.stderr).strip()}")
    gpus = sorted(pci_address(name) for name in discovered(done.stdout))
    observe(gpus, promised)
    if len(gpus) != promised:
        observe.fail(
            f"dcgmi discovery -l on {machine.instance_type}: expected {promised} GPUs, got {len(gpus)}"
            f" ({', '.join(gpus) or 'none'})"
        )
    if nameless := sorted(pci_address(name) for name in unnamed(done.stdout)):
        observe.fail(f"dcgmi discovery -l: DCGM could not read {', '.join(nameless)}: no name")


@pytest.mark.needs("observed")
@pytest.mark.live
@pytest.mark.tier("T3")
def test_diagnostics_pass(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """DCGM's diagnostics of level 2 (minutes: software, memory, PCIe) pass on every GPU. What was skipped is named."""
    promised = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    if not promised:
        unproven(f"{machine.instance_type} has no GPU")
    listed = host.run(remote.text("replica_packages"), pure=True).stdout
    if replicas := re.findall(rf"(?m)^yes\t({_PACKAGE}\S*)\t", listed):
        unproven(f"{', '.join(replicas)} of the local region run no diagnostics")
    done = host.run("dcgmi diag -r 2 --json", timeout=_DIAGNOSTICS_SECONDS)
    try:
        results = diagnostics(done.stdout)
    except ValueError as error:
        observe(None, "Pass")
        text = (done.stderr or done.stdout).strip()[-300:] or "no output"
        observe.fail(f"dcgmi diag -r 2 --json (exit status {done.rc}) printed no result: {error}; {text}")
    observe([f"{result.test}: {result.status}" for result in results], "Pass")
    failed = [result for result in results if result.status not in ("Pass", "Skip", "Not Run")]
    texts = "; ".join(result.text() for result in failed) or f"exit status {done.rc}"
    if failed and plan.get("origin") == OBSERVED and all(result.is_configuration for result in failed):
        unproven(f"dcgmi diag -r 2 found only settings of this image, no GPU fault: {texts}")
    if failed or done.rc != 0:
        observe.fail(f"dcgmi diag -r 2: {texts}")
    ran = {result.test for result in results if result.status == "Pass"}
    skipped = sorted({result.test for result in results} - ran)
    if skipped:
        unproven(f"dcgmi diag -r 2: skipped {', '.join(skipped)}; passed {', '.join(sorted(ran)) or 'none'}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages of DCGM have exactly the planned versions."""
    packages.check_installed(host, plan, "dcgm", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change DCGM."""
    packages.check_held(host, plan, "dcgm", observe)
