"""Proposes rows for variables/facts from the vendors' own metadata: a difference to review, each row with its source.

What an index does not say (a toolkit's minimum driver, a branch's end of support) is listed for a person to add.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_ami.recipes import Facts, ResolvedPlan
from gpu_ami.recipes.facts import tables
from gpu_ami.sources import releases, table_text, vendor_pages
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.package_index import Index
from gpu_ami.sources.planned import PlannedPackages, PlannedTag, planned, planned_kernel, series_today
from gpu_ami.sources.releases import COMPONENTS, newer_releases
from gpu_ami.sources.repositories import Repository, read_repository

# Component → names of the packages whose versions are its releases; the group is the CUDA major or branch in the name.
_NAMES = {
    "nvidia_driver": r"nvidia-dkms-(\d+)-open|nvidia-dkms-open|nvidia-kernel-open-dkms|kmod-nvidia-open-dkms",
    "cuda": r"cuda-toolkit-(\d+-\d+)",
    "nccl": r"libnccl2?",
    "cudnn": r"libcudnn9-cuda-(\d+)",
    "dcgm": r"datacenter-gpu-manager-4-core",
    "container_toolkit": r"nvidia-container-toolkit",
    "gds": r"nvidia-fs-dkms",
}
_COMPANIONS = ("fabric_manager", "imex")  # of the driver's version: their packages are compared
_FROM_TAGS = ("gdrcopy", "nccl_tests", "ofi_nccl")
LABELS = {"efa": "EFA", "cloudwatch_agent": "CloudWatch agent", "neuron": "Neuron"}
_TABLES = {"nvidia_driver": "nvidia_drivers"}
_PER_SYSTEM = ("nvidia_driver", "cuda", "nccl", "cudnn", "dcgm")


@dataclass
class Seen:
    """A release in one repository. cuda: CUDA versions or majors that its packages are for."""

    component: str
    release: str
    full: str
    source: str
    cuda: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Proposal:
    """A row to add. table: file of variables/facts without its ending; row: its path in the table."""

    table: str
    row: str
    source: str
    date: str


@dataclass
class Refreshed:
    """texts: table → new content; by_hand: releases for a person to add; errors: of sources that did not answer.

    changed: packages whose version in the index is another than the facts lead to: a new revision, or a withdrawn
    version. not_read: what was not looked at, each with the reason.
    """

    texts: dict[str, str] = field(default_factory=dict)
    proposals: list[Proposal] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)

    @property
    def diff(self) -> str:
        """A unified difference of the tables; empty where there is nothing new."""
        return "".join(
            line
            for table, text in self.texts.items()
            for line in difflib.unified_diff(
                self.before[table].splitlines(keepends=True),
                text.splitlines(keepends=True),
                f"a/variables/facts/{table}.yml",
                f"b/variables/facts/{table}.yml",
            )
        )


def refresh(
    documents: Iterable[ResolvedPlan], facts: Facts, read_table: Callable[[str], str], client: Client, today: str
) -> Refreshed:
    """Reads the repositories of some plans, and proposes rows for releases that the facts do not have.

    read_table: the text of a table by its name. today: ISO date of the new rows.
    """
    documents = list(documents)
    work = _Work(facts, read_table, today)
    work.read_pages(documents, client)
    work.read_kernels(documents, client)
    for component in COMPONENTS:
        if any(component in document["roles"] for document in documents):
            work.propose_listed(client, component)
    indexes: dict[Repository, Index] = {}
    proposed: set[tuple[str, Repository]] = set()
    for system, item in _distinct(documents, facts):
        try:
            if isinstance(item, PlannedTag):
                work.propose_tags(item, releases.read_tags(client, item.url))
            else:
                if item.repository not in indexes:
                    indexes[item.repository] = _read(client, item)
                index, place = indexes[item.repository], (item.component, item.repository)
                work.compare(item, index)
                if item.component in _NAMES and place not in proposed:
                    proposed.add(place)
                    work.propose(system, item.component, releases_in(index, item.component, item.repository.url))
        except SourceError as error:
            work.fail(error)
    moved = (f"moved: {url} answers from {target}: correct its address" for url, target in client.moved.items())
    work.found.changed += moved
    work.found.not_read = list(_not_read(facts, documents))
    return work.found


def _is_asked(row: Mapping[str, Any], documents: Sequence[ResolvedPlan]) -> bool:
    """Whether a plan has what a source tells of: a component, a node family, a driver of this source."""
    for document in documents:
        sections: Mapping[str, Any] = dict(document)
        of_driver = sections.get("nvidia_driver", {}).get("source", "vendor")
        if of_driver in row.get("driver_sources", (of_driver,)) and (
            {*document["roles"]} & {*row.get("components", ())}
            or sections.get("node", {}).get("family") in row.get("nodes", ())
        ):
            return True
    return False


def _read(client: Client, item: PlannedPackages) -> Index:
    index = read_repository(client, item.repository)[1].index
    if not index.names:
        raise SourceError(f"{item.repository.url}: expected packages, got an empty index")
    return index


def _not_read(facts: Facts, documents: Sequence[ResolvedPlan]) -> Iterator[str]:
    """Sources that nothing reads, and those of what no plan has."""
    for name, row in facts.sources["rows"].items():
        if "by_hand" in row:
            yield f"{name} ({row['tells']}): by hand, because {row['by_hand']}: {row['source']}"
        elif not _is_asked(row, documents):
            of = [*row.get("components", ()), *(f"nodes of {node}" for node in row.get("nodes", ()))]
            yield f"{name} ({row['tells']}): none of the recipes has {', '.join(of)}"
        if "except" in row:
            yield f"{name}: {row['except']}"


@dataclass
class _Work:
    """What all proposals need."""

    facts: Facts
    read_table: Callable[[str], str]
    today: str
    found: Refreshed = field(default_factory=Refreshed)
    cuda_drivers: dict[str, str] = field(default_factory=dict)

    def read_pages(self, documents: Sequence[ResolvedPlan], client: Client) -> None:
        """Changelogs, listings and pages of vendors, each whole or not at all."""
        for name, row in self.facts.sources["rows"].items():
            if not row.get("url") or not _is_asked(row, documents):
                continue
            asked = vendor_pages.Asked(client, self.facts, row, self.today)
            try:
                if name == "cuda_release_notes":
                    self.cuda_drivers = vendor_pages.cuda_drivers(asked)
                    continue
                if name == "driver_branches":
                    news = list(vendor_pages.driver_branches(asked, self.cuda_drivers))
                else:
                    news = list(vendor_pages.READERS[name](asked))
            except SourceError as error:
                self.fail(error)
                continue
            for one in news:
                self._take(one, name)

    def _take(self, news: vendor_pages.News, source: str) -> None:
        if news.seen:
            self._edit("sources", f"rows.{source}.seen", news.text, partial(
                table_text.set_key, path=("rows", source), key="seen", value=news.seen))  # fmt: skip
        if news.by_hand:
            self._by_hand(news.text)
        elif not news.table:
            self._note(news.text)
        elif news.key == "releases":
            release = str(news.value)
            change = partial(table_text.add_driver, branch=news.path[-1], release=release, source=news.text,
                             today=self.today)  # fmt: skip
            self._edit(news.table, release, news.text, change)
        elif news.key:
            change = partial(table_text.set_key, path=news.path, key=news.key, value=str(news.value))
            self._edit(news.table, ".".join((*news.path, news.key)), news.text, change)
        else:
            change = partial(table_text.add_entry, path=news.path, row=news.value)
            self._edit(news.table, ".".join(news.path), news.text, change)

    def read_kernels(self, documents: Sequence[ResolvedPlan], client: Client) -> None:
        """The kernel series that the archive of each plan's system brings today."""
        if not any("kernel" in document["roles"] for document in documents):
            return
        asked: set[object] = set()
        for document in documents:
            kernel = planned_kernel(document)
            if kernel is None or (kernel.package, kernel.repositories) in asked:
                continue
            asked.add((kernel.package, kernel.repositories))
            try:
                series, release = series_today(kernel, client)
            except SourceError as error:
                self.fail(error)
                continue
            name = _system(document, self.facts)
            if series not in map(str, self.facts.operating_systems[name]["kernels"]):
                self._by_hand(
                    f"kernel {series} of {name} ({release}): which modules build on it, and its packages: "
                    f"{kernel.repositories[0].url}"
                )

    def propose(self, system: str, component: str, seen: Mapping[str, Seen]) -> None:
        table, known = _TABLES.get(component, component), self.facts.releases(component)
        newest = max(known, key=tables.parts)
        for release, one in seen.items():
            # Releases older than the newest known one were left out on purpose.
            is_newer = component == "nvidia_driver" or tables.parts(release) > tables.parts(newest)
            if release in known:
                self._propose_update(component, release, one)
            if release in known or not is_newer or release in self._proposed(table):
                continue
            if component == "nvidia_driver":
                self._propose_driver(one)
            elif component == "cuda":
                self._propose_toolkit(release, one)
            else:
                row = _row(one, known[newest]) | {"source": one.source, "date": self.today}
                self._edit(table, release, one.source, partial(table_text.add_release, release=release, row=row))
        if component in _PER_SYSTEM:
            self._propose_seen(system, component, seen)

    def _propose_update(self, component: str, release: str, one: Seen) -> None:
        """A newer build of a known release: CUDA's updates, cuDNN's build number."""
        key = {"cuda": "package", "cudnn": "full"}.get(component)
        row = self.facts.releases(component)[release]
        key = "package" if component == "cudnn" and "package" in row else key
        old = str(row.get(key, "")) if key else ""
        if not key or not old or old.endswith("*") or tables.parts(one.full) <= tables.parts(old):
            return
        change = partial(
            table_text.set_value, release=release, key=key, old=old, new=one.full, why=f"{one.source}, {self.today}"
        )
        self._edit(component, f"{release}.{key}", one.source, change)
        driver = self.cuda_drivers.get(release, "") if component == "cuda" else ""
        if driver and driver != str(row["minimum_driver"]):
            value = partial(table_text.set_key, path=("releases", release), key="minimum_driver", value=driver)
            self._edit(component, f"{release}.minimum_driver", "CUDA release notes", value)

    def _propose_toolkit(self, release: str, one: Seen) -> None:
        """A toolkit whose driver the release notes name, of a major version that is known."""
        driver, major = self.cuda_drivers.get(release), tables.branch(release)
        if not driver or major not in self.facts.cuda["majors"]:
            needed = (
                "its minimum driver (release notes, table 3)" if not driver else f"the oldest driver of CUDA {major}"
            )
            self._by_hand(f"CUDA {release} ({one.full}): {needed}: {one.source}")
            return
        source = f"{one.source}; CUDA release notes ({self.facts.sources['rows']['cuda_release_notes']['url']})"
        row = {"minimum_driver": driver, "package": one.full, "source": source, "date": self.today}
        self._edit("cuda", release, source, partial(table_text.add_release, release=release, row=row))

    def compare(self, item: PlannedPackages, index: Index) -> None:
        """Planned packages that the index has in another revision, or no longer in the planned version."""
        for name, version in item.packages.items():
            there = [one.rpartition(":")[2] for one in index.versions(name)]
            wanted = version.rpartition(":")[2]
            if not there or wanted.endswith("*"):
                continue
            alike = [one for one in there if one.partition("-")[0] == wanted.partition("-")[0]]
            newest = max(there, key=tables.parts)
            if alike and (other := max(alike, key=tables.parts)) != wanted:
                self._changed(f"{name} {wanted}: the index has revision {other}", item)
            elif not alike:
                self._changed(f"{name} {wanted}: withdrawn; the index has {newest}", item)
            elif name == "nvlsm" and tables.parts(newest) > tables.parts(wanted):
                self._changed(f"nvlsm {newest} is newer than {wanted}: which drivers it is for", item)

    def _changed(self, text: str, item: PlannedPackages) -> None:
        self._note(f"{text}: {item.repository.url}")

    def _note(self, line: str) -> None:
        if line not in self.found.changed:
            self.found.changed.append(line)

    def propose_listed(self, client: Client, component: str) -> None:
        """Releases of a component that no package index names."""
        try:
            listed = newer_releases(client, self.facts, component)
        except SourceError as error:
            self.fail(error)
            return
        for one in listed:
            if one.missing:
                self._by_hand(f"{LABELS[component]} {one.version}: {one.missing}: {one.source}")
                continue
            row = {**one.row, "source": one.source, "date": self.today}
            self._edit(
                component, one.version, one.source, partial(table_text.add_release, release=one.version, row=row)
            )

    def fail(self, error: SourceError) -> None:
        if error.message not in self.found.errors:
            self.found.errors.append(error.message)

    def propose_tags(self, item: PlannedTag, tags: Mapping[str, str]) -> None:
        known = self.facts.releases(item.component)
        newest = max(known, key=tables.parts)
        for release, row in known.items():
            if row.get("tag") and row["tag"] not in tags:
                self._note(f"{item.component} {release}: withdrawn, no tag {row['tag']}: {item.url}")
            elif row.get("tag") and tags[row["tag"]] != row["commit"]:
                found = tags[row["tag"]]
                self._note(f"{item.component} {release}: tag {row['tag']} was moved to commit {found}: {item.url}")
        for tag in reversed(releases.newer_tags(tags, known[newest]["tag"], most=20)):
            release, source = tag.removeprefix("v"), f"{item.url} (tags)"
            if item.component == "ofi_nccl":
                self._by_hand(f"aws-ofi-nccl {release} ({tags[tag]}): minimum NCCL and libfabric, systems: {source}")
                continue
            row = {"tag": tag, "commit": tags[tag], "source": source, "date": self.today}
            self._edit(item.component, release, source, partial(table_text.add_release, release=release, row=row))

    def _propose_driver(self, one: Seen) -> None:
        name = tables.branch(one.release)
        row = self.facts.nvidia_drivers["branches"].get(name)
        if f"branches.{name}" in self._proposed("nvidia_drivers"):
            return
        if row is None:
            self._by_hand(f"driver branch {name} ({one.release}): kind, end of support, highest CUDA: {one.source}")
        elif tables.parts(one.release) > tables.parts(row["releases"][-1]):
            change = partial(
                table_text.add_driver, branch=name, release=one.release, source=one.source, today=self.today
            )
            self._edit("nvidia_drivers", one.release, one.source, change)

    def _propose_seen(self, system: str, component: str, seen: Mapping[str, Seen]) -> None:
        table = _TABLES.get(component, component)
        row = getattr(self.facts, table).get("systems", {}).get("seen", {}).get(system, {})
        before = {str(release) for release in row.get("releases", ())}
        known = {*self.facts.releases(component), *self._proposed(table)}
        new = [release for release in seen if release in known and release not in before]
        source = next(iter(seen.values())).source.partition(" (")[0] if seen else ""
        for release in sorted(before - {*seen}, key=tables.parts) if seen else ():
            self._note(f"{component} {release}: withdrawn, the repository of {system} no longer has it: {source}")
        if not new:
            return
        source, older = seen[new[-1]].source.partition(" (")[0], row.get("source", "")
        changed = {
            "releases": sorted({*before, *new}, key=tables.parts),
            "source": f"{older}; {source}" if older and source not in older else source,
            "date": self.today,
        }
        self._edit(table, f"systems.seen.{system}", source, partial(table_text.set_seen, system=system, row=changed))

    def _proposed(self, table: str) -> set[str]:
        return {proposal.row for proposal in self.found.proposals if proposal.table == table}

    def _by_hand(self, text: str) -> None:
        if text not in self.found.by_hand:
            self.found.by_hand.append(text)

    def _edit(self, table: str, row: str, source: str, change: Callable[[str], str | None]) -> None:
        """Applies a change to a table's text. If it has no place for the row, it is left and the row is reported."""
        if table not in self.found.before:
            self.found.before[table] = self.found.texts[table] = self.read_table(table)
        changed = change(self.found.texts[table])
        if changed is None:
            self._by_hand(f"{table}.yml has no place for {row}: {source}")
            return
        self.found.texts[table] = changed
        self.found.proposals.append(Proposal(table, row, source, self.today))


