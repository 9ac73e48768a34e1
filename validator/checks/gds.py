"""GPUDirect Storage is installed: nvidia-fs for every kernel, built beside the driver and loaded with it; cuFile."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import Gds, PlanDocument, section
from validator.probes import MachineUnderTest, kernel_modules, packages, shared_libraries

pytestmark = [pytest.mark.planned("gds"), pytest.mark.beside_live]

_MODULE = "nvidia-fs"
_SETTINGS = "/etc/dkms/nvidia-fs.conf"
_CONFIGURATION = "/etc/cufile.json"
_GDSCHECK = "/usr/local/cuda/gds/tools/gdscheck"


def version(code: int) -> str:
    """The result of cuFileGetVersion as a version: 1180 is 1.18."""
    return f"{code // 1000}.{code % 1000 // 10}"


def _planned(plan: PlanDocument) -> str:
    return section(plan, "gds", Gds)["version"]


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every installed kernel has the planned nvidia-fs, so the next boot has it."""
    kernel_modules.check_on_disk(host, _MODULE, _planned(plan), observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_module_fits_the_driver(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvidia-fs was built against the driver on disk, for each kernel. Otherwise the kernel does not load it."""
    kernels = kernel_modules.symbols(host, _MODULE, "nvidia")
    silent = [kernel for kernel, found in kernels.items() if not found["nvidia"].exports]
    faults = {
        kernel: kernel_modules.misfit(found[_MODULE], found["nvidia"], "nvidia_p2p_")
        for kernel, found in kernels.items()
    }
    observe(faults, "built against the driver's nvidia_p2p symbols")
    if silent or not kernels:
        unproven(f"no symbols of nvidia are known for {', '.join(silent) or 'any kernel'}: see nvidia_driver")
    wrong = [f"{kernel}: {fault}" for kernel, fault in faults.items() if fault]
    if wrong:
        observe.fail(f"{_MODULE}: {'; '.join(wrong)}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_tables_have_the_planned_sizes(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """DKMS builds nvidia-fs with the planned sizes: with NVIDIA's own a P5 has more devices than the module knows."""
    planned = {name: str(size) for name, size in section(plan, "gds", Gds).get("build", {}).items()}
    settings = host.run("cat %s", _SETTINGS).stdout
    observe.same(dict(re.findall(r"(NVFS_\w+)=(\d+)", settings)), planned, f"sizes in {_SETTINGS}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_configuration_can_be_read(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """cuFile's configuration is JSON with comments. cuFile does not start with one that it cannot read."""
    text = output(host, "cat %s", _CONFIGURATION)
    try:
        keys = sorted(json.loads(re.sub(r"^\s*//.*$|(?<=[\s,{\[])//.*$", "", text, flags=re.MULTILINE)))
    except (ValueError, TypeError) as error:
        observe.fail(f"{_CONFIGURATION} is not JSON: {error}")
    observe(keys, "JSON")


@pytest.mark.needs("promise")
def test_library_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The cuFile on the loader path is that of the planned CUDA toolkit, as gds-tools is."""
    tools = section(plan, "gds", Gds).get("tools", "")
    library = shared_libraries.call(host, observe, "libcufile.so.0", "cuFileGetVersion", "int*")
    found = version(int(library.value))
    if not tools:
        unproven(f"the plan names no version of cuFile: {library.file} is {found}")
    observe.same(found, ".".join(tools.split(".")[:2]), f"cuFileGetVersion of {library.file}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages have exactly the planned versions."""
    packages.check_installed(host, plan, "gds", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change the module."""
    packages.check_held(host, plan, "gds", observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T2")
@pytest.mark.survives
def test_module_is_loaded_with_the_driver(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The module is loaded on machines with GPUs, and every user can open its devices."""
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    shown = host.run("cat /sys/module/nvidia_fs/version")
    node = host.run("stat -c '%F %a' /dev/nvidia-fs0").stdout.strip()
    state = {"module": shown.stdout.strip() if shown.rc == 0 else "not loaded", "/dev/nvidia-fs0": node or "missing"}
    observe.same(state, {"module": _planned(plan), "/dev/nvidia-fs0": "character special file 666"}, _MODULE)


@pytest.mark.needs("observed")
@pytest.mark.tier("T2")
def test_gdscheck_finds_the_module(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """NVIDIA's gdscheck finds the module of the planned version; without it cuFile copies through the CPU."""
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    done = host.run("%s -p", _GDSCHECK)
    found = dict(re.findall(r"^\s*(GDS release version|nvidia_fs version)\s*:\s*(\S+)", done.stdout, re.MULTILINE))
    expected = {"nvidia_fs version": ".".join(_planned(plan).split(".")[:2])}
    if tools := section(plan, "gds", Gds).get("tools"):
        expected["GDS release version"] = tools
    observe(found, expected)
    wrong = [f"{name}: expected {value}, got {found.get(name, 'none')}" for name, value in expected.items()
             if found.get(name) != value]  # fmt: skip
    if done.rc != 0 or wrong:
        said = (done.stderr or done.stdout).strip()[-200:] or "no output"
        observe.fail(f"{_GDSCHECK} -p exited with status {done.rc}: {'; '.join(wrong) or said}")
