"""One fault once, whatever holds it: an event is its content (uptime or time, GPU, code, text), not its position.

A bug report, a support bundle or a folder of logs has the same kernel line in kern.log, journal and dmesg, each with
its own clock. A line counts again only where it cannot be one that another part of the material has: within one part
each line counts, unless it has the same microsecond. Uptimes and wall clocks are compared by the time of the boot that
other lines show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NamedTuple

_PART = (b"____", b"****", b"*** ", b"====", b"----", b"==> ", b"-- ", b"####")
_KNOWN = 200000
_COMPARED = 500
_COMPARED_NEAR = 8  # of the lines of one text in one second
_BOOTS = 64
_UNKNOWN_S = 1e9
_ZONE_STEP_S, _ZONE_MOST_S = 900, 14.5 * 3600
_SAME_BOOT_S = 5.0
_CLOCK_TOLERANCE_S, _DMESG_TOLERANCE_S = 1.0, 3.0
_WALL_CONTRADICTS_S = 600.0
_UPTIME_TOLERANCE_S, _EARLY_BOOT_S, _EARLY_TOLERANCE_S = 0.01, 60.0, 10.0
_TOLERANCES_S = {"gpu_init_failed": 3600.0, "gpu_lost": 300.0}
# dmesg's own formats; a fraction of a second.
_COMPUTED = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+,|[^ ]+ [^ ]+ +\d+ [\d:]+ \d{4}$")
_FRACTION = re.compile(r":\d\d[.,]\d")
_IN_2000 = (946684800.0, 978307200.0)
_CUT_MARK = re.compile(r"\s*(?:\u2026.*|\.\.\.|>)\s*$")


class Wall(NamedTuple):
    """A wall clock in seconds. Without a zone it is that of an unknown one; syslog's has no year."""

    seconds: float
    has_zone: bool
    has_year: bool


@dataclass(slots=True)
class When:
    """When a line was printed, as far as it says. `part`: the part of the material that it is in."""

    part: tuple[Any, ...]
    uptime: float | None = None
    wall: Wall | None = None
    host: str = ""
    boot_id: str = ""
    is_whole_second: bool = False
    is_computed: bool = False  # by dmesg, from the uptime and today's clock


@dataclass(slots=True)
class _Known:
    when: When
    text: str
    is_cut: bool
    parts: set[tuple[Any, ...]] = field(default_factory=set)
    by_uptime: bool = False  # whether it is found by this clock
    by_wall: bool = False


@dataclass
class _Place:
    """The known lines of one fault: of a GPU and a code. moments: (part, text, exact moment) → its line.

    A storm has many thousands: `near` finds those that a line of another part may be, by text and time.
    """

    known: list[_Known] = field(default_factory=list)
    parts: set[tuple[Any, ...]] = field(default_factory=set)
    has_cut: bool = False
    moments: dict[tuple[Any, ...], _Known] = field(default_factory=dict)
    _rows: dict[tuple[Any, ...], list[_Known]] = field(default_factory=dict)
    _starts: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def index(self, line: _Known, *, is_new: bool = True) -> None:
        """Remembers a line by its text and its clocks; again when it got another clock (is_new: False)."""
        when = line.when
        keys: list[tuple[Any, ...]] = [("text", line.text)] if is_new else []
        if when.uptime is not None and not line.by_uptime:
            keys += [("exact", line.text, round(when.uptime * 1e6)), ("uptime", line.text, int(when.uptime))]
            line.by_uptime = True
        if when.wall is not None and not line.by_wall:
            keys.append(("wall", line.text, int(_in_one_year(when.wall.seconds)) % _ZONE_STEP_S))
            line.by_wall = True
        for key in keys:
            self._rows.setdefault(key, []).append(line)

    def near(self, text: str, when: When, boots: Sequence[Wall]) -> Iterator[_Known]:
        """Lines of this text that may be one of another part at this time, the likeliest first.

        boots: times of boots, for lines of which one has an uptime alone and the other a wall clock alone.
        """
        if when.uptime is not None:
            yield from self._rows.get(("exact", text, round(when.uptime * 1e6)), ())
        for key in _keys_near(text, when, boots):
            yield from self._unmatched(key, when.part)
        yield from self._unmatched(("text", text), when.part)  # in their order, where no clock is common to both

    def _unmatched(self, key: tuple[Any, ...], part: tuple[Any, ...]) -> Sequence[_Known]:
        """Lines that the part has not shown yet. Parts repeat lines in one order: those in front stay matched."""
        rows = self._rows.get(key)
        if not rows:
            return ()
        start = self._starts.get((key, part), 0)
        while start < len(rows) and part in rows[start].parts:
            start += 1
        self._starts[key, part] = start
        return rows[start : start + _COMPARED_NEAR]


