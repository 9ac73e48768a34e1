"""Check records: the results of one run of the validator on one host, and checks.json, which contains them.

A `CheckRecord` is the only form of a check's result, here and in the report. `HostResults` is one checks.json.
Both are read and written in this module alone. Schema gpu-ami/checks/2; it differs from version 1 in the verdict ERROR
and in the ids of a user's own checks, which begin with the file's name as it is (`test_ours::…`, formerly `ours::…`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import mmap
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Protocol, Required, Self, TypeVar, Union

from validator.inputs import parse_json, read_text

SCHEMA = "gpu-ami/checks/2"
TRANSPORT_ERROR = "transport error: "  # how the message of a check begins whose machine could not be asked
_JSON_TYPES = frozenset({type(None), bool, int, float, str})
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode  # plain values have no circles
_Test = Callable[[object], bool]


class Verdict(StrEnum):
    """The verdict on a check, a machine or a report."""

    PASS = "PASS"
    FAIL = "FAIL"  # the image does not keep a promise
    FLAKY = "FLAKY"  # passed only on a later attempt
    UNAVAILABLE = "UNAVAILABLE"  # no capacity to launch the machine
    UNPROVEN = "UNPROVEN"  # not proven; the message says why
    ERROR = "ERROR"  # the check itself, the cloud or the machine failed: says nothing about the image


PASS, FAIL, FLAKY = Verdict.PASS, Verdict.FAIL, Verdict.FLAKY
UNAVAILABLE, UNPROVEN, ERROR = Verdict.UNAVAILABLE, Verdict.UNPROVEN, Verdict.ERROR


class WaiverState(StrEnum):
    """How a run used a waiver."""

    USED = "used"
    EXPIRED = "expired"  # it matched a failed check after its last day
    UNUSED = "unused"  # it matched checks, but none failed
    UNMATCHED = "unmatched"  # no check of the run has such an id


class InvalidRecord(ValueError):
    """A document that this module did not write; the message names the place in it."""


Converters = Mapping[str, Callable[[Any], object]]


class Record:
    """A dataclass that is read from a JSON object with its fields.

    _convert: a function for each field whose value is not the JSON value itself.
    """

    _convert: ClassVar[Converters] = {}

    @classmethod
    def from_json(cls, data: object, where: str = "record") -> Self:
        """Raises InvalidRecord with `where` in its message."""
        return construct(cls, data, where, **cls._convert)


@dataclass(frozen=True)
class Hop(Record):
    """One stage between an event and CloudWatch, for the timeline. hop: its name; seconds: its duration."""

    hop: str
    seconds: float


@dataclass(frozen=True)
class MetricSeries(Record):
    """The datapoints of one metric in CloudWatch, for the report.

    gpu: its index, None for a metric of all GPUs. start: seconds since 1970 of the first period; period: in seconds;
    values: the average of each period, None where it has no datapoint.
    """

    metric: str
    gpu: int | None
    start: float
    period: int
    values: tuple[float | None, ...]
    _convert: ClassVar[Converters] = {"values": tuple}

    @classmethod
    def of_points(cls, metric: str, gpu: int | None, period: int, points: Mapping[float, float]) -> Self:
        """From values by the start of their periods; at least one."""
        start = min(points)
        by_period = {round((time - start) / period): round(value, 3) for time, value in points.items()}
        return cls(metric, gpu, start, period, tuple(by_period.get(n) for n in range(max(by_period) + 1)))


@dataclass(frozen=True)
class Replica(Record):
    """A package, kernel module or library that replaces the vendor's. what: its description."""

    package: str
    version: str
    what: str


@dataclass(frozen=True)
class Program(Record):
    """A program that took part in a run of the checks, beside Python and installed libraries.

    kind: plugin, conftest, checks (a file of them), or module (one that was loaded from elsewhere). digest: `sha256:…`
    of its file. named: it is ours, or the command line of the run names it or its folder.
    """

    kind: str
    name: str
    digest: str
    named: bool


@dataclass(frozen=True)
class WaiverRecord(Record):
    """A waiver as results and reports show it. expires: ISO date of the last day on which it counts."""

    check: str
    reason: str
    owner: str
    expires: str
    scope: Mapping[str, str]
    state: WaiverState
    _convert: ClassVar[Converters] = {"state": WaiverState}


@dataclass(frozen=True)
class CarriedOver(Record):
    """Where a check was proven that did not run on this image (docs/layers.md).

    date: the end of that proof (RFC 3339, UTC); report: its digest; image: its AMI. layer, digest: of both images.
    """

    date: str
    report: str
    image: str
    layer: str
    digest: str


