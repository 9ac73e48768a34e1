"""The driver's way to user space: the module for unified memory, and the device nodes that CUDA and containers open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from validator.observe import Observe, output
from validator.plan import OBSERVED
from validator.plan_document import NvidiaDriver, PlanDocument, section
from validator.probes import MachineUnderTest, base_driver, kernel_modules, require_driver

pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.beside_live]

_UNIT = "nvidia-device-nodes.service"
# What containers are given (libnvidia-container, nvc_info.c; nvidia-ctk's CDI specification), and each node's mode: the
# driver's default, and for capabilities that of NVIDIA's MIG user guide, "Device Nodes and Capabilities".
_INFORMATION = "cat /proc/driver/nvidia/gpus/*/information"
_CAPABILITIES = "/proc/driver/nvidia/capabilities/mig"
_OF_CAPABILITIES = {"/dev/nvidia-caps/nvidia-cap1": 0o400, "/dev/nvidia-caps/nvidia-cap2": 0o444}
_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_STAT = f"stat -c '%F|%a|%n' {' '.join(_SHARED)} /dev/nvidia[0-9]* /dev/nvidia-caps/*"


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_uvm_module_is_on_disk_for_every_kernel(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """Every installed kernel has the module nvidia-uvm of the planned driver. CUDA does not start without it.

    The original names no version in it, so only one that it names is compared.
    """
    base_driver.require_modules(host, plan)
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    planned = base_driver.version(plan, machine)
    module = f"{driver.get('module', 'nvidia')}-uvm"
    kernel_modules.check_on_disk(host, module, planned, observe, fits=lambda version: version in ("", planned))


@pytest.mark.survives
@pytest.mark.usefixtures("board")
def test_uvm_module_is_loaded(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvidia-uvm is loaded since the boot. A program in a container, or without root's rights, cannot load it.

    An image as found may leave that to nvidia-modprobe, which libcuda starts.
    """
    require_driver(host)
    if _on_demand(host, plan, observe):
        return
    loaded = [line.split()[0] for line in output(host, "cat /proc/modules").splitlines() if line.startswith("nvidia")]
    observe(loaded, "nvidia_uvm")
    if not any(name.endswith("_uvm") for name in loaded):
        observe.fail(f"nvidia-uvm is not loaded: expected it in /proc/modules, got {', '.join(loaded) or 'none'}")


@pytest.mark.survives
@pytest.mark.usefixtures("board")
def test_device_nodes_are_there(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The nodes that CUDA and containers open exist after a boot, with the modes that their users need.

    An image as found may leave them to nvidia-modprobe, which libcuda starts, and those of MIG to whoever uses it.
    """
    require_driver(host)
    if _on_demand(host, plan, observe):
        return
    rows = (line.split("|") for line in host.run(_STAT).stdout.splitlines())
    nodes = {path: int(mode, 8) for kind, mode, path in rows if kind == "character special file"}
    expected = dict.fromkeys(_SHARED, 0o666)
    minors = re.findall(r"^Device Minor:\s*(\d+)$", host.run(_INFORMATION).stdout, re.MULTILINE)
    expected |= dict.fromkeys((f"/dev/nvidia{minor}" for minor in minors), 0o666)
    if plan.get("origin") == OBSERVED:
        expected |= {path: mode for path, mode in _OF_CAPABILITIES.items() if path in nodes}
    elif host.run("test -e %s", _CAPABILITIES).rc == 0:
        expected |= _OF_CAPABILITIES
    observe(_octal(nodes), _octal(expected))
    wrong = [
        f"{path}: expected mode {mode:o}, got {f'{nodes[path]:o}' if path in nodes else 'no character device'}"
        for path, mode in expected.items()
        if nodes.get(path) != mode
    ]
    if wrong:
        by = "neither a unit nor nvidia-modprobe" if plan.get("origin") == OBSERVED else _UNIT
        observe.fail(f"device nodes ({by} creates them): {'; '.join(wrong)}")


def _on_demand(host: Any, plan: PlanDocument, observe: Observe) -> bool:
    """Whether an image as found has nvidia-modprobe with its setuid bit: the nodes are made when CUDA first starts."""
    if plan.get("origin") != OBSERVED:
        return False
    mode = host.run("stat -L -c %a:%u /usr/bin/nvidia-modprobe 2>/dev/null").stdout.strip()
    if not re.fullmatch(r"4[0-7]{2}[1357]:0", mode):
        return False
    observe("on demand, by nvidia-modprobe (setuid root)")
    return True


def _octal(nodes: Mapping[str, int]) -> dict[str, str]:
    return {path: f"{mode:o}" for path, mode in nodes.items()}
