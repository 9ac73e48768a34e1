"""What stands before the driver's text in a line of a log: time stamps, hosts, syslog headers, names of log streams.

A line is an event only if the kernel wrote the driver's text. So the words before it are read one by one: a time stamp,
a host or a stream name may stand there; a program's tag (`python3[99]:`), prose or a log level makes the line a
quotation. Known: dmesg (plain, -T, -x, -H, -d, --time-format), journalctl (all short formats), syslog (RFC 3164, RFC 5424,
relayed), talosctl, VMkernel, serial consoles, `aws logs tail`, kubectl, docker compose, stern, logcli, Kibana.
"""

from __future__ import annotations

import calendar
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_FACILITIES = r"(?:kern|kernel|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|ntp|security|console|solaris-cron|local[0-7])"
_LEVELS = r"(?:emerg|panic|alert|crit|err|error|warn|warning|notice|info|debug)"
# dmesg and journalctl write months and days in the language of the caller: Okt, f\u00e9vr., 10\u6708.
_WORD = r"[^\x00-@\[-`{-\x7f]{1,12}\.?"
_MONTH = r"(?:" + _WORD + r"|\d{1,2}[^\x00-\x7f])"
_CLOCK = r"\d\d?:\d\d:\d\d(?:[.,]\d{1,9})?"
# A time zone's abbreviation stands before the host in journalctl's short-full.
_ZONE = r" ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)\b| [A-Z]{3,5}(?=\s+[A-Za-z0-9][A-Za-z0-9._-]*\s+(?:kernel|NVRM|nv))"
_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:" + _ZONE + r")?"
_BSD = _MONTH + r" +\d{1,2} (?:\d{4} )?" + _CLOCK
_CTIME = r"(?:" + _WORD + r" )?" + _MONTH + r" +\d{1,2} \d\d:\d\d:\d\d \d{4}"
_OTHER_STAMPS = (
    r"[A-Z][a-z]{2} +\d{1,2}, \d{4} @ " + _CLOCK,  # Kibana
    r"\d{1,2}/[A-Z][a-z]{2}/\d{4}:" + _CLOCK + r"(?: [+-]\d{4})?",  # web servers
    r"\d{1,2}/\d{1,2}/\d{4},? " + _CLOCK + r"(?: [AP]M)?",
    r"\d{1,2} [A-Z][a-z]{2} \d{4} " + _CLOCK,
)
_TOKEN = re.compile(
    r"(?P<space>[ \t\ufeff]+)"
    r"|<(?P<pri>\d{1,3})>(?:\d{1,2}(?= ))?"
    # printk's uptime, with the distance to the line before it or the caller's thread.
    r"|\[\s*(?P<mono>\d{1,12}\.\d{1,9})(?:\s*<\s*[\d.]+[ *]?>)?\](?: ?\[\s*[TC]\d+\])?"
    r"|\[(?P<number>\d{1,12})\]"
    r"|\[(?:\.\.\.|\u2026|" + _MONTH + r"\s?[ \d]\d \d\d:\d\d|\s*\+\s*[\d.]+|<\s*[\d.]+[ *]?>)\](?P<bracket>)"
    r"|\[?(?:(?P<ctime>" + _CTIME + r")|(?:" + _WORD + r" )?(?P<iso>" + _ISO + r")|(?P<bsd>" + _BSD + r")"
    r"|(?P<unix>\d{9,11}\.\d{1,9}|\d{13}|\d{16}|\d{19})|(?P<stamp>" + "|".join(_OTHER_STAMPS) + r")|(?P<clock>" + _CLOCK + r"))(?:\]:?|(?=[\s,;|:])|$):?"
    r"|(?P<facility>" + _FACILITIES + r")(?:\." + _LEVELS + r":?|\s*:\s*" + _LEVELS + r"\s*:)(?=\s)"
    r"|(?P<tag>(?:vm)?kernel(?:\[\d+\])?(?::|(?: (?:-|\d+)){1,3}(?: ?\[[A-Za-z](?:[^\]\\]|\\.)*\])*)(?=[\s\[<]|NVRM|$)|kernel(?= +(?:NVRM:|\[|nv)))"
    r"|cpu\d+:\d+(?: opID=\w+)?\)(?P<cpu>)"
    r"|\{(?P<labels>[^{}]{0,2000})\}"
    r"|\[(?P<group>[^\s\[\]]{1,300})\]"
    r"|(?P<separator>[|,;]|-(?=\s))"
    r"|(?P<word>[^\s\"'`|,;\[\]{}<>]{1,300})",
    re.ASCII,
)  # fmt: skip
# The logs of programs: fabricmanager.log ([Jul 09 2024 18:14:07]), the Neuron runtime (2023-Jan-09 20:27:41.0593), journal, containers.
_PROGRAM_STAMP = re.compile(
    r"\s*\[?(?P<stamp>(?P<dashed>\d{4}-[A-Z][a-z]{2}-\d\d "
    + _CLOCK
    + r")|(?P<named>[A-Z][a-z]{2} \d{1,2} \d{4} "
    + _CLOCK
    + r")"
    r"|(?P<iso>" + _ISO + r")|(?P<bsd>" + _BSD + r"))",
    re.ASCII,
)
_DRIVER_TEXT = re.compile(
    r"(?<![^\s>\])}|,;:])(?:NVRM:|nvidia-nvswitch\d{0,4}:|nvswitch\d{1,4}:|NEURON_HW_ERR=|neuron:\w{1,64}: |nvidia: probe of |"
    r"(?:pcieport|pci|aer|vfio-pci|nvidia(?:-\w+)?) [0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]: )"
)
_LEVEL_WORD = re.compile(
    r"(?:emerg|panic|fatal|alert|crit|critical|err|error|warn|warning|notice|info|debug|trace)$", re.IGNORECASE
)
# A name of a machine, file or stream rather than a word of prose.
_IDENTIFIER = re.compile(r"(?=.*[\d/_@])[A-Za-z0-9/][A-Za-z0-9/._@:+#=-]*$")
_STREAM_OF_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}$")
_SOURCE = re.compile(
    r"(?P<name>(?:/[^\s:]+|(?=[A-Za-z._-]*\d)[A-Za-z0-9._-]+|[A-Za-z0-9._-]+\.log)):(?P<rest>.*)", re.DOTALL
)
# The kernel writes behind what waits for input: a login, a password, a shell's prompt.
_CONSOLE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]* login:|Password:|\[?[\w.-]{1,64}@[\w.-]{1,64}[ :][^\s#$\]]{0,200}\]?[#$]) +(?P<rest>\[.*)",
    re.DOTALL,
)
_TIMES = re.compile(r"(?P<times>\d{1,9}) times: \[ ?(?P<text>.*)\]\s*$")
_KERNEL_LABEL = re.compile(r"""(?:transport|identifier|facility)["']?\s*[=:]\s*["']?kern(?:el)?\b""")
_TAG_OF_STREAM = re.compile(r"\b(?:kernel|kmsg|kern|syslog)[\w.]*: *$")
_KERNEL_FACILITIES = ("kern", "kernel")
_MOST_NAMES = 4


class Line(NamedTuple):
    """One line: the kernel's text, its origin, and its times as far as the prefix tells."""

    text: str
    origin: str  # "kernel", "userland" (written to /dev/kmsg by a process) or "unknown"
    monotonic_us: Optional[int]
    wall_us: Optional[int]  # UTC; None where the prefix has no time zone
    clock_us: Optional[int]  # for distances between lines of this file
    clock: str  # which clock that is: "monotonic" or "wall"
    seq: Optional[int]
    stamp: Optional[str]  # as printed
    boot_id: Optional[str] = None
    naive_us: Optional[int] = None  # of the wall clock as printed, without its zone
    host: str = ""
    quoted: bool = False
    reported_by: str = ""  # the program that wrote the line, where the kernel did not
    repeated: int = 0  # how many lines of the kernel rsyslog replaced by this one


class _Words:
    """The prefix read so far."""

    def __init__(self) -> None:
        self.values = {}  # type: Dict[str, str]
        self.names = []  # type: List[str]
        self.has_level = False
        self.last = ""

    def has(self, *kinds: str) -> bool:
        return not self.values.keys().isdisjoint(kinds)

    @property
    def stamped(self) -> bool:
        return self.has("ctime", "iso", "bsd", "unix", "stamp", "bracket")

    @property
    def names_kernel(self) -> bool:
        # dmesg -T and --time-format iso are as telling as an uptime: no other program writes these stamps.
        return self.has("tag", "facility", "mono", "cpu", "ctime") or bool(
            re.match(r"[^ ]+T[^ ]+,", self.values.get("iso", ""))
        )

    def take(self, kind: str, value: str) -> bool:
        """Adds a token; False where no prefix goes on so."""
        if kind == "space":
            return True
        if kind == "word":
            return self._take_word(value)
        if kind == "number" and self.last:
            return False  # a program's process id; [123] alone is a stamp
        if kind == "group" and not re.search(r"[\d/]", value):
            self.has_level = True  # [ERROR], [health]: columns of a program's own log
        if kind == "labels" and _KERNEL_LABEL.search(value):
            kind = "tag"
        if kind == "mono" and "mono" in self.values:
            kind = "mono2"
        self.values[kind] = (
            value if kind in ("facility", "separator", "group", "labels") else self.values.get(kind, value)
        )
        self.last = kind
        return True

    def _take_word(self, word: str) -> bool:
        if "tag" in self.values or word.endswith(":") or re.search(r"\[\d+\]", word):
            return False  # text after the kernel's tag, or a program's tag
        if _LEVEL_WORD.match(word):
            self.has_level = True
        else:
            self.names.append(word)
        self.last = "word"
        return len(self.names) <= _MOST_NAMES

    def accepted(self) -> bool:
        """Whether the kernel's text may follow here."""
        prose = [name for name in self.names if not _IDENTIFIER.match(name)]
        if self.last in ("tag", "facility", "cpu"):
            return len(prose) <= 1  # a host's name; names of relays and streams are identifiers
        if self.has_level and "tag" not in self.values:
            return False
        if self.last in ("mono", "mono2"):
            # stern: the pod and the container, then dmesg's line
            is_container = len(self.names) == 2 and prose == self.names[1:]
            return len(prose) <= (1 if self.stamped or "tag" in self.values or is_container else 0)
        if self.has("clock") and self.names:
            return False  # a chat
        if self.last == "word":  # so journalctl prints a line that a process wrote to /dev/kmsg
            return len(self.names) == 1 and "facility" not in self.values and (self.stamped or "mono" in self.values)
        if self.last == "separator":  # docker compose
            return self.values["separator"] == "|" and len(self.names) == 1 and not prose
        if self.last in ("group", "labels"):
            return "/" in self.values[self.last] and not self.names
        return not self.names or ("tag" in self.values and len(prose) <= 1) or ("facility" in self.values and not prose)

    def origin(self) -> str:
        """By facility where one is printed; `kernel:` is syslog's word for it; a host alone stands before injected lines."""
        if "pri" in self.values:
            return "kernel" if int(self.values["pri"]) >> 3 == 0 else "userland"
        if "facility" in self.values:
            return "kernel" if self.values["facility"] in _KERNEL_FACILITIES else "userland"
        if self.has("tag", "cpu"):
            return "kernel"
        if self.last == "word" and not _STREAM_OF_INSTANCE.match(self.names[0]):
            return "userland"
        return "unknown"


# Prefixes of one log differ in their digits: tokens by the prefix with zeros instead.
_DIGITS = dict.fromkeys(range(ord("1"), ord("9") + 1), "0")
_SHAPES = {}  # type: Dict[str, List[Tuple[str, int, int]]]
_KEPT_SHAPES = 1024


def parse_prefixed(line: str) -> Optional[Line]:
    """The driver's text with its prefix; None where a line holds none, or quotes it."""
    return _parse_repeated(line) or _parse_prefixed(line)


def _parse_repeated(line: str) -> Optional[Line]:
    """rsyslog's `kernel: message repeated 3 times: [ NVRM: \u2026]` ($RepeatedMsgReduction, on in Ubuntu), after the first line."""
    head, _, rest = line.partition("message repeated ")
    match = _TIMES.match(rest) if rest else None
    parsed = _parse_prefixed(head + match.group("text")) if match else None
    if match is None or parsed is None or parsed.origin != "kernel":
        return None
    return parsed._replace(repeated=int(match.group("times")))


def _parse_prefixed(line: str) -> Optional[Line]:
    match = _DRIVER_TEXT.search(line)
    if match is None:
        return None
    words = _read(line, match.start())
    if words is None or not words.accepted():
        return _parse_behind_source(line)
    return _line(words, line[match.start() :].rstrip())


def parse_stamp(line: str) -> Line:
    """A program's line, with the time that stands at its beginning; the text is the whole line."""
    match = _PROGRAM_STAMP.match(line)
    if match is None:
        return Line(line, "unknown", None, None, None, "wall", None, None)
    stamp = match.group("stamp")
    if match.group("dashed") or match.group("named"):
        words = re.split(r"[-\s]+", stamp)
        year, month, day = (words[0], words[1], words[2]) if match.group("dashed") else (words[2], words[0], words[1])
        try:
            wall_us, naive_us = None, _civil_us(int(year), _month(month), int(day), words[3])
        except ValueError:
            wall_us = naive_us = None
    else:
        wall_us, naive_us = _wall(match.group("iso"), None, match.group("bsd"), None)
    return Line(line, "unknown", None, wall_us, naive_us, "wall", None, stamp, naive_us=naive_us)


def has_driver_text(text: str) -> bool:
    return _DRIVER_TEXT.search(text) is not None


def is_head(text: str) -> bool:
    """Whether a log shipper may write this before a document: times, hosts and stream names, no prose."""
    text = _TAG_OF_STREAM.sub("", text)
    words = _read(text, len(text))
    return words is not None and not words.has_level and all(map(_IDENTIFIER.match, words.names))


def _read(line: str, end: int) -> Optional[_Words]:
    """The tokens of `line[:end]`; None where one of them cannot stand in a prefix."""
    words = _Words()
    shape = line[:end].translate(_DIGITS)
    tokens = _SHAPES.get(shape)
    if tokens is None:
        tokens = _tokens(line, end)
        if len(_SHAPES) >= _KEPT_SHAPES:
            _SHAPES.clear()
        _SHAPES[shape] = tokens
    for kind, start, stop in tokens:
        if not kind or not words.take(kind, line[start:stop]):
            return None
    return words


def _tokens(line: str, end: int) -> List[Tuple[str, int, int]]:
    """(kind, start, end) of each token; the last is ("", 0, 0) where what stands there is none."""
    tokens, position = [], 0  # type: Tuple[List[Tuple[str, int, int]], int]
    while position < end:
        match = _TOKEN.match(line, position)
        if match is None or match.end() > end or match.lastgroup is None:
            return [*tokens, ("", 0, 0)]
        if match.lastgroup != "space":
            tokens.append((match.lastgroup, match.start(match.lastgroup), match.end(match.lastgroup)))
        position = match.end()
    return tokens


def _parse_behind_source(line: str) -> Optional[Line]:
    """A line after the name that grep, pdsh or a serial console puts before it; the rest must name the kernel."""
    match = _SOURCE.match(line) or _CONSOLE.match(line)
    if match is None:
        return None
    rest = match.group("rest").lstrip()
    text = _DRIVER_TEXT.search(rest)
    words = _read(rest, text.start()) if text else None
    if text is None or words is None or not words.names_kernel or not words.accepted():
        return None
    return _line(words, rest[text.start() :].rstrip())


def _line(words: _Words, text: str) -> Line:
    group = words.values.get
    mono = group("mono2") or group("mono")
    mono_us = _decimal_us(mono) if mono else None
    wall_us, naive_us = _wall(group("iso"), group("ctime"), group("bsd"), group("unix"))
    clock = "monotonic" if mono_us is not None else "wall"
    stamp = group("iso") or group("ctime") or group("bsd") or group("unix") or group("stamp") or group("clock")
    clock_us = mono_us if mono_us is not None else naive_us
    host = words.names[-1] if words.names and words.has("tag", "facility") else ""
    return Line(text, words.origin(), mono_us, wall_us, clock_us, clock, None, stamp, naive_us=naive_us, host=host)


def _decimal_us(text: str) -> int:
    whole, _, fraction = text.replace(",", ".").partition(".")
    return int(whole) * 1000000 + int((fraction + "000000")[:6])


def _unix_us(text: str) -> int:
    """Seconds with a fraction, or milliseconds, microseconds or nanoseconds by the number of digits."""
    if "." in text:
        return _decimal_us(text)
    return int((text + "000")[:16])


def _wall(
    iso: Optional[str], ctime: Optional[str], bsd: Optional[str], unix: Optional[str]
) -> Tuple[Optional[int], Optional[int]]:
    """(UTC microseconds or None, microseconds of an unknown zone) of the stamp that is there."""
    try:
        if iso:
            return _iso_us(iso)
        if unix:
            return _unix_us(unix), _unix_us(unix)
        if ctime:
            month, day, clock, year = ctime.split()[-4:]
            return None, _civil_us(int(year), _month(month), int(day), clock)
        if bsd:
            words = bsd.split()
            return None, _civil_us(2000, _month(words[0]), int(words[1]), words[-1])
    except ValueError:  # a thirteenth month or a 25th hour: the event counts, its time does not
        pass
    return None, None


def _iso_us(stamp: str) -> Tuple[Optional[int], Optional[int]]:
    clock = re.split(r"[ Z+-]|UTC|GMT", stamp[11:].strip())[0].replace(",", ".")
    naive = _civil_us(int(stamp[0:4]), int(stamp[5:7]), int(stamp[8:10]), clock)
    zone = re.search(r"(?:Z|UTC|GMT|([+-])(\d\d):?(\d\d)?)$", stamp[11:])
    if zone is None:
        return None, naive
    offset = (int(zone.group(2)) * 3600 + int(zone.group(3) or 0) * 60) if zone.group(1) else 0
    utc = naive - (offset if zone.group(1) != "-" else -offset) * 1000000
    return utc, utc


def _month(name: str) -> int:
    """1 to 12; 1 for a name in an unknown language: its zone is unknown too, and distances within a month are right."""
    if name in _MONTHS:
        return _MONTHS.index(name) + 1
    digits = re.match(r"\d{1,2}", name)
    return int(digits.group()) if digits else 1


def _civil_us(year: int, month: int, day: int, clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError(clock)
    date = (year, month, day)
    if date not in _MIDNIGHTS:
        if len(_MIDNIGHTS) >= _KEPT_SHAPES:
            _MIDNIGHTS.clear()
        _MIDNIGHTS[date] = calendar.timegm((year, month, day, 0, 0, 0))
    return (_MIDNIGHTS[date] + int(hours) * 3600 + int(minutes) * 60) * 1000000 + _decimal_us(seconds)


_MIDNIGHTS = {}  # type: Dict[Tuple[int, int, int], int]