@dataclass(frozen=True)
class CheckRecord:
    """One promise and the verdict on it.

    tier: T0 to T3, TN, T4. seconds: wall time. attempts: how often its commands were sent.
    observed, planned, event: any JSON value; event is a captured GPU event with all its fields.
    after: the restart after which the check ran again ("" for none); the id then ends in "@" and that name.
    waived: the waiver that covers a failed check. series: datapoints of the metrics that the check waited for.
    carried: the earlier proof that this record is from; the check did not run on this image. needs: nothing, an
    observed value, or a promise of a recipe: the checks of an image as found need no promise.
    """

    id: str
    role: str
    tier: str
    promise: str
    verdict: Verdict = UNPROVEN
    observed: object = None
    planned: object = None
    message: str = "did not run"
    seconds: float = 0.0
    attempts: int = 1
    after: str = ""
    hops: tuple[Hop, ...] = ()
    event: Mapping[str, object] | None = None
    waived: WaiverRecord | None = None
    series: tuple[MetricSeries, ...] = ()
    carried: CarriedOver | None = None
    needs: str = "nothing"

    @property
    def first_line(self) -> str:
        """The first line of the message; the verdict if there is no message."""
        return self.message.partition("\n")[0] or str(self.verdict)

    @property
    def met_a_transport_error(self) -> bool:
        """Whether the machine could not be asked, so that nothing was judged."""
        return self.verdict == UNPROVEN and self.message.startswith(TRANSPORT_ERROR)

    def to_json(self) -> dict[str, object]:
        """The record as plain JSON values; `from_json` reads it."""
        return plain_fields(self)

    def changed(self, changes: Mapping[str, object]) -> CheckRecord:
        """The record with other values of some fields.

        As dataclasses.replace, which sets the fields of a frozen class one by one: a sixth of a check's time here.
        """
        unknown = changes.keys() - _names_of(CheckRecord)
        if unknown:
            raise TypeError(f"a check has no field {', '.join(sorted(unknown))}")
        record = object.__new__(CheckRecord)
        record.__dict__.update(self.__dict__)
        record.__dict__.pop("json_text", None)
        record.__dict__.update(changes)
        return record

    @functools.cached_property
    def json_text(self) -> str:
        """The record as JSON in one line: in the journal, then in checks.json."""
        return _encode(self.to_json())

    @classmethod
    def from_json(cls, data: object, where: str = "check") -> CheckRecord:
        """Reads what `to_json` wrote. Raises InvalidRecord with `where` in its message."""
        return construct(
            cls,
            data,
            where,
            verdict=Verdict,
            seconds=float,
            hops=lambda value: each(value, Hop, f"{where}.hops"),
            waived=lambda value: None if value is None else WaiverRecord.from_json(value, f"{where}.waived"),
            series=lambda value: each(value, MetricSeries, f"{where}.series"),
            carried=lambda value: None if value is None else CarriedOver.from_json(value, f"{where}.carried"),
        )


