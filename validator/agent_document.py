"""The types of the CloudWatch agent's configuration in plan.json: what the resolver writes and the checks read.

A configuration from a host may hold anything else; `validator.probes.agent.config` reads those.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class AgentSettings(TypedDict):
    """The agent's own settings; the interval in seconds."""

    run_as_user: str
    metrics_collection_interval: int


class AgentLogFile(TypedDict):
    """A log file that the agent sends to CloudWatch Logs. Without `timestamp_format` events get their arrival time."""

    file_path: str
    log_group_name: str
    log_stream_name: str
    timestamp_format: NotRequired[str]
    timezone: NotRequired[str]
    retention_in_days: NotRequired[int]


class AgentLogFiles(TypedDict):
    """The plugin that reads log files."""

    collect_list: list[AgentLogFile]


class AgentLogsCollected(TypedDict):
    """The agent's log plugins."""

    files: AgentLogFiles


class AgentLogs(TypedDict):
    """The agent's section `logs`; `force_flush_interval` in seconds."""

    logs_collected: AgentLogsCollected
    force_flush_interval: int
    endpoint_override: NotRequired[str]


class AgentConfig(TypedDict):
    """The agent's configuration file for every host."""

    agent: AgentSettings
    logs: AgentLogs


class NvidiaGpuPlugin(TypedDict):
    """The plugin that reads nvidia-smi; the interval in seconds."""

    measurement: list[str]
    metrics_collection_interval: int


class AgentMetricsCollected(TypedDict):
    """The agent's metric plugins."""

    nvidia_gpu: NvidiaGpuPlugin


class AgentMetrics(TypedDict):
    """The agent's section `metrics`; `force_flush_interval` in seconds."""

    namespace: str
    append_dimensions: dict[str, str]
    aggregation_dimensions: list[list[str]]
    force_flush_interval: int
    metrics_collected: AgentMetricsCollected
    endpoint_override: NotRequired[str]


class AgentGpuConfig(TypedDict, total=False):
    """The agent's configuration file for hosts with a GPU; empty if no GPU metric is planned."""

    metrics: AgentMetrics
