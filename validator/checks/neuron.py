"""The planned Neuron software is installed and held, and driver, tools and monitor show every promised device."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator import loader, modules, packages
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("neuron")

_BIN = "/opt/aws/neuron/bin"
_MONITOR_SECONDS = 20  # its first report comes within a period of five seconds; emulation is slow
# Package → the library that it brings, by the name that programs ask the loader for, and how many numbers of the
# version its file has.
LIBRARIES = {"aws-neuronx-runtime-lib": ("libnrt.so.1", 4), "aws-neuronx-collectives": ("libnccom.so.2", 3)}


def _planned(plan: Any) -> dict[str, str]:
    return packages.planned(plan, "neuron")


def _numbers(version: str) -> str:
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0] if found else ""


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """Driver, runtime, collectives and tools are of one tested release."""
    packages.check_installed(host, plan, "neuron", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move one of them without the others."""
    packages.check_held(host, plan, "neuron", observe)


@pytest.mark.tier("T0")
def test_driver_on_disk_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """For each installed kernel, the driver on disk is the planned version, so the next boot has its devices too."""
    modules.check_on_disk(host, "neuron", _numbers(_planned(plan)["aws-neuronx-dkms"]), observe)


@pytest.mark.tier("T0")
@pytest.mark.parametrize("package", LIBRARIES)
def test_library_is_the_planned_one(host: Any, plan: Any, observe: Observe, package: str) -> None:
    """Programs get the planned library: what the file that the loader takes says, not the package alone."""
    planned = _planned(plan)
    if package not in planned:
        unproven(f"the plan has no {package}")
    soname, count = LIBRARIES[package]
    wanted = ".".join(_numbers(planned[package]).split(".")[:count])
    files = loader.on_path(host, soname)
    observe(files, wanted)
    if not files:
        observe.fail(f"no {soname} is on the loader path")
    found = ".".join(files[0].rpartition(".so.")[2].split(".")[:count])
    if found != wanted:
        observe.fail(f"{soname} is {files[0]}, expected version {wanted}")


@pytest.mark.survives
def test_loaded_driver_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The driver in the kernel is the planned version."""
    planned = _numbers(_planned(plan)["aws-neuronx-dkms"])
    shown = host.run("cat /sys/module/neuron/version")
    observe.same(shown.stdout.strip() if shown.rc == 0 else "not loaded", planned, "loaded driver (/sys/module/neuron)")


def _promised(plan: Any, machine: MachineUnderTest) -> dict[str, Any]:
    return dict(plan.instance_type(machine.instance_type)["neuron"])


@pytest.mark.survives
def test_every_promised_device_is_there(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """There is a node for each device that the instance type has."""
    count = _promised(plan, machine)["count"]
    names = [name for name in host.run("ls -1 /dev").stdout.split() if re.fullmatch(r"neuron\d+", name)]
    observe(sorted(names), count)
    if len(names) != count:
        observe.fail(f"{machine.instance_type} has {count} Neuron devices, found {len(names)} nodes: {sorted(names)}")


@pytest.mark.survives
def test_tools_show_every_promised_core(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """neuron-ls shows the devices that there are nodes for, each with all of its cores."""
    if "aws-neuronx-tools" not in _planned(plan):
        unproven("the plan has no aws-neuronx-tools")
    promised = _promised(plan, machine)
    rows = _json(output(host, f"{_BIN}/neuron-ls --json-output"), observe)
    found = {row["neuron_device"]: row["nc_count"] * row.get("logical_neuroncore_config", 1) for row in rows}
    wanted = dict.fromkeys(range(promised["count"]), promised["cores"])
    observe.same(found, wanted, f"cores by device (neuron-ls) of {machine.instance_type}")


@pytest.mark.survives
def test_monitor_reports_every_device(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """neuron-monitor answers within its deadline, counts every device and says no error: metrics come from it."""
    if "aws-neuronx-tools" not in _planned(plan):
        unproven("the plan has no aws-neuronx-tools")
    count = _promised(plan, machine)["count"]
    shown = host.run(f"timeout {_MONITOR_SECONDS} {_BIN}/neuron-monitor | head -n 1")
    if not shown.stdout.strip():
        observe.fail(f"neuron-monitor said nothing within {_MONITOR_SECONDS} s: {shown.stderr.strip() or 'no error'}")
    hardware = _json(shown.stdout, observe).get("neuron_hardware_info", {})
    found = {"devices": hardware.get("neuron_device_count"), "error": hardware.get("error")}
    observe.same(found, {"devices": count, "error": ""}, "neuron-monitor's neuron_hardware_info")


def _json(text: str, observe: Observe) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        observe.fail(f"not JSON ({error}): {text.strip()[:200]!r}")
