"""Compares a running machine with the certified inventory: its files, packages and accounts.

A path of the certified image may have changed only as a first boot changes it; a new path needs a rule of the file
account or a role's declaration (docs/file-account.md). The machine itself lists its files: root on it can lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError
from gpu_ami.release.findings import Findings
from validator import file_account
from validator.file_account import Footprint, Inventory, NotTaken, Rule
from validator.transport import TransportFault

if TYPE_CHECKING:
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
