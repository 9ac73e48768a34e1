"""Builds a driver's module on the kernel of the plan's base image, in a sandbox: `gpu-ami sources --build`."""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import BuildError, UsageError
from validator.plan_document import NvidiaDriver, section

if TYPE_CHECKING:
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress

_ROLES = ("kernel", "nvidia_driver")
_ERROR = re.compile(r"error: (.+)")


def require_buildable(plan: Plan) -> None:
    """UsageError where the local region has no real packages of the driver, or we are not root."""
    from localregion.images import rootfs_layers

    driver = section(plan.document, "nvidia_driver", NvidiaDriver)
    if not driver or "provided_by" in driver:
        raise UsageError(
            f"{plan.image}: --build tries the NVIDIA driver that a plan installs, and this plan installs none"
        )
    if driver.get("source") != "distribution":
        raise UsageError(
            f"{plan.image}: --build has real packages of the system's own archive alone, and this driver is NVIDIA's",
            hint="`nvidia_driver: {source: distribution}`; for NVIDIA's own packages the local region has replicas, "
            "whose build says nothing of the driver's",
        )
    rootfs_layers.require_root("sources --build")


def try_build(plan: Plan, progress: Progress) -> dict[str, Any]:
    """A row of `builds` in variables/facts/distribution_drivers.yml: what DKMS makes of the planned module."""
    from gpu_ami.build import Machine, converge
    from gpu_ami.files import data_root, home_dir
    from gpu_ami.plan import ANSIBLE_FILE, ansible_variables
    from localregion.images import source_ami
    from localregion.machines import Devices
    from localregion.mirror import mirror
    from localregion.sandbox import sandbox

    home, base = home_dir(), source_ami.base_of(plan.document)
    mirror.ensure(home, plan=plan.document, agent_package=None, progress=progress)
    with tempfile.TemporaryDirectory() as name, sandbox.entered(base, Devices(), home, progress) as box:
        variables = Path(name) / ANSIBLE_FILE
        variables.write_text(json.dumps(ansible_variables(plan.document)), encoding="utf-8")
        machine = Machine(box.host, box.port, box.user, Path(box.key), slow_python=True)
        error = ""
        try:
            with progress.stage(f"build the kernel module of {plan.image} on {box.kernel}"):
                converge(data_root(), variables, machine, roles=_ROLES, note=progress.note)
        except BuildError as failed:
            error = module_error(Path(box.root))
            if not error:  # something other than the module's build
                raise failed
    return build_row(plan, box.kernel, base.name, error)


def build_row(plan: Plan, kernel: str, base: str, error: str) -> dict[str, Any]:
    """The row as rule module_builds_on_kernel reads it."""
    driver = section(plan.document, "nvidia_driver", NvidiaDriver)
    row: dict[str, Any] = {"kernel": kernel, "driver": driver["version"], "flavour": driver["flavour"]}
    row |= {"builds": not error} | ({"error": error} if error else {})
    source = f"DKMS on {kernel} in a sandbox of {base} (gpu-ami sources --build)"
    return row | {"source": source, "date": datetime.date.today().isoformat()}


def module_error(root: Path) -> str:
    """The compiler's first error in DKMS's newest log below `root`; empty where nothing was built or nothing failed."""
    logs = sorted(root.glob("var/lib/dkms/*/*/build/make.log"), key=lambda path: path.stat().st_mtime)
    for log in reversed(logs):
        found = _ERROR.search(log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1].strip()
    return ""
