"""The planned GDRCopy is installed: a module for every kernel, loaded with the driver, and the library."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import Component, PlanDocument, section
from validator.probes import MachineUnderTest, kernel_modules, shared_libraries

pytestmark = [pytest.mark.planned("gdrcopy"), pytest.mark.beside_live]

_LIBRARY = "libgdrapi.so.2"
_SANITY = "/usr/local/bin/gdrcopy_sanity"


def reported_version(version: str) -> str:
    """The version that module and library report for a release: 2.5 for 2.5.1."""
    return ".".join(version.split(".")[:2])


def _reported(plan: PlanDocument) -> str:
    return reported_version(section(plan, "gdrcopy", Component)["version"])


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every installed kernel has the planned module, so the next boot has it."""
    kernel_modules.check_on_disk(host, "gdrdrv", _reported(plan), observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_dkms_has_the_planned_release(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """DKMS has exactly the planned release. The module reports only two numbers of its version."""
    planned = section(plan, "gdrcopy", Component)["version"]
    status = output(host, "dkms status -m gdrdrv")
    releases = sorted(set(re.findall(r"^gdrdrv[/,]\s*([\w.]+),[^:]+: installed", status, re.MULTILINE)))
    observe.same(releases, [planned], f"gdrdrv releases installed by DKMS ({status.strip() or 'none'})")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_library_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The libgdrapi on the loader path is the planned version. It must match the module."""
    planned = _reported(plan)
    files = shared_libraries.on_path(host, _LIBRARY)
    observe(files, planned)
    if not files:
        observe.fail(f"no {_LIBRARY} is on the loader path")
    if files[0].rpartition(".so.")[2] != planned:
        observe.fail(f"{_LIBRARY}: expected version {planned}, got {files[0]}")


@pytest.mark.needs("observed")
@pytest.mark.tier("T2")
@pytest.mark.survives
def test_module_is_loaded_beside_the_driver(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The module is loaded on machines with GPUs, and every user can open its device."""
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    planned = _reported(plan)
    shown = host.run("cat /sys/module/gdrdrv/version")
    node = host.run("stat -c '%F %a' /dev/gdrdrv").stdout.strip()
    state = {"module": shown.stdout.strip() if shown.rc == 0 else "not loaded", "/dev/gdrdrv": node or "missing"}
    observe.same(state, {"module": planned, "/dev/gdrdrv": "character special file 666"}, "gdrdrv")


@pytest.mark.needs("observed")
@pytest.mark.tier("T2")
def test_sanity_passes(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """GDRCopy's own test passes on the GPUs of this machine."""
    if "cuda" not in plan:
        unproven("GDRCopy's programs need the CUDA toolkit, which is not planned")
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    done = host.run(_SANITY)
    counted = re.search(r"^Total: (\d+), Passed: (\d+), Failed: (\d+)", done.stdout, re.MULTILINE)
    observe(counted[0] if counted else done.stdout[-200:], "Failed: 0")
    if done.rc != 0 or not counted or int(counted[2]) == 0 or int(counted[3]):
        observe.fail(f"{_SANITY} exited with status {done.rc}: {_said(done.stdout, done.stderr)}")


def _said(stdout: str, stderr: str) -> str:
    """The counts with the names of the failed tests, then its errors; else what it printed last."""
    counted = re.search(r"^Total: \d+, Passed: \d+, Failed: \d+.*$", stdout, re.MULTILINE)
    if not counted:
        return (stdout + stderr).strip()[-300:] or "no output"
    listed = re.search(r"^List of failed tests:\s*\n((?:[ \t]+\S.*\n?)+)", stdout, re.MULTILINE)
    failed = f"; failed: {', '.join(listed[1].split())}" if listed else ""
    return f"{counted[0].strip()}{failed}{'; ' if stderr.strip() else ''}{stderr.strip()[:200]}"
