"""Lines of small files that programs write (GRUB's environment, dpkg's diversions and overrides), and that are wrong.

They are compared with the base AMI's. The inventory has them; a base inventory that does not record them explains every
line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from validator.file_account.inventory import Inventory

# Variables of GRUB's environment block that choose what boots (GRUB manual, "The GRUB environment block").
_CHOICES = ("saved_entry", "next_entry", "prev_saved_entry")

Recorded = Callable[[str, Inventory, Inventory, frozenset[str]], list[str]]


def _grubenv(path: str, image: Inventory, base: Inventory, _: frozenset[str]) -> list[str]:
    """Choices of another boot entry than the first, or the newest kernel's. A new loader entry may be the saved one."""
    if image.grubenv is None or base.grubenv is None:
        return []
    before, variables = base.grubenv.get(path, {}), image.grubenv.get(path, {})
    chosen = {name: variables.get(name, "") for name in _CHOICES}
    entries = {f"/boot/loader/entries/{chosen['saved_entry']}.conf"} & image.entries.keys()
    return [
        f"{name}={value}, base {before.get(name) or 'none'}: another entry boots"
        for name, value in chosen.items()
        if value and value != before.get(name) and not (name == "saved_entry" and entries)
    ]


def _diversions(_: str, image: Inventory, base: Inventory, changed: frozenset[str]) -> list[str]:
    """Diversions that are new and not of a package that the build installed (dpkg-divert(1); `:` is a local one)."""
    if image.diversions is None or base.diversions is None:
        return []
    return [
        f"{path} diverted to {to} by {'hand' if by == ':' else by}"
        for path, to, by in image.diversions
        if (path, to, by) not in base.diversions and by not in changed
    ]


def _overrides(_: str, image: Inventory, base: Inventory, changed: frozenset[str]) -> list[str]:
    """Overrides of owner and mode that are new and of no file of a package that the build installed."""
    if image.overrides is None or base.overrides is None:
        return []
    new = [row for row in image.overrides if row not in base.overrides]
    return [
        f"override {owner}:{group} {mode} of {path}"
        for owner, group, mode, path in new
        if path not in image.entries or not changed & set(image.entries[path].packages)
    ]


RECORDED: Mapping[str, Recorded] = MappingProxyType(
    {"grubenv": _grubenv, "diversions": _diversions, "overrides": _overrides}
)
