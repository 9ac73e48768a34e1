"""What `gpu-ami events` prints: a table for people, and the types of its JSON lines."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.events.catalogue import EC2_ACTIONS
from gpu_ami.events.reader import Event, LeftOut, parser_module

_NONE = "No Xid, SXid, lost GPU or error of Neuron in this log."
_TROUBLE = "No Xid, SXid, lost GPU or error of Neuron in this log, but other failures (-v: their lines):"
_OTHER_LOG = (
    f"{_NONE} None of its lines is one of a kernel log: name the output of dmesg or journalctl -k, kern.log, messages, "
    "fabricmanager.log or the Neuron runtime's log."
)
_NOT_UNDERSTOOD = "No event was understood; whether this log has none is not known, since parts of it were left out:"
_COLOURS = {"fatal": "\x1b[1;31m", "critical": "\x1b[31m", "warning": "\x1b[33m", "app": "\x1b[36m", "info": "\x1b[2m"}
_KINDS = {
    "xid": "Xid", "sxid": "SXid", "gpu_lost": "lost ~Xid", "neuron": "Neuron", "gpu_init_failed": "init",
    "stack_error": "stack",
}  # fmt: skip
_LABELS = {"gpu_lost": "Xid", "gpu_init_failed": "GPU initialisation", "stack_error": "Driver stack"}
# Of one code of one GPU so many texts have a row each; more differ in numbers alone, and are one row.
_TEXTS = 50
_COLUMNS = (("TIME", 27), ("GPU", 14), ("EVENT", 10), ("SEVERITY", 8), ("WHAT", 34), ("DO", 19))


class _Worst:
    """The heaviest event of each GPU, and what its events say that the log does not have."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self.codes: dict[str, set[int | str]] = {}
        self.causes: dict[str, list[int]] = {}

    def add(self, event: Event) -> None:
        gpu = event["pci"] or "?"
        self.codes.setdefault(gpu, set()).add(event["code"])
        if event.get("caused_by") is not None:
            self.causes.setdefault(gpu, []).append(event["caused_by"])
        if gpu not in self.events or _rank(event)[0] > _rank(self.events[gpu])[0]:
            self.events[gpu] = event

    def missing_causes(self, gpu: str) -> list[int]:
        """Xids that an Xid 45 names as its cause, and that the log has no line of."""
        return sorted(set(self.causes.get(gpu, ())) - self.codes[gpu])


@dataclass
class _Group:
    """Events that differ in their time alone. first, last: of them; texts: how many texts they have."""

    first: Event
    last: Event
    count: int = 1
    texts: int = 1