@dataclass(frozen=True)
class HostResults:
    """All checks of one host, its replicas, and facts that identify the machine.

    programs: that took part; none if that is not known. isolated: nothing of the caller's folder or environment could
    take part that the command line does not name (validator.isolation).
    """

    host: str
    checks: tuple[CheckRecord, ...] = ()
    replicas: tuple[Replica, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    waivers: tuple[WaiverRecord, ...] = ()
    programs: tuple[Program, ...] = ()
    isolated: bool = False

    def to_json(self) -> dict[str, object]:
        """The document checks.json."""
        return {"schema": SCHEMA} | plain_fields(self)

    @classmethod
    def from_json(cls, data: object, where: str = "checks.json") -> HostResults:
        """Reads the document. Raises InvalidRecord for another schema, a missing or an unknown key."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if not isinstance(data, dict) or schema != SCHEMA:
            raise InvalidRecord(f"{where}: expected schema {SCHEMA}, got {schema}; run the checks again")
        return construct(
            cls,
            {key: value for key, value in data.items() if key != "schema"},
            where,
            checks=lambda value: each(value, CheckRecord, f"{where}: checks"),
            replicas=lambda value: each(value, Replica, f"{where}: replicas"),
            waivers=lambda value: each(value, WaiverRecord, f"{where}: waivers"),
            programs=lambda value: each(value, Program, f"{where}: programs"),
        )

    def write(self, path: Path) -> None:
        """Writes checks.json atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("w", encoding="utf-8", errors="backslashreplace") as file:
            rest = dataclasses.replace(self, checks=()).to_json()
            file.write(_document(rest | {"checks": [check.json_text for check in self.checks]}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> HostResults:
        """Reads checks.json. Raises OSError, or InvalidRecord if `write` did not write it."""
        try:
            data = parse_json(read_text(path))
        except ValueError as error:
            raise InvalidRecord(f"{path}: not JSON: {error}") from error
        return cls.from_json(data, str(path))


def _document(values: Mapping[str, object]) -> str:
    """A JSON object with each entry of its lists on a line of its own (json's indentation is slow).

    The checks are JSON already.
    """
    keys = []
    for key, value in values.items():
        entries = isinstance(value, list) and value and (value if key == "checks" else map(_encode, value))
        keys.append(f" {json.dumps(key)}: {_list(entries) if entries else _encode(value)}")
    return "{\n" + ",\n".join(keys) + "\n}\n"


def _list(entries: Iterable[str]) -> str:
    return "[\n" + ",\n".join(f"  {entry}" for entry in entries) + "\n ]"


def journal_of(results: Path) -> Path:
    """The journal beside checks.json: one line for each check, written when the check ends."""
    return results.with_suffix(".jsonl")


class JournalWriter:
    """Appends checks to journals. The last one stays open: the checks of a host mostly end one after another."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file = -1

    def append(self, path: Path, record: CheckRecord) -> None:
        """Adds a check. OSError is suppressed, because a full disk must not change the verdict."""
        line = record.json_text + "\n"
        with contextlib.suppress(OSError):
            if path != self._path:
                self.close()
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._path = path
            os.write(self._file, line.encode("utf-8", errors="backslashreplace"))

    def close(self) -> None:
        if self._path is not None:
            self._path = None
            os.close(self._file)


def read_journal(path: Path) -> tuple[CheckRecord, ...]:
    """The finished checks of an interrupted run; none without a journal. An incomplete last line is ignored."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # InvalidRecord is one
            records.append(CheckRecord.from_json(json.loads(line), str(path)))
    return tuple(records)


def running_of(results: Path) -> Path:
    """The file beside checks.json that has the check that runs now; it is there while checks run, or after a crash."""
    return results.with_suffix(".running")


class RunningMark:
    """The check that runs now, for whoever finds this process dead: what crashes writes nothing more itself.

    In shared memory, because it is changed whenever a check goes on.
    """

    _SIZE = 1 << 16

    def __init__(self, path: Path) -> None:
        """OSError: the file cannot be made, as on a full disk."""
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, self._SIZE)  # a page that the disk has no room for would be a SIGBUS
            self._memory = mmap.mmap(descriptor, self._SIZE)
        finally:
            os.close(descriptor)

    def set(self, record: bytes) -> None:
        """record: the check's, JSON in one line."""
        line = (record if len(record) < self._SIZE else b"") + b"\n"
        self._memory[: len(line)] = line

    def clear(self) -> None:
        self._memory[:1] = b"\n"

    def close(self) -> None:
        """Removes the file: no check runs any more."""
        self._memory.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def read_running(path: Path) -> CheckRecord | None:
    """The check that ran when its process crashed; None where none did."""
    try:
        line = path.read_bytes().partition(b"\n")[0]
        return CheckRecord.from_json(json.loads(line), str(path)) if line else None
    except (OSError, ValueError):  # InvalidRecord is one
        return None


class RunningCheck:
    """A check while it runs."""

    def __init__(self, record: CheckRecord) -> None:
        self._record = record
        self._changes: dict[str, object] = {}
        self.judged = False  # whether a phase or a subtest has been judged

    @property
    def record(self) -> CheckRecord:
        """Its results so far, complete after teardown."""
        if self._changes:
            self._record = self._record.changed(self._changes)
            self._changes = {}
        return self._record

    @record.setter
    def record(self, record: CheckRecord) -> None:
        self._record, self._changes = record, {}

    def latest(self, name: str) -> Any:
        """The present value of a field."""
        return self._changes[name] if name in self._changes else getattr(self._record, name)

    def update(self, **changes: object) -> None:
        """Replaces fields of the record."""
        self._changes.update(changes)


class Readable(Protocol):
    """A record that reads itself from JSON; raises InvalidRecord with `where` in its message."""

    @classmethod
    def from_json(cls, data: object, where: str = ...) -> Self: ...


_Record = TypeVar("_Record")
_Readable = TypeVar("_Readable", bound=Readable)


def construct(kind: type[_Record], data: object, where: str, **convert: object) -> _Record:
    """An instance of a record class from a JSON object.

    convert: a function for each field whose value is not the JSON value itself. InvalidRecord names every missing and
    unknown key.
    """
    if not isinstance(data, dict):
        raise InvalidRecord(f"{where}: expected an object, got {type(data).__name__}")
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    required = [
        name
        for name, entry in fields.items()
        if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    ]
    mistakes = [f"missing key {name!r}" for name in required if name not in data]
    mistakes += [f"unknown key {name!r}" for name in data if name not in fields]
    if mistakes:
        raise InvalidRecord(f"{where}: {', '.join(mistakes)}")
    values = dict(data)
    for name, convert_value in convert.items():
        if name in values:
            try:
                values[name] = convert_value(values[name])  # type: ignore[operator]
            except InvalidRecord:
                raise
            except (TypeError, ValueError) as error:
                raise InvalidRecord(f"{where}: {name}: {error}") from error
    tests = field_tests(kind)
    for name, value in values.items():
        expected, has_type = tests[name]
        if not has_type(value):
            raise InvalidRecord(f"{where}: {name}: expected {expected}, got {type(value).__name__} {str(value)[:40]!r}")
    return kind(**values)


def each(value: object, kind: type[_Readable], where: str) -> tuple[_Readable, ...]:
    """A list of records. Raises InvalidRecord with the index of the wrong one."""
    if not isinstance(value, list):
        raise InvalidRecord(f"{where}: expected a list, got {type(value).__name__}")
    return tuple(kind.from_json(entry, f"{where}[{index}]") for index, entry in enumerate(value))


def plain_fields(record: object) -> dict[str, object]:
    """A record's fields as plain JSON values."""
    plain: dict[str, object] = {}
    for name in _field_names(type(record)):  # type: ignore[arg-type]
        value = getattr(record, name)
        plain[name] = value if type(value) in _JSON_TYPES else _plain(value)
    return plain


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(entry.name for entry in dataclasses.fields(kind))


@functools.cache
def _names_of(kind: type) -> frozenset[str]:
    return frozenset(_field_names(kind))


def _plain(value: object) -> object:
    """The value as a JSON value; a type that JSON does not have is converted to text."""
    if type(value) in _JSON_TYPES or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)  # also of an enum member
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return str(value)


def field_tests(kind: type[Any]) -> Mapping[str, tuple[str, _Test]]:
    """Of each field of a record class: its type as a message shows it, and whether a value has it."""
    return _field_tests(kind)  # type: ignore[arg-type]


@functools.cache
def _field_tests(kind: type[Any]) -> Mapping[str, tuple[str, _Test]]:
    hints = typing.get_type_hints(kind)
    return {name: (_shown(hint), _test(hint)) for name, hint in hints.items()}


def _shown(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    for module in ("collections.abc.", "typing.", "validator.results.", "gpu_ami.report.document."):
        text = text.replace(module, "")
    return text


def _test(hint: Any) -> _Test:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (object, Any) or isinstance(hint, TypeVar):
        return lambda _value: True
    if origin in (Union, types.UnionType):
        tests = [_test(argument) for argument in arguments]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: value in arguments
    if origin in (tuple, list) or (origin is not None and _is(origin, Sequence)):
        return _sequence(arguments[0] if arguments else object)
    if origin is not None and _is(origin, Mapping):
        return _mapping(arguments[1] if len(arguments) == 2 else object)
    if typing.is_typeddict(hint):
        return lambda value: isinstance(value, dict)
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: isinstance(value, hint)
    if isinstance(hint, type):
        return lambda value: isinstance(value, hint)
    return lambda _value: True  # ClassVar and what has no values in a document


def typed_mistakes(hint: Any, value: object, path: str, *, missing: bool = True) -> Iterator[str]:
    """Where a value of a document is not of a type, at any depth: `build.root_volume_gib: expected int, found 'x'`.

    missing: whether a key that a TypedDict needs and `value` does not have is one. Keys that it does not know are none.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    below = f"{path}." if path else ""
    if origin in (NotRequired, Required, Annotated):
        yield from typed_mistakes(arguments[0], value, path)
    elif typing.is_typeddict(hint) and isinstance(value, Mapping):
        for key, kind in typing.get_type_hints(hint, include_extras=True).items():
            if key in value:
                yield from typed_mistakes(kind, value[key], f"{below}{key}")
            elif missing and key in hint.__required_keys__ and typing.get_origin(kind) is not NotRequired:
                yield f"{below}{key}: missing"
    elif origin is not None and _is(origin, Mapping) and len(arguments) == 2 and isinstance(value, Mapping):
        for key, entry in value.items():
            yield from typed_mistakes(arguments[1], entry, f"{below}{key}")
    elif origin is list and isinstance(value, list):
        for index, entry in enumerate(value):
            yield from typed_mistakes(arguments[0], entry, f"{path}[{index}]")
    elif not _test(hint)(value):
        shown = "a section" if typing.is_typeddict(hint) else _shown(hint).replace("validator.plan_document.", "")
        yield f"{path}: expected {shown}, found {str(value)[:60]!r}"


def _is(origin: object, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _sequence(item: Any) -> _Test:
    test = _test(item)
    return lambda value: isinstance(value, list | tuple) and all(test(entry) for entry in value)


def _mapping(item: Any) -> _Test:
    test = _test(item)
    return lambda value: (
        isinstance(value, Mapping) and all(isinstance(key, str) and test(entry) for key, entry in value.items())
    )
