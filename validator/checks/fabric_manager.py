"""The fabric manager is exactly the driver's version, and runs only on machines with NVSwitches."""

from __future__ import annotations

from typing import Any

import pytest

from validator.observe import Observe
from validator.plan import planned_instance_type
from validator.plan_document import DriverCompanion, PlanDocument, section
from validator.probes import MachineUnderTest, Program, base_driver, packages

pytestmark = [pytest.mark.planned("fabric_manager"), pytest.mark.beside_live]

_UNIT = "nvidia-fabricmanager.service"
PROGRAM = Program("nv-fabricmanager", "Fabric Manager version is")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_fabric_manager_is_the_planned_version(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The fabric manager reports the planned version. A package name does not prove its contents."""
    base_driver.require_installed(host, plan, "driver_branches::test_trees_are_complete")
    planned = section(plan, "fabric_manager", DriverCompanion)["version"]
    if base_driver.has_branches(plan):  # each has its own, of the driver's version
        planned = base_driver.version(plan, machine)
    PROGRAM.check_planned(host, planned, observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_fabric_manager_is_of_the_driver_s_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The fabric manager is exactly the loaded driver's version. With any other it stops and no GPU is usable.

    Of image files: the version of the modules that their kernels load.
    """
    PROGRAM.check_of_driver(host, plan, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed package has exactly the planned version."""
    packages.check_installed(host, plan, "fabric_manager", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The package is held, so a system upgrade does not separate it from the driver."""
    packages.check_held(host, plan, "fabric_manager", observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_fabric_manager_is_enabled(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The unit is enabled. An image with the fabric manager is also for machines with NVSwitches."""
    base_driver.require_installed(host, plan, "driver_branches::test_trees_are_complete")
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), "enabled", f"systemctl is-enabled {_UNIT}")


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_fabric_manager_runs_where_nvswitch_is(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The unit is active on instance types with NVSwitches; elsewhere its condition skips it, and it has not failed."""
    promised = planned_instance_type(plan, machine.instance_type)
    expected = "active" if promised["nvswitch"] else "inactive"
    shown = host.run("systemctl show -p ActiveState -p SubState -p Result -p ConditionResult %s", _UNIT).stdout
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    observe(state, expected)
    if state.get("ActiveState") == expected:
        return
    name = promised["name"]
    if promised["nvswitch"]:
        switches = host.run("ls -1 /proc/driver/nvidia-nvswitch/devices").stdout.split()
        observe.fail(
            f"{_UNIT} on {name}, which has NVSwitches (the driver shows {len(switches)}): expected active,"
            f" got {state.get('ActiveState', 'unknown')} ({state.get('Result', 'no result')})"
        )
    observe.fail(
        f"{_UNIT} on {name}, which has no NVSwitch: expected inactive, got {state.get('ActiveState', 'unknown')}"
    )


@pytest.mark.needs("observed")
@pytest.mark.planned("fabric_manager.nvlsm_instance_types")
@pytest.mark.tier("T0")
def test_subnet_manager_is_there_where_it_is_needed(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvlsm is installed and ib_umad is loaded at boot if the NVSwitches of a planned instance type need them."""
    needed = section(plan, "fabric_manager", DriverCompanion)["nvlsm_instance_types"]
    names = {"nvlsm": section(plan, "fabric_manager", DriverCompanion).get("packages", {}).get("nvlsm", "any")}
    nvlsm = packages.installed(host, names, plan["os"]["family"])["nvlsm"]
    loads = host.run("cat /etc/modules-load.d/*.conf").stdout.split()
    observe({"nvlsm": nvlsm, "ib_umad": "ib_umad" in loads}, needed)
    if nvlsm == packages.MISSING or "ib_umad" not in loads:
        umad = "ib_umad is loaded at boot" if "ib_umad" in loads else "ib_umad is not loaded at boot"
        observe.fail(f"for {', '.join(needed)}: nvlsm is {nvlsm}, {umad}")
