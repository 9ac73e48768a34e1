"""GPU events of a log file or a host, read by the parser that runs on the image (onhost/event_parser).

What was left out of a log, or read with a reservation, in sentences and as JSON. Nothing is dropped in silence.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple, NotRequired, TypedDict, cast

import onhost
from gpu_ami.errors import MachineError, UsageError, counted
from gpu_ami.events.archives import Archive, Unread
from gpu_ami.events.repeats import Repeats

PACKAGE = "hwevents"
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
    file: NotRequired[str]
    process: NotRequired[str | None]
    pid: NotRequired[int | None]
    uuid: NotRequired[str | None]
    follow_up_only: NotRequired[bool]
    incomplete: NotRequired[str]
    caused_by: NotRequired[int]
    likely_cause: NotRequired[str]
    reported_by: NotRequired[str]
    message: NotRequired[str]
    quoted: NotRequired[bool]


def parser_folder() -> Path:
    """The folder of the parser's package, which the role event_parser installs."""
    folder = Path(onhost.__file__).parent / "event_parser"
    if (folder / PACKAGE / "__init__.py").is_file():
        return folder
    raise UsageError(
        f"the event parser's code was not found; looked in {folder}",
        hint="reinstall gpu-ami, or in a checkout: pip install -e .",
    )


def parser_module(name: str) -> ModuleType:
    """A module of the image's parser, for example "textlog"."""
    if PACKAGE not in sys.modules:
        folder = parser_folder() / PACKAGE
        spec = importlib.util.spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"{PACKAGE}.{name}")


def read_events(
    stream: BinaryIO,
    policy: Path | None = None,
    *,
    quoted: bool = False,
    left_out: LeftOut | None = None,
    repeats: Repeats | None = None,
    member: str = "",
) -> Iterator[Event]:
    """The events of a log, in the order of its lines; `line` is 1-based. UsageError for an invalid policy.

    quoted: read through mail quotations, diffs, lists and markup. left_out: gets what was left out. repeats: what was
    read before, of this file or of others: no event counts twice. member: the log's path in an archive.
    """
    textlog = parser_module("textlog")
    is_repeat = repeats.is_repeat if repeats is not None else None
    parser = textlog.TextParser(_tables(policy), quoted=quoted, is_repeat=is_repeat)
    for event in _parsed(stream, parser, repeats, left_out):
        if repeats is not None and event["line"] in repeats.lines and repeats.is_known_event(event):
            parser.left_out.add("repeated", event["line"])
        else:
            yield cast(Event, {**event, "file": member}) if member else event
    if left_out is not None:
        left_out.add(member, parser.left_out.counts, parser.left_out.lines)


def _parsed(stream: BinaryIO, parser: Any, repeats: Repeats | None, left_out: LeftOut | None) -> Iterator[Event]:
    for line in parser_module("textlog").read_lines(stream, parser.overlong):
        if left_out is not None and not left_out.is_kernel_log:
            left_out.look_at(line)
        if repeats is not None:
            repeats.see(line)
        event, before = None, parser.left_out.counts.get("by_program", 0)
        for event in parser.feed(line):
            yield event
        if event is None and left_out is not None:
            left_out.note(line, names_code=parser.left_out.counts.get("by_program", 0) > before)
    yield from parser.finish()


def _tables(policy: Path | None) -> Any:
    tables = parser_module("catalogue").Catalogue(policy_path=str(policy) if policy else None)
    if policy and not policy.is_file():
        raise UsageError(f"{policy}: no such policy file")
    if tables.policy_errors:
        mistakes = counted(len(tables.policy_errors), "mistake")
        raise UsageError(f"{policy}: {mistakes}", details=tables.policy_errors)
    return tables


def read_log(name: str, policy: Path | None, left_out: LeftOut) -> Iterator[Event]:
    """The events of a file that a person names, each once: a log, compressed or not, or an archive of logs.

    `-` is standard input. UsageError where it cannot be read.
    """
    archive = Archive()
    left_out.unread = archive.unread
    repeats = Repeats(parser_module("grammar"))
    with _open(name) as stream:
        for member in archive.members(stream):
            repeats.begin_member()
            yield from read_events(
                member.stream, policy, quoted=True, left_out=left_out, repeats=repeats, member=member.name
            )
    if archive.unread and not archive.has_logs:
        raise UsageError(
            f"{name}: nothing in it can be read: {archive.unread[0].why}", hint="name a log, or an archive of logs"
        )


@contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    hint = "name a log file, or - for standard input"
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait
        with os.fdopen(descriptor, "rb") as file:
            if not _ends(file.fileno(), name):
                raise UsageError(f"{name}: a device or a named pipe, which may never end", hint=hint)
            os.set_blocking(file.fileno(), True)
            yield file
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}", hint=hint) from error


def _ends(descriptor: int, name: str) -> bool:
    """Whether it is a file, or a pipe of the shell's (`<(zcat log.gz)`), whose writer the shell has started."""
    kind = os.fstat(descriptor).st_mode
    return stat.S_ISREG(kind) or (stat.S_ISFIFO(kind) and not Path(name).resolve().exists())


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


