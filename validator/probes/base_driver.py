"""The driver version of a machine, and programs that require exactly this version: the fabric manager and IMEX.

A base AMI may take one of several drivers at the first boot: which one is planned, and where its files are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from validator.observe import Observe, unproven
from validator.plan import OBSERVED
from validator.plan_document import DriverBranch, NvidiaDriver, PlanDocument, section
from validator.probes import kernel_modules
from validator.probes.hardware import loaded_version, require_driver
from validator.probes.machine import MachineUnderTest
from validator.transport import backend


def planned_branch(plan: PlanDocument, instance_type: str) -> tuple[str, DriverBranch]:
    """Name and branch that an instance type takes. UNPROVEN if the plan has none for it."""
    for name, branch in section(plan, "nvidia_driver", NvidiaDriver)["branches"].items():
        if instance_type in branch["instance_types"]:
            return name, branch
    unproven(f"the plan has no driver branch for {instance_type}")


def version(plan: PlanDocument, machine: MachineUnderTest) -> str:
    """The planned version of the driver on this machine: of its type's branch where the base AMI has several."""
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    if "branches" not in driver:
        return driver["version"]
    return planned_branch(plan, machine.instance_type)[1]["version"]


def registered_files(host: Any, plan: PlanDocument) -> frozenset[str]:
    """Files of the packages that the base AMI registers at the first boot; it leaves some of them in the taken tree.

    Its kernel module has no source on the machine, so the files of that package are missing (setup and package
    installation of amazon-eks-ami, pull request 2819).
    """
    branches = section(plan, "nvidia_driver", NvidiaDriver).get("branches", {}) if "nvidia_driver" in plan else {}
    if branches:
        folder = f"{PurePosixPath(next(iter(branches.values()))['tree']).parent}/current"
    elif plan.get("origin") == OBSERVED and plan["os"]["family"] == "redhat":
        folder = _TAKEN
    else:
        return frozenset()
    listed = host.run(
        "rpm --query --package --list --nosignature %s/.rpms/*.rpm %s/flavors/$(cat %s/.driver-flavor)/.rpms/*.rpm",
        *[folder] * 3,
    )
    return frozenset(listed.stdout.split("\n")) - {""}


# Signatures were verified when the packages were downloaded; the key need not be in the image.
_MODPROBE = """
set -- %s/.rpms/nvidia-modprobe-*.rpm
rpm --query --package --dump --nosignature "$1" | while read -r path _ _ digest mode _; do
    file=%s$path
    [ "$mode $digest" != "010$(stat -c %%a "$file") $(sha256sum <"$file" | cut -c1-64)" ] || echo "$file"
done"""
_MODPROBE_OF_TREE = re.compile(r"(/opt/nvidia/[^/]+)/usr/bin/nvidia-modprobe")


def kept_modprobes(host: Any, paths: Sequence[str]) -> list[str]:
    """Those of the paths that are the setuid nvidia-modprobe of a kept driver, as in the package that lies beside it.

    EKS's AMI unpacks the packages of each driver below /opt/nvidia, with their modes, and registers those of one with
    rpm at the first boot; until then rpm knows nothing of them (amazon-eks-ami 0627b680, nvidia-userspace.sh:
    nvidia-driver-cuda requires nvidia-modprobe).
    """
    trees = sorted({match[1] for path in paths if (match := _MODPROBE_OF_TREE.fullmatch(path))})
    same = [line for tree in trees for line in host.run(_MODPROBE, tree, tree).stdout.splitlines()]
    return [path for path in paths if path in same]


def keeps_drivers(host: Any, plan: PlanDocument) -> bool:
    """Whether the image keeps drivers of which the first boot takes one: as planned, or in an image as found."""
    return has_branches(plan) or (plan.get("origin") == OBSERVED and bool(host.run(_KEPT_MODULES).stdout.split()))


def has_branches(plan: PlanDocument) -> bool:
    """Whether the base AMI takes one of several drivers at the first boot."""
    return "nvidia_driver" in plan and "branches" in section(plan, "nvidia_driver")


