"""Old logs: any text file or stream in which the kernel's lines stand behind somebody's prefix.

Known prefixes: dmesg (plain, -T, -x, --time-format iso, -H), journalctl (short, short-iso, short-full, short-monotonic,
json), syslog (RFC 3164, RFC 5424, ISO stamps), raw /dev/kmsg records, container JSON and CRI. A driver's line must
follow such a prefix directly; behind any other program's tag it is a quotation and no event.
"""

from __future__ import annotations

import calendar
import json
import re
from typing import Any, BinaryIO, Dict, Iterator, NamedTuple, Optional

from . import SCHEMA, emf, kmsg
from .catalogue import POLICY_PATH, Catalogue
from .event import Builder, Moment
from .grammar import parse
from .tracker import Tracker

_LINE_LIMIT = 65536
_TEXT_LIMIT = 16384
_BACKWARDS_US = 10 * 1000000
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_CRI = re.compile(r"(?P<iso>\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) [FP] (?P<rest>.*)", re.DOTALL)
_KMSG = re.compile(r"\d{1,4},\d{1,20},\d{1,20},[^;\s]{0,120};")
# A zone's abbreviation stands before the host, as in journalctl's short-full.
_ZONE = r" ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)| [A-Z]{{3,5}}(?=\s+[A-Za-z0-9][A-Za-z0-9._-]*\s+(?:kernel|NVRM|nv))"
_ISO = r"(?P<{0}>\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?:" + _ZONE + r")?)"
# dmesg and journalctl write months and days in the language of whoever calls them: Okt, f\u00e9vr., 10\u6708.
_WORD = r"[^\x00-@\[-`{-\x7f]{1,12}\.?"
_MONTH = r"(?:" + _WORD + r"|\d{1,2}[^\x00-\x7f])"
_BRACKET = r"\[\s*(?P<{0}>\d{{1,12}}\.\d{{1,9}})(?:\s*<\s*[\d.]+>)?\](?:\[\s*[TC]\d+\])?"
_PREFIX = re.compile(
    r"\s*(?:<(?P<pri>\d{1,3})>(?:1 )?)?"
    r"(?:(?P<decoded>[a-z]{3,8}\d?\s*:[a-z]{3,7})\s*:\s*)?"
    r"(?:"
    r"(?:" + _BRACKET.format("mono") + r"|\[(?P<ctime>(?:" + _WORD + r" )?" + _MONTH + r" [ \d]?\d \d\d:\d\d:\d\d \d{4})\]"
    r"|\[(?:" + _MONTH + r"\s?[ \d]\d \d\d:\d\d|\s*\+\s*[\d.]+|<\s*[\d.]+>)\]"
    r"|(?P<bsd>" + _MONTH + r" [ \d]?\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})?)|(?:" + _WORD + r" )?" + _ISO.format("iso") + r""
    r"|(?P<unix>\d{9,11}\.\d{1,9}))"
    r"[\s:]\s*)?"
    r"(?:(?P<host>(?!NVRM:|nvidia-nvswitch|nvswitch|kernel\b)[A-Za-z0-9][A-Za-z0-9._-]{0,254})\s+)?"
    r"(?:(?P<facility>[a-z]{3,8}\d?)\.[a-z]{3,7}\s+)?"
    r"(?P<tag>kernel(?:\[\d+\])?(?:\s-){0,3}:?\s+)?"
    r"(?:<(?P<pri2>\d{1,3})>)?"
    r"(?:" + _BRACKET.format("mono2") + r"\s*)?"
    r"(?P<body>(?:NVRM:|nvidia-nvswitch\d|nvswitch\d).*)",
    re.DOTALL | re.ASCII,
)  # fmt: skip


class Line(NamedTuple):
    """What a line of text holds: the kernel's text, whose it is, and its times as far as the prefix tells."""

    text: str
    origin: str
    monotonic_us: Optional[int]
    wall_us: Optional[int]  # UTC; None where the prefix has no time zone
    clock_us: Optional[int]  # for distances between lines of this file
    clock: str  # which clock that is
    seq: Optional[int]
    stamp: Optional[str]  # as printed
    boot_id: Optional[str] = None


def parse_line(line: str) -> Optional[Line]:
    """None where no driver's line stands behind a prefix that a kernel log has."""
    return _parse_text(_ANSI.sub("", line[:_TEXT_LIMIT]).strip("\r\n\0\ufeff"), 0)


def _parse_text(line: str, depth: int) -> Optional[Line]:
    if line.lstrip()[:1] == "{":
        return _parse_json(line, depth) if depth < 2 else None
    wrapped = _CRI.match(line)
    if wrapped:
        return _parse_text(wrapped.group("rest"), depth + 1) if depth < 2 else None
    if _KMSG.match(line):
        return _parse_kmsg(line)
    return _parse_prefixed(line)


