"""Compares a running machine with the certificate: its files, packages and accounts, and the components that run.

A path of the certified image may have changed only as a first boot changes it; a new path needs a rule of the file
account or a role's declaration (docs/file-account.md). The machine itself lists its files: root on it can lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError
from gpu_ami.release.statement import BOM_FILE
from gpu_ami.release.verification import Findings
from validator import file_account
from validator.file_account import Footprint, Inventory, NotTaken, Rule
from validator.probes import bill_of_materials
from validator.transport import TransportFault

if TYPE_CHECKING:
    from gpu_ami.observe import Observation
    from gpu_ami.release.verification import Verified
    from validator.transport import Target

_SHOWN = 20
# System rules without `when` whose files a first boot rewrites: cloud-init locks the login user's password and grants
# sudo. All others describe what a build derives, which a running machine must not derive anew.
_REWRITTEN_AT_BOOT = ("accounts", "account-backups", "login-user")


def take(target: Target) -> Inventory:
    """The inventory of a running host; every file is read. MachineError: it cannot be reached or listed."""
    try:
        return file_account.take_over(target, running=True)
    except TransportFault as fault:
        raise MachineError(f"{target.address}: {fault.message}", hint=fault.hint) from fault
    except NotTaken as reason:
        raise MachineError(f"{target.address}: {reason}", hint="it needs python3, and sudo for the login") from reason


def compare(verified: Verified, running: Inventory, roles_folders: Sequence[Path], findings: Findings) -> None:
    """Refuses a machine that is not the certified image, booted. roles_folders: where the roles' footprints are."""
    certified = verified.inventory
    if certified is None:
        hint = "the proof must keep one: gpu-ami validate --account-files"
        findings.refuse("host", "no inventory was signed that the host could be compared with", hint)
        return
    plan = verified.report.plan
    variables = file_account.plan_variables(plan)
    footprints, unknown = file_account.load_footprints(list(roles_folders), verified.report.roles, variables)
    if unknown:
        findings.skip("host-roles", f"no meta/footprint.yml of role {', '.join(unknown)}: its files need a rule")
    lines = file_differences(running, certified, list(footprints.values()), variables)
    lines += package_differences(running, certified)
    system = plan.get("os")
    login = str(system.get("ssh_user", "")) if isinstance(system, Mapping) else ""
    lines += file_account.unexplained_accounts(running, certified, footprints.values(), login)
    if lines:
        shown = "; ".join(lines[:_SHOWN]) + (f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")
        hint = "replace the machine by one that is launched from the certified AMI"
        findings.refuse("other-host", f"{len(lines)} differences from the certified image: {shown}", hint)
    else:
        text = f"{len(running.entries)} entries, {len(running.packages)} packages: the certified image, booted"
        findings.hold("host", text)


def file_differences(
    running: Inventory, certified: Inventory, footprints: Sequence[Footprint], variables: file_account.Variables
) -> list[str]:
    """Files that the certified image and its first boot do not explain, a line each."""
    running = replace(running, running=True)
    rules = file_account.load_system_rules(variables)
    new = file_account.explain(running, certified, rules, footprints)
    at_boot = [rule for rule in rules if _may_change(rule)]
    booted = [replace(print, files=tuple(rule for rule in print.files if _may_change(rule))) for print in footprints]
    # What the machine's package database says of a changed file does not count: who can write one can write the other.
    bare = {path: replace(entry, packages=(), differs=None) for path, entry in running.entries.items()}
    changed = file_account.explain(replace(running, entries=bare), certified, at_boot, booted)
    findings = {finding.path: finding for finding in new.findings}
    findings |= {finding.path: finding for finding in changed.findings if finding.change != "new"}
    return [findings[path].text() for path in sorted(findings)]


def _may_change(rule: Rule) -> bool:
    return rule.when == "booted" or (not rule.role and rule.name in _REWRITTEN_AT_BOOT)


def package_differences(running: Inventory, certified: Inventory) -> list[str]:
    """Packages that are new, gone or of another version, a line each."""
    before, after = certified.packages, running.packages
    lines = [f"package {name} {after[name].version} (new)" for name in sorted(set(after) - set(before))]
    lines += [f"package {name} {before[name].version} (gone)" for name in sorted(set(before) - set(after))]
    return lines + [
        f"package {name} {after[name].version} (certified {before[name].version})"
        for name in sorted(set(before) & set(after))
        if before[name].version != after[name].version
    ]


_SECONDS = 120.0


def take_materials(target: Target) -> set[str]:
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


def compare_materials(verified: Verified, installed: set[str], findings: Findings) -> None:
    """Refuses a machine with other packages than the bill has, or without a kernel module of it.

    Further modules are not counted: of those in the kernel's own package a bill that was read of a machine has none.
    """
    if BOM_FILE not in verified.statement.files:
        findings.skip("materials", f"no {BOM_FILE} was signed that the host could be compared with")
        return
    try:
        bill = bill_of_materials.listed(verified.contents[BOM_FILE].decode("utf-8"))
    except (UnicodeDecodeError, bill_of_materials.InvalidBill) as error:
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


# Components whose version in a plan is not one of a file or a package.
_NOT_BY_VERSION = ("neuron", "node_eks", "node_eks_ubuntu", "node_ecs", "node_parallelcluster", "node_dlami")


def compare_components(verified: Verified, observation: Observation, findings: Findings) -> None:
    """Refuses a machine on which a source of a component names another version than the certified plan.

    What is loaded, and what libraries and programs say of themselves, is in no inventory: a driver that was replaced
    and put back still runs.
    """
    from gpu_ami.observe import same

    plan = verified.report.plan
    lines, judged = [], []
    for name, found in observation.found.items():
        section = plan.get(name)
        version = str(section.get("version", "")) if isinstance(section, Mapping) else ""
        if not version or name in _NOT_BY_VERSION or "driver_branches" in plan:
            continue
        judged.append(found.label)
        lines += [
            f"{found.label} by its {source}: expected {version}, got {', '.join(versions)}"
            for source, versions in found.by_source.items()
            if versions and not any(same(version, one) for one in versions)
        ]
    if lines:
        hint = "restart the machine, or replace it by one that is launched from the certified AMI"
        findings.refuse("other-components", "; ".join(lines[:_SHOWN]), hint)
    elif judged:
        findings.hold("components", f"{', '.join(judged)}: every source names the planned version")
    else:
        findings.skip("components", "no component of the certified plan was observed on the host")
