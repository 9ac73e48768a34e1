"""Checks all sources of a plan at the same time, and reports the problems of each."""

from __future__ import annotations

import difflib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from gpu_ami.recipes import ResolvedPlan
from gpu_ami.sources import releases
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.openpgp import Key, require_issuer
from gpu_ami.sources.package_index import judge
from gpu_ami.sources.planned import (
    RELEASE,
    Planned,
    PlannedDownload,
    PlannedFile,
    PlannedKernel,
    PlannedPackages,
    PlannedTag,
    Unasked,
    ask_kernel,
    planned,
    planned_kernel,
)
from gpu_ami.sources.repositories import ReadRepository, Repository, key_at, read_index, repository_key

_WORKERS = 16
_KEY_DAYS = 60
# Roles that pin what their packages depend on at the planned versions, too (vendor_packages_pin).
PINNED = frozenset({"nvidia_driver", "dcgm", "container_toolkit"})
_RANK = {"missing": 2, "wrong": 2, "unreachable": 4}

ResolveAmi = Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Finding:
    """The result for one package, file or tag of a plan.

    state: there, missing, wrong, unreachable, unknown (its index could not be read) or unasked. near: similar to what
    is missing; newer: newer versions; key_days: days until the key expires, None: never.
    """

    component: str
    item: str
    planned: str
    state: Annotated[str, ("there", "missing", "wrong", "unreachable", "unknown", "unasked")]
    source: str = ""
    details: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    signature: str = ""
    key_days: int | None = None


@dataclass(frozen=True)
class ReadIndex:
    """An index that was read: address, digest of its signed file, who signed it and when (ISO date)."""

    url: str
    digest: str
    signed_by: str
    signed_on: str


