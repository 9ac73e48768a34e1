"""The planned GDRCopy is there: module for every kernel and loaded beside the driver, library on the loader path."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import loader, modules
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("gdrcopy")

_LIBRARY = "libgdrapi.so.2"
_SANITY = "/usr/local/bin/gdrcopy_sanity"


def said_version(version: str) -> str:
    """What module and library say of a release: 2.5 of 2.5.1."""
    return ".".join(version.split(".")[:2])


@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """Every installed kernel has the planned module, so that the next boot has it too."""
    modules.check_on_disk(host, "gdrdrv", said_version(plan["gdrcopy"]["version"]), observe)


@pytest.mark.tier("T0")
def test_dkms_has_the_planned_release(host: Any, plan: Any, observe: Observe) -> None:
    """DKMS builds that release for kernels to come: the module itself says two numbers of the version alone."""
    planned = plan["gdrcopy"]["version"]
    status = output(host, "dkms status -m gdrdrv")
    found = sorted(set(re.findall(r"^gdrdrv[/,]\s*([\w.]+),[^:]+: installed", status, re.MULTILINE)))
    observe.same(found, [planned], f"releases of gdrdrv that DKMS has installed ({status.strip() or 'none'})")


@pytest.mark.tier("T0")
def test_library_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """Programs get the planned libgdrapi: it has to fit the module."""
    planned = said_version(plan["gdrcopy"]["version"])
    files = loader.on_path(host, _LIBRARY)
    observe(files, planned)
    if not files:
        observe.fail(f"no {_LIBRARY} is on the loader path")
    found = files[0].rpartition(".so.")[2]
    if found != planned:
        observe.fail(f"{_LIBRARY} is {files[0]}, expected version {planned}")


@pytest.mark.tier("T2")
@pytest.mark.survives
def test_module_is_loaded_beside_the_driver(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Where there are GPUs, the module is loaded and everybody can open its device."""
    if not plan.instance_type(machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    planned = said_version(plan["gdrcopy"]["version"])
    shown = host.run("cat /sys/module/gdrdrv/version")
    node = host.run("stat -c '%F %a' /dev/gdrdrv").stdout.strip()
    found = {"module": shown.stdout.strip() if shown.rc == 0 else "not loaded", "/dev/gdrdrv": node or "missing"}
    observe.same(found, {"module": planned, "/dev/gdrdrv": "character special file 666"}, "gdrdrv")


@pytest.mark.tier("T2")
def test_sanity_passes(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """GDRCopy's own test passes on this machine's GPUs."""
    if "cuda" not in plan:
        unproven("GDRCopy's programs are built with the CUDA toolkit, which the plan does not have")
    if not plan.instance_type(machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    done = host.run(_SANITY)
    counted = re.search(r"^Total: (\d+), Passed: (\d+), Failed: (\d+)", done.stdout, re.MULTILINE)
    observe(counted[0] if counted else done.stdout[-200:], "Failed: 0")
    if done.rc != 0 or not counted or int(counted[2]) == 0 or int(counted[3]):
        observe.fail(f"{_SANITY} ended with {done.rc}: {(done.stdout + done.stderr).strip()[-300:] or 'no output'}")
