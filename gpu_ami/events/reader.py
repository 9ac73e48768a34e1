"""GPU events of a log file or a host, read by the parser that runs on the image (roles/event_parser)."""

from __future__ import annotations

import codecs
import importlib.util
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NotRequired, TypedDict, cast

from gpu_ami.data import data_dir
from gpu_ami.errors import MachineError, UsageError, counted

_PACKAGE = "hwevents"
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what PowerShell writes for `aws logs tail … > file`
# The parser's own log where it exists, else the kernel's ring buffer.
_REMOTE = (
    "if [ -r /var/log/gpuevent.jsonl ]; then cat /var/log/gpuevent.jsonl.1 /var/log/gpuevent.jsonl 2>/dev/null; "
    "else sudo -n dmesg --raw 2>/dev/null || dmesg --raw; fi"
)
_REMOTE_FOLLOW = "exec tail -n +1 -F /var/log/gpuevent.jsonl 2>/dev/null"


class Event(TypedDict):
    """An event as the parser writes it; the keys that this module reads (docs/event-parser.md has all)."""

    kind: str
    code: int | str
    pci: str | None
    severity: str
    name: str
    origin: str
    ec2_action: str
    ec2_meaning: str
    time: NotRequired[str | None]
    stamp: NotRequired[str | None]
    monotonic_us: NotRequired[int | None]
    line: NotRequired[int]
    process: NotRequired[str | None]
    pid: NotRequired[int | None]
    uuid: NotRequired[str | None]
    follow_up_only: NotRequired[bool]
    incomplete: NotRequired[str]
    likely_cause: NotRequired[str]


def parser_folder() -> Path:
    """The folder of the parser's package, as the role event_parser installs it."""
    folder = data_dir("roles", "event_parser", "files")
    if (folder / _PACKAGE / "__init__.py").is_file():
        return folder
    raise UsageError(
        f"the event parser's code was not found; looked in {folder}",
        hint="reinstall gpu-ami, or in a checkout: pip install -e .",
    )


def parser_module(name: str) -> ModuleType:
    """A module of the image's parser, for example "textlog"."""
    if _PACKAGE not in sys.modules:
        folder = parser_folder() / _PACKAGE
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def read_events(
    stream: BinaryIO, policy: Path | None = None, *, quoted: bool = False, notes: list[str] | None = None
) -> Iterator[Event]:
    """The events of a log, in the order of its lines; `line` is 1-based. UsageError for an invalid policy.

    quoted: read through mail quotations, diffs, lists and markup. notes: gets what was left out.
    """
    textlog, catalogue = parser_module("textlog"), parser_module("catalogue")
    tables = catalogue.Catalogue(policy_path=str(policy) if policy else None)
    if policy and not policy.is_file():
        raise UsageError(f"{policy}: no such policy file")
    if tables.policy_errors:
        mistakes = counted(len(tables.policy_errors), "mistake")
        raise UsageError(f"{policy}: {mistakes}", details=tables.policy_errors)
    parser = textlog.TextParser(tables, quoted=quoted)
    for line in textlog.read_lines(stream):
        yield from parser.feed(line)
    yield from parser.finish()
    if notes is not None:
        notes += [_note(kind, count) for kind, count in parser.left_out.counts.items()]


_NOTES = {
    "quoted": "{} that look like quotations of kernel lines: counted, origin unknown",
    "by_program": "{} in which a program or a sentence names an Xid: not counted",
    "unread": "{} with NVRM or SXid not understood: not counted",
    "cut": "{} cut in the address or before the end of the number: not counted",
    "format": "{} of an Xid in an unknown format: not counted",
    "driver": "{} of the driver without an event",
    "consequence": "{} that repeat or follow from an event above: not counted again",
    "follow_up": "{} that belong to an SXid above: not counted again",
}


def _note(kind: str, count: int) -> str:
    return _NOTES[kind].format(counted(count, "line"))


