"""Compares what is installed on a running machine with the signed bill of materials (bom.cdx.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError
from gpu_ami.release.statement import BOM_FILE
from validator.probes import bill_of_materials

if TYPE_CHECKING:
    from gpu_ami.release.findings import Findings
    from gpu_ami.release.verification import Verified
    from validator.transport import Target

_SECONDS = 120.0
_SHOWN = 20


def take(target: Target) -> set[str]:
    """Packages and kernel modules that a host has, as bill_of_materials.installed. MachineError: it does not say."""
    from validator.transport import errors, ssh

    try:
        with ssh.connect(target) as connection:
            answers = [connection.run(command, timeout=_SECONDS) for command in _COMMANDS]
    except errors.SshError as error:
        raise MachineError(f"{target.address}: {error}") from error
    packages, modules = (answer.stdout.decode("utf-8", "replace") for answer in answers)
    if not packages.strip():
        raise MachineError(f"{target.address} lists no packages", hint="it needs dpkg-query or rpm")
    return bill_of_materials.installed(packages, modules)


_COMMANDS = (bill_of_materials.INSTALLED, bill_of_materials.MODULES)


def compare(verified: Verified, installed: set[str], findings: Findings) -> None:
    """Refuses a machine with other packages than the bill has, or without a kernel module of it.

    Further modules are not counted: of those in the kernel's own package a bill that was read of a machine has none.
    """
    if BOM_FILE not in verified.statement.files:
        findings.skip("materials", f"no {BOM_FILE} was signed that the host could be compared with")
        return
    try:
        bill = bill_of_materials.listed((verified.folder / BOM_FILE).read_text(encoding="utf-8"))
    except (OSError, bill_of_materials.InvalidBill) as error:
        findings.refuse("materials", f"{BOM_FILE}: {error}", "get the folder again from its publisher")
        return
    lines = bill_of_materials.differences(bill, {name for name in installed if name in bill or _is_package(name)})
    if lines:
        shown = "; ".join(lines[:_SHOWN]) + (f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")
        hint = "replace the machine by one that is launched from the certified AMI"
        findings.refuse("other-materials", f"{len(lines)} differences from the signed bill of materials: {shown}", hint)
        return
    packages = sum(map(_is_package, bill))
    findings.hold("materials", f"{packages} packages and {len(bill) - packages} kernel modules, as signed")


def _is_package(name: str) -> bool:
    return name.startswith("package ")
