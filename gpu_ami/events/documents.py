"""The types of the lines that `gpu-ami events --json` prints: events, and what was left out of the log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from gpu_ami.events.catalogue import EC2_ACTIONS

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
    """

    time: str | None
    schema: Literal["gpu-ami/event/1"]
    kind: Literal["xid", "sxid", "gpu_lost", "gpu_init_failed", "neuron"]
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
    file: NotRequired[str]


class LinesLeftOut(TypedDict):
    """Lines of one kind. lines: numbers of the first thousand."""

    why: Literal[
        "quoted", "by_program", "unread", "cut", "format", "overlong", "driver", "driver_error", "pcie", "consequence",
        "follow_up", "repeated",
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
