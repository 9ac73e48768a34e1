"""What a component declares of itself. gpu_ami/recipes/components declares each; a site's role is one too.

How it is observed in a system that gpu-ami did not build: the sources that name its version. A site's role has them in
meta/observed.yml. The reading program (onhost/observation.py, which is sent to the machine) reads them all in one
execution; a version is told by several sources, which should agree.

And the variables of Packer templates that carry a component's version: their names, and what their text says.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import NEWEST, Facts, Sources
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule
from validator.plan_document import SourceBuild
from validator.schema import Keys, Kind, Text

if TYPE_CHECKING:
    Writer = Callable[[ResolveContext, Assignment, Sources], Mapping[str, object] | None]
    BaseWriter = Callable[[ResolveContext, Sources], Mapping[str, object]]


KINDS = ("package", "file", "content", "module", "loaded", "program", "library")
# Version patterns; what their groups match, joined by dots, is the version. Empty groups: the source shows presence.
NUMBERS = r"^(?:\d+:)?v?(\d+(?:\.\d+){1,3})"
DRIVER = r"(?<![\d.])(\d{3}\.\d{1,3}(?:\.\d{1,2})?)(?![\d.])"
PRESENCE = r"()"


@dataclass(frozen=True)
class Source:
    """One source of a component's version.

    kind: of KINDS. target: package: pattern of names; file: a path with wildcards, or a library's file name that is
    looked for in all library folders (the version is in the name behind its links); content: paths of files; module,
    loaded: name of the kernel module on disk, in the kernel; program: command line, only on a running machine; library:
    `soname function`. pattern: of the version; of a library the rule of its number (cuda, nccl, cudnn). text: its name.
    """

    kind: str
    target: str
    pattern: str
    text: str

    def request(self) -> list[str]:
        """As the reading program is given it."""
        return [self.kind, self.target, self.pattern, self.text]


@dataclass(frozen=True)
class Observed:
    """The sources of a component. several: it may be there in several versions beside each other (CUDA toolkits)."""

    sources: tuple[Source, ...]
    several: bool = False


def package(names: str, pattern: str = NUMBERS) -> Source:
    return Source("package", names, pattern, "package database")


def file(target: str, pattern: str, text: str = "file") -> Source:
    return Source("file", target, pattern, text)


def content(target: str, pattern: str, text: str = "file") -> Source:
    return Source("content", target, pattern, text)


def record(target: str, pattern: str) -> Source:
    """What an installer wrote down."""
    return Source("content", target, pattern, "installer's record")


def module(name: str, pattern: str = NUMBERS) -> tuple[Source, Source]:
    """A kernel module: on disk for each kernel, and loaded."""
    on_disk = Source("module", name, pattern, "module on disk")
    return on_disk, Source("loaded", name, pattern, "module loaded")


def program(command: str, pattern: str) -> Source:
    return Source("program", command, pattern, "program")


def library(soname: str, function: str, rule: str) -> Source:
    return Source("library", f"{soname} {function}", rule, "library's own word")


def of_document(document: Any, where: str) -> Observed:
    """Sources of a site's role: a list of {kind, target, pattern}. UsageError names every mistake."""
    mistakes, sources = [], []
    for number, row in enumerate(document if isinstance(document, list) else [document]):
        if not isinstance(row, Mapping) or row.get("kind") not in KINDS or not isinstance(row.get("target"), str):
            mistakes.append(f"[{number}]: expected kind ({', '.join(KINDS)}), target and pattern, got {row!r}")
            continue
        pattern = str(row.get("pattern", NUMBERS))
        try:
            re.compile(pattern)
        except re.error as error:
            mistakes.append(f"[{number}].pattern: {pattern!r} is not a regular expression ({error})")
            continue
        sources.append(Source(row["kind"], row["target"], pattern, str(row.get("text", row["kind"]))))
    if mistakes:
        raise UsageError(f"{where}: {len(mistakes)} mistakes", details=mistakes)
    return Observed(tuple(sources))


# A recipe has no section of this name.
NO_KEYS = Keys({})


@dataclass(frozen=True)
class OwnLog:
    """A log that a component's program writes and the CloudWatch agent sends, to a log group of its own.

    file, group: usual values of the section's keys `log` and `log_group`. content: of the file, for the reference.
    """

    file: str
    group: str
    content: str

    def keys(self) -> dict[str, Kind]:
        """Of the recipe's section; both are needed."""
        return {"log": Text(self.file, r"/[\w./+-]+"), "log_group": Text(self.group, r"[\w./#-]{1,512}")}

    def meanings(self, component: str) -> dict[str, str]:
        return {"log": f"file with {self.content}", "log_group": f"log group of `{component}.log`"}


