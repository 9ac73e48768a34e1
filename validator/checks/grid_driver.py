"""NVIDIA's GRID driver is the only driver, and its licence daemon has the planned settings and a licence."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.pci import PCI_LIST
from validator.plan_document import NvidiaDriver, PlanDocument, section
from validator.probes import hardware, packages

pytestmark = pytest.mark.planned("nvidia_driver.licence_settings")

_SETTINGS, _UNIT = "/etc/nvidia/gridd.conf", "nvidia-gridd.service"
# Packages of NVIDIA's and of the systems' repositories that bring a driver's module, libcuda or nvidia-smi.
_DRIVER_PACKAGES = (
    "nvidia-driver*", "nvidia-kernel-*", "nvidia-dkms*", "nvidia-open*", "nvidia-utils-*", "nvidia-compute-utils-*",
    "nvidia-smi", "libnvidia-compute*", "libcuda1", "kmod-nvidia-*", "nvidia-kmod-common", "cuda-drivers*",
)  # fmt: skip


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_no_driver_package_is_installed(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No package of another NVIDIA driver is installed. Its next upgrade would replace files of the GRID driver."""
    debian = plan["os"]["family"] == "debian"
    query = "dpkg-query -W -f '${db:Status-Status} ${Package}\\n'" if debian else "rpm -qa --qf 'installed %%{NAME}\\n'"
    packages.require_readable(host, plan["os"]["family"])
    rows = [line.split() for line in output(host, query).splitlines()]
    names = sorted({row[1] for row in rows if len(row) == 2 and row[0] == "installed"})
    observe.nothing(
        [name for name in names if any(fnmatchcase(name, pattern) for pattern in _DRIVER_PACKAGES)],
        "packages of another driver beside the GRID driver",
    )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_licence_daemon_has_its_settings(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """gridd.conf has the planned settings alone. They decide which product the driver is licensed as."""
    lines = [line.partition("#")[0].strip() for line in output(host, f"cat {_SETTINGS}").splitlines()]
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    observe.same(settings, section(plan, "nvidia_driver", NvidiaDriver)["licence_settings"], _SETTINGS)


@pytest.mark.needs("promise")
@pytest.mark.survives
@pytest.mark.usefixtures("board")
def test_licence_daemon_runs(host: Any, observe: Observe) -> None:
    """The licence daemon runs and starts at boot. Without it the driver loses performance after a day."""
    states = [host.run(f"systemctl {verb} {_UNIT}").stdout.strip() for verb in ("is-active", "is-enabled")]
    observe.same(states, ["active", "enabled"], _UNIT)


@pytest.mark.needs("promise")
@pytest.mark.tier("T2")
@pytest.mark.survives
@pytest.mark.usefixtures("board")
def test_every_gpu_is_licensed(host: Any, observe: Observe) -> None:
    """nvidia-smi shows a licence of every GPU. Simulated boards have none.

    Source: https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/ (verifying the license status)
    """
    require_licences(host, observe)


def require_licences(host: Any, observe: Observe) -> None:
    """Fails unless nvidia-smi shows a licence of every GPU. UNPROVEN on simulated boards."""
    __tracebackhide__ = True
    bus = [device for device in hardware.pci_devices(host.run(PCI_LIST, pure=True).stdout) if device.is_gpu]
    if hardware.is_simulated(bus):
        unproven("GRID licensing cannot be tested on simulated GPUs")
    shown = output(host, "nvidia-smi -q")
    states = re.findall(r"^\s+License Status\s+: (.+)$", shown, re.MULTILINE)
    observe(states, f"Licensed, {len(bus)} GPUs")
    unlicensed = [state for state in states if not state.startswith("Licensed")]
    if unlicensed or len(states) < len(bus):
        observe.fail(f"License Status of {len(bus)} GPUs: expected Licensed, got {', '.join(states) or 'none'}")
