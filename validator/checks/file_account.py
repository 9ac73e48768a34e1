"""Every file, package and account of the image has an explanation (docs/file-account.md).

A trace of the build needs no check of its own: it is what nothing explains. The inventory of the base AMI, taken on the
builder before the first role, is beside the plan and in the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from validator import file_account as account
from validator.file_account import Base, Footprint, Inventory, NotTaken, PackageAccount
from validator.observe import Observe, unproven
from validator.transport import backend

_SHOWN = 20
EVIDENCE = "unexplained-files.txt"
_BOOT_ENTRIES = (
    "grep -hsE '^[[:space:]]*(linux(16|efi)?|options)[[:space:]]'"
    " /boot/grub/grub.cfg /boot/grub2/grub.cfg /boot/loader/entries/*.conf\n"
    "grep -hsE '^GRUB_CMDLINE_LINUX' /etc/default/grub /etc/default/grub.d/*.cfg; true"
)


@dataclass(frozen=True)
class Subject:
    """What the checks compare: image, base, footprints of the planned roles, and the packages that are explained."""

    image: Inventory
    base: Base
    footprints: tuple[Footprint, ...]
    packages: PackageAccount
    variables: account.Variables
    login: str
    written: account.Written | None = None


@pytest.fixture(scope="module")
def subject(host: Any, request: pytest.FixtureRequest) -> Subject:
    """Taken once for all checks. UNPROVEN without a plan, a base inventory or a role's footprint."""
    from validator.plugin import RUN

    plan = request.config.stash[RUN].plan
    if plan is None:
        unproven("no --plan was given")
    option = request.config.getoption
    folder = option("base_inventory") or (option("plan").parent if option("plan") else None)
    running = not isinstance(host.backend, backend.ImageBackend)
    restarted, keep = bool(option("after")), option("evidence")
    return examine(host, plan, option("roles_path"), folder, running=running, restarted=restarted, keep=keep)


def examine(
    host: Any,
    plan: Mapping[str, Any],
    roles_path: Sequence[Path],
    build: Path | None,
    *,
    running: bool,
    restarted: bool,
    keep: Path | None = None,
) -> Subject:
    """Takes the inventory and finds what it is compared with.

    build: folder of base-inventory.jsonl.gz and build.json. restarted: the machine was examined before a restart; only
    files that have changed since the base AMI's inventory are read. keep: folder that gets a whole inventory.
    """
    variables = account.plan_variables(plan)
    footprints, without = account.load_footprints(roles_path, plan["roles"], variables)
    if without:
        unproven(f"no meta/footprint.yml of role {', '.join(without)}; searched {', '.join(map(str, roles_path))}")
    try:
        base = account.find_base(host, build)
        since = base.inventory.taken if restarted else 0.0
        image = account.take(host, running=running, hash_since=since, keep=keep)
        # A machine's first boot changes such files, and so do those who use it.
        written = None if running else account.take_written(host, base)
    except NotTaken as reason:
        unproven(str(reason))
    packages = account.account_packages(image, base.inventory, account.planned_names(plan), footprints.values())
    login = str(plan["os"]["ssh_user"])
    return Subject(image, base, tuple(footprints.values()), packages, variables, login, written)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.accounted
@pytest.mark.survives
def test_every_file_is_explained(subject: Subject, observe: Observe, request: pytest.FixtureRequest) -> None:
    """Every file is the base AMI's, a planned package's, a declared file of a role, or derived from these."""
    result = account.explain(
        subject.image,
        subject.base.inventory,
        account.load_system_rules(subject.variables),
        subject.footprints,
        changed_packages=subject.packages.explained,
        role_times=subject.base.role_times,
        boots=subject.base.boots,
        written=subject.written,
    )
    lines = [finding.text() for finding in result.findings]
    folder = request.config.getoption("evidence")
    if folder is not None:
        widest = [f"{count:6} {rule}" for rule, count in account.widest(result, 30).items()]
        text = "\n".join([*lines, "", "Entries by explanation, the most first:", *widest, ""])
        (folder / EVIDENCE).unlink(missing_ok=True)  # a link of a folder that somebody sent is replaced
        (folder / EVIDENCE).write_text(text, encoding="utf-8", errors="backslashreplace")
    observe(
        {
            "base": len(subject.base.inventory.entries),
            "image": len(subject.image.entries),
            **result.explained,
            "unexplained": len(lines),
            "compared with what roles wrote": len(subject.written.files) if subject.written else "not recorded",
            **({"not compared": result.not_compared} if result.not_compared else {}),
        },
        f"every entry explained; base inventory: {subject.base.source}",
    )
    _require_none(lines, "files without an explanation", observe, EVIDENCE if folder is not None else "")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.accounted