def _keys_near(text: str, when: When, boots: Sequence[Wall]) -> Iterator[tuple[Any, ...]]:
    uptimes, walls = [], []  # type: list[tuple[float, float]], list[tuple[float, float]]
    if when.uptime is not None:
        early = when.uptime < _EARLY_BOOT_S + _EARLY_TOLERANCE_S
        uptimes.append((when.uptime, _EARLY_TOLERANCE_S if early else _UPTIME_TOLERANCE_S))
        walls += [(boot.seconds + when.uptime, _SAME_BOOT_S + 1) for boot in boots if when.wall is None]
    if when.wall is not None:
        walls.append((when.wall.seconds, _DMESG_TOLERANCE_S))
        for boot in boots if when.uptime is None else ():
            uptimes.append((_in_one_year(when.wall.seconds) - _in_one_year(boot.seconds), _SAME_BOOT_S + 1))
    for seconds, tolerance in uptimes:
        yield from (
            ("uptime", text, second) for second in range(int(seconds - tolerance), int(seconds + tolerance) + 1)
        )
    for seconds, tolerance in walls:
        middle = _in_one_year(seconds)
        for second in range(int(middle - tolerance), int(middle + tolerance) + 1):
            yield "wall", text, second % _ZONE_STEP_S


class Repeats:
    """What was read so far. Members are parts; within one, headings and clocks that go back begin another.

    grammar: the parser's module with the classes of facts.
    """

    def __init__(self, grammar: ModuleType) -> None:
        self._grammar = grammar
        self._lines: dict[tuple[Any, ...], _Place] = {}
        self._has_own_log = False
        self._events: dict[tuple[Any, ...], _Place] = {}
        self._count = 0
        self._member = self._heading = 0
        self._clocks: dict[tuple[Any, ...], tuple[int, float]] = {}
        self._boots: list[Wall] = []
        self._banners: dict[str, list[When]] = {}
        self.lines: dict[int, When] = {}  # of the member's lines with a fault

    def begin_member(self) -> None:
        self._member += 1
        self._heading = 0
        self.lines.clear()

    def see(self, raw: bytes) -> None:
        """Each line of the file: a heading begins another part."""
        if raw.startswith(_PART):
            self._heading += 1

    def is_repeat(self, item: Any, fact: Any, number: int) -> bool:
        """Whether this line, or event of our own log, was read before. `fact` None: a line without an event."""
        if isinstance(item, dict):
            self._has_own_log = True
            return self._is_known_event(item, _when_of_event(item, ("own", self._member)))
        when = self._when(item)
        text = " ".join(item.text.split())
        key = None if fact is None else self._key(fact)
        if key is None:
            self._learn_boot(text, when)
            return False
        self.lines[number] = when
        if len(self.lines) > 4096:
            del self.lines[next(iter(self.lines))]
        return self._match(
            key,
            _CUT_MARK.sub("", text) if text[-1:] in ">." or "\u2026" in text else text,
            bool(getattr(fact, "cut", "")),
            when,
        )

    def is_known_event(self, event: Mapping[str, Any]) -> bool:
        """Whether an event of a text log is one that our own log, or another attempt of the same failure, has shown."""
        when = self.lines[event["line"]]
        return self._is_known_event(dict(event), when, from_text=True)

    def _is_known_event(self, event: dict[str, Any], when: When, from_text: bool = False) -> bool:
        kind, code = str(event["kind"]), event["code"]
        # By the GPU alone: an attempt's first lines may be missing in one of the logs, and name another code.
        key = (kind, event.get("pci"), "" if kind in _TOLERANCES_S else code)
        text = "" if kind in _TOLERANCES_S else " ".join(str(event.get("message", "")).split())
        place = self._events.setdefault(key, _Place())
        is_cut = "incomplete" in event
        tolerance = _TOLERANCES_S.get(kind, 0.0)
        # Without a log of our own there is nothing that the comparison of lines has not seen.
        candidates: Iterable[_Known] = reversed(place.known[-_COMPARED:])
        if not (tolerance or is_cut or place.has_cut):
            candidates = place.near(text, when, self._boots)
        for other in () if from_text and not tolerance and not self._has_own_log else candidates:
            # Lines of text were compared before, by more than the event has.
            if from_text and not tolerance and not any(part[0] == "own" for part in other.parts):
                continue
            if (when.part not in other.parts or _same_moment(other.when, when)) and _same_text(other, text, is_cut):
                distance = self._distance(other.when, when, tolerance)
                if distance is not None:
                    other.parts.add(when.part)
                    _merge(other.when, when)
                    place.index(other, is_new=False)
                    return True
        line = _Known(when, text, is_cut, {when.part})
        place.has_cut = place.has_cut or is_cut
        if self._add(place.known, line):
            place.index(line)
        return False

    def _match(self, key: tuple[Any, ...], text: str, is_cut: bool, when: When) -> bool:
        place = self._lines.setdefault(key, _Place())
        moment = _exact_moment(when, text)
        if place.parts <= {when.part} and not (is_cut or place.has_cut):
            # A storm in one log: in a part only a line of the same moment is the same one, so nothing else is compared.
            same = place.moments.get(moment) if moment is not None else None
            if same is not None:
                _merge(same.when, when)
                self._learn_from(same.when)
                return True
            return self._is_new_line(place, moment, _Known(when, text, is_cut, {when.part}))
        best: tuple[float, _Known] | None = None
        candidates: Iterable[_Known] = reversed(place.known[-_COMPARED:])
        in_order = not (is_cut or place.has_cut)
        if in_order:
            candidates = place.near(text, when, self._boots)
        for other in candidates:
            # Of equal texts within the tolerance each part's first is the first: the closest would leave one over.
            if best is not None and in_order:
                break
            if not _same_text(other, text, is_cut) or (when.part in other.parts and not _same_moment(other.when, when)):
                continue
            distance = self._distance(other.when, when)
            if distance is not None and (best is None or distance < best[0]):
                best = (distance, other)
        if best is None:
            return self._is_new_line(place, moment, _Known(when, text, is_cut, {when.part}))
        place.parts.add(when.part)
        best[1].parts.add(when.part)
        _merge(best[1].when, when)
        place.index(best[1], is_new=False)
        self._learn_from(best[1].when)
        return True

    def _is_new_line(self, place: _Place, moment: tuple[Any, ...] | None, line: _Known) -> bool:
        """Remembers a line that was not read before: False."""
        if self._add(place.known, line):
            place.index(line)
        place.parts |= line.parts
        place.has_cut = place.has_cut or line.is_cut
        if moment is not None and len(place.moments) < _KNOWN:
            place.moments[moment] = line
        self._learn_from(line.when)
        return False

    def _add(self, known: list[_Known], one: _Known) -> bool:
        if self._count >= _KNOWN:
            return False
        self._count += 1
        known.append(one)
        return True

    def _distance(self, one: When, other: When, tolerance: float = 0.0) -> float | None:
        """Seconds between two lines that may be the same one; None: they are not."""
        if (one.host and other.host and one.host != other.host) or (
            one.boot_id and other.boot_id and one.boot_id != other.boot_id
        ):
            return None
        walls = None if one.wall is None or other.wall is None else _apart(one.wall, other.wall)
        if one.uptime is not None and other.uptime is not None:
            if walls is not None and walls > max(_WALL_CONTRADICTS_S, tolerance):
                return None
            uptimes = abs(one.uptime - other.uptime)
            early = min(one.uptime, other.uptime) < _EARLY_BOOT_S and bool(one.boot_id or other.boot_id)
            return uptimes if uptimes <= max(_EARLY_TOLERANCE_S if early else _UPTIME_TOLERANCE_S, tolerance) else None
        if walls is not None:
            return walls if walls <= max(_tolerance(one, other), tolerance) else None
        boot = _boot(one, other)
        if boot is None or not self._boots:
            return _UNKNOWN_S
        return (
            _CLOCK_TOLERANCE_S
            if any(_apart(boot, known) <= max(_SAME_BOOT_S, tolerance) for known in self._boots)
            else None
        )

    def _when(self, line: Any) -> When:
        wall = None
        if line.naive_us is not None:
            has_zone = line.wall_us is not None
            seconds = (line.wall_us if has_zone else line.naive_us) / 1e6
            wall = Wall(seconds, has_zone, not _IN_2000[0] <= seconds < _IN_2000[1])  # syslog's lines get the year 2000
        stamp = line.stamp or ""
        uptime = None if line.monotonic_us is None else line.monotonic_us / 1e6
        kind = () if wall is None else (wall.has_zone, wall.has_year, "T" in stamp)
        shape = (self._member, self._heading, uptime is not None, bool(line.host), kind)
        clock = uptime if uptime is not None else wall.seconds if wall is not None else None
        times, last = self._clocks.get(shape, (0, 0.0))
        if clock is not None:
            times += clock < last
            self._clocks[shape] = (times, clock)
        is_computed = bool(stamp) and _COMPUTED.match(stamp) is not None
        is_whole = line.naive_us is not None and line.naive_us % 1000000 == 0 and not _FRACTION.search(stamp)
        return When((*shape, times), uptime, wall, line.host.partition(".")[0], (line.boot_id or "").replace("-", ""),
                    is_whole, is_computed)  # fmt: skip

    def _key(self, fact: Any) -> tuple[Any, ...] | None:
        """What tells faults apart before their text; None for a line that is no fault."""
        grammar = self._grammar
        if isinstance(fact, (grammar.Xid, grammar.Sxid)):
            return type(fact).__name__, fact.code, fact.pci
        if isinstance(fact, (grammar.Lost, grammar.InitFailure)):
            return type(fact).__name__, fact.pci, fact.part
        return ("neuron", fact.code, fact.device) if isinstance(fact, grammar.NeuronError) else None

    def _learn_from(self, when: When) -> None:
        """The time of the boot, of a line that has both clocks."""
        if when.uptime is not None and when.wall is not None:
            boot = when.wall._replace(seconds=when.wall.seconds - when.uptime)
            if len(self._boots) < _BOOTS and not any(_apart(boot, known) <= _SAME_BOOT_S for known in self._boots):
                self._boots.append(boot)

    def _learn_boot(self, text: str, when: When) -> None:
        """A line of the driver without an event, which two parts have: one with an uptime, one with a wall clock."""
        self._learn_from(when)
        if "NVRM" not in text or len(self._banners) > 1000:
            return
        others = self._banners.setdefault(text, [])
        for other in others[-8:]:
            boot = _boot(other, when)
            if boot is not None and len(others) < 3:  # a line of many boots tells nothing
                self._learn_from(When((), 0.0, boot))
        others.append(when)


