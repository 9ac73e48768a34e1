"""Containers around a log line: JSON documents, CRI and CSV records, journal entries, raw /dev/kmsg records.

Gives the kernel's lines inside. A document that a program wrote about an Xid is not an event: one with a logger or a
source file, one with a syslog identifier or transport other than the kernel's, or one whose text has a key that log
shippers do not use for the line.
"""

from __future__ import annotations

import csv
import json
import re
from typing import Any, Dict, Iterator, List, Optional, Union

from . import SCHEMA, kmsg
from .prefix import Line, is_head, parse_prefixed

Document = Dict[str, Any]
Item = Union[Line, Document]  # a line, or an event of our own JSON log

_TEXT_LIMIT = 16384
_DEPTH = 16
_ITEMS = 1000000
# Colours as terminals, rsyslog (#033) and `script` or `less` (^[) write them; and the ends of lines.
_ANSI = re.compile(r"(?:\x1b|#033|\^\[)(?:\[[0-9;:?]*[ -/]*[@-~]|\([0-9A-B])|\ufeff")
_CRI = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] (?P<rest>.*)", re.DOTALL)
# netconsole puts the kernel's release before the record.
_KMSG = re.compile(r"(?:\d{1,2}\.\d{1,3}\.\d{1,4}[\w.+~-]{0,64},)?(?P<record>\d{1,4},\d{1,20},\d{1,20},[^;\s]{0,120};)")
# A record of logfmt: promtail, Vector, loggers of Go.
_LOGFMT = re.compile(r"(?P<key>[A-Za-z_@][\w.@-]{0,63})=(?P<value>\"(?:[^\"\\]|\\.)*\"|[^\s\"]*)(?:\s+|$)", re.DOTALL)
_FLUENT_BIT = re.compile(r"\[\d+\] [\w.-]+: \[{1,2}\d+(?:\.\d+)?, (?:\{\}\], ?)?(?P<rest>\{.*\})\]\s*$", re.DOTALL)
_MEMBER = re.compile(r"\s*\"(?P<key>[@\w.]+)\"\s*:\s*(?P<text>\"(?:[^\"\\]|\\.)*\")\s*,?\s*$", re.DOTALL)
# Later lines of a record of the driver (nv.c): part of what stands before them, not lines of their own.
_LATER_LINE = re.compile(
    r"\n\s*(NVRM:\s*(?:\(PCI ID: |fallen off the bus|installed in this system|nvidia\.ko because|System Processor|this kernel module has|"
    r"has the version|the version|make sure that|kernel module and all|components have|have the same version))"
)
_JOURNAL_MESSAGE = re.compile(r"\s*MESSAGE=(?P<rest>.*)", re.DOTALL)
_TEXT_KEYS = ("log", "message", "msg", "@message", "_raw", "line", "event", "text", "textPayload", "body", "content",
              "short_message", "full_message", "stringValue", "value", "SyslogMessage")  # fmt: skip
_PROGRAM_KEYS = {"caller", "logger", "logger_name", "loggerName", "funcName", "levelname", "lineno", "pathname", "stacktrace",
                 "traceback", "exception", "target", "involvedObject", "reportingComponent"}  # fmt: skip
_IDENTIFIER_KEYS = ("SYSLOG_IDENTIFIER", "syslog_identifier", "identifier", "appname", "app_name", "ident", "program",
                    "programname", "syslogtag", "ProcessName", "PROGRAM")  # fmt: skip
_FACILITY_KEYS = ("SYSLOG_FACILITY", "syslog_facility", "facility", "fac", "Facility", "FACILITY")
_TRANSPORT_KEYS = ("_TRANSPORT", "TRANSPORT", "transport")
# Messages of people, and requests: their text quotes.
_AUTHOR_KEYS = {"title", "subject", "user", "username", "user_id", "author", "channel", "channel_id", "thread_ts", "sender", "recipient",
                "request", "response", "method", "status_code", "headers", "query", "prompt", "question", "answer", "comment", "comments",
                "conversation", "role", "html_url", "assignee", "ticket", "issue", "summary", "description", "email"}  # fmt: skip
