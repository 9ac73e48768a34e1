"""Logs as text: the kernel's lines behind any log shipper's prefix and container, across boots, as events.

`prefix` reads what stands before the driver's text, `wrappers` JSON and other containers; entries that span several
lines (journalctl -o export and verbose, printed JSON) are put together here.
"""

from __future__ import annotations

import re
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

from . import emf, kmsg, leftout, programs
from .catalogue import POLICY_PATH, Catalogue
from .event import Builder, Moment
from .grammar import Broken, Fact, parse, parse_hidden
from .partial import PartialLines
from .pcie import PcieError, may_hold_bridge
from .prefix import Line, parse_stamp
from .quotes import read_quoted, was_changed
from .tracker import Tracker
from .wrappers import Item, parse_document, parse_journal, parse_text

IsRepeat = Callable[[Item, Optional[Fact], int], bool]
_LINE_LIMIT = 65536
_DOCUMENT_LIMIT = 64 << 20  # of a line that is a JSON document: an export of a log group
_BACKWARDS_US = 10 * 1000000
_ENTRY_LINES = 512
_KEPT_FACTS = 4096
_JOURNAL_START = re.compile(r"__CURSOR=|\S.* \[s=[0-9a-f]{32};")
# Each part takes the blanks behind it: shared between parts, a line of n blanks takes n^4 steps.
_OBJECT_START = re.compile(r"\s*(?:\}\s*,\s*)?(?:\"[^\"]*\"\s*:\s*)?(?:\[\s*)?\{\s*$")
_OBJECT_LINE = re.compile(r"\s*(?:[\"{}\[\],]|$)")
_LATER = re.compile(r"[^ \t].{0,80}?[ \t]{8}[ \t]*(?P<text>NVRM:.*)")
# A record behind another one. No process can have such a name: 15 bytes.
_GLUED = re.compile(r"(?<=\S)[ \t]{0,4}(?=\[ {0,5}\d{1,8}\.\d{6}\] (?:NVRM: |nvidia-nvswitch\d{1,3}: ))")
_BINARY_FIELD = re.compile(r"_{0,2}[A-Z][A-Z0-9_]{0,63}$")
_BINARY_LIMIT = 1 << 20
_JOURNAL_FIELD = re.compile(r"\s*(?P<name>_{0,2}[A-Z][A-Z0-9_]*)=(?P<value>.*)", re.DOTALL)


def _may_hold(raw: bytes) -> bool:
    """A fast test whether a line can hold an event or what explains one; most lines need no more work."""
    return (
        b"Xid" in raw or b"XID" in raw or b"gpu-ami/event" in raw or kmsg.interesting(raw) or may_hold_bridge(raw)
        or programs.may_hold(raw) or b'MESSAGE":[' in raw or b'MESSAGE" : [' in raw
    )  # fmt: skip


class _Entry:
    """An entry of several lines: the fields of a journal entry, or the members of a JSON object."""

    def __init__(self, is_journal: bool) -> None:
        self.is_journal = is_journal
        self.fields = {}  # type: Dict[str, Any]
        self.lines = []  # type: List[str]
        self.number = 0  # of the line with the driver's text
        self.holds = False
        self._field = ""
        self._binary = None  # type: Optional[bytearray]

    def add_bytes(self, raw: bytes) -> bool:
        """Adds a line of the file to a field of journalctl -o export that follows its length; False: there is none.

        The length has eight bytes, of which one may be a line feed.
        """
        if self._binary is None:
            return False
        self._binary += raw if raw.endswith(b"\n") else raw + b"\n"
        if len(self._binary) < 8:
            return True
        length = int.from_bytes(self._binary[:8], "little")
        if length > _BINARY_LIMIT:  # the bytes of the length were lost in copying
            self._end_binary(0, len(self._binary))
        elif len(self._binary) > 8 + length:
            self._end_binary(8, 8 + length)
        return True

    def _end_binary(self, start: int, end: int) -> None:
        content, self._binary = bytes(self._binary or b"")[start:end], None
        self.fields[self._field] = content.decode("utf-8", "replace").rstrip("\n")
        self.holds = self.holds or (self._field == "MESSAGE" and _may_hold(content))

    def add(self, text: str, number: int) -> bool:
        """Adds a line of the file; False if it does not belong to the entry."""
        if self.is_journal:
            match = _JOURNAL_FIELD.match(text)
            if match is not None:
                self._field = match.group("name")
                self.fields[self._field] = match.group("value")
            elif _BINARY_FIELD.match(text):  # journalctl -o export: its length and its content follow
                self._field, self._binary = text, bytearray()
            elif self._field == "MESSAGE" and (text[:1] in (" ", "\t") or "NVRM" in text):
                before = str(self.fields["MESSAGE"])
                self.fields["MESSAGE"] = before + "\n" + text.strip()
            else:
                return False
        elif _OBJECT_LINE.match(text):
            self.lines.append(text)
        else:
            return False
        self.holds = self.holds or _may_hold(text.encode())
        if not self.number and ("MESSAGE=" in text or text == "MESSAGE" if self.is_journal else self.holds):
            self.number = number
        return True

    def ends(self, text: str) -> bool:
        """Whether this line of the file ends the entry."""
        if len(self.lines) + len(self.fields) > _ENTRY_LINES:
            return True
        if self.is_journal:
            return not text.strip() or _JOURNAL_START.match(text) is not None
        return text.lstrip().startswith("}")

    def text(self) -> str:
        return str(self.fields.get("MESSAGE", "")) if self.is_journal else "\n".join(self.lines)

    def parse(self) -> List[Item]:
        if self._binary:  # the file ends in it
            self._end_binary(8, len(self._binary))
        if not self.holds or not self.number:
            return []
        if not self.is_journal:
            return parse_document("{%s}" % "\n".join(self.lines))
        line = parse_journal(self.fields)
        return [line] if line else []