def _boot(one: When, other: When) -> Wall | None:
    """The time of the boot, where one line has the uptime alone and the other the wall clock alone."""
    for uptime, wall in ((one.uptime, other.wall), (other.uptime, one.wall)):
        if uptime is not None and wall is not None:
            return wall._replace(seconds=wall.seconds - uptime)
    return None


def _merge(known: When, when: When) -> None:
    """What the second line of a fault adds to the first."""
    known.uptime = when.uptime if known.uptime is None else known.uptime
    if known.wall is None and when.wall is not None:
        known.wall, known.is_whole_second, known.is_computed = when.wall, when.is_whole_second, when.is_computed
    known.host, known.boot_id = known.host or when.host, known.boot_id or when.boot_id


def _apart(one: Wall, other: Wall) -> float:
    """Seconds between two clocks, as close as their zones and years allow."""
    first, second = one.seconds, other.seconds
    if not (one.has_year and other.has_year):
        first, second = _in_one_year(first), _in_one_year(second)
    apart = abs(first - second)
    if not (one.has_year and other.has_year):
        apart = min(apart, abs(apart - 366 * 86400))
    if one.has_zone != other.has_zone and apart <= _ZONE_MOST_S:
        apart %= _ZONE_STEP_S
        apart = min(apart, _ZONE_STEP_S - apart)
    return apart