def _distinct(documents: Iterable[ResolvedPlan], facts: Facts) -> Iterator[tuple[str, PlannedPackages | PlannedTag]]:
    """Each repository of a component once, with the name of its operating system in the facts."""
    done: set[object] = set()
    for document in documents:
        system = _system(document, facts)
        for item in planned(document):
            if isinstance(item, PlannedTag) and item.component in _FROM_TAGS and item.url not in done:
                done.add(item.url)
                yield system, item
            if isinstance(item, PlannedPackages) and item.component in (*_NAMES, *_COMPANIONS):
                key = (item.component, item.repository.url, tuple(item.packages.items()))
                if key not in done:
                    done.add(key)
                    yield system, item


def _system(document: ResolvedPlan, facts: Facts) -> str:
    """The name of a plan's operating system in the facts."""
    os, rows = document["os"], facts.operating_systems.items()
    return next(name for name, row in rows if (row["id"], row["version"]) == (os["id"], os["version"]))


def releases_in(index: Index, component: str, source: str) -> dict[str, Seen]:
    """Releases of a component that a repository has, oldest first."""
    pattern = re.compile(_NAMES[component])
    found: dict[str, Seen] = {}
    for name in sorted(index.names):
        matched = pattern.fullmatch(name)
        for version in index.versions(name) if matched else ():
            read = _read_version(component, version, matched[1] if matched and pattern.groups else "")
            if read:
                release, full, cuda = read
                one = found.setdefault(release, Seen(component, release, full, f"{source} ({name} {version})"))
                one.cuda |= {cuda} - {""}
                if tables.parts(full) > tables.parts(one.full):
                    one.full, one.source = full, f"{source} ({name} {version})"
    return dict(sorted(found.items(), key=lambda entry: tables.parts(entry[0])))