class _Groups:
    """The rows of a table, in the order of the first event of each."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._texts: dict[Hashable, int] = {}

    def add(self, event: Event) -> bool:
        """Whether the event begins a row of its own."""
        fault = (
            event.get("file"),
            event["pci"],
            event["kind"],
            event["code"],
            event["origin"],
            event["severity"],
            event["ec2_action"],
        )
        key: Hashable = (
            *fault, event.get("pid"), event.get("process"), event.get("message"), event.get("incomplete"),
            event.get("follow_up_only"),
        )  # fmt: skip
        group = self._groups.get(key)
        is_new_text = group is None
        times = cast(int, event.get("repeated", 1))
        if group is None and self._texts.get(fault, 0) >= _TEXTS:
            key = fault
            group = self._groups.get(key)
        if group is None:
            self._groups[key] = _Group(event, event, times)
            self._texts[fault] = self._texts.get(fault, 0) + 1
            return True
        group.last, group.count, group.texts = event, group.count + times, group.texts + is_new_text
        return False

    def rows(self, colour: bool) -> Iterator[str]:
        for group in self._groups.values():
            yield _row(group.first, colour) + _repeated(group)


def _repeated(group: _Group) -> str:
    if group.count == 1:
        return ""
    texts = f", {group.texts:,} texts" if group.texts > 1 else ""
    return f"  \u00d7 {group.count:,}{texts}, last {_printable(str(_when(group.last)))}"


def table(
    events: Iterator[Event],
    *,
    colour: bool,
    left_out: LeftOut | None = None,
    verbose: bool = False,
    every_row: bool = False,
) -> Iterator[str]:
    """A row for each text with its count, or for each event as it arrives; then what to do, then what was left out."""
    yield "  ".join(title.ljust(width) for title, width in _COLUMNS) + "  BY"
    worst, groups = _Worst(), _Groups()
    count = 0
    for event in events:
        count += 1
        if every_row:
            yield _row(event, colour)
        is_new = groups.add(event) if not every_row else True
        if is_new and event["origin"] != "userland":
            worst.add(event)
    yield from groups.rows(colour)
    yield ""
    if not count:
        yield _nothing(left_out)
    yield from _summary(worst)
    yield from _in_full(worst)
    if left_out is not None:
        yield from left_out.sentences(verbose=verbose)


def _row(event: Event, colour: bool) -> str:
    code = f"{_KINDS[event['kind']]} {event['code']}"
    by = event.get("process") or ""
    if event.get("pid") is not None:
        by = f"{by}[{event['pid']}]"
    if event.get("reported_by"):
        by = f"{by} {event['reported_by']}".strip()
    if event["origin"] == "userland":
        by += " (drill: written by a process, not by the kernel)"
    if event.get("follow_up_only"):
        by += " (follow-up line; the first line of this SXid is missing)"
    if event.get("incomplete"):
        by += f" (the line was cut; missing: {event['incomplete']})"
    if event.get("likely_cause"):
        by += f" (likely cause: {event['likely_cause']})"
    cells = (str(_when(event)), event["pci"] or "?", code, event["severity"], event["name"], event["ec2_action"])
    shown = [_fit(cell, width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)]
    if colour:
        shown[3] = _COLOURS.get(event["severity"], "") + shown[3] + "\x1b[0m"
    return ("  ".join(shown) + "  " + _printable(by)).rstrip()


def _when(event: Event) -> str:
    return event.get("time") or event.get("stamp") or _uptime(event.get("monotonic_us")) or _position(event)


def _position(event: Event) -> str:
    return f"{event['file']} {event.get('line')}" if event.get("file") else f"line {event.get('line')}"


def _uptime(monotonic_us: int | None) -> str:
    return "" if monotonic_us is None else f"up {monotonic_us / 1e6:.6f} s"


def _printable(text: str) -> str:
    """Process names are untrusted: control characters in them must not reach the terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _fit(text: str, width: int) -> str:
    text = _printable(text)
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def _rank(event: Event) -> tuple[int, int]:
    """Severity, then the code's number; Neuron's errors have names."""
    severities: Sequence[str] = parser_module("catalogue").SEVERITIES
    code = event["code"] if isinstance(event["code"], int) else 0
    return severities.index(event["severity"]) if event["severity"] in severities else 0, code


def _of_missing_cause(code: int, gpu: str) -> str:
    try:
        cause = catalogue.explain(str(code))
        name, meaning = f", {cause.name}", _with_address(cause.ec2_meaning, gpu)
    except UsageError:
        name, meaning = "", "Open a case with AWS Support"
    return f"{meaning}. Cause: Xid {code}{name}, named by an Xid 45: its own line is not in this log."


def _nothing(left_out: LeftOut | None) -> str:
    """What a log without an event says: no more than was read."""
    if left_out is not None and left_out.may_hide_events:
        return _NOT_UNDERSTOOD
    if left_out is not None and left_out.has_lines and not left_out.is_kernel_log and not left_out.has_trouble:
        return _OTHER_LOG
    return _TROUBLE if left_out is not None and left_out.has_trouble else _NONE


def _summary(worst: _Worst) -> Iterator[str]:
    for gpu, event in sorted(worst.events.items(), key=lambda item: _rank(item[1]), reverse=True):
        identity = f" ({event['uuid']})" if event.get("uuid") else ""
        kind = _LABELS.get(event["kind"], _KINDS[event["kind"]])
        for code in worst.missing_causes(gpu):
            yield f"{gpu}{identity}: {_of_missing_cause(code, event['pci'] or '')}"
        if event["severity"] != "info" or not worst.missing_causes(gpu):
            meaning = _with_address(event["ec2_meaning"], event["pci"] or "")
            yield f"{gpu}{identity}: {meaning}. Cause: {kind} {event['code']}, {event['name']}."


def _in_full(worst: _Worst) -> Iterator[str]:
    """Where the steps are, with those of a scheduler; nothing for events that need no action."""
    events = sorted(worst.events.values(), key=_rank, reverse=True)
    codes = dict.fromkeys(str(event["code"]) for event in events if event["ec2_action"] not in ("none", "monitor"))
    if codes:
        asked = "; ".join(f"gpu-ami runbook {code}" for code in codes)
        yield f"All steps, with {catalogue.NODE_OPTION} those of a node: {asked}"


