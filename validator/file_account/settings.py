"""Compares what a system has beside files with the base AMI: accounts, groups, kernel options, listeners and mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from validator.file_account.grammar import Footprint
from validator.file_account.inventory import Inventory

_NO_LOGIN = re.compile(r"/(nologin|false|sync|halt|shutdown)$")
# Options that the firmware, the boot loader or cloud-init's network names add, with values of each machine.
# root: update-grub writes its UUID where an image's first entry names the device; the machine runs from it either way.
_OF_EACH_BOOT = ("BOOT_IMAGE", "initrd", "root")
# update-grub writes these into the entries itself: the root, and the recovery entries' options.
_OF_BOOT_ENTRIES = ("ro", "rw", "single", "recovery", "nomodeset", "dis_ucode_ldr", "quiet")
# Units of a running system mount file systems below these directories; mounts of devices elsewhere are findings.
_PSEUDO_MOUNTS = re.compile(r"/(proc|sys|dev|run)(/.*)?")


def unexplained_accounts(image: Inventory, base: Inventory, footprints: Iterable[Footprint], login: str) -> list[str]:
    """Accounts and groups that are new, changed or gone.

    A role's accounts may be new, without a password and a login shell. login: the user that cloud-init creates at a
    first boot, whose password and groups are not compared where the base AMI does not have it.
    """
    footprints = list(footprints)
    declared = {name for footprint in footprints for name in footprint.accounts}
    groups = declared | {name for footprint in footprints for name in footprint.groups}
    found = []
    for name, account in image.accounts.items():
        before = base.accounts.get(name)
        if account == before or (before is None and name == login):
            continue
        shown = f"uid {account.user_id}, shell {account.shell}, password {account.password or 'none'}"
        if before is None:
            if name not in declared:
                found.append(f"account {name} (new: {shown})")
            elif not _NO_LOGIN.search(account.shell) or account.password not in ("locked", ""):
                found.append(f"account {name} (of a role, but it can log in: {shown})")
        else:
            old = f"uid {before.user_id}, shell {before.shell}, password {before.password or 'none'}"
            found.append(f"account {name} (changed: {shown}, home {account.home}; base {old}, home {before.home})")
    found += [f"account {name} (removed)" for name in base.accounts if name not in image.accounts and name != login]
    for name, group in image.groups.items():
        before_group = base.groups.get(name)
        if group == before_group or name == login:
            continue
        if before_group is None:
            if name not in groups:
                found.append(f"group {name} (new: id {group[0]})")
            continue
        members = set(group[1]) ^ set(before_group[1])
        if before_group[0] != group[0] or members - groups - {login}:
            found.append(f"group {name} (changed: {group[0]} {','.join(group[1])}; base {before_group})")
    return found + [f"group {name} (removed)" for name in base.groups if name not in image.groups and name != login]


def unexplained_kernel_options(image: Inventory, base: Inventory, footprints: Iterable[Footprint]) -> list[str]:
    """Options of the kernel's command line that neither the base AMI had nor a role declares, and removed ones."""
    declared = {name for footprint in footprints for name in footprint.kernel_options}

    def known(option: str) -> bool:
        name = option.partition("=")[0]
        return name in _OF_EACH_BOOT or name in declared

    new = [f"{option} (new)" for option in image.command_line if option not in base.command_line and not known(option)]
    gone = [
        f"{option} (gone)" for option in base.command_line if option not in image.command_line and not known(option)
    ]
    return [*new, *gone]


def unexplained_boot_options(lines: Iterable[str], base: Inventory, footprints: Iterable[Footprint]) -> list[str]:
    """Kernel options of boot entries that neither the base AMI was booted with nor a role declares.

    lines: `linux PATH OPTIONS` of grub.cfg, `options OPTIONS` of loader entries, `GRUB_CMDLINE_LINUX="OPTIONS"` of
    /etc/default/grub. References to other variables are not options.
    """
    declared = {name for footprint in footprints for name in footprint.kernel_options}
    found: dict[str, None] = {}
    for line in lines:
        for option in _options(line.strip()):
            name = option.partition("=")[0]
            if option not in base.command_line and name not in {*declared, *_OF_EACH_BOOT, *_OF_BOOT_ENTRIES}:
                found[f"{option} (new)"] = None
    return list(found)


def _options(line: str) -> list[str]:
    keyword = re.match(r"linux\S*\s+\S+|options\s|GRUB_CMDLINE_LINUX\w*=", line)
    words = line[keyword.end() :].replace('"', " ").replace("'", " ").split() if keyword else []
    return [word for word in words if not word.startswith("$")]


def unexplained_mounts(image: Inventory, base: Inventory, footprints: Iterable[Footprint]) -> list[str]:
    """Mount points that neither the builder had nor a role declares."""
    declared = [name for footprint in footprints for name in footprint.mounts]
    before = {point for point, _ in base.mounts}
    return [
        f"{point} ({kind})"
        for point, kind in image.mounts
        if point not in before
        and not _PSEUDO_MOUNTS.fullmatch(point)
        and not any(fnmatchcase(point, pattern) for pattern in declared)
    ]


def unexplained_listeners(image: Inventory, base: Inventory, footprints: Iterable[Footprint]) -> list[str]:
    """Programs that listen and neither did on the builder before the first role nor are declared by a role."""
    declared = {name for footprint in footprints for name in footprint.listeners}
    before = {(protocol, program) for protocol, _, program in base.listeners}
    return [
        f"{program or 'unknown program'} on {protocol}/{port}"
        for protocol, port, program in image.listeners
        if (protocol, program) not in before and program not in declared
    ]
