"""The installed configuration of the CloudWatch agent, and the metric series and log streams that follow from it."""

from __future__ import annotations

import copy
import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from validator.cloudwatch import Series
from validator.measurement import Lacks, lacking
from validator.observe import unproven
from validator.probes import Gpu

UNIT = "amazon-cloudwatch-agent.service"
DIRECTORY = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
BASE_PART = "file_base.json"
_PARTS = (BASE_PART, "file_gpu.json")
DEFAULT_NAMESPACE = "CWAgent"
NAMESPACE_SUFFIX = "-proof"  # of machines of a proof: alarms on a fleet's namespace do not see them
DEFAULT_INTERVAL = 60
# Data centre GPUs have no fan and some no encoder: only these measurements may be "N/A".
_MAY_BE_ABSENT = lacking(Lacks.EVERY, Lacks.WITHOUT_ENCODER)
_ABSENT_UNDER_MIG = lacking(Lacks.WITH_MIG)
_ABSENT_OF_A_FRACTION = lacking(Lacks.OF_A_FRACTION)
_GPU_PLUGIN = ("metrics", "metrics_collected", "nvidia_gpu")
# Dimension in append_dimensions → key of the instance metadata. They do not have the Auto Scaling group's name.
_PLACEHOLDERS = {"ImageId": "ami-id", "InstanceId": "instance-id", "InstanceType": "instance-type"}


@dataclass(frozen=True)
class LogFile:
    """One entry of logs.logs_collected.files.collect_list, with the placeholders in its names resolved."""

    path: str
    group: str
    stream: str
    retention_days: int | None


