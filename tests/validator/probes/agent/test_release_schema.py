"""What the agent's own check of a release refuses and accepts (validator.probes.agent.findings)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from validator.probes.agent import ERROR, lint
from validator.probes.agent.findings import RELEASE_SCHEMA as TABLE
from validator.probes.agent.findings import WARNING, release_schema, schema_findings

FILE = {"file_path": "/a.log", "log_group_name": "g"}
EVENTS = {"log_group_name": "g", "log_stream_name": "s", "event_name": "System", "event_levels": ["ERROR"]}


def logs(**collected: Any) -> dict[str, Any]:
    return {"logs": {"logs_collected": {name: {"collect_list": [entry]} for name, entry in collected.items()}}}


def metrics(**plugins: Any) -> dict[str, Any]:
    return {"metrics": {"metrics_collected": plugins}}


def collect(**features: Any) -> dict[str, Any]:
    return {"opentelemetry": {"collect": features}}


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        (logs(journald={"units": 123, "log_group_name": "g"}), "collect_list[0].units", "expected a list, got 123"),
        (logs(journald={"units": ["a"], "filters": [{"type": "invalid_type", "expression": "x"}]}), "filters[0].type",
         "expected one of include, exclude"),
        (logs(windows_events=EVENTS | {"event_format": "json"}), "[0].event_format", "text, xml"),
        (logs(windows_events=EVENTS | {"event_levels": "ERROR"}), "event_levels", "expected a list"),
        (logs(windows_events=EVENTS | {"event_ids": "4562"}), "event_ids", "expected a list"),
        (logs(windows_events={"log_group_name": "g"}), "event_name", "missing"),
        (metrics(cpu={"measurement": ["usage_idle"], "totalcpu": "false"}), "cpu.totalcpu", "expected true or false"),
        (metrics(cpu={"measurement": ["usage_idle"], "resources": ["a", "*"]}), "cpu.resources", "at most 1 entries"),
        (metrics(procstat=[{"exe": "a", "measurement": [{"name": "cpu_usage"}]}]), "[0].measurement[0]", "text"),
        (metrics(otlp=[]), "metrics.metrics_collected.otlp", "expected"),
        (metrics(jmx={"measurement": []}), "metrics.metrics_collected.jmx", ""),
        ({"metrics": {"metrics_collected": {"mem": {"measurement": ["used"]}}, "metrics_destinations": {"amp": {}}}},
         "metrics.metrics_destinations.amp.workspace_id", "missing"),
        ({"traces": {"traces_collected": {}}}, "traces.traces_collected", "expected"),
        (collect(invalid_field={}), "opentelemetry.collect.invalid_field", "unknown key"),
        (collect(prometheus={}), "opentelemetry.collect.prometheus.config_path", "missing"),
        (collect(database_insights={"postgresql": [{"endpoint": "a:1"}]}), "postgresql[0]", ""),
        ({"opentelemetry": {"collect": {"host_metrics": {}}, "resource_attributes": {"team": 123}}}, "team", "a text"),
    ],
)  # fmt: skip
def test_what_the_agent_refuses_is_an_error(config: dict[str, Any], path: str, said: str) -> None:
    errors = [finding for finding in lint(config) if finding.severity == ERROR]
    assert any(finding.path.endswith(path) or path in finding.path for finding in errors), errors
    assert any(said in finding.message for finding in errors if path in finding.path), errors


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        ({"agent": {"system_metrics_enabled": False}} | metrics(mem={"measurement": ["used"]}), ""),
        ({"logs": {"logs_collected": {"application_signals": {}}}}, ""),
        ({"logs": {"metrics_collected": {"application_signals": {}}}}, ""),
        (logs(files=FILE | {"log_stream_name": "${ENV_LOG_STREAM_NAME}", "timestamp_format": "%H"}), ""),
        (metrics(customizedObjectName={"measurement": ["% Idle Time"], "resources": ["*"]}), "performance counter"),
        (logs(files={"file_path": "/a.log", "timestamp_format": "%H"}), "the agent names the group after the file"),
        (metrics(nvidia_gpu={"measurement": ["power_draw"]}) | {}, ""),
    ],
)
def test_what_the_agent_accepts_is_no_error(config: dict[str, Any], warning: str) -> None:
    findings = lint(config)
    assert [finding for finding in findings if finding.severity == ERROR] == []
    assert not warning or any(warning in finding.message for finding in findings)


def test_a_journal_without_a_group_has_one_finding() -> None:
    [finding] = [found for found in lint(logs(journald={"units": ["a"]})) if "log_group_name" in found.path]
    assert finding.severity == ERROR and "refuses" in finding.message


@pytest.mark.parametrize(
    ("region", "is_zone"), [("us-east-1a", True), ("us-west-2-lax-1a", True), ("us-gov-west-1", False)]
)
def test_a_zone_is_no_region(region: str, is_zone: bool) -> None:
    found = [finding.message for finding in lint({"agent": {"region": region}}) if finding.path == "agent.region"]
    assert found == ([f"{region!r} is an Availability Zone: the agent reaches no endpoint"] if is_zone else [])


@pytest.mark.parametrize(
    ("unit", "is_known"),
    [("Watts", False), ("unit", False), ("Celsius", False), ("Percent", True), ("megabytes", True), ("MiBy", True)],
)
def test_a_unit_that_cloudwatch_lacks_is_lost(unit: str, is_known: bool) -> None:
    findings = lint(metrics(nvidia_gpu={"measurement": [{"name": "power_draw", "unit": unit}]}))
    assert [finding.severity for finding in findings if finding.path.endswith("unit")] == [WARNING] * (not is_known)


def test_facts_name_their_release_and_every_group_is_used_and_known() -> None:
    used: set[str] = set()

    def walk(rule: Any) -> None:
        if isinstance(rule, dict):
            if isinstance(rule.get("use"), str):
                used.add(rule["use"])
            for member in rule.values():
                walk(member)
        elif isinstance(rule, list):
            for member in rule:
                walk(member)

    table = yaml.safe_load(TABLE.read_text())
    walk(table)
    assert used == set(table["groups"]) and table["release"] == "1.300071.0"


def test_linter_and_facts_have_the_same_sections() -> None:
    keys = release_schema().keys
    assert keys() == {"agent", "metrics", "logs", "traces", "opentelemetry"}
    assert {"application_signals", "app_signals"} <= keys("logs", "metrics_collected")
    assert list(schema_findings({})) == []
