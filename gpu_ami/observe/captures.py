"""What the CloudWatch agent of an image sends, and whether a new line of the driver in the kernel log reaches it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_ami.observe.observation import Observation
from onhost.shippers import AGENT, FOLLOWS
from validator.probes.agent import config as agent_config

ADVICE = "gpu-ami attach adds an event parser that reads /dev/kmsg and a log group for its events (docs/fleet.md)"
# Files that rsyslog fills with every new kernel line; /var/log/dmesg is a snapshot of a boot.
_LIVE_NAMES = ("/var/log/messages", "/var/log/syslog", "/var/log/kern.log")


@dataclass(frozen=True)
class Capture:
    """One way of kernel lines out of the machine.

    source: file or journal that the agent, or another shipper, sends. group, stream: of CloudWatch Logs; group "" where
    a shipper sends it elsewhere. written_by: what fills the file, or the shipper ("" unknown). captures: whether a new
    kernel line arrives; None: it is not known. reason: why.
    """

    source: str
    group: str
    stream: str
    written_by: str
    captures: bool | None
    reason: str

    @property
    def text(self) -> str:
        state = {True: "captures", False: "never captures", None: "unknown"}[self.captures]
        to = f"{self.group} / {self.stream}" if self.group else self.written_by
        return f"{self.source} → {to}: {state}: {self.reason}"


def effective_config(observation: Observation) -> Mapping[str, Any]:
    """The configuration that the agent makes of all places that it reads; {} without any."""
    return agent_config.merged(part["config"] for part in observation.agent["parts"])


def places(observation: Observation) -> list[str]:
    """Where the agent's configuration comes from, in words."""
    shown = [str(part["path"]) for part in observation.agent["parts"]]
    return shown + [f"{row['path']}: `{row['command']}`" for row in observation.agent["fetched_at_boot"]]


def capture_of(observation: Observation) -> list[Capture]:
    """Each log that the agent or another shipper sends and that may have kernel lines. [] where there is none."""
    config = effective_config(observation)
    captures = [
        capture
        for entry in _entries(config, "files")
        if (capture := _of_file(observation, str(entry.get("file_path", "")), *_names(config, entry))) is not None
    ]
    for entry in _entries(config, "journald"):
        captures.append(_of_journal(entry, *_names(config, entry)))
    if observation.agent["masked"]:
        reason = "amazon-cloudwatch-agent.service is masked: nothing is sent"
        captures = [replace(way, captures=False, reason=reason) for way in captures]
    captures += [way for shipper in shippers(observation) for way in _of_shipper(observation, shipper)]
    return captures + [way for script in _scripts(observation) for way in _of_sender(observation, script)]


def shippers(observation: Observation) -> Sequence[Mapping[str, Any]]:
    """What sends logs or metrics beside the CloudWatch agent; [] where an earlier version wrote the observation."""
    return observation.document["captures"].get("shippers", [])  # type: ignore[no-any-return]


def _of_shipper(observation: Observation, shipper: Mapping[str, Any]) -> Iterator[Capture]:
    source = str(shipper["kernel"])
    if not source:
        return
    groups = [str(group) for group in shipper["groups"]] or [""]
    where = f" ({shipper['config'][0]})" if shipper["config"] else ""
    by = f"{shipper['name']}{where}"
    captures, reason = True, f"{shipper['name']} takes every kernel line of {source}"
    if shipper["off"]:
        captures, reason = False, f"{shipper['off']}: nothing is sent"
    elif source.startswith("/var/log/") and not any(row["file"] == source for row in _syslog(observation)):
        captures, reason = False, f"no rsyslog writes {source} on this image"
    for group in groups:
        yield Capture(source, group, f"{shipper['name']}'s own", by, captures, reason)


def _scripts(observation: Observation) -> list[Mapping[str, Any]]:
    """Programs of the image that look for the driver's lines."""
    return list(observation.document["captures"]["scripts"])


def _of_sender(observation: Observation, script: Mapping[str, Any]) -> Iterator[Capture]:
    """A script that sends lines to CloudWatch Logs itself. An observation of an earlier version does not say so."""
    for group in script.get("ships", ()):
        by = f"{script['path']}, started by {script['started_by']}"
        captures, reason = True, "the script follows the kernel log and sends its lines itself"
        if script.get("off"):
            captures, reason = False, f"nothing starts the script: {script['off']}"
        elif script["how"] != FOLLOWS:
            captures, reason = False, _once(script)
        elif unwritten := _unwritten(observation, script):
            captures, reason = False, unwritten
        yield Capture("kernel log", group, "the script's own", by, captures, reason)


def _syslog(observation: Observation) -> list[Mapping[str, Any]]:
    """Files that rsyslog fills with kernel lines on this image."""
    return [row for row in observation.document["captures"]["syslog"] if not row.get("off")]