def installed_at_first_boot(host: Any, plan: PlanDocument, machine: MachineUnderTest, components: set[str]) -> set[str]:
    """Those of these packages and modules (as bill_of_materials names them) that a machine's first boot has installed:
    NVIDIA's of the version that its type takes. Empty for image files, and for a base AMI with one driver.
    """
    if not has_branches(plan) or isinstance(host.backend, backend.ImageBackend):
        return set()
    # Only here: image files have no instance type, and a machine is not asked for it where nobody needs it.
    taken = re.escape(planned_branch(plan, machine.instance_type)[1]["version"])
    package = rf"package \S*nvidia\S* {taken}-\S+ \S+"
    module = r"module /lib/modules/[^/]+/extra/nvidia[\w-]*\.ko(\.\w+)?"
    return {name for name in components if re.fullmatch(f"{package}|{module}", name)}


def require_installed(host: Any, plan: PlanDocument, judged_by: str) -> None:
    """UNPROVEN in image files if the base AMI installs its driver at the first boot. judged_by: the check of them."""
    if has_branches(plan) and isinstance(host.backend, backend.ImageBackend):
        unproven(f"the base AMI installs its driver at the first boot on a machine with a GPU: see {judged_by}")


_TAKEN = "/opt/nvidia/current"  # the taken tree: setup-nvidia.sh of amazon-eks-ami
# Where public pipelines keep modules that the first boot on a machine with a GPU installs: amazon-eks-ami 81fec2e8
# (archives of DKMS) and v20260923 (trees with flavours).
_KEPT_MODULES = "ls -d /var/lib/dkms-archive/nvidia*/*.tar.gz /opt/nvidia/*/flavors/*/lib/modules/* 2>/dev/null"


def require_modules(host: Any, plan: PlanDocument) -> None:
    """UNPROVEN in image files whose first boot installs the driver's modules: as planned, or in an image as found."""
    require_installed(host, plan, "driver_branches::test_modules_are_there_for_every_kernel")
    if plan.get("origin") != OBSERVED or not isinstance(host.backend, backend.ImageBackend):
        return
    kept = host.run(_KEPT_MODULES).stdout.split()
    if kept:
        unproven(f"the image installs the driver's modules at its first boot, of {kept[0]}: boot it to judge them")


@dataclass(frozen=True)
class Program:
    """A program. label: the text before the version in the output of `--version` ("Fabric Manager version is")."""

    name: str
    label: str

    @property
    def version_command(self) -> str:
        return f"{self.name} --version"

    def version(self, text: str) -> str:
        """The version in its output; "" if there is none."""
        match = re.search(rf"^\s*{re.escape(self.label)}\s*:\s*(\S+)", text, re.MULTILINE)
        return match[1] if match else ""

    def own_version(self, host: Any, observe: Observe) -> str:
        """The version that the installed program reports; the check fails if it does not run."""
        __tracebackhide__ = True
        done = host.run(self.version_command)
        if done.rc != 0:
            observe.fail(f"{self.version_command} exited with status {done.rc}: {(done.stderr or done.stdout).strip()}")
        return self.version(done.stdout)

    def check_planned(self, host: Any, planned: str, observe: Observe) -> None:
        """Fails unless the program reports the planned version."""
        __tracebackhide__ = True
        observe.same(self.own_version(host, observe), planned, self.version_command)

    def check_of_driver(self, host: Any, plan: PlanDocument, observe: Observe) -> None:
        """Fails unless its version is exactly that of the loaded driver, or of the modules in an image's files."""
        __tracebackhide__ = True
        if isinstance(host.backend, backend.ImageBackend):
            self._check_of_modules(host, plan, observe)
            return
        driver = loaded_version(require_driver(host))
        observe.same(self.own_version(host, observe), driver, f"{self.version_command} with loaded driver {driver}")

    def _check_of_modules(self, host: Any, plan: PlanDocument, observe: Observe) -> None:
        __tracebackhide__ = True
        require_modules(host, plan)
        module = section(plan, "nvidia_driver", NvidiaDriver).get("module", "nvidia") if "nvidia_driver" in plan else ""
        versions = kernel_modules.on_disk(host, module or "nvidia")
        drivers = {version for version in versions.values() if version not in ("", kernel_modules.MISSING)}
        if not drivers:
            unproven("no kernel of the image has a module of the driver to compare with")
        version = self.own_version(host, observe)
        observe(version, versions)
        if drivers != {version}:
            shown = ", ".join(sorted(drivers))
            observe.fail(f"{self.version_command} with module {shown} on disk: expected {shown}, got {version!r}")