# What a program writes about itself: a record with one of these is a program's, unless it names the kernel as its source.
_LEVEL_KEYS = {"level", "lvl", "loglevel", "log_level", "log.level", "levelno", "severity", "severity_text", "severityText", "priority_name"}
_SUBJECT_KEYS = {"xid", "xid_code", "xidCode", "xids", "sxid", "gpu", "gpu_id", "gpu_uuid", "gpu_index", "component", "componentClass",
                 "checkName", "check", "alertname", "alert", "reason", "error", "err", "error_code", "errorCode", "recommended_action",
                 "recommendedAction", "service", "module", "func", "function", "thread", "threadName", "process", "processName",
                 "process_name", "job", "task", "worker", "app", "application"}  # fmt: skip
_SOURCE_KEYS = ("source", "unit", "logger_source", "filename", "file", "path", "log_file", "log.file.path", "logName", "log_name", "logGroup",
                "sourcetype", "log.syslog.appname", "process.name", "service", "process", "app", "component", "tag")  # fmt: skip
_KERNEL_SOURCE = re.compile(r"(?:^|[^a-z])(?:kernel|kern|kmsg|dmesg|messages|syslog)(?:$|[^a-z])")
_SUSPECT = "suspect"  # a program's record; one inside it that names the kernel as its source is still the kernel's
_OTHER_TRANSPORTS = ("syslog", "stdout", "journal", "audit", "driver")
_EVENT_KINDS = {"xid": int, "sxid": int, "gpu_lost": int, "neuron": str, "gpu_init_failed": str, "stack_error": str}


def parse_text(text: str) -> List[Item]:
    """The kernel's lines, and events of our own JSON log, in one line of a file; often empty."""
    if "\x1b" in text or "#033" in text or "^[" in text or "\ufeff" in text:
        text = _ANSI.sub("", text)
    return list(_unwrap(text.strip("\r\n\0"), 0))


def parse_document(text: str) -> List[Item]:
    """The same for a JSON document that was printed on several lines."""
    document = _json(text)
    return [] if document is None else list(_walk(document, 0, ""))


