"""The fabric manager is of exactly the driver's version, and runs where there are NVSwitches and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from validator import packages
from validator.beside_driver import Program
from validator.machine import MachineUnderTest
from validator.observe import Observe

pytestmark = pytest.mark.planned("fabric_manager")

_UNIT = "nvidia-fabricmanager.service"
PROGRAM = Program("nv-fabricmanager", "Fabric Manager version is")


@pytest.mark.tier("T0")
def test_fabric_manager_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """The fabric manager itself says the planned version: the package's name does not tell what is in it."""
    PROGRAM.check_planned(host, plan["fabric_manager"]["version"], observe)


def test_fabric_manager_is_of_the_driver_s_version(host: Any, observe: Observe) -> None:
    """It is of the loaded driver's version, to the last number: it refuses any other, and no GPU can be used then."""
    PROGRAM.check_of_loaded_driver(host, observe)


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The package has exactly the planned version."""
    packages.check_installed(host, plan, "fabric_manager", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """No upgrade of the system moves it away from the driver."""
    packages.check_held(host, plan, "fabric_manager", observe)


@pytest.mark.tier("T0")
def test_fabric_manager_is_enabled(host: Any, plan: Any, observe: Observe) -> None:
    """Its unit is enabled: an image that has it is for machines with an NVSwitch, too."""
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), "enabled", f"systemctl is-enabled {_UNIT}")


@pytest.mark.survives
def test_fabric_manager_runs_where_nvswitch_is(
    host: Any, plan: Any, machine: MachineUnderTest, observe: Observe
) -> None:
    """Active where the instance type has NVSwitches; elsewhere left out by its unit's condition, and not failed."""
    promised = plan.instance_type(machine.instance_type)
    wanted = "active" if promised["nvswitch"] else "inactive"
    shown = host.run("systemctl show -p ActiveState -p SubState -p Result -p ConditionResult %s", _UNIT).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    observe(state, wanted)
    if state.get("ActiveState") == wanted:
        return
    name = promised["name"]
    if promised["nvswitch"]:
        switches = host.run("ls -1 /proc/driver/nvidia-nvswitch/devices").stdout.split()
        observe.fail(
            f"{_UNIT} is {state.get('ActiveState', 'unknown')} ({state.get('Result', 'no result')}) on {name}, which "
            f"has NVSwitches (the driver shows {len(switches)}): expected active"
        )
    observe.fail(
        f"{_UNIT} is {state.get('ActiveState', 'unknown')} on {name}, which has no NVSwitch: expected inactive"
    )


@pytest.mark.planned("fabric_manager.nvlsm_instance_types")
@pytest.mark.tier("T0")
def test_subnet_manager_is_there_where_it_is_needed(host: Any, plan: Any, observe: Observe) -> None:
    """With instance types whose NVSwitches need it, nvlsm is installed and ib_umad is loaded at boot."""
    needed = plan["fabric_manager"].plain()["nvlsm_instance_types"]
    names = {"nvlsm": plan["fabric_manager"].plain().get("packages", {}).get("nvlsm", "any")}
    found = packages.installed(host, names, plan["os"]["family"])["nvlsm"]
    loads = host.run("cat /etc/modules-load.d/*.conf").stdout.split()
    observe({"nvlsm": found, "ib_umad": "ib_umad" in loads}, needed)
    if found == packages.MISSING or "ib_umad" not in loads:
        umad = "ib_umad is loaded at boot" if "ib_umad" in loads else "ib_umad is not loaded at boot"
        observe.fail(f"for {', '.join(needed)}: nvlsm is {found}, {umad}")
