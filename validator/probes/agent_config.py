"""The CloudWatch agent's configuration: as it is installed, and the series and streams that follow from it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from validator.cloudwatch import Series
from validator.probes.nvidia_smi import ABSENT_UNDER_MIG, MAY_BE_ABSENT, Gpu

DIRECTORY = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
DEFAULT_NAMESPACE = "CWAgent"
DEFAULT_INTERVAL = 60
# ${aws:…} of append_dimensions → the metadata that it stands for. The Auto Scaling group's name is known only in one.
_PLACEHOLDERS = {"ImageId": "ami-id", "InstanceId": "instance-id", "InstanceType": "instance-type"}


@dataclass(frozen=True)
class LogFile:
    """One entry of logs.logs_collected.files.collect_list, stream name resolved."""

    path: str
    group: str
    stream: str
    retention_days: int | None


def merged(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several files of the agent as the one configuration that they amount to: objects merge, lists add up."""
    whole: dict[str, Any] = {}
    for config in configs:
        _merge(whole, config)
    return whole


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):
            into[key] = [*into[key], *(entry for entry in value if entry not in into[key])]
        else:
            into[key] = json.loads(json.dumps(value))


def installed(host: Any) -> dict[str, Any]:
    """The configuration that the agent on a host runs with. ValueError names a file that is not JSON."""
    # One command for all files: name, newline, content, record separator.
    each = 'echo "$f"; cat -- "$f"; printf "\\036"'
    done = host.run(f'cd {DIRECTORY} && for f in *; do [ -f "$f" ] && {{ {each}; }}; done', pure=True)
    configs = []
    for record in done.stdout.split("\x1e"):
        name, _, text = record.lstrip("\n").partition("\n")
        if name:
            try:
                configs.append(json.loads(text))
            except ValueError as error:
                raise ValueError(f"{DIRECTORY}/{name} is not JSON ({error})") from error
    return merged(configs)


def differences(found: Any, planned: Any, path: str = "") -> list[str]:
    """Where two configurations differ, a line each: `logs.x: found …, expected …`."""
    if isinstance(found, dict) and isinstance(planned, dict):
        lines = []
        for key in sorted(found.keys() | planned.keys()):
            where = f"{path}.{key}" if path else key
            if key not in planned:
                lines.append(f"{where}: found {found[key]!r}, expected nothing")
            elif key not in found:
                lines.append(f"{where}: missing, expected {planned[key]!r}")
            else:
                lines += differences(found[key], planned[key], where)
        return lines
    if isinstance(found, list) and isinstance(planned, list) and len(found) == len(planned):
        pairs = enumerate(zip(found, planned, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    return [] if found == planned else [f"{path}: found {found!r}, expected {planned!r}"]


def interval(config: Mapping[str, Any]) -> int:
    """Seconds between two datapoints of the nvidia_gpu plugin."""
    plugin = _gpu_plugin(config)
    agent = config.get("agent", {})
    return int(
        plugin.get("metrics_collection_interval") or agent.get("metrics_collection_interval") or DEFAULT_INTERVAL
    )


def period(config: Mapping[str, Any]) -> int:
    """The shortest period (seconds) in which every datapoint can be asked for: 1, 5, 10, 30 or whole minutes."""
    seconds = interval(config)
    return next((short for short in (1, 5, 10, 30) if seconds <= short), -(-seconds // 60) * 60)


def measurements(config: Mapping[str, Any]) -> list[str]:
    """Names that the nvidia_gpu plugin is told to publish."""
    return [
        entry["name"] if isinstance(entry, dict) else str(entry) for entry in _gpu_plugin(config).get("measurement", [])
    ]


def expected_series(
    config: Mapping[str, Any], gpus: Iterable[Gpu], metadata: Mapping[str, Any], absent: Collection[str] | None = None
) -> dict[Series, Gpu | None]:
    """Every series that this configuration makes on this machine → its GPU, or None for an aggregate over all.

    absent: measurements that these GPUs never have, by the plan; None without a plan: nvidia-smi then determines them.
    A GPU with MIG enabled has none of ABSENT_UNDER_MIG.
    """
    metrics = config.get("metrics", {})
    namespace = metrics.get("namespace", DEFAULT_NAMESPACE)
    appended = {
        key: str(metadata[_PLACEHOLDERS[key]]) for key in metrics.get("append_dimensions", {}) if key in _PLACEHOLDERS
    }
    rollups = [tuple(names) for names in metrics.get("aggregation_dimensions", [])]
    series: dict[Series, Gpu | None] = {}
    for gpu in gpus:
        own = {"index": str(gpu.index), "name": gpu.name, "arch": gpu.architecture} | appended
        for measurement in measurements(config):
            if absent is None and measurement in MAY_BE_ABSENT and measurement not in gpu.values:
                continue
            if absent is not None and measurement in absent:
                continue
            if gpu.mig == "Enabled" and measurement in ABSENT_UNDER_MIG and measurement not in gpu.values:
                continue
            name = f"nvidia_smi_{measurement}"
            series[Series(namespace, name, tuple(sorted(own.items())))] = gpu
            for names in rollups:
                if set(names) <= own.keys() and set(names) != own.keys():
                    kept = tuple(sorted((key, own[key]) for key in names))
                    series[Series(namespace, name, kept)] = None
    return series


def log_files(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[LogFile]:
    """The files that the agent ships, with the stream that each goes to."""
    entries = config.get("logs", {}).get("logs_collected", {}).get("files", {}).get("collect_list", [])
    default = config.get("logs", {}).get("log_stream_name", "{instance_id}")
    return [
        LogFile(
            path=entry["file_path"],
            group=_resolve(entry.get("log_group_name", entry["file_path"]), metadata),
            stream=_resolve(entry.get("log_stream_name", default), metadata),
            retention_days=entry.get("retention_in_days"),
        )
        for entry in entries
    ]


def _resolve(text: str, metadata: Mapping[str, Any]) -> str:
    known = {"{instance_id}": "instance-id", "{hostname}": "hostname", "{local_hostname}": "hostname"}
    return re.sub(r"\{[a-z_]+\}", lambda found: str(metadata.get(known.get(found[0], ""), found[0])), text)


def _gpu_plugin(config: Mapping[str, Any]) -> Mapping[str, Any]:
    plugin: Mapping[str, Any] = config.get("metrics", {}).get("metrics_collected", {}).get("nvidia_gpu", {})
    return plugin
