"""Explains each file of an image: the base AMI's, a package's, a role's, derived by the system, or the machine's own.

An entry is explained by the first of these that matches all its attributes. All others are findings. A rule of its
path is compared with its kind, owner, mode and target, and with what the rule's check says of the content.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from validator.file_account.grammar import Footprint, Rule, expression
from validator.file_account.initial_ramdisk import not_compared
from validator.file_account.inventory import (
    Entry,
    Inventory,
    differences,
    kind_name,
    mode_and_owner,
    same_mode_and_owner,
    unchanged_package,
)
from validator.file_account.rule_problems import PLAIN_MODES, RuleProblems, Written

BASE, PACKAGE, ROLE, DERIVED, MACHINE = "base", "package", "role", "derived", "machine"
CLASSES = (BASE, PACKAGE, ROLE, DERIVED, MACHINE)
# Paths that minimal images exclude by settings of their package manager (dpkg.cfg path-exclude, rpm --nodocs).
_MAY_BE_MISSING = tuple(f"/usr/share/{name}/" for name in ("doc", "man", "locale", "info", "lintian", "help"))
_FIRST_BOOT = "first boot"
# Programs that packages of a planned component install setuid; dpkg records no modes.
_SETUID = {"/usr/bin/nvidia-modprobe": 0o4755}  # makes the driver's device nodes for every user (package of that name)


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
        self._problems = RuleProblems(image, base, rules_of_all, changed_packages, footprints, written=written)
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
        plain = setuid or entry.mode in PLAIN_MODES.get(entry.kind, ()) or self._problems.is_declared(entry)
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
