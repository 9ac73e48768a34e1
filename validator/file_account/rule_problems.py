"""Compares an entry with a rule of its path: kind, owner, mode, target, and what its check says of the content.

Lines of small files that programs write (GRUB's environment, dpkg's diversions and overrides) are compared with the
base AMI's. The inventory has them; a base inventory that does not record them explains every line.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from validator.file_account.grammar import Rule
from validator.file_account.initial_ramdisk import unexplained
from validator.file_account.inventory import Entry, Inventory, kind_name, mode_and_owner, same_mode_and_owner

_SHOWN = 5
_MOST_LINKS = 40  # as the kernel (MAXSYMLINKS)
_SONAME = re.compile(r"lib.+\.so\.[0-9]+")


class RuleProblems:
    """What rules say about entries of an image.

    rules: at the end of a link their paths count as explained. changed_packages: new in the image, or of another
    version there.
    """

    def __init__(
        self, image: Inventory, base: Inventory, rules: Sequence[Rule], changed_packages: frozenset[str]
    ) -> None:
        self._image, self._base, self._rules, self._changed_packages = image, base, rules, changed_packages

    def of(self, rule: Rule, entry: Entry, before: Entry | None) -> str:
        """How an entry at one of the rule's paths differs from what the rule allows; "" if it does not."""
        if entry.kind not in rule.kinds:
            return f"a {kind_name(entry.kind)}"
        if rule.target and entry.target != rule.target:
            return f"link to {entry.target}, expected {rule.target}"
        if rule.sha256 and entry.sha256 and entry.sha256 not in rule.sha256:
            return "content is not the expected"
        owner = f"{entry.owner}:{entry.group}"
        kept = same_mode_and_owner(entry, before)
        if not kept and owner not in (rule.owners or ("root:root",)):
            return f"owner {owner}, expected {' or '.join(rule.owners or ('root:root',))}"
        if entry.kind != "l" and not kept:
            if rule.modes and entry.mode not in rule.modes:
                return f"mode {entry.mode:04o}, expected {' or '.join(f'{mode:04o}' for mode in rule.modes)}"
            if not rule.modes and (entry.mode & 0o6000 or entry.mode & 0o002):
                return f"mode {entry.mode:04o}: setuid, setgid or writable by every user"
        if "security.capability" in entry.attributes:
            return "file capabilities"
        kept_attributes = dict(before.attributes) if before is not None else {}
        if flags := sorted(
            name for name in entry.attributes if name.startswith("inode.") and name not in kept_attributes
        ):
            return f"attributes {', '.join(flags)}"
        if entry.kind == "f" and rule.when != "booted" and dict(entry.attributes) != kept_attributes:
            return f"attributes {', '.join(sorted({*entry.attributes, *kept_attributes}))}"
        return self._content_problem(rule.check, entry, kept)

    def _content_problem(self, check: str, entry: Entry, kept: bool) -> str:
        """How the content differs from what the rule's program writes; "" if it does not or the rule has no check."""
        if check == "empty":
            return f"{entry.size} bytes, expected none" if entry.size else ""
        if check == "kept":
            return "" if kept else f"{mode_and_owner(entry)}: not as the base AMI has it"
        if check == "link":
            return "" if self.leads_to_explained(entry) else f"link to {entry.target}, which nothing explains"
        if check == "alternative":
            return "" if entry.target.startswith("/etc/alternatives/") else f"link to {entry.target}"
        if check == "unit":
            return self._unit_problem(entry)
        if check == "dkms":
            return self._dkms_problem(entry)
        if check == "package":
            return self._package_problem(entry)
        if check == "ramdisk":
            return self._ramdisk_problem(entry)
        if check in ("grubenv", "diversions", "overrides"):
            wrong = RECORDED[check](entry.path, self._image, self._base, self._changed_packages)
            return "; ".join(wrong[:_SHOWN])
        if check == "skeleton":
            original = self._image.entries.get(f"/etc/skel/{posixpath.basename(entry.path)}")
            return "" if original is not None and original.sha256 == entry.sha256 else "not as in /etc/skel"
        if check == "module":
            return "" if self._built_by_dkms(entry) else "DKMS has built no such module"
        return self._bytecode_problem(entry) if check == "bytecode" else ""

    def _ramdisk_problem(self, entry: Entry) -> str:
        """What in an initial ramdisk is neither a file of the image nor generated; "" where it was not listed."""
        ramdisk = self._image.ramdisks.get(entry.path)
        wrong = unexplained(ramdisk, self._image) if ramdisk else []
        return (
            f"in it: {'; '.join(wrong[:_SHOWN])}" + (f"; {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else "")
            if wrong
            else ""
        )

    def _package_problem(self, entry: Entry) -> str:
        """Why nothing explains a file of the package manager about a package: it is not installed, or not new."""
        name = posixpath.basename(entry.path).rpartition(".")[0].partition(":")[0]
        if name in ("", "format"):
            return ""
        if name not in self._image.packages:
            return f"package {name} is not installed"
        before = self._base.entries.get(entry.path)
        same = before is not None and before.sha256 == entry.sha256
        return "" if same or name in self._changed_packages else f"package {name}, which no planned package brought"

    def _built_by_dkms(self, module: Entry) -> bool:
        """Whether one of the modules in DKMS's own tree has this name."""
        name = posixpath.basename(module.path)
        names = {posixpath.basename(path) for path in self._image.entries if path.startswith("/var/lib/dkms/")}
        return name in names

    def _unit_problem(self, link: Entry) -> str:
        """Why nothing explains that a unit is enabled: neither its package, which the build installed, nor a role."""
        of_system = link.target.startswith(("/lib/systemd/", "/usr/lib/systemd/", "/etc/systemd/", "../"))
        if not of_system or not self.leads_to_explained(link):
            return f"link to {link.target}"
        unit = self._end_of(link)[1]
        if unit is None or not unit.packages or self._changed_packages & set(unit.packages):
            return ""
        if link.path.replace("/etc/systemd/", "/var/lib/systemd/", 1) in self._enabled_by_packages:
            return ""
        return f"enables a unit of package {'/'.join(unit.packages)}, which the base AMI does not enable"

    @functools.cached_property
    def _enabled_by_packages(self) -> frozenset[str]:
        """What dpkg's helper recorded when a package's scripts enabled a unit; paths below /var/lib/systemd."""
        helper = re.compile(r"/var/lib/systemd/deb-systemd-(?:(user)-)?helper-enabled/(.+)")
        found = (helper.fullmatch(path) for path in self._image.entries)
        return frozenset(f"/var/lib/systemd/{mark[1] or 'system'}/{mark[2]}" for mark in found if mark)

    def _dkms_problem(self, entry: Entry) -> str:
        """Why nothing explains an entry of DKMS's tree, /var/lib/dkms/NAME/VERSION/…: /usr/src has no such source."""
        name, _, rest = entry.path.removeprefix("/var/lib/dkms/").partition("/")
        version = rest.partition("/")[0]
        source = f"/usr/src/{name}-" if version.startswith("kernel-") else f"/usr/src/{name}-{version}"
        if not rest or any(path.startswith(source) for path in self._image.entries):
            return ""
        return f"no source {source}"

    def _bytecode_problem(self, entry: Entry) -> str:
        folder, name = posixpath.split(entry.path)
        parent = posixpath.dirname(folder) if posixpath.basename(folder) == "__pycache__" else folder
        source = self._image.entries.get(f"{parent}/{name.partition('.')[0]}.py")
        if source is None:
            return "no source file beside it"
        flags, modified, size = (*entry.bytecode, 0, 0, 0)[:3]
        if not entry.bytecode or (not flags and (modified, size) != (source.modified & 0xFFFFFFFF, source.size)):
            return f"compiled from another {source.path}"
        return ""

    def leads_to_explained(self, link: Entry) -> bool:
        """Whether a link ends at an entry of the base or of a package, or at one that does not exist in a package."""
        path, entry = self._end_of(link)
        if entry is None:
            # A packaged link may have no target: excluded documentation, or a library of an optional package. The name
            # by which programs load a library (libcuda.so.1) is not of that kind.
            optional = bool(link.packages) and not _SONAME.fullmatch(posixpath.basename(link.path))
            return optional or path in self._image.missing or path.startswith(("/dev/", "/proc/", "/run/"))
        return bool(entry.packages or entry.path in self._base.entries or self._of_a_role(entry) or entry.kind == "d")

    def _end_of(self, link: Entry) -> tuple[str, Entry | None]:
        """The path at which a link ends, and the entry there; None if there is none or the links are a circle.

        Links among the directories of the path are followed, too.
        """
        path, rest, links = "/", link.path.split("/"), 0
        while rest:
            part = rest.pop(0)
            step = posixpath.normpath(posixpath.join(path, part))
            entry = self._image.entries.get(step)
            if entry is None or entry.kind != "l":
                path = step
                continue
            links += 1
            if links > _MOST_LINKS:
                return step, None
            if entry.target.startswith("/"):
                path = "/"
            rest = [*entry.target.split("/"), *rest]
        return path, self._image.entries.get(path)

    def _of_a_role(self, entry: Entry) -> bool:
        return any(rule.matches(entry.path) for rule in self._rules)


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
