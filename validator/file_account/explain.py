"""Explains each file of an image: the base AMI's, a package's, a role's, derived by the system, or the machine's own.

An entry is explained by the first of these that matches all its attributes. All others are findings. A rule of its
path is compared with its kind, owner, mode and target, and with what the rule's check says of the content.

Lines of small files that programs write (GRUB's environment, dpkg's diversions and overrides) are compared with the
base AMI's. The inventory has them; a base inventory that does not record them explains every line.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

from validator.file_account.grammar import Footprint, Rule, expression
from validator.file_account.initial_ramdisk import not_compared, unexplained
from validator.file_account.inventory import (
    Entry,
    Inventory,
    differences,
    kind_name,
    mode_and_owner,
    same_mode_and_owner,
    unchanged_package,
)

BASE, PACKAGE, ROLE, DERIVED, MACHINE = "base", "package", "role", "derived", "machine"
CLASSES = (BASE, PACKAGE, ROLE, DERIVED, MACHINE)
# Paths that minimal images exclude by settings of their package manager (dpkg.cfg path-exclude, rpm --nodocs).
_MAY_BE_MISSING = tuple(f"/usr/share/{name}/" for name in ("doc", "man", "locale", "info", "lintian", "help"))
_FIRST_BOOT = "first boot"
# Programs that packages of a planned component install setuid; dpkg records no modes.
_SETUID = {"/usr/bin/nvidia-modprobe": 0o4755}  # makes the driver's device nodes for every user (package of that name)
_PLAIN_MODES = {"d": (0o755,), "f": (0o644, 0o755, 0o444, 0o555)}
_CAPABILITY = "security.capability"
_SHOWN = 5
_MOST_LINKS = 40  # as the kernel (MAXSYMLINKS)
_CHECKS_SOURCE = 0b10  # in the flags of a .pyc whose source is named by its hash (PEP 552)
_SONAME = re.compile(r"lib.+\.so\.[0-9]+")


@dataclass(frozen=True)
class Finding:
    """A path without an explanation. change: new, changed, removed or missing; what: the attributes that differ.

    changed: when it was last changed, epoch seconds (0 for what is not there); role: which ran then, "" if unknown.
    """

    path: str
    change: str
    what: str
    changed: float = 0.0
    role: str = ""

    def text(self) -> str:
        """One line; control characters and bytes that are no UTF-8 are escaped."""
        from datetime import UTC, datetime

        path = self.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        path = "".join(char if char.isprintable() else repr(char)[1:-1] for char in path)
        when = f", changed {datetime.fromtimestamp(self.changed, UTC):%Y-%m-%dT%H:%M:%SZ}" if self.changed else ""
        return f"{path} ({self.change}: {self.what}{when}{f', during {self.role}' if self.role else ''})"


@dataclass
class Account:
    """The result: entries by class, entries by rule (for the widest ones) and what nothing explains.

    not_compared: initial ramdisks of the image whose files could not be compared with its own, with the reason.
    """

    explained: Counter[str] = field(default_factory=Counter)
    by_rule: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RoleTime:
    """When a role ran, epoch seconds."""

    role: str
    started: float
    ended: float


@dataclass(frozen=True)
class WrittenFile:
    """What a role wrote. sha1: of the content, as Ansible reports it."""

    role: str
    sha1: str


@dataclass(frozen=True)
class Written:
    """Files that the roles of a build wrote. digests: path → SHA-1 of the image's file.

    is_whole: every role ran in this build. Otherwise those of a layer image wrote files that are not in `files`.
    """

    files: Mapping[str, WrittenFile]
    digests: Mapping[str, str]
    is_whole: bool


@dataclass(frozen=True)
class BuilderBoot:
    """A builder that began with a layer image: when it booted, and when its first role began; epoch seconds."""

    booted: float
    roles: float


def explain(
    image: Inventory,
    base: Inventory,
    rules: Sequence[Rule],
    footprints: Iterable[Footprint] = (),
    *,
    changed_packages: frozenset[str] = frozenset(),
    role_times: Sequence[RoleTime] = (),
    boots: Sequence[BuilderBoot] = (),
    written: Written | None = None,
) -> Account:
    """Explains every entry of `image`.

    base: taken before the first role. rules: the system's own. changed_packages: explained packages that are new in the
    image, or of another version there. boots: of builders after the one of the base. written: by the roles of the
    build, None where it is not known. On a running image (`image.running`) rules of a booted machine count.
    """
    explainer = _Explainer(image, base, rules, list(footprints), changed_packages, boots=boots, written=written)
    account = explainer.account
    account.not_compared = [f"{one.path}: {why}" for one in image.ramdisks.values() if (why := not_compared(one))]
    for entry in image.entries.values():
        explainer.explain_entry(entry)
    explainer.explain_directories()
    explainer.explain_removed()
    explainer.explain_missing()
    explainer.explain_written()
    account.findings = sorted(
        (_with_role(finding, role_times) for finding in account.findings), key=lambda finding: finding.path
    )
    return account


class _Explainer:
    """One pass over an image's entries."""

    def __init__(
        self,
        image: Inventory,
        base: Inventory,
        rules: Sequence[Rule],
        footprints: Sequence[Footprint],
        changed_packages: frozenset[str],
        *,
        boots: Sequence[BuilderBoot],
        written: Written | None,
    ) -> None:
        self.image, self.base, self.changed_packages, self._boots = image, base, changed_packages, boots
        self._written = written
        self.account = Account()
        unwanted = "built" if image.running else "booted"
        role_rules = [rule for footprint in footprints for rule in footprint.files]
        self._role_rules = [rule for rule in role_rules if rule.when != unwanted]
        self._first_boot_rules = [rule for rule in rules if rule.when == "first_boot"]
        self._rules = [rule for rule in rules if rule.when not in (unwanted, "first_boot")]
        rules_of_all = (*self._role_rules, *self._rules)
        self._problems = _RuleProblems(image, base, rules_of_all, changed_packages, footprints, written=written)
        removed = [expression(path) for footprint in footprints for path in footprint.removed]
        self._removed_by_roles = re.compile("|".join(removed) or r"(?!)", re.DOTALL)
        self._pending: list[tuple[Entry, str, str]] = []  # directories without an explanation of their own
        self._used: set[str] = set()  # directories with an explained entry that is not the base's

    def explain_entry(self, entry: Entry) -> None:
        """Counts the entry as explained, or keeps a finding."""
        before = self.base.entries.get(entry.path)
        if before is not None and not (differs := differences(entry, before, self.image.hash_since)):
            if self._is_first_boot(before) and not (entry.packages and entry.differs == ()):
                self._explain_by_rule(entry, before, "new", f"written by the builder's {_FIRST_BOOT}")
            else:
                self._count(BASE, "base AMI, unchanged", entry)
            return
        if before is None and entry.changed < self.base.taken and self._was_hidden(entry.path):
            self._count(BASE, "base AMI, below a mount point of the builder", entry)
            return
        change = "changed" if before is not None else "new"
        nothing = f"no package, role or rule has this {kind_name(entry.kind)}"
        what = ", ".join(differs) if before is not None else nothing
        package = self._package_problem(entry, before)
        if package == "":
            self._count(PACKAGE, "package", entry)
            return
        if self._is_later_boot(entry):
            what = f"{what}, written by a later builder's {_FIRST_BOOT}"
        self._explain_by_rule(entry, before, change, package or what)

    def _was_hidden(self, path: str) -> bool:
        """Whether the builder had a file system mounted there, so that the base's inventory does not have the path."""
        folders = (path, *(str(folder) for folder in PurePosixPath(path).parents))
        return any(folder in self.base.mounted for folder in folders)

    def _is_first_boot(self, before: Entry) -> bool:
        """Whether the builder itself wrote what the base inventory has: since it booted, before the first role."""
        return bool(self.base.running and before.kind != "d" and before.changed >= self.base.boot_time - 1)

    def _is_later_boot(self, entry: Entry) -> bool:
        """Whether a builder that began with a layer image wrote it: since it booted, before its first role."""
        return entry.kind != "d" and any(boot.booted - 1 <= entry.changed <= boot.roles for boot in self._boots)

    def _package_problem(self, entry: Entry, before: Entry | None) -> str | None:
        """How a packaged entry differs from its package; "" if it does not; None if no package owns it."""
        if not entry.packages:
            return None
        names = "/".join(entry.packages)
        if entry.differs:
            return f"{', '.join(entry.differs)} not as package {names} has it"
        of_changed_package = bool(self.changed_packages & set(entry.packages))
        if before is not None and not of_changed_package:
            return None if entry.differs is None else unchanged_package(entry, before, names)
        if entry.kind == "l":
            return "" if self._problems.leads_to_explained(entry) else f"link to {entry.target}, which no package owns"
        if same_mode_and_owner(entry, before):
            return ""
        if entry.differs is None and entry.kind == "f":
            return None
        if self._recorded_attributes(entry):
            return ""
        setuid = entry.kind == "f" and entry.mode == _SETUID.get(entry.path)
        plain = setuid or entry.mode in _PLAIN_MODES.get(entry.kind, ()) or self._problems.is_declared(entry)
        if (entry.owner, entry.group) != ("root", "root") or not plain:
            return f"{mode_and_owner(entry)}, package {names} would have root:root"
        attributes = self._problems.undeclared_attributes(entry)
        return "" if not attributes else f"attributes {', '.join(attributes)}"

    def _recorded_attributes(self, entry: Entry) -> bool:
        """Whether the package manager compared owner, mode and capabilities, as rpm does and dpkg does not."""
        return bool(entry.differs is not None and self.image.os not in ("debian", "ubuntu"))

    def _explain_by_rule(self, entry: Entry, before: Entry | None, change: str, what: str) -> None:
        problems = []
        first_boot = self._first_boot_rules if what.endswith(_FIRST_BOOT) else ()
        for rule in (*self._role_rules, *self._rules, *first_boot):
            if rule.matches(entry.path):
                problem = self._problems.of(rule, entry, before)
                if not problem:
                    kind = ROLE if rule.role else MACHINE if rule.when == "booted" else DERIVED
                    self._count(kind, f"role {rule.role}" if rule.role else rule.name, entry)
                    return
                problems.append(f"{problem} ({f'role {rule.role}' if rule.role else f'rule {rule.name}'})")
        if entry.kind == "d" and before is None:
            self._pending.append((entry, change, "; ".join(problems) or what))
            return
        self._find(entry, change, "; ".join([what, *problems] if entry.packages else problems) or what)

    def explain_directories(self) -> None:
        """A directory that only holds what is explained is explained with it, if it is root's with mode 0755."""
        for entry, change, what in sorted(self._pending, key=lambda row: row[0].path, reverse=True):
            plain = (entry.owner, entry.group, entry.mode) == ("root", "root", 0o755)
            if entry.path in self._used and plain and not entry.attributes:
                self._count(DERIVED, "directory of explained files", entry)
            elif entry.path in self._used and plain:
                self._find(entry, change, f"attributes {', '.join(sorted(entry.attributes))}")
            elif entry.path in self._used:
                self._find(entry, change, f"{mode_and_owner(entry)}, expected root:root 0755")
            else:
                self._find(entry, change, what)

    def explain_removed(self) -> None:
        """Entries of the base AMI that the image lacks."""
        removable = [rule for rule in self._rules if rule.removed]
        for path, before in self.base.entries.items():
            if path in self.image.entries or path in self.image.mounted or self._is_mounted_over(path):
                continue
            if self._is_first_boot(before) or self._removed_by_roles.fullmatch(path):
                continue
            if any(self._package_gone(name, path) for name in before.packages):
                continue
            if any(rule.matches(path) for rule in removable):
                continue
            if before.kind == "d" and not before.packages and self._emptied(path):
                continue
            what = f"the base AMI's {kind_name(before.kind)}"
            what += f" of package {'/'.join(before.packages)}" if before.packages else ""
            self.account.findings.append(Finding(path, "removed", what))

    def _is_mounted_over(self, path: str) -> bool:
        """Whether the image, as it runs, hides the path below a mount point."""
        return any(str(folder) in self.image.mounted for folder in PurePosixPath(path).parents)

    def _package_gone(self, name: str, path: str) -> bool:
        """Whether the package was removed, or has another version without this file."""
        now = self.image.packages.get(name)
        return now is None or (name in self.changed_packages and path not in self.image.missing)

    def _emptied(self, path: str) -> bool:
        prefix = f"{path}/"
        return not any(other.startswith(prefix) for other in self.image.entries)

    def explain_missing(self) -> None:
        """Packaged files that are missing, but were not missing in the base AMI."""
        for path, names in self.image.missing.items():
            if (
                path in self.base.missing
                or path in self.base.entries
                or self._is_mounted_over(path)
                or path.startswith(_MAY_BE_MISSING)
            ):
                continue
            removable = any(rule.matches(path) for rule in self._rules if rule.removed)
            if removable or self._removed_by_roles.fullmatch(path):
                continue
            self.account.findings.append(Finding(path, "missing", f"package {'/'.join(names)} has it"))

    def explain_written(self) -> None:
        """Files that a role wrote and declares, and that the image lacks."""
        rules = [rule for rule in self._role_rules if rule.check == "written" or rule.sha256]
        for path, wrote in (self._written.files if self._written else {}).items():
            if path in self.image.entries or self._removed_by_roles.fullmatch(path):
                continue
            if any(rule.matches(path) for rule in rules):
                self.account.findings.append(Finding(path, "removed", f"role {wrote.role} wrote it"))

    def _count(self, kind: str, rule: str, entry: Entry) -> None:
        self.account.explained[kind] += 1
        self.account.by_rule[rule] += 1
        if kind != BASE:
            folder = posixpath.dirname(entry.path)
            while folder not in self._used and len(folder) > 1:
                self._used.add(folder)
                folder = posixpath.dirname(folder)

    def _find(self, entry: Entry, change: str, what: str) -> None:
        written = max(entry.modified, entry.changed)
        self.account.findings.append(Finding(entry.path, change, what, written))


