"""The linter: no finding for a correct file, and each rule of agent and metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from validator.probes.agent.findings import Finding
from validator.probes.agent.lint import lint, lint_text

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


def test_correct_files_have_no_findings() -> None:
    assert lint(GOOD) == []
    assert lint(LOGS, files={"/var/log/gpuevent.jsonl"}) == []


def metrics(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    change(config["metrics"])
    return config


GPU = "metrics.metrics_collected.nvidia_gpu"
CASES = [
    ([], "error: the file: expected an object, got list"),
    ({"metric": {}}, "error: metric: unknown key; did you mean metrics?"),
    (
        {"agent": {"metrics_collection_interval": 0}},
        "error: agent.metrics_collection_interval: expected whole seconds from 1 to 172800, got 0",
    ),
    ({"agent": {"run_as_usr": "root"}}, "error: agent.run_as_usr: unknown key; did you mean run_as_user?"),
    ({"agent": {"region": ""}}, "error: agent.region: expected a name, got ''"),
    ({"agent": {"debug": "yes"}}, "error: agent.debug: expected a boolean (true or false), got 'yes'"),
    ({"logs": []}, "error: logs: expected an object, got list"),
    (metrics(lambda m: m.pop("metrics_collected")), "error: metrics.metrics_collected: no plugin"),
    (
        metrics(lambda m: m["metrics_collected"].update(nvidia_gp={})),
        "error: metrics.metrics_collected.nvidia_gp: unknown key; did you mean nvidia_gpu?",
    ),
    (metrics(lambda m: m["metrics_collected"].update(nvidia_smi={})), "nvidia_smi: internal name of the plugin"),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"].update(measurement=[])),
        f"error: {GPU}.measurement: missing",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"]["measurement"].append("utilisation_gpu")),
        f"error: {GPU}.measurement[2]: 'utilisation_gpu' is not a measurement of nvidia_gpu; did you mean",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"]["measurement"].append("memory_total")),
        f"error: {GPU}.measurement[2]: duplicate measurement 'memory_total'",
    ),
    (
        metrics(lambda m: m["metrics_collected"]["nvidia_gpu"].update(interval=1)),
        f"error: {GPU}.interval: unknown key",
    ),
    (
        metrics(lambda m: m["append_dimensions"].update(InstanceID="${aws:InstanceId}")),
        "error: metrics.append_dimensions.InstanceID: expected ImageId",
    ),
    (
        metrics(lambda m: m["append_dimensions"].update(ImageId="ami-1")),
        "error: metrics.append_dimensions.ImageId: expected '${aws:ImageId}', got 'ami-1'",
    ),
    (
        metrics(lambda m: m["aggregation_dimensions"].append(["InstanceType"])),
        "warning: metrics.aggregation_dimensions[2]: no metric has the dimension 'InstanceType'",
    ),
    (
        metrics(lambda m: m["aggregation_dimensions"].append("index")),
        "[2]: expected a list of dimensions, got 'index'",
    ),
    (
        metrics(lambda m: m.update(aggregation_dimensions=5)),
        "metrics.aggregation_dimensions: expected a list of lists of dimensions, got 5",
    ),
    (metrics(lambda m: m["aggregation_dimensions"].append([{}])), "no metric has the dimension {}"),
    (metrics(lambda m: m.update(append_dimensions=5)), "metrics.append_dimensions: expected an object, got int"),
    (
        metrics(lambda m: m.update(endpoint_override="localhost")),
        "error: metrics.endpoint_override: expected http(s)://host[:port], got 'localhost'",
    ),
    (GOOD | LOGS, f"warning: {GPU}: in one file with logs"),
    (metrics(lambda m: m.update(namespace="AWS/EC2")), "error: metrics.namespace: namespaces that start with AWS/ are"),
    (metrics(lambda m: m.update(namespace=":own")), "error: metrics.namespace: expected 1 to 255 letters, digits"),
    (metrics(lambda m: m.update(namespace="a" * 256)), "error: metrics.namespace: expected 1 to 255 letters, digits"),
]


@pytest.mark.parametrize(("config", "message"), CASES)
def test_each_rule(config: Any, message: str) -> None:
    found = lint(config, files={"/var/log/gpuevent.jsonl", "/b"})
    assert any(message in str(finding) for finding in found), found


def test_errors_come_first() -> None:
    found = lint(GOOD | LOGS | {"extra": 1})
    assert found[0] == Finding("error", "extra", "unknown key")
    assert found[-1].severity == "warning"


def test_a_finding_has_its_line() -> None:
    text = '{\n  "agent": {},\n  "logs": {\n    "force_flush_interval": 0,\n    "metrics_collected": {}\n  },'
    text += '\n  "metrics": {}\n}'
    assert [(finding.path, finding.line) for finding in lint_text(text)] == [
        ("logs.force_flush_interval", 4),
        ("metrics.metrics_collected", 7),  # a missing key has the line of its section
    ]
    assert str(lint_text(text)[0]).startswith("error: line 4: logs.force_flush_interval: expected whole seconds")


def test_a_duplicate_key_is_an_error_with_its_second_line() -> None:
    assert lint_text('{"agent": {},\n "agent": {}}') == [Finding("error", "agent", "duplicate key", 2)]


@pytest.mark.parametrize("depth", [600, 100_000])
def test_nested_lists_are_one_finding(depth: int) -> None:
    (finding,) = lint_text("[" * depth + "]" * depth)
    assert finding.severity == "error" and ("too deeply" in finding.message or "expected an object" in finding.message)


def test_text_that_is_not_json_is_one_finding() -> None:
    (finding,) = lint_text('{\n  "agent": }')
    assert (finding.severity, finding.line, finding.message) == ("error", 2, "not JSON: Expecting value")