def _parse_kmsg(line: str) -> Optional[Line]:
    record = kmsg.parse_record(line.encode("utf-8", "replace"))
    if record is None:
        return None
    origin = "kernel" if record.facility == kmsg.KERNEL_FACILITY else "userland"
    mono = record.monotonic_us
    return Line(record.text, origin, mono, None, mono, "monotonic", record.seq, None)


def _parse_prefixed(line: str) -> Optional[Line]:
    found = _PREFIX.match(line)
    if found is None:
        return None
    group = found.group
    stamped = any(group(name) for name in ("mono", "ctime", "bsd", "iso", "unix"))
    if group("host") and not (stamped or group("tag")):
        return None  # a word before the driver's line: somebody says it
    mono = group("mono2") or group("mono")
    mono_us = _decimal_us(mono) if mono else None
    wall_us, naive_us = _wall(group("iso"), group("ctime"), group("bsd"), group("unix"))
    clock = "monotonic" if mono_us is not None else "wall"
    stamp = group("iso") or group("ctime") or group("bsd") or group("unix")
    clock_us = mono_us if mono_us is not None else naive_us
    return Line(group("body").rstrip(), _origin(found), mono_us, wall_us, clock_us, clock, None, stamp)


def _origin(found: "re.Match[str]") -> str:
    """By facility where one is printed; `kernel:` is syslog's word for it; journalctl names an injected line's host alone."""
    for name in ("pri", "pri2"):
        if found.group(name):
            return "kernel" if int(found.group(name)) >> 3 == 0 else "userland"
    facility = found.group("facility") or (found.group("decoded") or "").split(":")[0].strip()
    if facility:
        return "kernel" if facility == "kern" else "userland"
    if found.group("tag"):
        return "kernel"
    return "userland" if found.group("host") else "unknown"


def _parse_json(line: str, depth: int) -> Optional[Line]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    if "MESSAGE" in document:
        return _parse_journal(document)
    if isinstance(document.get("msg"), str) and "sequence" in document and "priority" in document:
        return _parse_fluent_kmsg(document)
    for key in ("log", "message", "msg", "_raw"):
        if isinstance(document.get(key), str):
            return _parse_text(document[key][:_TEXT_LIMIT].strip("\r\n"), depth + 1)
    return None