@dataclass
class Survey:
    """The results of all sources of a plan. date: UTC, ISO."""

    image: str
    plan_digest: str
    date: str
    findings: list[Finding] = field(default_factory=list)
    indexes: list[ReadIndex] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0; 2: something is missing or not as planned; 4: a source cannot be reached, and nothing else is wrong."""
        return min((_RANK[finding.state] for finding in self.findings if finding.state in _RANK), default=0)

    def to_json(self) -> dict[str, Any]:
        """As SurveyDocument."""
        return {**asdict(self), "exit_code": self.exit_code}


class SurveyDocument(TypedDict):
    """The results of all sources of a plan. date: UTC, ISO."""

    image: str
    plan_digest: str
    date: str
    findings: list[Finding]
    indexes: list[ReadIndex]
    seconds: float
    exit_code: Literal[0, 2, 4]


@dataclass(frozen=True)
class _Result:
    findings: list[Finding]
    index: ReadIndex | None = None


@dataclass(frozen=True)
class _Task:
    """work: checks one source. if_late: the results if it has not answered at the deadline."""

    work: Callable[[], _Result]
    if_late: list[Finding]


def survey(
    document: ResolvedPlan,
    client: Client,
    *,
    resolve_ami: ResolveAmi | None = None,
    deadline_s: float = 120.0,
    with_archive: bool = False,
) -> Survey:
    """Checks all sources of a plan. resolve_ami: looks the source AMI up; None: no place was given.

    with_archive: the kernel is looked up in the operating system's own archive, which no mirror of vendors has.
    """
    started = time.monotonic()
    items = planned(document)
    tasks = [*_package_tasks(items, client, deadline_s)]
    if with_archive and (kernel := planned_kernel(document)):
        tasks.append(_kernel_task(kernel, client, deadline_s))
        items = [item for item in items if not (isinstance(item, Unasked) and _is_of_kernel(item, kernel))]
    for item in items:
        if isinstance(item, PlannedFile):
            tasks.append(_task(_ask_file, item, client, item.url, item.version, seconds=deadline_s))
        elif isinstance(item, PlannedDownload):
            tasks.append(_task(_ask_download, item, client, item.url, item.version, seconds=deadline_s))
        elif isinstance(item, PlannedTag):
            tasks.append(_task(_ask_tag, item, client, item.url, item.tag, seconds=deadline_s))
    if resolve_ami:
        tasks.append(_ami_task(document, resolve_ami, deadline_s))
    results = _run(tasks, deadline_s)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    collected = Survey(document["image"], str(document.get("digest", "")), date)
    collected.findings = [finding for result in results for finding in result.findings]
    collected.findings += [_unasked(item) for item in items if isinstance(item, Unasked)]
    if not resolve_ami:
        collected.findings.append(_unasked(Unasked("source_ami", _ami_name(document), "asked with --where FILE alone")))
    order = {role: number for number, role in enumerate(document["roles"])}
    collected.findings.sort(key=lambda finding: order.get(finding.component, len(order)))
    collected.indexes = [result.index for result in results if result.index]
    collected.seconds = round(time.monotonic() - started, 1)
    return collected


def require(survey: Survey) -> None:
    """UsageError: something is missing or wrong. CloudError: a source cannot be reached. Each lists all problems."""
    lines = [
        f"{one.component} {one.item} {one.planned}: {one.state}: {'; '.join(one.details) or f'not in {one.source}'}"
        + (f"; nearest {', '.join(one.near)}" if one.near else "")
        for one in survey.findings
        if one.state in _RANK
    ]
    if survey.exit_code == 2:
        hint = "gpu-ami sources shows everything; change the recipe, or build with --no-source-check"
        raise UsageError(f"{survey.image}: its sources lack something", details=lines, hint=hint)
    if survey.exit_code:
        hint = "try again, name a mirror in the place file, or build with --no-source-check"
        raise CloudError(f"{survey.image}: a source cannot be reached", details=lines, hint=hint)


def require_verified(document: ResolvedPlan, survey: Survey | None) -> None:
    """UsageError: the plan has a version that the facts do not know, and that no source was found to have.

    survey: None where no source was asked. A recipe can accept such a version by name, and then it is not in the plan.
    """
    found = {one.component for one in survey.findings if one.state == "there"} if survey else set()
    if "source_ami" in found:  # its name has the orchestrator's version
        found.add("node_version")
    if "nvidia_driver" in found:  # the section's name, where the version is of AWS's bucket
        found.add("grid_driver")
    lacking = {name: version for name, version in document.get("unverified", {}).items() if name not in found}
    if lacking:
        names = ", ".join(f"unverified-{name}" for name in lacking)
        raise UsageError(
            f"{document['image']}: versions that neither the facts nor a source tell of: "
            + ", ".join(f"{name} {version}" for name, version in lacking.items()),
            details=["no source was asked" if survey is None else "no source was found to have them"],
            hint=f"add a row with its source (gpu-ami facts --add), or name it in the recipe: accept: [{names}]",
        )


def _unasked(item: Unasked) -> Finding:
    return Finding(item.component, item.item, "", "unasked", details=(item.reason,))


def _task(
    ask: Callable[[Any, Client], _Result], item: Any, client: Client, url: str, planned_version: str, *, seconds: float
) -> _Task:
    def work() -> _Result:
        try:
            return ask(item, client)
        except SourceError as error:
            return _Result([_failed(item.component, url, planned_version, error)])

    return _Task(work, [_late(item.component, url, planned_version, seconds)])


def _late(component: str, url: str, version: str, seconds: float) -> Finding:
    return Finding(component, _last(url), version, "unreachable", url, (f"{url}: no answer within {seconds:.0f} s",))


def _failed(component: str, url: str, version: str, error: SourceError, item: str = "") -> Finding:
    details = (error.message, *error.details, *([error.hint] if error.hint else []))
    return Finding(component, item or _last(url), version, error.state, url, details)


def _last(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _signed_by(key: Key) -> dict[str, Any]:
    return {"signature": key.fingerprint, "key_days": key.days_left}


def _ends_soon(key: Key) -> tuple[str, ...]:
    soon = key.days_left is not None and key.days_left < _KEY_DAYS
    return (f"the key {key.fingerprint} expires in {key.days_left} days",) if soon else ()


def _package_tasks(items: Iterable[Planned], client: Client, seconds: float) -> list[_Task]:
    """One task for each repository, for all components that install from it."""
    by_repository: dict[Repository, list[PlannedPackages]] = {}
    pins: dict[str, str] = {}
    for item in items:
        if isinstance(item, PlannedPackages):
            by_repository.setdefault(item.repository, []).append(item)
            pins |= item.packages
    return [_repository_task(repository, asked, pins, client, seconds) for repository, asked in by_repository.items()]


def _repository_task(
    repository: Repository, asked: list[PlannedPackages], pins: Mapping[str, str], client: Client, seconds: float
) -> _Task:
    def work() -> _Result:
        try:
            key = repository_key(client, repository)
        except SourceError as error:
            return _unread(asked, error, "key")
        try:
            read = read_index(client, repository, key)
        except SourceError as error:
            return _unread(asked, error, "index")
        return _Result([_find(name, version, item, read, key, pins=pins) for item in asked for name, version in
                        item.packages.items()], _index(read))  # fmt: skip

    return _Task(work, [_late(item.component, repository.url, "", seconds) for item in asked])


def _unread(asked: list[PlannedPackages], error: SourceError, item: str) -> _Result:
    """The reason, and every package with the state unknown."""
    url = asked[0].repository.url
    findings = [_failed(asked[0].component, url, "", error, item)]
    findings += [
        Finding(requested.component, name, version, "unknown", url)
        for requested in asked
        for name, version in requested.packages.items()
    ]
    return _Result(findings)


def _index(read: ReadRepository) -> ReadIndex:
    signature = read.signature
    return ReadIndex(
        read.folder, read.digest, signature.fingerprint if signature else "", signature.date if signature else ""
    )


def _find(
    name: str, version: str, item: PlannedPackages, read: ReadRepository, key: Key, *, pins: Mapping[str, str]
) -> Finding:
    index = read.index
    package = index.find(name, version)
    signed = _signed_by(key) if read.signature else {"signature": "index not signed", "key_days": key.days_left}
    newer = tuple(index.newer(name, version))
    if package is None:
        near = tuple(index.nearest(name, version))
        return Finding(item.component, name, version, "missing", read.folder, near=near, newer=newer, **signed)
    verdict = judge(index, package, pins)
    state = "missing" if verdict.unmet else "there"
    held_back = () if item.component in PINNED else verdict.held_back
    details = (*verdict.unmet, *held_back, *_ends_soon(key))
    return Finding(item.component, name, version, state, read.folder, details, (), newer, **signed)


def _ask_file(item: PlannedFile, client: Client) -> _Result:
    """Checks that the file exists and its signature file is of the planned key. The file itself is not downloaded."""
    key = key_at(client, item.key_url, item.key_fingerprint)
    size = client.describe(item.url).size
    require_issuer(client.get(item.signature_url, limit=1 << 20), key, item.signature_url)
    shown = _size(size) if size is not None else "size not given"
    details = (shown, *_ends_soon(key))
    finding = Finding(item.component, _last(item.url), item.version, "there", item.url, details, **_signed_by(key))
    return _Result([finding])


def _ask_download(item: PlannedDownload, client: Client) -> _Result:
    """Checks that the file exists. Its ETag tells a later file of the same name from this one."""
    answer = client.describe(item.url)
    shown = _size(answer.size) if answer.size is not None else "size not given"
    pinned = f"sha256 {item.sha256} is compared when it is installed" if item.sha256 else "no digest is planned"
    details = (shown, f"ETag {answer.headers.get('etag', 'not given')}", pinned, "the vendor publishes no signature")
    return _Result([Finding(item.component, _last(item.url), item.version, "there", item.url, details)])


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _ask_tag(item: PlannedTag, client: Client) -> _Result:
    tags = releases.read_tags(client, item.url)
    newer = tuple(releases.newer_tags(tags, item.tag))
    name, commit = _last(item.url), tags.get(item.tag)
    if commit is None:
        near = tuple(difflib.get_close_matches(item.tag, tags, n=4))
        return _Result([Finding(item.component, name, item.tag, "missing", item.url, near=near, newer=newer)])
    if commit != item.commit:
        details = (f"tag {item.tag}: expected commit {item.commit}, got {commit}",)
        return _Result([Finding(item.component, name, item.tag, "wrong", item.url, details, newer=newer)])
    signature = f"commit {commit[:12]}"
    return _Result([Finding(item.component, name, item.tag, "there", item.url, newer=newer, signature=signature)])


def _is_of_kernel(item: Unasked, kernel: PlannedKernel) -> bool:
    return RELEASE in item.item or (item.component, item.item) == ("kernel", kernel.package)


def _kernel_task(kernel: PlannedKernel, client: Client, seconds: float) -> _Task:
    def work() -> _Result:
        return _Result([Finding(**asdict(answer)) for answer in ask_kernel(kernel, client)])

    details = (f"{kernel.repositories[0].url}: no answer within {seconds:.0f} s",)
    return _Task(work, [Finding("kernel", kernel.package, " or ".join(kernel.series), "unknown", details=details)])


def _ami_name(document: ResolvedPlan) -> str:
    source = document["source_ami"]
    return str(source.get("id") or source.get("ssm") or source.get("name", ""))


def _ami_task(document: ResolvedPlan, resolve_ami: ResolveAmi, seconds: float) -> _Task:
    name = _ami_name(document)

    def work() -> _Result:
        try:
            ami = resolve_ami()
        except CloudError as error:
            return _Result([Finding("source_ami", name, "", "unreachable", details=(error.message,))])
        except GpuAmiError as error:
            return _Result([Finding("source_ami", name, "", "missing", details=(error.message,))])
        details = (f"{ami['name']}, of {ami['created'][:10]}",)
        return _Result([Finding("source_ami", name, ami["id"], "there", ami["through"], details)])

    return _Task(work, [Finding("source_ami", name, "", "unreachable", details=(f"no answer within {seconds:.0f} s",))])


def _run(tasks: list[_Task], seconds: float) -> list[_Result]:
    """All results in the order of the tasks. Threads that run past the deadline are abandoned: they write nothing."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Result | BaseException]] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, tasks[number].work()))
            except BaseException as error:
                done.put((number, error))

    for _ in range(min(_WORKERS, len(tasks))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, _Result] = {}
    stop_at = time.monotonic() + seconds
    while len(results) < len(tasks):
        try:
            number, result = done.get(timeout=max(0.0, stop_at - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(result, BaseException):
            raise result
        results[number] = result
    return [results.get(number, _Result(task.if_late)) for number, task in enumerate(tasks)]


_HEADER = ("component", "item", "planned", "state", "newer", "signed by", "key days")
_STATES = ("there", "missing", "wrong", "unreachable", "unknown")


def as_table(survey: Survey) -> str:
    """One row for each package, file and tag of the plan; below a missing one, the reason and similar ones."""
    asked = [finding for finding in survey.findings if finding.state != "unasked"]
    rows = [_row(finding) for finding in asked]
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    lines = [survey.image, _line(_HEADER, widths)]
    for finding, row in zip(asked, rows, strict=True):
        lines += [_line(row, widths), *(f"    {text}" for text in _below(finding))]
    lines += ["", *_unasked_lines(survey), _summary(survey)]
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def _row(finding: Finding) -> tuple[str, ...]:
    days = "" if not finding.signature or finding.signature.startswith("commit") else _days(finding.key_days)
    newer = ", ".join(finding.newer[:2]) + (" …" if len(finding.newer) > 2 else "")
    return (
        finding.component, finding.item, finding.planned, finding.state, newer, _short(finding.signature), days,
    )  # fmt: skip


def _short(signature: str) -> str:
    """A fingerprint's last 16 digits, as gpg and apt show them."""
    return signature[-16:] if len(signature) == 40 else signature


def _days(days: int | None) -> str:
    return "no end" if days is None else str(days)


def _below(finding: Finding) -> list[str]:
    lines = list(finding.details)
    if finding.state == "missing" and not finding.details:
        lines.append(f"not in {finding.source}")
    if finding.near:
        lines.append(f"nearest: {', '.join(finding.near)}")
    return lines


def _unasked_lines(survey: Survey) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for finding in survey.findings:
        if finding.state == "unasked":
            by_reason.setdefault(finding.details[0], []).append(f"{finding.component} {finding.item}".strip())
    return [f"not asked ({reason}): {', '.join(names)}" for reason, names in by_reason.items()]


def _summary(survey: Survey) -> str:
    counts = Counter(finding.state for finding in survey.findings)
    shown = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state] or state == "there")
    return f"{shown}; {len(survey.indexes)} indexes read; {survey.seconds:.1f} s"