class TextParser:
    """A log file's events in order, each with the 1-based number of its line.

    quoted: read through what people paste lines with (`quotes`). is_repeat: whether a line (with its fact and number), or an
    event of our own log, is one that was read before; None: every line counts. left_out: what was not read, or with a reservation.
    """

    def __init__(self, catalogue: Catalogue, quoted: bool = False, is_repeat: Optional[IsRepeat] = None) -> None:
        self._builder = Builder(catalogue)
        self._quoted = quoted
        self._is_repeat = is_repeat
        self.left_out = leftout.LeftOut()
        self._tracker = self._new_tracker()
        self._clocks = {}  # type: Dict[str, int]
        self._number = 0
        self._entry = None  # type: Optional[_Entry]
        self._partial = PartialLines(self.overlong)
        self._facts = {}  # type: Dict[str, Optional[Fact]]
        self._is_indented = False
        self._before = None  # type: Optional[Tuple[int, Line]]

    def feed(self, raw: bytes) -> Iterator[Dict[str, Any]]:
        """One line in, with or without its end; the events that are complete by now out."""
        lines = self.lines(raw)
        for number, line in lines:
            yield from self._feed_line(line, number)
        if not lines:
            yield from self._tracker.release(order=self._number)

    def lines(self, raw: bytes) -> List[Tuple[int, Item]]:
        """One line in, the kernel's lines that are complete by now out, each with its number."""
        self._number += 1
        if self._entry is not None and self._entry.add_bytes(raw):
            return []
        if not self._partial.streams and b" P " not in raw:
            return self._lines_of(self._number, raw)
        return [line for joined in self._partial.join(raw, self._number) for line in self._lines_of(*joined)]

    def _lines_of(self, number: int, raw: bytes) -> List[Tuple[int, Item]]:
        lines = []  # type: List[Tuple[int, Item]]
        may_start = b"[s=" in raw or b"__CURSOR=" in raw or raw.rstrip().endswith(b"{")
        if self._entry or may_start or _may_hold(raw):
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            lines = self._take_overwritten(text) if "\r" in text else self._take(text)
        return lines if number == self._number else [(number, item) for _, item in lines]

    def overlong(self, rest: bytes) -> None:
        """The end of a line that is too long to be read."""
        if _may_hold(rest):
            self.left_out.add(leftout.OVERLONG, self._number)

    def finish(self) -> Iterator[Dict[str, Any]]:
        """The events that still waited for more lines. The memory is cleared."""
        for number, line in self.last_lines():
            yield from self._feed_line(line, number)
        yield from self._forget()

    def last_lines(self) -> List[Tuple[int, Item]]:
        """The lines of an entry, or of a container's log, that have no end."""
        return [line for joined in self._partial.finish() for line in self._lines_of(*joined)] + self._end_entry()

    def _new_tracker(self) -> Tracker:
        tracker = Tracker(self._builder)
        tracker.on_drop = self._note_drop
        return tracker

    def _note_drop(self, number: int, why: str) -> None:
        self.left_out.add(leftout.FOLLOW_UP if why == "follow-up" else leftout.CONSEQUENCE, number)

    def _forget(self) -> Iterator[Dict[str, Any]]:
        yield from self._tracker.release(everything=True)
        self._tracker = self._new_tracker()

    def _take_overwritten(self, text: str) -> List[Tuple[int, Item]]:
        """A serial console: what was written over the same line. The kernel's begins with the time; the rest a program may quote."""
        first, *rest = text.split("\r")
        lines = self._take(first)
        for number, item in (line for part in rest for line in self._take(part)):
            if isinstance(item, Line) and item.stamp is None and item.monotonic_us is None and item.origin != "kernel":
                self.left_out.add_unread(item.text, number)
            else:
                lines.append((number, item))
        return lines

    def _take(self, text: str) -> List[Tuple[int, Item]]:
        """The lines that this line of the file completes, each with its number."""
        lines = self._end_entry() if self._entry and self._entry.ends(text) else []
        if _JOURNAL_START.match(text) and "NVRM" not in text:
            self._entry = _Entry(is_journal=True)
        elif _OBJECT_START.match(text):
            self._entry = _Entry(is_journal=False)
        elif self._entry is None or not self._entry.add(text, self._number):
            if self._entry and not self._entry.is_journal:
                self._entry = None  # not a document after all
            lines += [(self._number, line) for line in self._read(text)]
        return lines

    def _read(self, text: str) -> List[Item]:
        """The kernel's lines in a line of the file: several where a console or a paste lost the line feed between them."""
        if self._quoted and text.count("] N") + text.count("] n") > 1:
            start = 0
            for glued in _GLUED.finditer(text):
                lines = [item for item in parse_text(text[start : glued.start()]) if isinstance(item, Line)]
                if lines:
                    return lines + self._read(text[glued.end() :])
        return self._read_one(text)

    def _read_one(self, text: str) -> List[Item]:
        self._is_indented = text[:1] in (" ", "\t")
        items = list(read_quoted(text)) if self._quoted and was_changed(text) else []  # type: List[Item]
        items = items or parse_text(text) or self._read_program(text)
        if not items and self._quoted:
            items = list(read_quoted(text))
        items = items or self._read_later(text)
        if not items:
            self.left_out.add_unread(text, self._number)
        return items

    def _read_later(self, text: str) -> List[Item]:
        """A later line of a record behind what each line of the file begins with (a host of pdsh, a quotation mark)."""
        match = _LATER.match(text) if self._quoted else None
        if match is None or not self._is_begun(self._number):
            return []
        later = match.group("text").rstrip(' \t|",')
        return [self._before[1]._replace(text=later)] if self._before and self._is_later(later) else []

    def _is_begun(self, number: int) -> bool:
        """Whether the line before is one of a record that goes on."""
        if self._before is None or self._before[0] != number - 1:
            return False
        fact = self._parse(self._before[1].text)
        return isinstance(fact, programs.StackError) or getattr(fact, "part", 0) in (1, 2)

    def _is_later(self, text: str) -> bool:
        """Whether a text is that of a later line of a record."""
        return getattr(self._parse(text), "part", 0) >= 2

    def _read_program(self, text: str) -> List[Item]:
        """The line of a program of the stack that reports an event, as a line whose text names the program."""
        message, program = (
            programs.find_program(text) if programs.may_hold(text.encode("utf-8", "replace")) else ("", "")
        )
        return [parse_stamp(text)._replace(text=message, reported_by=program)] if program else []

    def _with_head(self, line: Line, number: int) -> Line:
        """A later line of a record that journalctl and dmesg print without the prefix of the first: it has the same one.

        Its blanks may have been lost in pasting.
        """
        is_bare = line.stamp is None and line.monotonic_us is None and line.origin == "unknown" and not line.host
        if is_bare and self._before is not None and self._before[0] == number - 1:
            if self._is_indented or (self._is_begun(number) and self._is_later(line.text)):
                line = self._before[1]._replace(text=line.text)
        self._before = (number, line)
        return line

    def _end_entry(self) -> List[Tuple[int, Item]]:
        entry, self._entry = self._entry, None
        if entry is None:
            return []
        items = entry.parse()
        if entry.holds and not items:
            self.left_out.add_unread(entry.text(), entry.number or self._number)
        return [(entry.number, line) for line in items]

    def _feed_line(self, line: Item, number: int) -> Iterator[Dict[str, Any]]:
        if not isinstance(line, Line):  # an event of our own JSON log
            yield from self._forget()
            if self._is_repeat is not None and self._is_repeat(line, None, number):
                self.left_out.add(leftout.REPEATED, number)
            else:
                yield dict(line, line=number)
            return
        line = self._with_head(line, number)
        if self._is_another_boot(line):
            yield from self._forget()
        fact = self._parse(line.text)
        if self._quoted and isinstance(fact, Broken):
            hidden = parse_hidden(line.text)
            if hidden is not None:
                fact, line = hidden, line._replace(origin="unknown", quoted=True)
        self._note(line, fact, number)
        if self._is_repeat is not None and self._is_repeat(line, fact, number):
            self.left_out.add(leftout.REPEATED, number)
        elif fact is not None:
            self._tracker.feed(_moment(line, number), fact, line.clock_us)
        yield from self._tracker.release(line.clock_us, number)

    def _parse(self, text: str) -> Optional[Fact]:
        """A storm repeats few texts: each is read once."""
        if text not in self._facts:
            if len(self._facts) >= _KEPT_FACTS:
                self._facts.clear()
            self._facts[text] = parse(text)
        return self._facts[text]

    def _note(self, line: Line, fact: Optional[Fact], number: int) -> None:
        if isinstance(fact, Broken):
            self.left_out.add(leftout.CUT if fact.cut else leftout.FORMAT, number)
        elif fact is None:
            if line.text.startswith("NVRM"):
                self.left_out.add_driver(line.text, number)
            elif line.text.startswith(("nvidia-nvswitch", "nvswitch")):
                self.left_out.add_switch(line.text, number)
            else:
                self.left_out.add_unread(line.text, number)
        elif isinstance(fact, PcieError):
            if not fact.severity.startswith("Correct"):
                self.left_out.add(leftout.PCIE, number)
        elif line.quoted:
            self.left_out.add(leftout.QUOTED, number)

    def _is_another_boot(self, line: Line) -> bool:
        """Time that runs backwards: another boot, another host, or lines of several sources in one file."""
        if line.clock_us is None:
            return False
        earlier = self._clocks.get(line.clock)
        self._clocks[line.clock] = line.clock_us
        return earlier is not None and line.clock_us < earlier - _BACKWARDS_US