@dataclass(frozen=True)
class Component:
    """One thing that a role installs. name: of the role, the recipe's key, the plan's section and the checks' file.

    label: its name in messages.
    layer: of the build (variables/layers.yml); "" where no role of ours installs it.
    early: layer → file in the role's tasks that this lower layer runs beforehand.
    after: what comes before it in the reference, in a plan, and in the build within a layer.
    before: what comes after it.
    installed_after, chosen_after: the same for the build, and for the choice of versions, alone.
    is_chosen: its version is chosen among the releases that the facts know.
    is_in_every_plan: mandatory in every image.
    keys: of the recipe's section, or what makes them of the facts; None: the options of the role's argument_specs.
    meanings: key → its line in the reference; `version` of a chosen component has one.
    section: the type of the plan's section.
    write: makes the section; None as its result: the plan has none. Without it the section is the recipe's.
    of_base: of a chosen component that the base AMI provides, what the section says beside its version.
    rules: names of components, and a rule for their chosen versions; without names it is checked once.
    size_gib: room on the root volume that its packages take; an estimate from their contents, not measured.
    version_tag: of the AMI, with its version.
    is_promised: the certificate says where the plan names a version and no role installs it.
    defaults: of the recipe's section, below the recipe.
    template: the variables of Packer templates that carry its version.
    own_log: the log that the agent sends for it.
    observed: the sources of its version in a system that gpu-ami did not build.
    systems: patterns of the operating systems that its role can run on; none: on all.
    """

    name: str
    label: str = ""
    layer: str = ""
    early: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    installed_after: tuple[str, ...] = ()
    chosen_after: tuple[str, ...] = ()
    is_chosen: bool = False
    is_in_every_plan: bool = False
    keys: Keys | Callable[[Facts], Keys] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    section: type | None = None
    write: Writer | None = None
    of_base: BaseWriter | None = None
    rules: tuple[tuple[tuple[str, ...], Rule], ...] = ()
    size_gib: float = 0
    version_tag: str = ""
    is_promised: bool = False
    template: TemplateVariable | None = None
    own_log: OwnLog | None = None
    observed: Observed | None = None
    systems: tuple[str, ...] = ()

    def runs_on_the_system(self, context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
        """A rule: the role of a section that the recipe has can run on the image's operating system."""
        known = any(fnmatch.fnmatchcase(context.os_name, pattern) for pattern in self.systems)
        if self.systems and not known and self.name in context.values:
            text = f"role {self.name} is for {', '.join(self.systems)}, the image is {context.os_name}"
            yield Conflict(self.name, text, f"roles/{self.name}, systems", nearest=f"leave out {self.name}")

    def grammar(self, facts: Facts) -> Keys:
        """The keys of the recipe's section."""
        keys = self.keys or NO_KEYS
        return keys if isinstance(keys, Keys) else keys(facts)

    def written(self, context: ResolveContext, versions: Assignment, sources: Sources) -> Mapping[str, object] | None:
        """The plan's section; None where the plan has none."""
        if self.write is None:
            return context.section(self.name) if self.name in context.values else None
        return self.write(context, versions, sources)


def version_kind(example: str) -> Text:
    """An exact version, a branch of it (`580`, `12`), or `newest`: the newest that fits."""
    return Text(example, rf"{NEWEST}|\d+(\.\d+){{0,3}}(-[0-9A-Za-z.]+)?", f"a version, a branch or {NEWEST},")


def versioned(example: str, **more: Kind) -> Keys:
    """The keys of a component whose version a recipe gives."""
    return Keys({"version": version_kind(example), **more}, needed=("version",))


def built_from_tag(component: str) -> Writer:
    """A writer: built from source, verified by the commit's hash."""

    def write(context: ResolveContext, versions: Assignment, _sources: Sources) -> SourceBuild:
        facts = context.facts.table(component)
        row = facts["releases"][versions[component]]
        return {
            "version": versions[component],
            "url": f"{facts['repository']}.git",
            "tag": row["tag"],
            "commit": row["commit"],
        }

    return write


COMMIT_OF_TAG = "commit of the version's tag, for a version that the facts do not know"
COMMIT = Text("75f24806239b6e481240e517fdb022f26b90ab0b", r"[0-9a-f]{40}", "a commit")


def commit_is_of_tag(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule that a recipe's commit is the one that the facts know of the version's tag."""

    def rule(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        asked, facts = context.section(component).get("commit"), context.facts.table(component)
        row = facts["releases"][chosen[component]]
        if asked and asked != row["commit"]:
            text = f"tag {row['tag']} of {facts['repository']} is commit {row['commit']}, the recipe has {asked}"
            yield Conflict(f"{component}.commit", text, row["source"], nearest="leave out commit")

    return (component,), rule


LATEST = ("latest", "newest", "*", "current")


@dataclass(frozen=True)
class Understood:
    """The recipe's version (None: not understood), what is said of it, and words that were not understood."""

    version: str | None
    remarks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def latest(text: str) -> Understood:
    """The newest release, with a remark."""
    return Understood(NEWEST, (f"{text!r} becomes {NEWEST}; the lock will pin it",))


def plain(text: str) -> Understood:
    """`4.4.2`, `v2.5`, `4`, `1.18.1-1`, `latest`."""
    if text in LATEST:
        return latest(text)
    version = re.fullmatch(r"v?(\d+(?:\.\d+){0,3})(?:-\d+)?(?:-aws)?\*?", text)
    return Understood(version[1]) if version else Understood(None, others=(text,))


@dataclass(frozen=True)
class TemplateVariable:
    """names: pattern of the variables that hold a component's version. read: a variable's text → what it says."""

    names: str
    read: Callable[[str], Understood] = plain