def test_every_package_is_explained(subject: Subject, observe: Observe) -> None:
    """Every package that is new or of another version than the base AMI's is planned, or a planned one requires it."""
    observe(sorted(subject.packages.explained), "planned packages and what they require")
    _require_none(list(subject.packages.findings), "packages without an explanation", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.accounted
@pytest.mark.survives
def test_every_account_is_explained(subject: Subject, observe: Observe) -> None:
    """Every account and group is the base AMI's, unchanged, or declared by a role, and that of a role cannot log in."""
    _require_no(account.unexplained_accounts, subject, "accounts and groups", observe, subject.login)


@pytest.mark.needs("promise")
@pytest.mark.accounted
@pytest.mark.survives
def test_every_kernel_option_is_explained(subject: Subject, observe: Observe) -> None:
    """The kernel's command line is the base AMI's with the options that roles declare."""
    _require_no(account.unexplained_kernel_options, subject, "kernel options", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.accounted
def test_every_boot_entry_is_explained(host: Any, subject: Subject, observe: Observe) -> None:
    """The boot entries, and the settings from which later ones are made, have only known kernel options.

    Known are the options that the base AMI was booted with and those that roles declare.
    """
    if not subject.base.inventory.running:
        unproven("the base AMI's inventory is not of a running system")
    lines = host.run(_BOOT_ENTRIES).stdout.splitlines()
    if not lines:
        unproven("no boot entry in /boot/grub, /boot/grub2 or /boot/loader/entries")
    unexplained = account.unexplained_boot_options(lines, subject.base.inventory, subject.footprints)
    observe(f"{len(lines)} lines", "options of the base AMI and of roles")
    _require_none(unexplained, "options of boot entries without an explanation", observe)


@pytest.mark.needs("promise")
@pytest.mark.accounted
@pytest.mark.survives
def test_every_listening_program_is_explained(subject: Subject, observe: Observe) -> None:
    """Every program that listens on a socket did so before the first role, or a role declares it."""
    _require_no(account.unexplained_listeners, subject, "listening programs", observe)


@pytest.mark.needs("promise")
@pytest.mark.accounted
@pytest.mark.survives
def test_every_mount_is_explained(subject: Subject, observe: Observe) -> None:
    """Every file system was mounted before the first role, or a role declares the mount."""
    _require_no(account.unexplained_mounts, subject, "mounts", observe)


# What a boot adds, and of what the inventory of a base AMI that was not booted says nothing.
_OF_A_BOOT = (account.unexplained_kernel_options, account.unexplained_listeners)


def _require_no(
    compare: Callable[..., list[str]], subject: Subject, what: str, observe: Observe, *others: object
) -> None:
    __tracebackhide__ = True
    if compare is not account.unexplained_accounts and not subject.base.inventory.running:
        unproven("the base AMI's inventory is not of a running system")
    found = compare(subject.image, subject.base.inventory, subject.footprints, *others)
    if found and compare in _OF_A_BOOT and not subject.base.inventory.listeners:
        # Ansible reaches a booted builder by SSH, so something listens there.
        reason = "nothing listened when the base AMI's inventory was taken: it was not booted (a sandbox)"
        unproven(f"{reason}; {what} that it may have: {', '.join(found[:_SHOWN])}")
    _require_none(found, f"{what} without an explanation", observe)


def _require_none(lines: list[str], what: str, observe: Observe, evidence: str = "") -> None:
    """Fails with the first lines. evidence: the file of the host's evidence that has all of them."""
    __tracebackhide__ = True
    if lines:
        more = f"\nand {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        more += f"\nall of them: {evidence} in the evidence" if more and evidence else ""
        observe.fail(f"{len(lines)} {what}:\n" + "\n".join(lines[:_SHOWN]) + more)