@contextmanager
def open_log(name: str) -> Iterator[BinaryIO]:
    """A log file in UTF-8 or UTF-16, gzipped or not; `-` is standard input. UsageError where it cannot be read."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            if file.peek(2)[:2] == _GZIP:
                import gzip

                with gzip.open(file) as unpacked:
                    yield cast(BinaryIO, unpacked)
            elif file.peek(2)[:2] in _UTF16:
                yield io.BytesIO(file.read().decode("utf-16", "replace").encode())
            else:
                yield file
    except OSError as error:
        raise UsageError(
            f"{name}: {error.strerror or error}", hint="name a log file, or - for standard input"
        ) from error


class _Lines(io.RawIOBase):
    """A host's output as a file that `read_lines` can read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def readline(self, size: int | None = -1, /) -> bytes:
        return next((line + b"\n" for line in self._lines), b"")


@contextmanager
def open_host(url: str, *, follow: bool = False, key_file: Path | None = None) -> Iterator[BinaryIO]:
    """A host's event log over SSH, or its kernel log where the parser is not installed. MachineError if SSH fails."""
    from validator.transport import ssh

    try:
        target = ssh.parse_url(url, key_file=key_file, agent=key_file is None, search_keys=key_file is None)
    except ValueError as error:
        raise UsageError(str(error), hint="--host ssh://admin@203.0.113.7:22") from error
    try:
        with ssh.connect(target) as connection:
            yield cast(BinaryIO, _Lines(connection.stream(_REMOTE_FOLLOW if follow else _REMOTE)))
    except ssh.SshError as error:
        raise MachineError(f"{url}: {error}") from error


_COLOURS = {"fatal": "\x1b[1;31m", "critical": "\x1b[31m", "warning": "\x1b[33m", "app": "\x1b[36m", "info": "\x1b[2m"}
_KINDS = {"xid": "Xid", "sxid": "SXid", "gpu_lost": "lost ~Xid", "neuron": "Neuron", "gpu_init_failed": "init"}
_COLUMNS = (("TIME", 27), ("GPU", 14), ("EVENT", 10), ("SEVERITY", 8), ("WHAT", 34), ("DO", 19))


def table(events: Iterator[Event], *, colour: bool, notes: Sequence[str] = ()) -> Iterator[str]:
    """One line for each event as it arrives, then what to do for each GPU, then the notes that reading has made."""
    yield "  ".join(title.ljust(width) for title, width in _COLUMNS) + "  BY"
    worst: dict[str, Event] = {}
    count = 0
    for event in events:
        count += 1
        yield _row(event, colour)
        if event["origin"] != "userland":
            _keep_worst(worst, event)
    yield ""
    yield from _summary(worst, count)
    yield from notes


def _row(event: Event, colour: bool) -> str:
    when = event.get("time") or event.get("stamp") or _uptime(event.get("monotonic_us")) or f"line {event.get('line')}"
    code = f"{_KINDS[event['kind']]} {event['code']}"
    by = event.get("process") or ""
    if event.get("pid") is not None:
        by = f"{by}[{event['pid']}]"
    if event["origin"] == "userland":
        by += " (drill: written by a process, not by the kernel)"
    if event.get("follow_up_only"):
        by += " (follow-up line; the first line of this SXid is missing)"
    if event.get("incomplete"):
        by += f" (the line was cut; missing: {event['incomplete']})"
    if event.get("likely_cause"):
        by += f" (likely cause: {event['likely_cause']})"
    cells = (str(when), event["pci"] or "?", code, event["severity"], event["name"], event["ec2_action"])
    shown = [_fit(cell, width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)]
    if colour:
        shown[3] = _COLOURS.get(event["severity"], "") + shown[3] + "\x1b[0m"
    return ("  ".join(shown) + "  " + _printable(by)).rstrip()


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


def _keep_worst(worst: dict[str, Event], event: Event) -> None:
    gpu = event["pci"] or "?"
    if gpu not in worst or _rank(event)[0] > _rank(worst[gpu])[0]:
        worst[gpu] = event


def _summary(worst: dict[str, Event], count: int) -> Iterator[str]:
    if not count:
        yield "No Xid, SXid, lost GPU or error of Neuron in this log."
    for gpu, event in sorted(worst.items(), key=lambda item: _rank(item[1]), reverse=True):
        identity = f" ({event['uuid']})" if event.get("uuid") else ""
        kind = {"gpu_lost": "Xid", "gpu_init_failed": "GPU initialisation"}.get(event["kind"], _KINDS[event["kind"]])
        yield f"{gpu}{identity}: {event['ec2_meaning']}. Cause: {kind} {event['code']}, {event['name']}."
