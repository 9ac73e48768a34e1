"""IMEX is of exactly the driver's version, enabled where a family needs it, and carries no list of machines."""

from __future__ import annotations

from typing import Any

import pytest

from validator import packages
from validator.beside_driver import Program
from validator.machine import MachineUnderTest
from validator.observe import Observe

pytestmark = pytest.mark.planned("imex")

_UNIT = "nvidia-imex.service"
PROGRAM = Program("nvidia-imex", "IMEX version is")


@pytest.mark.tier("T0")
def test_imex_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """IMEX itself says the planned version: the package's name does not tell what is in it."""
    PROGRAM.check_planned(host, plan["imex"]["version"], observe)


def test_imex_is_of_the_driver_s_version(host: Any, observe: Observe) -> None:
    """It is of the loaded driver's version, to the last number: it ends at once beside any other."""
    PROGRAM.check_of_loaded_driver(host, observe)


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The package has exactly the planned version."""
    packages.check_installed(host, plan, "imex", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """No upgrade of the system moves it away from the driver."""
    packages.check_held(host, plan, "imex", observe)


@pytest.mark.tier("T0")
def test_imex_is_enabled_where_a_family_needs_it(host: Any, plan: Any, observe: Observe) -> None:
    """Its unit is enabled if an instance type of the plan needs it, and not without one."""
    wanted = "enabled" if plan["imex"].plain().get("instance_types") else "disabled"
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), wanted, f"systemctl is-enabled {_UNIT}")


@pytest.mark.tier("T0")
def test_image_lists_no_machines(host: Any, observe: Observe) -> None:
    """The list of machines is empty: it is the cluster's, and an image's would join strangers' memory."""
    shown = host.run("cat /etc/nvidia-imex/nodes_config.cfg")
    if shown.rc != 0:
        observe.fail(f"/etc/nvidia-imex/nodes_config.cfg: {shown.stderr.strip()}")
    rows = [line.strip() for line in shown.stdout.splitlines()]
    observe.nothing([row for row in rows if row and not row.startswith("#")], "machines in nodes_config.cfg")


def test_imex_has_not_failed(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """It is left out where nothing is listed or the instance type does not need it, and has not failed."""
    state = host.run("systemctl show -p ActiveState --value %s", _UNIT).stdout.strip()
    observe(state, "inactive, or active on a machine of a cluster")
    needs = machine.instance_type in plan["imex"].plain().get("instance_types", [])
    if state == "failed" or (state == "active" and not needs):
        observe.fail(f"{_UNIT} is {state} on {machine.instance_type}, which {'needs' if needs else 'does not need'} it")
