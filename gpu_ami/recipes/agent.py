"""The CloudWatch agent's configuration, rendered from the plan's telemetry.

Two documents, because the agent refuses to start at all where `nvidia_gpu` is configured and /usr/bin/nvidia-smi is
missing: `config` (agent and logs) is used on every host, `gpu_config` is appended on hosts with a GPU. All of `metrics`
is in the second: the agent's schema has no `metrics` without something collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_ami.recipes.components import components
from validator.agent_document import AgentConfig, AgentGpuConfig, AgentLogFile, AgentLogs, AgentMetrics
from validator.plan_document import EventParser, Publisher, Telemetry

# "time" of the JSON lines of event parser, Neuron's publisher and drain hook: RFC 3339 in UTC with microseconds.
JSON_TIMESTAMP = "%Y-%m-%dT%H:%M:%S.%f"

# Seconds a log event may wait, the agent's own default: nothing is sent, or paid for, while nothing is logged.
_LOG_FLUSH = 5
_APPENDED = ("AutoScalingGroupName", "ImageId", "InstanceId", "InstanceType")


def agent_config(
    telemetry: Telemetry, parser: EventParser, endpoint: str | None, *publishers: Publisher
) -> AgentConfig:
    """The agent's own section and the log files. `endpoint`: where the guest reaches the AWS API (None: AWS).

    `publishers`: the plan's sections with a log of their own.
    """
    files: list[AgentLogFile] = [
        # The kernel's line has no wall-clock time, so the raw stream is stamped when it arrives.
        _log_file(parser["raw_log"], telemetry["raw_log_group"], telemetry),
        _json_lines(parser["json_log"], telemetry["json_log_group"], telemetry),
    ]
    files += [_json_lines(section["log"], section["log_group"], telemetry) for section in publishers]
    logs: AgentLogs = {
        "logs_collected": {"files": {"collect_list": files}},
        "force_flush_interval": _LOG_FLUSH,
    }
    if endpoint:
        logs["endpoint_override"] = endpoint
    return {
        "agent": {"run_as_user": "root", "metrics_collection_interval": telemetry["interval_s"]},
        "logs": logs,
    }


def publishers(plan: Mapping[str, Any]) -> dict[str, Publisher]:
    """Component → its section of a plan, of those whose log the agent sends."""
    return {name: plan[name] for name, component in components().items() if component.own_log and name in plan}


def gpu_config(telemetry: Telemetry, endpoint: str | None) -> AgentGpuConfig:
    """The metrics section: what nvidia_gpu measures and with which dimensions it is published."""
    metrics: AgentMetrics = {
        "namespace": telemetry["namespace"],
        "append_dimensions": {name: f"${{aws:{name}}}" for name in _APPENDED},
        "aggregation_dimensions": [["InstanceId"]],
        "force_flush_interval": _flush(telemetry),
        "metrics_collected": {
            "nvidia_gpu": {
                "measurement": list(telemetry["measurements"]),
                "metrics_collection_interval": telemetry["interval_s"],
            }
        },
    }
    if endpoint:
        metrics["endpoint_override"] = endpoint
    return {"metrics": metrics}


def _log_file(path: str, group: str, telemetry: Telemetry) -> AgentLogFile:
    entry: AgentLogFile = {"file_path": path, "log_group_name": group, "log_stream_name": telemetry["log_stream"]}
    if telemetry.get("retention_days"):
        entry["retention_in_days"] = telemetry["retention_days"]
    return entry


def _json_lines(path: str, group: str, telemetry: Telemetry) -> AgentLogFile:
    """JSON lines with their own time. CloudWatch makes metrics of those that are embedded metric documents."""
    return {**_log_file(path, group, telemetry), "timestamp_format": JSON_TIMESTAMP, "timezone": "UTC"}


def _flush(telemetry: Telemetry) -> int:
    """Seconds a datum of a metric may wait: as short as the interval, so that it does not double the latency."""
    return max(5, min(60, int(telemetry["interval_s"])))