def _with_address(meaning: str, pci: str) -> str:
    """The instructions with the GPU's address. Without one, no placeholder that looks like a word of the command."""
    any_pci = parser_module("catalogue").ANY_PCI
    if pci:
        return str(meaning).replace(any_pci, pci)
    return str(meaning).replace(f"GPU {any_pci}", "the GPU (the line does not say which)").replace(any_pci, "ADDRESS")


Severity = Literal["info", "app", "warning", "critical", "fatal"]


class Incident(TypedDict):
    """The events of one fault of a GPU. root: the code that caused them; codes: of all members."""

    id: str
    root: int | str
    members: int
    severity: Severity
    action: str
    gpu: str
    codes: list[int | str]


class Count(TypedDict):
    """How often the driver met the event: at least so often where it limits its messages."""

    at_least: int
    rate_limited: bool
    printed_one_of: NotRequired[int]


class PcieErrors(TypedDict):
    """PCIe errors that the kernel reported of a device before the event."""

    pci: str
    of: Literal["gpu", "port", "unknown"]
    severity: str
    count: int
    seconds_before: NotRequired[float]


class EventDocument(TypedDict):
    """An event (docs/event-parser.md). details: fields of the driver's text; they depend on code and driver.

    Events of gpuevent.jsonl have the members of CloudWatch's embedded metric format too, from InstanceId on.
    incomplete: what a cut line lacks. file: the log's path in an archive.
    reported_by: the program that wrote the line, where the kernel did not.
    """

    time: str | None
    schema: Literal["gpu-ami/event/1"]
    kind: Literal["xid", "sxid", "gpu_lost", "gpu_init_failed", "neuron", "stack_error"]
    code: int | str
    name: str
    severity: Severity
    action: str
    decided_by: Literal["catalogue", "message", "context", "policy", "unknown"]
    ec2_action: Annotated[str, EC2_ACTIONS]
    ec2_meaning: str
    line: int
    stamp: NotRequired[str | None]
    boot_id: str | None
    seq: int | None
    monotonic_us: int | None
    origin: Literal["kernel", "userland", "unknown"]
    driver: str | None
    catalogue: str
    pci: str
    pci_raw: str
    mig_gi: NotRequired[int | None]
    mig_ci: NotRequired[int | None]
    pid: int | None
    process: str | None
    message: str
    uuid: str | None
    serial: str | None
    incident: Incident
    details: NotRequired[dict[str, Any]]
    count: NotRequired[Count]
    caused_by: NotRequired[int]
    nvswitch: NotRequired[str]
    follow_ups: NotRequired[list[str]]
    follow_up_only: NotRequired[bool]
    implied: NotRequired[bool]
    also_reported_as: NotRequired[str]
    truncated: NotRequired[bool]
    InstanceId: NotRequired[str]
    InstanceType: NotRequired[str]
    NodeName: NotRequired[str]
    Severity: NotRequired[str]
    Xid: NotRequired[str]
    SXid: NotRequired[str]
    XidEvents: NotRequired[int]
    SxidEvents: NotRequired[int]
    GpuLostEvents: NotRequired[int]
    DrillEvents: NotRequired[int]
    LagSeconds: NotRequired[float]
    _aws: NotRequired[dict[str, Any]]
    incomplete: NotRequired[str]
    likely_cause: NotRequired[str]
    pcie_errors: NotRequired[list[PcieErrors]]
    quoted: NotRequired[Literal[True]]
    repeated: NotRequired[int]
    reported_by: NotRequired[Literal["fabric manager", "Neuron runtime", "systemd"]]
    file: NotRequired[str]


class LinesLeftOut(TypedDict):
    """Lines of one kind. lines: numbers of the first thousand."""

    why: Literal[
        "quoted", "by_program", "unread", "cut", "format", "overlong", "driver", "driver_error", "pcie", "consequence",
        "follow_up", "repeated", "program_error",
    ]  # fmt: skip
    count: int
    lines: list[int]
    file: NotRequired[str]


class FileNotRead(TypedDict):
    """A log of an archive that could not be read."""

    file: str
    why: str


class LeftOutDocument(TypedDict):
    """The last line, where lines or logs were left out, or were read with a reservation."""

    schema: Literal["gpu-ami/events-left-out/1"]
    kind: Literal["left_out"]
    may_hide_events: bool
    lines: list[LinesLeftOut]
    not_read: list[FileNotRead]