def _read_version(component: str, version: str, group: str | None) -> tuple[str, str, str] | None:
    """Release, full version and CUDA of a package's version; None where it has another form."""
    number = version.rpartition(":")[2]
    plain = re.match(r"\d+(?:\.\d+)+", number)
    if not plain or number.startswith("~", plain.end()):  # a pre-release
        return None
    full = plain[0]
    if component == "cuda":
        return (group or "").replace("-", "."), number, ""
    if component == "nccl":
        cuda = re.search(r"\+cuda(\d+\.\d+)", number)
        return full, full, cuda[1] if cuda else ""
    if component == "cudnn":
        return ".".join(full.split(".")[:3]), full, group or ""
    return full, full, ""


def _row(one: Seen, newest: Mapping[str, Any]) -> dict[str, Any]:
    """A new release's row: from the index, with the remaining keys of the newest known release."""
    row = {
        key: value for key, value in newest.items() if key not in ("source", "date", "unverified", "note", "packaged")
    }
    if one.component == "nccl":
        row |= {
            "cuda": sorted({tables.branch(cuda) for cuda in one.cuda}, key=int),
            "packaged": sorted(one.cuda, key=tables.parts),
        }
    elif one.component == "cudnn":
        row |= {"full": one.full, "cuda": sorted(one.cuda, key=int)}
    return row