def _with_role(finding: Finding, role_times: Sequence[RoleTime]) -> Finding:
    if not finding.changed:
        return finding
    role = next((time.role for time in role_times if time.started - 1 <= finding.changed <= time.ended + 1), "")
    return Finding(finding.path, finding.change, finding.what, finding.changed, role)


def widest(account: Account, most: int = 10) -> Mapping[str, int]:
    """The rules that explain the most entries."""
    return dict(account.by_rule.most_common(most))


class _RuleProblems:
    """What rules say about entries of an image.

    rules: at the end of a link their paths count as explained. changed_packages: new in the image, or of another
    version there. footprints: of the roles, which declare programs with setuid or setgid bit, or with capabilities.
    written: by the roles.
    """

    def __init__(
        self,
        image: Inventory,
        base: Inventory,
        rules: Sequence[Rule],
        changed_packages: frozenset[str],
        footprints: Sequence[Footprint],
        *,
        written: Written | None,
    ) -> None:
        self._written = written
        self._image, self._base, self._rules, self._changed_packages = image, base, rules, changed_packages
        self._setuid = frozenset(path for footprint in footprints for path in footprint.setuid)
        self._capable = frozenset(path for footprint in footprints for path in footprint.capabilities)

    def is_declared(self, entry: Entry) -> bool:
        """Whether a role declares the program, and its mode is a plain one but for the setuid or setgid bit."""
        return entry.kind == "f" and entry.path in self._setuid and entry.mode & 0o1777 in _PLAIN_MODES["f"]

    def undeclared_attributes(self, entry: Entry) -> dict[str, str]:
        """The entry's attributes without the file capabilities that a role declares."""
        declared = entry.path in self._capable
        return {name: value for name, value in entry.attributes.items() if name != _CAPABILITY or not declared}

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
            opened = entry.mode & 0o6000 or entry.mode & 0o002
            if not rule.modes and opened and not self.is_declared(entry):
                return f"mode {entry.mode:04o}: setuid, setgid or writable by every user"
        attributes = self.undeclared_attributes(entry)
        if _CAPABILITY in attributes:
            return "file capabilities"
        kept_attributes = dict(before.attributes) if before is not None else {}
        if flags := sorted(
            name for name in entry.attributes if name.startswith("inode.") and name not in kept_attributes
        ):
            return f"attributes {', '.join(flags)}"
        if entry.kind == "f" and rule.when != "booted" and attributes != kept_attributes:
            return f"attributes {', '.join(sorted({*entry.attributes, *kept_attributes}))}"
        return self._content_problem(rule.check, entry, kept)

    def _content_problem(self, check: str, entry: Entry, kept: bool) -> str:
        """How the content differs from what the rule's program writes; "" if it does not or the rule has no check."""
        checks: Mapping[str, Callable[[Entry], str]] = {
            "bytecode": self._bytecode_problem,
            "dkms": self._dkms_problem,
            "helper": self._helper_problem,
            "module": self._module_problem,
            "package": self._package_problem,
            "ramdisk": self._ramdisk_problem,
            "skeleton": self._skeleton_problem,
            "unit": self._unit_problem,
            "written": self._written_problem,
        }
        if check in checks:
            return checks[check](entry)
        if check == "empty":
            return f"{entry.size} bytes, expected none" if entry.size else ""
        if check == "kept":
            return "" if kept else f"{mode_and_owner(entry)}: not as the base AMI has it"
        if check == "link":
            return "" if self.leads_to_explained(entry) else f"link to {entry.target}, which nothing explains"
        if check == "alternative":
            return "" if entry.target.startswith("/etc/alternatives/") else f"link to {entry.target}"
        if check in RECORDED:
            wrong = RECORDED[check](entry.path, self._image, self._base, self._changed_packages)
            return "; ".join(wrong[:_SHOWN])
        return ""

    def _skeleton_problem(self, entry: Entry) -> str:
        original = self._image.entries.get(f"/etc/skel/{posixpath.basename(entry.path)}")
        return "" if original is not None and original.sha256 == entry.sha256 else "not as in /etc/skel"

    def _module_problem(self, entry: Entry) -> str:
        built = self._built_by_dkms.get(posixpath.basename(entry.path), ())
        if not built:
            return "DKMS has built no such module"
        return "" if not entry.sha256 or entry.sha256 in built else "content is not what DKMS has built"

    def _written_problem(self, entry: Entry) -> str:
        """Why no role wrote the file as it is: another content, or no role of the build wrote it."""
        if self._written is None:
            return ""
        wrote = self._written.files.get(entry.path)
        if wrote is None:
            return "no role of the build wrote it" if self._written.is_whole else ""
        same = self._written.digests.get(entry.path) == wrote.sha1
        return "" if same else f"content is not what role {wrote.role} wrote"

    def _ramdisk_problem(self, entry: Entry) -> str:
        """What in an initial ramdisk is neither a file of the image nor generated; "" where it was not listed."""
        ramdisk = self._image.ramdisks.get(entry.path)
        wrong = unexplained(ramdisk, self._image) if ramdisk else []
        more = f"; {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else ""
        return f"in it: {'; '.join(wrong[:_SHOWN])}{more}" if wrong else ""

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

    @functools.cached_property
    def _built_by_dkms(self) -> Mapping[str, set[str]]:
        """Name of each module in DKMS's own tree → SHA-256 of what it has built for each kernel."""
        built: dict[str, set[str]] = {}
        for path, entry in self._image.entries.items():
            folder, name = posixpath.split(path)
            if path.startswith("/var/lib/dkms/") and posixpath.basename(folder) == "module":
                built.setdefault(name, set()).add(entry.sha256)
        return built

    def _helper_problem(self, entry: Entry) -> str:
        """Why nothing explains a mark that a unit was enabled: no package that the build installed has the unit."""
        name = posixpath.basename(entry.path).removesuffix(".dsh-also")
        if entry.kind == "d" or name in self._units_of_changed_packages:
            return ""
        return f"no package that the build installed has the unit {name}"

    @functools.cached_property
    def _units_of_changed_packages(self) -> frozenset[str]:
        """Names and aliases of the units of packages that the build installed."""
        units = set()
        for path, entry in self._image.entries.items():
            if "/systemd/" in path and self._changed_packages & set(entry.packages):
                units.add(posixpath.basename(path))
        return frozenset(units)

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
        """What dpkg's helper recorded when a package's scripts enabled a unit; paths below /var/lib/systemd.

        A record that the base AMI does not have counts if the build installed a package with the unit.
        """
        helper = re.compile(r"/var/lib/systemd/deb-systemd-(?:(user)-)?helper-enabled/(.+)")
        found = (
            helper.fullmatch(path)
            for path, entry in self._image.entries.items()
            if "-helper-enabled/" in path and (path in self._base.entries or not self._helper_problem(entry))
        )
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
        if flags and not flags & _CHECKS_SOURCE:
            return f"Python does not compare it with {source.path} (an unchecked hash)"
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
