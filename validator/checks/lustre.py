"""The Lustre client is installed for every kernel, its module and programs have one version, and it is held."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output
from validator.plan_document import Lustre, PlanDocument, section
from validator.probes import kernel_modules, packages

pytestmark = [pytest.mark.planned("lustre"), pytest.mark.beside_live]


def _client(host: Any, plan: PlanDocument) -> tuple[str, str]:
    """The client's package and its installed version; of packages for single kernels a missing one, if there is any."""
    name = section(plan, "lustre", Lustre)["package"]
    kernels = kernel_modules.on_disk(host, "lustre") if "{release}" in name else [""]
    names = [name.replace("{release}", kernel) for kernel in kernels] or [name]
    versions = packages.installed(host, dict.fromkeys(names, ""), plan["os"]["family"])
    return min(versions.items(), key=lambda row: row[1] != packages.MISSING)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_client_is_installed(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The planned package is installed, in the planned version if the plan has one."""
    name, version = _client(host, plan)
    planned = section(plan, "lustre", Lustre).get("version", "")
    observe(version, planned or "any")
    if version == packages.MISSING or (planned and version != planned):
        observe.fail(f"{name}: expected {planned or 'any version'}, got {version}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_client_is_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The client is held, so an upgrade does not separate it from the kernels of its module."""
    name, version = _client(host, plan)
    observe(version)
    if version == packages.MISSING or not packages.held(host, {name: version}, plan["os"]["family"]):
        observe.fail(f"{name} {version} is not held")


@pytest.mark.tier("T0")
def test_every_kernel_has_the_module(host: Any, observe: Observe) -> None:
    """Every installed kernel has the client's module in the version of its programs."""
    shown = output(host, "lfs --version").split()
    planned = shown[-1] if shown else ""
    if not re.match(r"\d+(\.\d+)+", planned):
        observe.fail(f"lfs --version shows no version: {' '.join(shown)!r}")
    kernel_modules.check_on_disk(host, "lustre", planned, observe)


@pytest.mark.tier("T0")
def test_mount_knows_lustre(host: Any, observe: Observe) -> None:
    """mount.lustre is installed. Without it no Lustre entry in fstab can be mounted."""
    path = host.run("command -v mount.lustre").stdout.strip()
    observe(path)
    if not path:
        observe.fail("no mount.lustre in PATH")
