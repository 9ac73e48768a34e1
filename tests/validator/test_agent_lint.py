"""The linter: silent on what is right, and each rule seen once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from validator.agent_lint import Finding, lint

FILE = {
    "file_path": "/var/log/gpuevent.jsonl", "log_group_name": "json", "log_stream_name": "{instance_id}",
    "retention_in_days": 90, "timestamp_format": "%Y", "timezone": "UTC",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "agent": {"run_as_user": "root", "metrics_collection_interval": 60},
    "metrics": {
        "namespace": "CWAgent",
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
        "aggregation_dimensions": [["InstanceId"], []],
        "endpoint_override": "http://169.254.169.251:80",
        "metrics_collected": {"nvidia_gpu": {"measurement": ["memory_total", {"name": "power_draw"}]}},
    },
}
LOGS: dict[str, Any] = {"logs": {"logs_collected": {"files": {"collect_list": [FILE]}}, "force_flush_interval": 5}}


def test_good_ones_are_silent() -> None:
    assert lint(GOOD) == []
    assert lint(LOGS, files={"/var/log/gpuevent.jsonl"}) == []


def metrics(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    change(config["metrics"])
    return config


def log_file(**others: Any) -> dict[str, Any]:
    entry = {key: value for key, value in (FILE | others).items() if value is not None}
    return {"logs": {"logs_collected": {"files": {"collect_list": [entry]}}}}


GPU = "metrics.metrics_collected.nvidia_gpu"
ENTRY = "logs.logs_collected.files.collect_list[0]"
CASES = [
    ([], "error: the file: expected an object, found list"),
    ({"metric": {}}, "error: metric: is not known; did you mean metrics?"),
    (
        {"agent": {"metrics_collection_interval": 0}},
        "error: agent.metrics_collection_interval: found 0, expected whole",
    ),
    ({"agent": {"run_as_usr": "root"}}, "error: agent.run_as_usr: is not known; did you mean run_as_user?"),
    ({"logs": []}, "error: logs: expected an object, found list"),
    (metrics(lambda m: m.pop("metrics_collected")), "error: metrics.metrics_collected: collects nothing"),
    (
        metrics(lambda m: m["metrics_collected"].update(nvidia_gp={})),
        "error: metrics.metrics_collected.nvidia_gp: is not known; did you mean nvidia_gpu?",
    ),
    (metrics(lambda m: m["metrics_collected"].update(nvidia_smi={})), "nvidia_smi: is the plugin's inner name"),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"].update(measurement=[])),
        f"error: {GPU}.measurement: is missing",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"]["measurement"].append("utilisation_gpu")),
        f"error: {GPU}.measurement[2]: 'utilisation_gpu' is no measurement of nvidia_gpu; did you mean",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"]["measurement"].append("memory_total")),
        f"warning: {GPU}.measurement[2]: 'memory_total' stands there twice",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"].update(interval=1)),
        f"error: {GPU}.interval: is not known",
    ),
    (
        metrics(lambda m: m["append_dimensions"].update(InstanceID="${aws:InstanceId}")),
        "error: metrics.append_dimensions.InstanceID: the agent knows only ImageId",
    ),
    (
        metrics(lambda m: m["append_dimensions"].update(ImageId="ami-1")),
        "error: metrics.append_dimensions.ImageId: found 'ami-1', the agent takes only '${aws:ImageId}'",
    ),
    (
        metrics(lambda m: m["aggregation_dimensions"].append(["InstanceType"])),
        "error: metrics.aggregation_dimensions[2]: no metric has the dimension 'InstanceType'",
    ),
    (
        metrics(lambda m: m["aggregation_dimensions"].append("index")),
        "[2]: expected a list of dimensions, found 'index'",
    ),
    (metrics(lambda m: m.update(endpoint_override="localhost")), "error: metrics.endpoint_override: found 'localhost'"),
    (GOOD | LOGS, f"warning: {GPU}: in one file with logs"),
    (log_file(file_path="gpuevent.log"), f"error: {ENTRY}.file_path: found 'gpuevent.log', expected an absolute path"),
    (
        log_file(file_path="/var/log/gpuevents.jsonl"),
        "nothing on the image writes /var/log/gpuevents.jsonl; did you mean",
    ),
    (log_file(log_group_name=None), f"error: {ENTRY}.log_group_name: is missing"),
    (log_file(log_stream_name="{instanceid}"), "the agent does not know {instanceid}; did you mean {instance_id}?"),
    (log_file(retention_in_days=31), f"error: {ENTRY}.retention_in_days: found 31, CloudWatch takes -1, 1, 3"),
    (log_file(timestamp_format=None), f"warning: {ENTRY}: no timestamp_format"),
    (log_file(time_zone="UTC"), f"error: {ENTRY}.time_zone: is not known; did you mean timezone?"),
    (
        {"logs": {"logs_collected": {"journald": {"collect_list": [{"log_group_name": "k", "priority": "warn"}]}}}},
        "error: logs.logs_collected.journald.collect_list[0].priority: found 'warn'",
    ),
    (
        {"logs": {"logs_collected": {"files": {"collect_list": [FILE, FILE | {"file_path": "/b"}]}}}},
        "warning: logs.logs_collected.files.collect_list[1]: goes to the same group and stream as",
    ),
]


@pytest.mark.parametrize(("config", "message"), CASES)
def test_each_rule(config: Any, message: str) -> None:
    found = lint(config, files={"/var/log/gpuevent.jsonl", "/b"})
    assert any(message in str(finding) for finding in found), found


def test_errors_come_first() -> None:
    found = lint(GOOD | LOGS | {"extra": 1})
    assert found[0] == Finding("error", "extra", "is not known")
    assert found[-1].severity == "warning"
