"""The planned DCGM runs, starts at boot, and lists every GPU of the instance type."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe
from validator.plan import planned_instance_type
from validator.plan_document import Component, PlanDocument, section
from validator.probes import MachineUnderTest, packages, pci_address

pytestmark = pytest.mark.planned("dcgm")

_UNIT = "nvidia-dcgm.service"


def version(text: str) -> str:
    """The version in the output of `dcgmi --version` or `nv-hostengine --version`; "" if there is none."""
    match = re.search(r"(?:^|\s)version\s*:\s*(\d+\.\d+\.\d+)", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def discovered(text: str) -> list[str]:
    """PCI addresses of the GPUs that `dcgmi discovery -l` lists, as nvidia-smi writes them."""
    return re.findall(r"PCI Bus ID:\s*([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.\d)", text)


@pytest.mark.parametrize("program", ["dcgmi", "nv-hostengine"])
def test_program_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe, program: str) -> None:
    """dcgmi and the host engine are the planned version. They do not work with another version of each other."""
    done = host.run(f"{program} --version")
    if done.rc != 0 and not version(done.stdout):
        observe.fail(f"{program} --version exited with status {done.rc}: {(done.stderr or done.stdout).strip()}")
    observe.same(version(done.stdout), section(plan, "dcgm", Component)["version"], f"{program} --version")


@pytest.mark.tier("T0")
def test_host_engine_starts_at_boot(host: Any, observe: Observe) -> None:
    """The host engine starts at boot."""
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), "enabled", f"{_UNIT} at boot")


@pytest.mark.tier("T2")
def test_host_engine_runs(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """The host engine runs on machines with GPUs and was not restarted; without a GPU it is inactive."""
    promised = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    shown = host.run("systemctl show -p ActiveState -p NRestarts %s", _UNIT).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    expected = {"ActiveState": "active" if promised else "inactive", "NRestarts": "0"}
    observe.same({key: state.get(key, "") for key in expected}, expected, _UNIT)


@pytest.mark.tier("T3")
def test_every_gpu_is_discovered(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """dcgmi lists every GPU of the instance type. The host engine enumerates GPUs once, when it starts."""
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


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages of DCGM have exactly the planned versions."""
    packages.check_installed(host, plan, "dcgm", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change DCGM."""
    packages.check_held(host, plan, "dcgm", observe)
