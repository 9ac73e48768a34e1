"""What a rule says about an entry at one of its paths: about kind, owner, mode, target and content."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from validator.file_account.grammar import Footprint, Rule
from validator.file_account.initial_ramdisk import unexplained
from validator.file_account.inventory import Entry, Inventory, kind_name, mode_and_owner, same_mode_and_owner
from validator.file_account.recorded import RECORDED

PLAIN_MODES = {"d": (0o755,), "f": (0o644, 0o755, 0o444, 0o555)}
_CAPABILITY = "security.capability"
_SHOWN = 5
_MOST_LINKS = 40  # as the kernel (MAXSYMLINKS)
_CHECKS_SOURCE = 0b10  # in the flags of a .pyc whose source is named by its hash (PEP 552)
_SONAME = re.compile(r"lib.+\.so\.[0-9]+")


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


class RuleProblems:
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
        return entry.kind == "f" and entry.path in self._setuid and entry.mode & 0o1777 in PLAIN_MODES["f"]

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