def _parse_journal(entry: Dict[str, Any]) -> Optional[Line]:
    """journald's JSON. It cuts an injected line at its first colon: NVRM becomes the identifier, the rest the message."""
    text = entry["MESSAGE"]
    if isinstance(text, list):  # bytes that are not UTF-8
        text = bytes(byte for byte in text if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")
    if not isinstance(text, str) or entry.get("_TRANSPORT", "kernel") != "kernel":
        return None
    identifier = entry.get("SYSLOG_IDENTIFIER", "kernel")
    if identifier != "kernel":
        text = "%s: %s" % (identifier, text)
    facility = str(entry.get("SYSLOG_FACILITY", "0" if identifier == "kernel" else "1"))
    mono = _whole(entry.get("_SOURCE_MONOTONIC_TIMESTAMP")) or _whole(entry.get("__MONOTONIC_TIMESTAMP"))
    wall = _whole(entry.get("__REALTIME_TIMESTAMP"))
    boot = entry.get("_BOOT_ID")
    origin = "kernel" if facility == "0" else "userland"
    return Line(text, origin, mono, wall, mono if mono is not None else wall, "monotonic" if mono is not None else "wall",
                None, None, boot if isinstance(boot, str) else None)  # fmt: skip


def _parse_fluent_kmsg(entry: Dict[str, Any]) -> Line:
    """fluent-bit's kmsg input: the header taken apart, the facility cut off."""
    seconds, micros = _whole(entry.get("sec")), _whole(entry.get("usec")) or 0
    mono = seconds * 1000000 + micros if seconds is not None else None
    return Line(entry["msg"], "unknown", mono, None, mono, "monotonic", _whole(entry["sequence"]), None)


def _whole(value: Any) -> Optional[int]:
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 20 else None


def _decimal_us(text: str) -> int:
    whole, _, fraction = text.replace(",", ".").partition(".")
    return int(whole) * 1000000 + int((fraction + "000000")[:6])


def _wall(iso: Optional[str], ctime: Optional[str], bsd: Optional[str], unix: Optional[str]) -> "tuple[Optional[int], Optional[int]]":
    """(UTC microseconds or None, microseconds of an unknown zone) of the stamp that is there."""
    try:
        if iso:
            return _iso_us(iso)
        if unix:
            return _decimal_us(unix), _decimal_us(unix)
        if ctime:
            month, day, clock, year = ctime.split()[-4:]
            return None, _civil_us(int(year), _month(month), int(day), clock)
        if bsd:
            words = bsd.split()
            return None, _civil_us(2000, _month(words[0]), int(words[1]), words[-1])
    except ValueError:  # a thirteenth month or a 25th hour: the line counts, its time does not
        pass
    return None, None


def _iso_us(stamp: str) -> "tuple[Optional[int], Optional[int]]":
    naive = _civil_us(int(stamp[0:4]), int(stamp[5:7]), int(stamp[8:10]), re.split(r"[ Z+-]|UTC|GMT", stamp[11:])[0].replace(",", "."))
    zone = re.search(r"(?:Z|UTC|GMT|([+-])(\d\d):?(\d\d)?)$", stamp[11:])
    if zone is None:
        return None, naive
    offset = (int(zone.group(2)) * 3600 + int(zone.group(3) or 0) * 60) if zone.group(1) else 0
    utc = naive - (offset if zone.group(1) != "-" else -offset) * 1000000
    return utc, utc


def _month(name: str) -> int:
    """1 to 12; 1 for a name in a language unknown here: no zone is known either, and distances within a month are right."""
    if name in _MONTHS:
        return _MONTHS.index(name) + 1
    digits = re.match(r"\d{1,2}", name)
    return int(digits.group()) if digits else 1


def _civil_us(year: int, month: int, day: int, clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError(clock)
    return calendar.timegm((year, month, day, int(hours), int(minutes), 0)) * 1000000 + _decimal_us(seconds)


class TextParser:
    """A log file's events in order, each with the 1-based number of its line."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._builder = Builder(catalogue)
        self._tracker = Tracker(self._builder)
        self._clocks = {}  # type: Dict[str, int]
        self._number = 0

    def feed(self, raw: bytes) -> Iterator[Dict[str, Any]]:
        """One line in (with or without its end), the events that are complete by now out."""
        self._number += 1
        line = None
        if b"Xid" in raw or b"NVRM" in raw or b"gpu-ami/event" in raw:
            text = raw.decode("utf-8", "replace")
            own = _own_event(text, self._number)
            if own:
                yield from self.finish()
                yield own
                return
            line = parse_line(text)
        if line is None:
            yield from self._tracker.release(order=self._number)
            return
        if self._is_another_boot(line):
            yield from self.finish()
        fact = parse(line.text)
        if fact is not None:
            self._tracker.feed(self._moment(line), fact, line.clock_us)
        yield from self._tracker.release(line.clock_us, self._number)

    def finish(self) -> Iterator[Dict[str, Any]]:
        """What still waited for more lines; the memory begins anew."""
        yield from self._tracker.release(everything=True)
        self._tracker = Tracker(self._builder)

    def _moment(self, line: Line) -> Moment:
        fields = {
            "line": self._number, "time": emf.rfc3339(line.wall_us) if line.wall_us is not None else None, "stamp": line.stamp,
            "boot_id": line.boot_id, "seq": line.seq, "monotonic_us": line.monotonic_us,
        }  # fmt: skip
        return Moment(self._number, line.clock_us, line.origin, fields)

    def _is_another_boot(self, line: Line) -> bool:
        """Time that runs backwards: another boot, another host, or lines of many places in one file."""
        if line.clock_us is None:
            return False
        earlier = self._clocks.get(line.clock)
        self._clocks[line.clock] = line.clock_us
        return earlier is not None and line.clock_us < earlier - _BACKWARDS_US


def _own_event(text: str, number: int) -> Optional[Dict[str, Any]]:
    """A line of our own JSON log is an event already."""
    if SCHEMA not in text or text.lstrip()[:1] != "{":
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or document.get("kind") not in ("xid", "sxid", "gpu_lost"):
        return None
    if not isinstance(document.get("code"), int) or not isinstance(document.get("severity"), str):
        return None
    document["line"] = number
    return document


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines of any length in bounded memory: of an overlong one only the beginning counts."""
    while True:
        line = stream.readline(_LINE_LIMIT)
        if not line:
            return
        tail = line
        while tail and not tail.endswith(b"\n"):
            tail = stream.readline(_LINE_LIMIT)
        yield line


def parse_stream(stream: BinaryIO, policy: Optional[str] = POLICY_PATH) -> Iterator[Dict[str, Any]]:
    """The events of a whole log, in the order of its lines."""
    parser = TextParser(Catalogue(policy_path=policy))
    for line in read_lines(stream):
        yield from parser.feed(line)
    yield from parser.finish()