def parse_journal(entry: Document) -> Optional[Line]:
    """One entry of journald, by its field names. It cuts an injected line at its first colon: NVRM becomes the identifier."""
    text = entry.get("MESSAGE")
    if isinstance(text, list):  # bytes that are not UTF-8
        text = bytes(byte for byte in text if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")
    if not isinstance(text, str) or _field(entry, "_TRANSPORT", "kernel") != "kernel":
        return None
    identifier = _field(entry, "SYSLOG_IDENTIFIER", "kernel")
    if identifier != "kernel":
        text = "%s: %s" % (identifier, text)
    facility = str(_field(entry, "SYSLOG_FACILITY", "0" if identifier == "kernel" else "1"))
    mono = _whole(_field(entry, "_SOURCE_MONOTONIC_TIMESTAMP")) or _whole(_field(entry, "__MONOTONIC_TIMESTAMP"))
    wall = _whole(_field(entry, "__REALTIME_TIMESTAMP"))
    boot = _field(entry, "_BOOT_ID")
    origin = "kernel" if facility == "0" else "userland"
    host = _field(entry, "_HOSTNAME", "")
    return Line(text, origin, mono, wall, mono if mono is not None else wall, "monotonic" if mono is not None else "wall",
                None, None, boot if isinstance(boot, str) else None, wall, str(host))  # fmt: skip


def _field(entry: Document, name: str, default: Any = None) -> Any:
    """A field of the journal; shippers strip its underscores."""
    return entry.get(name, entry.get(name.lstrip("_"), default))


def _unwrap(text: str, depth: int) -> Iterator[Item]:
    stripped = text.strip()
    if depth > _DEPTH or not stripped:
        return
    if stripped[0] in "{[":
        document = _json(stripped)
        if document is not None:
            yield from _walk(document, depth, "")
            return
    cri = _CRI.match(text)
    if cri:
        yield from _unwrap(cri.group("rest"), depth + 1)
        return
    text = text[:_TEXT_LIMIT]
    record = _KMSG.match(text)
    if record:
        yield from _kmsg(text[record.start("record") :])
        return
    line = parse_prefixed(text)
    if line is not None:
        yield line
        return
    yield from _embedded(text, depth)


def _embedded(text: str, depth: int) -> Iterator[Item]:
    """A document after a prefix, one member of a document, one field of a journal entry or of a CSV record."""
    member = _MEMBER.match(text)
    if member:
        if member.group("key") in _TEXT_KEYS or member.group("key") == "MESSAGE":
            inner = _json(member.group("text"))
            yield from _lines_of(inner if isinstance(inner, str) else "", depth + 1)
        return
    message = _JOURNAL_MESSAGE.match(text)
    if message:
        yield from _unwrap(message.group("rest"), depth + 1)
        return
    fluent = _FLUENT_BIT.match(text)
    if fluent:
        yield from _unwrap(re.sub(r"(?<=\")=>", ":", fluent.group("rest")).replace(":nil", ":null"), depth + 1)
        return
    brace = text.find("{")
    if brace > 0 and text.rstrip().endswith("}") and is_head(text[:brace]):
        yield from _unwrap(text[brace:], depth + 1)
    elif '"' in text:
        document = _logfmt(text.strip())
        if document:
            yield from _walk_object(document, depth + 1, "")
        else:
            yield from _csv(text, depth)


def _logfmt(text: str) -> Document:
    """The members of a record of logfmt that names the kernel as its source; {} for other lines."""
    document, position = {}, 0  # type: Document, int
    while position < len(text):
        match = _LOGFMT.match(text, position)
        if match is None:
            return {}
        value = match.group("value")
        document[match.group("key")] = _json(value) if value.startswith('"') else value
        position = match.end()
    names = [document.get(key) for key in _SOURCE_KEYS]
    is_kernel = any(isinstance(name, str) and _KERNEL_SOURCE.search(name.lower()) for name in names)
    return document if is_kernel or _evidence(document) == "kernel" else {}


def _csv(text: str, depth: int) -> Iterator[Item]:
    """A record of an export: the line is one field, the fields before it are times and names."""
    try:
        delimiter = "\t" if '\t"' in text else ";" if ';"' in text else ","
        fields = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return
    for position, field in enumerate(fields):
        if position and ("NVRM:" in field or "SXid" in field):
            if any(fields[:position]) and all(is_head(head) for head in fields[:position]):
                yield from _unwrap(field, depth + 1)
            return


def _kmsg(text: str) -> Iterator[Line]:
    record = kmsg.parse_record(text.encode("utf-8", "replace"))
    if record is not None:
        origin = "kernel" if record.facility == kmsg.KERNEL_FACILITY else "userland"
        mono = record.monotonic_us
        yield Line(record.text, origin, mono, None, mono, "monotonic", record.seq, None)


def _json(text: str) -> Any:
    """The document, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_own_event(document: Document) -> bool:
    """A line of our own JSON log is an event already."""
    return (
        document.get("schema") == SCHEMA
        and isinstance(document.get("code"), _EVENT_KINDS.get(str(document.get("kind")), ()))
        and isinstance(document.get("severity"), str)
    )


def _walk(value: Any, depth: int, evidence: str) -> Iterator[Item]:
    """Lines in a document. `evidence`: "kernel", "userland" or "suspect", where the documents around it name the source."""
    if depth > _DEPTH:
        return
    if isinstance(value, list):
        for item in value[:_ITEMS]:
            if isinstance(item, str) and len(value) == 2 and item is value[1]:  # Loki: [nanoseconds, line]
                yield from _with_origin(_unwrap(item, depth + 1), evidence)
            else:
                yield from _walk(item, depth + 1, evidence)
    elif isinstance(value, dict):
        yield from _walk_object(value, depth, evidence)


def _walk_object(document: Document, depth: int, evidence: str) -> Iterator[Item]:
    if is_own_event(document):
        yield document
        return
    if "MESSAGE" in document and "PROGRAM" not in document:  # syslog-ng names the members of its template so
        line = parse_journal(document)
        if line is not None:
            yield line
        return
    if isinstance(document.get("msg"), str) and "sequence" in document and "priority" in document:
        yield _fluent_bit_kmsg(document)
        return
    own_evidence = _evidence(document)
    if own_evidence == "program":
        return
    evidence = own_evidence or evidence
    if evidence != "kernel" and is_of_program(document):
        evidence = _SUSPECT
    for key, member in document.items():
        if isinstance(member, str):
            if (key in _TEXT_KEYS or key == "MESSAGE") and evidence != _SUSPECT:
                yield from _with_origin(_lines_of(member, depth + 1), evidence)
        else:
            yield from _walk(member, depth + 1, evidence)


def _lines_of(text: str, depth: int) -> Iterator[Item]:
    """A shipper may join lines. Of several, each has to be the kernel's by its prefix: a program may have quoted one in a report."""
    lines = _LATER_LINE.sub(r"\\x0a\1", text.strip("\r\n")).splitlines()
    if len(lines) < 2:
        yield from _unwrap(text, depth)
        return
    for line in lines[:_ITEMS]:
        for item in _unwrap(line, depth):
            if not isinstance(item, Line) or item.stamp or item.monotonic_us is not None or item.origin == "kernel":
                yield item


def is_of_program(document: Document) -> bool:
    """Whether a program wrote this record about an event: it has a level or a subject, and names no log of the kernel."""
    keys = {key for key, value in document.items() if value not in (None, "", [], {})}
    if "textPayload" in keys:  # Google Cloud gives each line of any log a severity
        keys -= {"severity"}
    if keys & _AUTHOR_KEYS:
        return True
    if not keys & (_LEVEL_KEYS | _SUBJECT_KEYS):
        return bool(keys & _PROGRAM_KEYS)
    sources = [document[key] for key in _SOURCE_KEYS if key in keys]
    names = [source.get("name") if isinstance(source, dict) else source for source in sources]
    return not any(isinstance(name, str) and _KERNEL_SOURCE.search(name.lower()) for name in names)


def _evidence(document: Document) -> str:
    """Who wrote the text of this document: "kernel", "userland", "program" (a quotation), or "" where it does not say."""
    if _PROGRAM_KEYS & document.keys():
        return "program"
    log = document.get("log")
    places = [document, document.get("syslog"), document.get("systemd"), log.get("syslog") if isinstance(log, dict) else None]
    for place in places:
        if not isinstance(place, dict):
            continue
        named = [place[key] for key in _IDENTIFIER_KEYS if isinstance(place.get(key), str)]
        identifiers = [name.strip().rstrip(":") for name in named if name.strip()]  # rsyslog's tag: `kernel:`
        transports = [place[key] for key in _TRANSPORT_KEYS if isinstance(place.get(key), str)]
        if any(identifier != "kernel" for identifier in identifiers) or any(name in _OTHER_TRANSPORTS for name in transports):
            return "program"
        for key in _FACILITY_KEYS:
            if place.get(key) not in (None, "") and not isinstance(place[key], dict):
                return "kernel" if str(place[key]) in ("0", "kern", "kernel") else "userland"
        if identifiers or "kernel" in transports:
            return "kernel"
        if isinstance(place.get("pri"), int) and "msg" in place:  # dmesg --json
            return "kernel" if place["pri"] >> 3 == 0 else "userland"
    return ""


def _with_origin(lines: Iterator[Item], evidence: str) -> Iterator[Item]:
    for line in lines:
        if isinstance(line, Line) and evidence in ("kernel", "userland") and line.origin == "unknown":
            line = line._replace(origin=evidence)
        yield line


def _fluent_bit_kmsg(entry: Document) -> Line:
    """fluent-bit's kmsg input: the header in members, without the facility."""
    seconds, micros = _whole(entry.get("sec")), _whole(entry.get("usec")) or 0
    mono = seconds * 1000000 + micros if seconds is not None else None
    return Line(entry["msg"], "unknown", mono, None, mono, "monotonic", _whole(entry["sequence"]), None)


def _whole(value: Any) -> Optional[int]:
    text = str(value)
    return int(text) if text.isdigit() and len(text) < 20 else None
