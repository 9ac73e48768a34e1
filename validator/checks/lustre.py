"""The Lustre client is there for every kernel, module and programs of one version, and no upgrade moves it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import modules, packages
from validator.observe import Observe, output

pytestmark = pytest.mark.planned("lustre")


def _client(host: Any, plan: Any) -> tuple[str, str]:
    """The client's package and its installed version."""
    name = plan["lustre"]["package"]
    return name, packages.installed(host, {name: ""}, plan["os"]["family"])[name]


@pytest.mark.tier("T0")
def test_client_is_installed(host: Any, plan: Any, observe: Observe) -> None:
    """The planned package is installed, in the planned version where the plan says one."""
    name, found = _client(host, plan)
    planned = plan["lustre"].plain().get("version", "")
    observe(found, planned or "any")
    if found == packages.MISSING or (planned and found != planned):
        observe.fail(f"{name}: {found}, expected {planned or 'it to be installed'}")


@pytest.mark.tier("T0")
def test_client_is_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade does not move the client away from the kernels that its module was built for."""
    name, found = _client(host, plan)
    observe(found)
    if found == packages.MISSING or not packages.held(host, {name: found}, plan["os"]["family"]):
        observe.fail(f"{name} {found} is not held")


@pytest.mark.tier("T0")
def test_every_kernel_has_the_module(host: Any, observe: Observe) -> None:
    """Every installed kernel has the client's module, in the version of its programs."""
    shown = output(host, "lfs --version").split()
    planned = shown[-1] if shown else ""
    if not re.match(r"\d+(\.\d+)+", planned):
        observe.fail(f"lfs --version names no version: {' '.join(shown)!r}")
    modules.check_on_disk(host, "lustre", planned, observe)


@pytest.mark.tier("T0")
def test_mount_knows_lustre(host: Any, observe: Observe) -> None:
    """mount finds its helper for Lustre, without which no mount in fstab works."""
    found = host.run("command -v mount.lustre").stdout.strip()
    observe(found)
    if not found:
        observe.fail("no mount.lustre on PATH")