def _in_one_year(seconds: float) -> float:
    return datetime.fromtimestamp(seconds, UTC).replace(year=2000).timestamp()


def _tolerance(one: When, other: When) -> float:
    if one.is_computed or other.is_computed:
        return _DMESG_TOLERANCE_S
    # Two logs of the same program agree to the second; a fraction that one lacks was cut off.
    same_shape = one.part[2:-1] == other.part[2:-1] and one.is_whole_second and other.is_whole_second
    return 0.0 if same_shape else _CLOCK_TOLERANCE_S


def _exact_moment(when: When, text: str) -> tuple[Any, ...] | None:
    """The microsecond of a line, with all that has to be the same; None for a whole second or an unknown time."""
    if when.uptime is not None:
        moment = None if float(when.uptime).is_integer() else round(when.uptime * 1e6)
        return None if moment is None else (when.part, text, when.host, when.boot_id, moment)
    if when.wall is None or when.is_whole_second:
        return None
    return when.part, text, when.host, when.boot_id, when.wall


def _same_moment(one: When, other: When) -> bool:
    """The same microsecond: no second line of the same text."""
    if one.uptime is not None and other.uptime is not None:
        return abs(one.uptime - other.uptime) < 1e-7 and not float(one.uptime).is_integer()
    fine = not one.is_whole_second and not other.is_whole_second
    return fine and one.wall is not None and other.wall is not None and one.wall == other.wall


def _same_text(known: _Known, text: str, is_cut: bool) -> bool:
    if known.text == text:
        return True
    return (is_cut and bool(text) and known.text.startswith(text)) or (
        known.is_cut and bool(known.text) and text.startswith(known.text)
    )


def _when_of_event(event: dict[str, Any], part: tuple[Any, ...]) -> When:
    monotonic = event.get("monotonic_us")
    wall = None
    try:
        if event.get("time"):
            wall = Wall(datetime.fromisoformat(str(event["time"])).timestamp(), True, True)
    except ValueError:
        pass
    return When(
        part, None if monotonic is None else monotonic / 1e6, wall, "", str(event.get("boot_id") or "").replace("-", "")
    )