def _moment(line: Line, number: int) -> Moment:
    fields = {
        "line": number, "time": emf.rfc3339(line.wall_us) if line.wall_us is not None else None, "stamp": line.stamp,
        "boot_id": line.boot_id, "seq": line.seq, "monotonic_us": line.monotonic_us,
    }  # fmt: skip
    if line.quoted:
        fields["quoted"] = True
    if line.reported_by:
        fields["reported_by"] = line.reported_by
    if line.repeated:
        fields["repeated"] = line.repeated
    return Moment(number, line.clock_us, line.origin, fields)


def read_lines(stream: BinaryIO, overlong: Optional[Callable[[bytes], None]] = None) -> Iterator[bytes]:
    """Lines in bounded memory; of an overlong line only the beginning, and then its rest in pieces to `overlong`.

    A file whose lines end with CR alone is read as such.
    """
    pending = b""
    while True:
        line = pending + stream.readline(_LINE_LIMIT)
        pending = b""
        if not line:
            return
        if line.endswith(b"\n") or len(line) < _LINE_LIMIT:
            yield line
            continue
        if b"\r" in line:
            *complete, pending = line.split(b"\r")
            yield from complete
            if len(pending) < _LINE_LIMIT:
                continue
            line, pending = pending, b""
        if line.lstrip()[:1] in (b"{", b"["):
            line += stream.readline(_DOCUMENT_LIMIT)
        yield line
        tail = line
        while tail and not tail.endswith(b"\n"):
            end = tail[-64:] if tail is not line else b""
            tail = stream.readline(_LINE_LIMIT)
            if overlong is not None:
                overlong(end + tail)


def parse_stream(stream: BinaryIO, policy: Optional[str] = POLICY_PATH) -> Iterator[Dict[str, Any]]:
    """The events of a whole log, in the order of its lines."""
    parser = TextParser(Catalogue(policy_path=policy))
    for line in read_lines(stream):
        yield from parser.feed(line)
    yield from parser.finish()