def merged(configs: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The configuration that the agent makes of several files: objects are merged, lists are concatenated."""
    whole: dict[str, object] = {}
    for config in configs:
        _merge(whole, config)
    return whole


def _merge(into: dict[str, object], other: Mapping[str, object]) -> None:
    for key, value in other.items():
        present = into.get(key)
        if isinstance(value, Mapping) and isinstance(present, dict):
            _merge(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            into[key] = [*present, *(entry for entry in value if entry not in present)]
        else:
            into[key] = copy.deepcopy(value)


# One command for all files: name, newline, content, record separator.
# The file beside the folder is read first at each start of the agent (aws/amazon-cloudwatch-agent, translator/cmdutil).
_PRINT = (
    "cd %s && for f in ../amazon-cloudwatch-agent.json *; do"
    ' [ -f "$f" ] && { echo "$f"; cat -- "$f"; printf "\\036"; }; done'
)

# As _PRINT, of a process and its unit. The file beside the folder is what the unit mounts over it, if anything: that
# mount is dropped where the image's file is replaced (sed -i), and the agent has read the copy at its start.
_FILE = f"{DIRECTORY.removesuffix('.d')}.json"
_PRINT_IN_USE = (
    f"cd /proc/%s/root{DIRECTORY} && {{ copy=; ! grep -qF ' {DIRECTORY} ' /proc/%s/mountinfo ||"
    f" copy=$(systemctl show -p BindPaths --value %s | tr ' ' '\\n' | sed -n 's#:{_FILE}\\(:.*\\)*$##p');"
    ' for f in "${copy:-../amazon-cloudwatch-agent.json}" *; do'
    ' [ -f "$f" ] && { echo "$f"; cat -- "$f"; printf "\\036"; }; done; }'
)


def installed(host: Any) -> dict[str, object]:
    """The configuration of the agent on a host. ValueError names a file that is not a JSON object."""
    return _merged_files(host.run(_PRINT, DIRECTORY, pure=True).stdout)


def replaced(parts: Collection[str]) -> str:
    """How a machine changed the image's configuration, by the names of the agent's parts; "" where it did not.

    fetch-config removes every other part and writes its own (ssm_NAME, file_NAME, default); append-config adds one.
    """
    others = sorted(set(parts) - set(_PARTS))
    if BASE_PART not in parts:
        by = f"{', '.join(others)} took its place" if others else "nothing took its place"
        return (
            f"{BASE_PART}, the image's configuration, is missing: {by}. `amazon-cloudwatch-agent-ctl -a fetch-config`"
            " removes it; -a append-config keeps it and adds to it"
        )
    return f"{', '.join(others)} added to the image's configuration (append-config)" if others else ""


def in_use(host: Any) -> dict[str, object] | None:
    """The configuration with which the agent's process started, in its own mount namespace; None if it does not run.

    ValueError names a file that is not a JSON object. UNPROVEN: the process's files cannot be read.
    """
    pid = host.run("systemctl show -p MainPID --value %s", UNIT).stdout.strip()
    if pid in ("", "0"):
        return None
    done = host.run(_PRINT_IN_USE, pid, pid, UNIT)
    if not done.stdout:
        unproven(f"the configuration of the running agent cannot be read: {done.stderr.strip() or 'no file'}")
    return _merged_files(done.stdout)


def _merged_files(text: str) -> dict[str, object]:
    configs: list[dict[str, object]] = []
    for record in text.split("\x1e"):
        name, _, text = record.lstrip("\n").partition("\n")
        if name:
            configs.append(_parsed(text, posixpath.join(DIRECTORY, name)))
    return merged(configs)


def _parsed(text: str, file: str) -> dict[str, object]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file}: expected an object, got {type(config).__name__}")
    return config


def differences(installed: object, planned: object, path: str = "") -> list[str]:
    """Where two configurations differ, a line each: `logs.x: expected …, got …`."""
    if isinstance(installed, dict) and isinstance(planned, dict):
        lines = []
        for key in sorted(installed.keys() | planned.keys()):
            where = f"{path}.{key}" if path else key
            if key not in planned:
                lines.append(f"{where}: expected nothing, got {installed[key]!r}")
            elif key not in installed:
                lines.append(f"{where}: expected {planned[key]!r}, but it is missing")
            else:
                lines += differences(installed[key], planned[key], where)
        return lines
    if isinstance(installed, list) and isinstance(planned, list) and len(installed) == len(planned):
        pairs = enumerate(zip(installed, planned, strict=True))
        return [line for index, (left, right) in pairs for line in differences(left, right, f"{path}[{index}]")]
    return [] if installed == planned else [f"{path}: expected {planned!r}, got {installed!r}"]


def interval(config: Mapping[str, object]) -> int:
    """Seconds between two datapoints of the nvidia_gpu plugin."""
    key = "metrics_collection_interval"
    seconds = _object(config, *_GPU_PLUGIN).get(key) or _object(config, "agent").get(key) or DEFAULT_INTERVAL
    if not isinstance(seconds, int):
        raise ValueError(f"{key}: expected whole seconds, got {seconds!r}")
    return seconds


def period(config: Mapping[str, object]) -> int:
    """The shortest period (seconds) for which CloudWatch returns every datapoint: 1, 5, 10, 30 or whole minutes."""
    seconds = interval(config)
    return next((short for short in (1, 5, 10, 30) if seconds <= short), -(-seconds // 60) * 60)


def measurements(config: Mapping[str, object]) -> list[str]:
    """Names of the measurements that the nvidia_gpu plugin publishes."""
    entries = _list(config, *_GPU_PLUGIN, "measurement")
    return [str(entry["name"]) if isinstance(entry, dict) else str(entry) for entry in entries]


def expected_series(
    config: Mapping[str, object],
    gpus: Iterable[Gpu],
    metadata: Mapping[str, object],
    absent: Collection[str] | None = None,
) -> dict[Series, Gpu | None]:
    """Every series that the agent publishes with this configuration → its GPU, or None for an aggregate over all GPUs.

    absent: measurements that these GPUs never have, by the plan; None without a plan: nvidia-smi then determines them.
    A GPU with MIG enabled, and a vGPU, have none of those that nvidia-smi lacks then.
    """
    metrics = _object(config, "metrics")
    namespace = str(metrics.get("namespace", DEFAULT_NAMESPACE))
    dimensions = _object(metrics, "append_dimensions")
    appended = {key: str(metadata[_PLACEHOLDERS[key]]) for key in dimensions if key in _PLACEHOLDERS}
    rollups = [_names(names) for names in _list(metrics, "aggregation_dimensions")]
    series: dict[Series, Gpu | None] = {}
    for gpu in gpus:
        own = {"index": str(gpu.index), "name": gpu.name, **_architecture(gpu), **appended}
        for measurement in measurements(config):
            if absent is None and measurement in _MAY_BE_ABSENT - gpu.unread - gpu.values.keys():
                continue
            if absent is not None and measurement in absent:
                continue
            if gpu.mig == "Enabled" and measurement in _ABSENT_UNDER_MIG - gpu.unread - gpu.values.keys():
                continue
            if gpu.fraction and measurement in _ABSENT_OF_A_FRACTION - gpu.unread - gpu.values.keys():
                continue
            name = f"nvidia_smi_{measurement}"
            series[Series(namespace, name, tuple(sorted(own.items())))] = gpu
            for names in rollups:
                if set(names) <= own.keys() and set(names) != own.keys():
                    rollup = tuple(sorted((key, own[key]) for key in names))
                    series[Series(namespace, name, rollup)] = None
    return series


def _architecture(gpu: Gpu) -> dict[str, str]:
    """`arch`, which the agent does not take from documents of layout 11 and older (drivers before R525).

    Source: amazon-cloudwatch-agent ab55b8da, plugins/inputs/nvidia_smi/schema_v11/parser.go and nvidia_smi_test.go.
    """
    return {"arch": gpu.architecture} if gpu.architecture and not 0 < gpu.layout <= 11 else {}


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list):
        raise ValueError(f"aggregation_dimensions: expected a list of dimensions, got {names!r}")
    return tuple(str(name) for name in names)


def log_files(config: Mapping[str, object], metadata: Mapping[str, object]) -> list[LogFile]:
    """The log files that the agent sends, with group and stream. ValueError if an entry has no file_path."""
    entries = _list(config, "logs", "logs_collected", "files", "collect_list")
    default_stream = _object(config, "logs").get("log_stream_name", "{instance_id}")
    return [_log_file(entry, default_stream, metadata) for entry in entries]


def with_group_suffix(config: Mapping[str, object], suffix: str) -> dict[str, object]:
    """A copy with the suffix on the name of each log group."""
    changed = merged([config])
    for entry in _list(changed, "logs", "logs_collected", "files", "collect_list"):
        if isinstance(entry, dict) and "log_group_name" in entry:
            entry["log_group_name"] = f"{entry['log_group_name']}{suffix}"
    return changed


def require_group_suffix(config: Mapping[str, object] | None, suffix: str) -> None:
    """UNPROVEN if the agent sends to a log group without the suffix: nothing may be injected then.

    config: what in_use returned.
    """
    groups = sorted({file.group for file in log_files(config or {}, {})})
    others = [group for group in groups if not group.endswith(suffix)]
    if others:
        unproven(
            f"the agent sends to {', '.join(others)}, not to the log groups of this proof (…{suffix}): is it without"
            " cloud-init, or systemd older than 233? --log-groups production proves it with its own groups"
        )


def with_namespace_of(config: Mapping[str, object], in_use: Mapping[str, object] | None) -> dict[str, object]:
    """A copy with the namespace of a proof where the running agent publishes in it: see NAMESPACE_SUFFIX.

    in_use: what in_use returned. On systemd before 233 the agent keeps the image's namespace.
    """
    changed = merged([config])
    metrics = changed.get("metrics")
    used = _object(in_use or {}, "metrics").get("namespace")
    if isinstance(metrics, dict) and used == f"{metrics.get('namespace')}{NAMESPACE_SUFFIX}":
        metrics["namespace"] = used
    return changed


def _log_file(entry: object, default_stream: object, metadata: Mapping[str, object]) -> LogFile:
    if not isinstance(entry, dict) or not isinstance(entry.get("file_path"), str):
        raise ValueError(f"collect_list: expected an object with file_path, got {entry!r}")
    path, days = entry["file_path"], entry.get("retention_in_days")
    return LogFile(
        path=path,
        group=_resolved(str(entry.get("log_group_name", path)), metadata),
        stream=_resolved(str(entry.get("log_stream_name", default_stream)), metadata),
        retention_days=days if isinstance(days, int) else None,
    )


def _resolved(text: str, metadata: Mapping[str, object]) -> str:
    """A group's or stream's name with the placeholders that the metadata have."""
    keys = {"{instance_id}": "instance-id", "{hostname}": "hostname", "{local_hostname}": "hostname"}
    return re.sub(r"\{[a-z_]+\}", lambda match: str(metadata.get(keys.get(match[0], ""), match[0])), text)


def _object(config: Mapping[str, object], *path: str) -> Mapping[str, object]:
    """The object at a path of keys, empty if there is none. ValueError: there is something else."""
    for depth, key in enumerate(path, 1):
        value = config.get(key, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"{'.'.join(path[:depth])}: expected an object, got {type(value).__name__}")
        config = value
    return config


def _list(config: Mapping[str, object], *path: str) -> list[object]:
    """The list at a path of keys, empty if there is none. ValueError: there is something else."""
    value = _object(config, *path[:-1]).get(path[-1], [])
    if not isinstance(value, list):
        raise ValueError(f"{'.'.join(path)}: expected a list, got {type(value).__name__}")
    return value