SCHEMA = "gpu-ami/events-left-out/1"
_SENTENCES = {
    "quoted": "{} that look like quotations of kernel lines: counted, origin unknown",
    "by_program": "{} in which a program or a sentence names an Xid: not counted",
    "unread": "{} with NVRM or SXid not understood: not counted",
    "cut": "{} cut in the address or before the end of the number: not counted",
    "format": "{} of an Xid in an unknown format: not counted",
    "overlong": "too long, with NVRM or SXid in the part that was not read: {}",
    "driver_error": "{} in which the driver reports a failure, without an event: read them",
    "program_error": "{} in which a program of the stack reports a failure, without an event: read them",
    "pcie": "{} of uncorrected PCIe errors: no events, but a likely cause of one that follows",
    "driver": "{} of the driver without an event",
    "consequence": "{} that repeat or follow from an event above: not counted again",
    "follow_up": "{} that belong to an SXid above: not counted again",
    "repeated": "{} that another part of this material has too: counted once",
}
# What the lines of a kernel log, of the driver's own logs, or of the event parser's log have.
_OF_KERNEL_LOG = re.compile(
    rb"(?i)\bkern(?:el)?\b|^\W{0,12}\d{1,12}\.\d{6}\]|^\d{1,4},\d+,\d+,[^;]{0,40};|NVRM|S?Xid|nvswitch|gpu-ami/|TDRV:|NRT:|_TRANSPORT|"
    rb"fabricmanager|fabric manager|^(?:kern|user|daemon|syslog)\s*:|\[tid \d+\]"
)
_NAMED_CODE = re.compile(rb"(?i)S?Xid\s*\(PCI[^)]{0,40}\)\s*:?\s*(\d{1,5})\b")
_NAMED_CODES = 10  # that are listed
# What the driver's calls return after a fatal error of a GPU or its GSP, until it is reset (kernel_gsp.c, alloc_free.c;
# kubernetes-sigs/dra-driver-nvidia-gpu#982: nothing else was printed).
_RESET = b"NV_ERR_RESET_REQUIRED"
# Where lines of these kinds were left out, an event may have been among them.
_MAY_HIDE = frozenset({"by_program", "unread", "cut", "format", "overlong"})
# Trouble that is no event: a log with these is not a good one.
_TROUBLE = frozenset({"driver_error", "pcie", "program_error"})


class Lines(NamedTuple):
    """Lines of one kind in one member of an archive ("" for the file itself). `numbers`: of the first thousand."""

    member: str
    kind: str
    total: int
    numbers: Sequence[int]


@dataclass
class LeftOut:
    """Filled while a log is read."""

    lines: list[Lines] = field(default_factory=list)
    unread: Sequence[Unread] = ()
    has_lines: bool = False
    is_kernel_log: bool = False
    named_codes: set[int] = field(default_factory=set)
    needs_reset: bool = False

    def note(self, line: bytes, *, names_code: bool) -> None:
        """Of a line that gave no event: the code that it names as the driver prints it, where a program wrote it."""
        if (
            names_code
            and b"Xid" in line
            and (found := _NAMED_CODE.search(line))
            and len(self.named_codes) < _NAMED_CODES
        ):
            self.named_codes.add(int(found[1]))
        self.needs_reset = self.needs_reset or _RESET in line

    def look_at(self, line: bytes) -> None:
        """Each line, until one of a kernel log, of the driver or of the parser is among them."""
        self.has_lines = self.has_lines or bool(line.strip())
        self.is_kernel_log = _OF_KERNEL_LOG.search(line) is not None

    def add(self, member: str, counts: Mapping[str, int], numbers: Mapping[str, Sequence[int]]) -> None:
        self.lines += [Lines(member, kind, count, numbers[kind]) for kind, count in counts.items()]

    @property
    def may_hide_events(self) -> bool:
        """Whether "no event" would claim more than was read."""
        return bool(self.unread) or any(lines.kind in _MAY_HIDE for lines in self.lines)

    @property
    def has_trouble(self) -> bool:
        """Whether the driver or PCIe reports a failure that is no event."""
        return any(lines.kind in _TROUBLE for lines in self.lines)

    def sentences(self, *, verbose: bool = False) -> Iterator[str]:
        """A sentence for each kind, then one for each member that was not read. verbose: with line numbers."""
        for kind, sentence in _SENTENCES.items():
            of_kind = [lines for lines in self.lines if lines.kind == kind]
            if of_kind:
                yield sentence.format(counted(sum(lines.total for lines in of_kind), "line")) + self._by_hand(kind)
                if verbose:
                    yield from (f"  {_place(lines)}" for lines in of_kind)
        for member in self.unread:
            yield f"not read: {_shown(member.name) or 'this file'} ({member.why})"

    def _by_hand(self, kind: str) -> str:
        """What a person can do with lines of a kind, or ask who knows that the driver printed them."""
        if kind == "driver_error" and self.needs_reset:
            return f"; {_RESET.decode()}: a GPU needs a reset; if no event above says more, reboot the instance"
        if kind != "by_program" or not self.named_codes:
            return ""
        asked = ", ".join(f"gpu-ami runbook {code}" for code in sorted(self.named_codes))
        return f"; if the driver printed what it quotes: {asked}"

    def document(self) -> dict[str, Any]:
        """The last line of `--json`; {} where nothing was left out."""
        if not self.lines and not self.unread:
            return {}
        return {
            "schema": SCHEMA, "kind": "left_out", "may_hide_events": self.may_hide_events,
            "lines": [
                {"why": lines.kind, "count": lines.total, "lines": list(lines.numbers),
                 **({"file": lines.member} if lines.member else {})}
                for lines in self.lines
            ],
            "not_read": [{"file": member.name, "why": member.why} for member in self.unread],
        }  # fmt: skip


def _place(lines: Lines) -> str:
    more = ", …" if lines.total > len(lines.numbers) else ""
    where = f"{_shown(lines.member)}: " if lines.member else ""
    return f"{where}{'line' if lines.total == 1 else 'lines'} {', '.join(_runs(lines.numbers))}{more}"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """3, 5-7"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return (str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _shown(name: str) -> str:
    """Names in an archive are untrusted: no control characters for the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in name)