def _entries(config: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    collected: Any = config.get("logs", {})
    for key in ("logs_collected", kind, "collect_list"):
        collected = collected.get(key, {}) if isinstance(collected, Mapping) else {}
    return [entry for entry in collected if isinstance(entry, Mapping)] if isinstance(collected, list) else []


def _names(config: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[str, str]:
    logs = config.get("logs")
    default = logs.get("log_stream_name", "{instance_id}") if isinstance(logs, Mapping) else "{instance_id}"
    group = entry.get("log_group_name", entry.get("file_path", "journald"))
    return str(group), str(entry.get("log_stream_name", default))


def _of_journal(entry: Mapping[str, Any], group: str, stream: str) -> Capture:
    units = entry.get("units")
    if units and not any("kernel" in str(unit) for unit in units):
        return Capture("journal", group, stream, "systemd-journald", False, f"only units {', '.join(map(str, units))}")
    return Capture("journal", group, stream, "systemd-journald", True, "the journal has every kernel line")


def _of_file(observation: Observation, path: str, group: str, stream: str) -> Capture | None:
    """None: a log that has no kernel lines."""
    captures = observation.document["captures"]
    if "event_parser" in observation.found and path.startswith("/var/log/gpuevent"):
        return Capture(path, group, stream, "gpu-ami's event parser", True, "it reads /dev/kmsg")
    for row in captures["syslog"]:
        if _matches(path, row["file"]) and row.get("off"):
            return Capture(path, group, stream, "rsyslog", False, f"{row['off']}: nothing writes it")
        if _matches(path, row["file"]):
            return Capture(path, group, stream, f"rsyslog ({row['rule']})", True, "rsyslog writes new kernel lines")
    for script in captures["scripts"]:
        if any(_matches(path, written) for written in script["writes"]):
            return _of_script(observation, script, path, group, stream)
    if path == "/var/log/dmesg":
        return Capture(path, group, stream, "", False, "a snapshot of the boot: a later Xid is not in it")
    if path in _LIVE_NAMES:
        reason = "no rsyslog writes it on this image"
        return Capture(path, group, stream, "", False, reason)
    return None


def _once(script: Mapping[str, Any]) -> str:
    read = " and ".join(script.get("reads", ())) or "a snapshot of dmesg"
    return f"the script reads {read}{' once' if script.get('reads') else ''}: a later Xid is not in it"


def _unwritten(observation: Observation, script: Mapping[str, Any]) -> str:
    """Why the file that a script follows never grows; "" where it grows, or the script needs none."""
    reads = script.get("reads", ())  # an earlier version did not say so
    if not reads or any(row["file"] in reads for row in _syslog(observation)):
        return ""
    off = [row["off"] for row in observation.document["captures"]["syslog"] if row["file"] in reads]
    files = " and ".join(reads)
    return (
        f"the script reads {files}, which {f'is not written: {off[0]}' if off else 'no rsyslog writes on this image'}"
    )


def _of_script(observation: Observation, script: Mapping[str, Any], path: str, group: str, stream: str) -> Capture:
    by = f"{script['path']}, started by {script['started_by']}"
    if script.get("off"):
        return Capture(path, group, stream, by, False, f"nothing starts the script: {script['off']}")
    if unwritten := _unwritten(observation, script):
        return Capture(path, group, stream, by, False, unwritten)
    if script["how"] == FOLLOWS:
        return Capture(path, group, stream, by, True, "the script follows the kernel log")
    if script["again"]:
        read = " and ".join(script.get("reads", ())) or "dmesg"
        reason = f"the script reads {read} again and again; lines may come twice or late"
        return Capture(path, group, stream, by, None, reason)
    return Capture(path, group, stream, by, False, _once(script))


def _matches(pattern: str, path: str) -> bool:
    """Whether the agent's file_path, which may have wildcards, names a file."""
    from fnmatch import fnmatch

    return pattern == path or fnmatch(path, pattern)


def sends_gpu_metrics(config: Mapping[str, Any]) -> bool:
    """Whether the agent collects metrics of GPUs. False also where its configuration has not the form that it takes."""
    try:
        return bool(agent_config.measurements(config))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def unsent(observation: Observation) -> list[str]:
    """Scripts that look for the driver's lines, and whose output the agent does not send."""
    sent = {capture.source for capture in capture_of(observation)}
    return [
        str(script["path"])
        for script in _scripts(observation)
        if not script.get("ships") and not any(_matches(path, written) for path in sent for written in script["writes"])
    ]


__all__ = [
    "ADVICE",
    "AGENT",
    "Capture",
    "capture_of",
    "effective_config",
    "places",
    "sends_gpu_metrics",
    "shippers",
    "unsent",
]
