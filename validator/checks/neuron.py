"""The planned Neuron software is installed and held, and driver, tools and monitor show every device."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import NeuronDevices, PlanDocument
from validator.probes import MachineUnderTest, kernel_modules, neuron_reports, packages, shared_libraries

pytestmark = pytest.mark.planned("neuron")

_BIN = "/opt/aws/neuron/bin"
# Package to the soname of its library, and how many numbers of the version the file name has.
LIBRARIES = {"aws-neuronx-runtime-lib": ("libnrt.so.1", 4), "aws-neuronx-collectives": ("libnccom.so.2", 3)}


def _planned(plan: PlanDocument) -> dict[str, str]:
    return packages.planned(plan, "neuron")


def _numbers(version: str) -> str:
    match = re.match(r"\d+(\.\d+)*", version)
    return match[0] if match else ""


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Driver, runtime, collectives and tools have the planned versions, of one tested release."""
    packages.check_installed(host, plan, "neuron", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change one of them alone."""
    packages.check_held(host, plan, "neuron", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_driver_on_disk_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The driver on disk is the planned version for each installed kernel, so the next boot has its devices."""
    kernel_modules.check_on_disk(host, "neuron", _numbers(_planned(plan)["aws-neuronx-dkms"]), observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.parametrize("package", LIBRARIES)
def test_library_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe, package: str) -> None:
    """The library file on the loader path is the planned version, not only its package."""
    planned = _planned(plan)
    if package not in planned:
        unproven(f"the plan has no {package}")
    soname, count = LIBRARIES[package]
    expected = ".".join(_numbers(planned[package]).split(".")[:count])
    files = shared_libraries.on_path(host, soname)
    observe(files, expected)
    if not files:
        observe.fail(f"no {soname} is on the loader path")
    if ".".join(files[0].rpartition(".so.")[2].split(".")[:count]) != expected:
        observe.fail(f"{soname}: expected version {expected}, got {files[0]}")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_loaded_driver_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The loaded driver is the planned version."""
    planned = _numbers(_planned(plan)["aws-neuronx-dkms"])
    shown = host.run("cat /sys/module/neuron/version")
    observe.same(shown.stdout.strip() if shown.rc == 0 else "not loaded", planned, "loaded driver (/sys/module/neuron)")


def _promised(plan: PlanDocument, machine: MachineUnderTest) -> NeuronDevices:
    return planned_instance_type(plan, machine.instance_type)["neuron"]


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_every_promised_device_is_there(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """Every Neuron device of the instance type has a device node."""
    count = _promised(plan, machine)["count"]
    names = [name for name in host.run("ls -1 /dev").stdout.split() if re.fullmatch(r"neuron\d+", name)]
    observe(sorted(names), count)
    if len(names) != count:
        observe.fail(
            f"Neuron device nodes of {machine.instance_type}: expected {count}, got {len(names)}: {sorted(names)}"
        )


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_tools_show_every_promised_core(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """neuron-ls shows every device of the instance type with all of its cores."""
    if "aws-neuronx-tools" not in _planned(plan):
        unproven("the plan has no aws-neuronx-tools")
    promised = _promised(plan, machine)
    rows = _json(output(host, f"{_BIN}/neuron-ls --json-output"), observe)
    cores = {row["neuron_device"]: row["nc_count"] * row.get("logical_neuroncore_config", 1) for row in rows}
    expected = dict.fromkeys(range(promised["count"]), promised["cores"])
    observe.same(cores, expected, f"cores by device (neuron-ls) of {machine.instance_type}")


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_monitor_reports_every_device(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """neuron-monitor reports every device and no error within its deadline. Metrics are read from it."""
    if "aws-neuronx-tools" not in _planned(plan):
        unproven("the plan has no aws-neuronx-tools")
    count = _promised(plan, machine)["count"]
    shown = host.run(f"timeout {neuron_reports.SECONDS} {neuron_reports.PROGRAM} | head -n 1")
    if not shown.stdout.strip():
        observe.fail(
            f"neuron-monitor printed nothing within {neuron_reports.SECONDS} s: {shown.stderr.strip() or 'no error'}"
        )
    hardware = _json(shown.stdout, observe).get("neuron_hardware_info", {})
    # A capture of an inf2.xlarge with runtime 2.30 has no `error` there: no error, as "".
    state = {"devices": hardware.get("neuron_device_count"), "error": hardware.get("error") or ""}
    observe.same(state, {"devices": count, "error": ""}, "neuron-monitor's neuron_hardware_info")


def _json(text: str, observe: Observe) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        observe.fail(f"not JSON ({error}): {text.strip()[:200]!r}")
