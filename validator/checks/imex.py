"""IMEX is exactly the driver's version, enabled if an instance type needs it, and has an empty node list."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan_document import DriverCompanion, NvidiaDriver, PlanDocument, section
from validator.probes import MachineUnderTest, Program, packages, require_driver

pytestmark = [pytest.mark.planned("imex"), pytest.mark.beside_live]

_UNIT = "nvidia-imex.service"
_CHANNELS = "nvidia-caps-imex-channels"
PROGRAM = Program("nvidia-imex", "IMEX version is")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_imex_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """IMEX reports the planned version. A package name does not prove its contents."""
    PROGRAM.check_planned(host, section(plan, "imex", DriverCompanion)["version"], observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_imex_is_of_the_driver_s_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """IMEX is exactly the loaded driver's version. With any other it exits at once.

    Of image files: the version of the modules that their kernels load.
    """
    PROGRAM.check_of_driver(host, plan, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed package has exactly the planned version."""
    packages.check_installed(host, plan, "imex", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The package is held, so a system upgrade does not separate it from the driver."""
    packages.check_held(host, plan, "imex", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_imex_is_enabled_where_a_family_needs_it(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The unit is enabled if a planned instance type needs IMEX, and disabled otherwise."""
    expected = "enabled" if section(plan, "imex", DriverCompanion).get("instance_types") else "disabled"
    observe.same(host.run("systemctl is-enabled %s", _UNIT).stdout.strip(), expected, f"systemctl is-enabled {_UNIT}")


@pytest.mark.tier("T0")
def test_image_lists_no_machines(host: Any, observe: Observe) -> None:
    """The node list is empty. A list in the image would join the memory of unrelated machines.

    The package brings no list (NVIDIA/gpu-driver-container#200, files of nvidia-imex-570): none is an empty one.
    """
    if host.run("test -e /etc/nvidia-imex/nodes_config.cfg").rc == 1:
        observe("no nodes_config.cfg", "no nodes")
        return
    shown = host.run("cat /etc/nvidia-imex/nodes_config.cfg")
    if shown.rc != 0:
        observe.fail(f"/etc/nvidia-imex/nodes_config.cfg: {shown.stderr.strip()}")
    rows = [line.strip() for line in shown.stdout.splitlines()]
    observe.nothing([row for row in rows if row and not row.startswith("#")], "nodes in nodes_config.cfg")


@pytest.mark.needs("promise")
def test_channel_is_the_driver_s(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """Channel 0 has the driver's device number, and every user can open it. CUDA needs it to share memory.

    A node of another number has the right name and refuses: cuMemCreate ends with CUDA_ERROR_NOT_PERMITTED.
    Source: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
    """
    if machine.instance_type not in section(plan, "imex", DriverCompanion).get("instance_types", []):
        unproven(f"{machine.instance_type} needs no IMEX channel")
    options = section(plan, "nvidia_driver", NvidiaDriver).get("options", {})
    if options.get("NVreg_CreateImexChannel0") != "1":
        unproven("the plan creates no channel (nvidia_driver.options NVreg_CreateImexChannel0): its user does")
    require_driver(host)
    registered = re.search(rf"^\s*(\d+) {_CHANNELS}$", output(host, "cat /proc/devices"), re.MULTILINE)
    major = registered[1] if registered else f"(the driver registered no {_CHANNELS})"
    shown = host.run(f"stat -c '%F %t %T %a' /dev/{_CHANNELS}/channel0")  # device numbers in hexadecimal
    node = shown.stdout.strip() if shown.rc == 0 else "missing"
    if match := re.fullmatch(r"(\D+) ([0-9a-f]+) ([0-9a-f]+) (\d+)", node):
        node = f"{match[1]} {int(match[2], 16)}:{int(match[3], 16)} {match[4]}"
    expected = f"character special file {major}:0 666"
    observe(node, expected)
    if node != expected:
        observe.fail(f"/dev/{_CHANNELS}/channel0: expected {expected}, got {node}")


@pytest.mark.needs("observed")
def test_imex_has_not_failed(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """IMEX has not failed. It is inactive with an empty node list or if the instance type does not need it."""
    state = host.run("systemctl show -p ActiveState --value %s", _UNIT).stdout.strip()
    observe(state, "inactive, or active on a machine of a cluster")
    needs = machine.instance_type in section(plan, "imex", DriverCompanion).get("instance_types", [])
    if state == "failed" or (state == "active" and not needs):
        observe.fail(f"{_UNIT} is {state} on {machine.instance_type}, which {'needs' if needs else 'does not need'} it")
