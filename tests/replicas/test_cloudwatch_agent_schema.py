"""The replica refuses and accepts what the translator of the agent v1.300071.0 did of these configurations.

What linter, replica and the types of a plan know of the agent is the same where they share it (docs/lint-agent.md).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from gpu_ami.recipes import load_facts
from localregion.replicas.cloudwatch_agent.cwagent import configuration, gpu, schema
from validator import agent_document
from validator.measurement import MEASUREMENTS
from validator.probes.agent import findings, lint_logs

lint = import_module("validator.probes.agent.lint")  # the package exports a function of that name
# Keys that the schema's translator ignores, as it does any other of this section; the linter names typing mistakes.
_OF_AGENT = {
    "credentials",
    "run_as_user",
    "user_agent",
    "quiet",
    "internal",
    "use_dualstack_endpoint",
    "system_metrics_enabled",
}
FILE = {"file_path": "/var/log/a", "log_group_name": "g", "log_stream_name": "{instance_id}", "retention_in_days": 90}
LOGS: dict[str, Any] = {"logs": {"logs_collected": {"files": {"collect_list": [FILE]}}}}
METRICS: dict[str, Any] = {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["power_draw"]}}}}


def logs(*others: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"logs": {"logs_collected": {"files": {"collect_list": [FILE | changes, *others]}}}}


def section(base: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(base)
    config[name] = config.get(name, {}) | changes
    return config


def of_gpu(**changes: Any) -> dict[str, Any]:
    plugin = {"measurement": ["power_draw"]} | changes
    return {"metrics": {"metrics_collected": {"nvidia_gpu": plugin}}}


def journald(**entry: Any) -> dict[str, Any]:
    return {"logs": {"logs_collected": {"journald": {"collect_list": [{"log_group_name": "g"} | entry]}}}}


def combined(tmp_path: Path, *parts: dict[str, Any]) -> configuration.Section:
    paths = [tmp_path / f"{number}.json" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_text(json.dumps(part))
    return configuration.combine([str(path) for path in paths])


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (of_gpu(metrics_collection_interval=172801), "nvidia_gpu/metrics_collection_interval"),
        (of_gpu(metrics_collection_interval="10"), "nvidia_gpu/metrics_collection_interval"),
        (of_gpu(measurement=["power_draw", "power_draw"]), "nvidia_gpu/measurement"),
        (section(METRICS, "metrics", namespace=5), "/metrics/namespace"),
        (section(METRICS, "metrics", namespace="x" * 256), "/metrics/namespace"),
        (section(METRICS, "metrics", endpoint_override=""), "/metrics/endpoint_override"),
        (section(METRICS, "metrics", metric_collected={}), "/metrics/metric_collected"),
        ({"logs": {}}, "/logs"),
        ({"logs": {"logs_collected": {}}}, "/logs/logs_collected"),
        ({"logs": {"logs_collected": {"files": {}}}}, "files/collect_list"),
        ({"logs": {"logs_collected": {"files": {"collect_list": []}}}}, "files/collect_list"),
        ({"logs": {"logs_collected": {"file": {}}}}, "/logs/logs_collected/file "),
        (section(LOGS, "logs", log_collected={}), "/logs/log_collected"),
        (section(LOGS, "logs", force_flush_interval="5"), "/logs/force_flush_interval"),
        (logs(log_group="x"), "collect_list/0/log_group"),
        (logs(log_group_name="g" * 513), "collect_list/0/log_group_name"),
        (logs(retention_in_days="90"), "collect_list/0/retention_in_days"),
        (logs(FILE | {"file_path": "/b", "retention_in_days": 7}), "Different retention_in_days values"),
        (
            logs(FILE | {"log_group_name": "G", "log_group_class": "STANDARD"}, log_group_class="INFREQUENT_ACCESS"),
            "Different log_group_class values",
        ),
        (logs(encoding="klingon"), "Encoding klingon is an invalid value"),
        (logs(filters=[{"type": "include", "expression": "(?!x)y"}]), "collect_list/0/filters/0"),
        (section(LOGS, "agent", debug="yes"), "/agent/debug"),
        (section(LOGS, "agent", region=""), "/agent/region"),
        (journald(priority="loud"), "journald/collect_list/0/priority"),
        (journald(unit="x"), "journald/collect_list/0/unit"),
        ({"logs": {"logs_collected": {"journald": {"collect_list": []}}}}, "journald/collect_list"),
    ],
)
def test_what_the_translator_refuses(config: dict[str, Any], path: str, tmp_path: Path) -> None:
    with pytest.raises(configuration.Refused) as caught:
        combined(tmp_path, config)
    assert path in f"{caught.value} "


@pytest.mark.parametrize(
    "config",
    [
        LOGS,
        METRICS,
        journald(units=["a.service"], priority="err", retention_in_days=7),
        logs(FILE),  # a duplicate entry counts once
        logs(FILE | {"file_path": "/b", "retention_in_days": -1}),
        logs(log_group_class="CHEAP"),
        logs(log_stream_name="{instance-id}"),
        section(METRICS, "metrics", append_dimensions={"Zone": "${aws:Zone}", "InstanceId": "i-1"}),
        section(LOGS, "agent", run_as="root"),
    ],
)
def test_what_the_translator_accepts_although_some_of_it_has_no_effect(config: dict[str, Any], tmp_path: Path) -> None:
    assert combined(tmp_path, config)


def test_objects_of_two_files_must_be_equal(tmp_path: Path) -> None:
    two = section(METRICS, "metrics", append_dimensions={"InstanceId": "a", "ImageId": "b"})
    one = section(METRICS, "metrics", append_dimensions={"InstanceId": "a"})
    with pytest.raises(configuration.Refused, match=r"/metrics/append_dimensions .* Different values"):
        combined(tmp_path, two, one)
    assert combined(tmp_path, two, two)


@pytest.mark.parametrize(
    ("linter", "replica"),
    [
        (lint._METRICS, schema._METRICS),
        (lint_logs._LOGS, schema._LOGS),
        (lint_logs._FILE, schema._FILE),
        (lint_logs._JOURNALD, schema._JOURNALD),
        (set(lint._AGENT) - _OF_AGENT, schema._AGENT),
        (lint_logs._RETENTION, schema.RETENTION_DAYS),
        (lint_logs._CLASSES, schema.CLASSES),
        (lint_logs._PRIORITIES, schema._PRIORITIES),
        (lint._APPENDED, configuration.APPENDABLE),
        (lint._PLUGINS, {*configuration.PLUGINS, *configuration.FOREIGN_PLUGINS}),
    ],
)
def test_linter_and_replica_know_the_same(linter: Collection[Any], replica: Collection[Any]) -> None:
    assert set(linter) == set(replica)


def test_replica_has_the_rows_of_the_table(update_golden: bool) -> None:
    """Its measurements.json: of each measurement the elements in the order of the releases that read them."""
    rows = {
        row.name: {"paths": dict(sorted(row.paths.items(), key=lambda item: item[1])), "fraction": not row.whole}
        for row in MEASUREMENTS
    }
    file = Path(gpu.__file__).with_name("measurements.json")
    if update_golden:
        file.write_text(json.dumps(rows, indent=1) + "\n")
    assert json.loads(file.read_text()) == rows, "pytest --update-golden writes it"


@pytest.mark.parametrize("plugin", sorted(set(configuration.PLUGINS) - {"nvidia_gpu"}))
def test_replica_measures_what_the_linter_allows(plugin: str) -> None:
    assert set(configuration.PLUGINS[plugin][1]) <= set(lint.MEASUREMENTS[plugin])


@pytest.mark.parametrize(("seconds", "is_right"), [(0, False), (1, True), (findings._MAX_SECONDS, True)])
def test_intervals_have_the_same_limits(seconds: int, is_right: bool) -> None:
    for value, right in ((seconds, is_right), (findings._MAX_SECONDS + 1, False)):
        assert (schema.seconds(value) == "") is right
        assert (not list(findings.seconds({"key": value}, "key", ""))) is right


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        (agent_document.AgentConfig, lint._TOP),
        (agent_document.AgentSettings, lint._AGENT),
        (agent_document.AgentLogs, lint_logs._LOGS),
        (agent_document.AgentLogFile, lint_logs._FILE),
        (agent_document.AgentMetrics, lint._METRICS),
        (agent_document.AgentMetricsCollected, lint._PLUGINS),
        (agent_document.NvidiaGpuPlugin, lint._GPU),
    ],
)
def test_plan_writes_only_keys_of_the_agent(kind: Any, known: Collection[str]) -> None:
    assert set(get_type_hints(kind)) <= set(known)


def test_recipes_choose_among_the_agents_retention_days() -> None:
    """Not -1: a log group that keeps its events for ever is no default of a fleet."""
    assert set(load_facts().cloudwatch_agent["retention_days"]) == set(schema.RETENTION_DAYS) - {-1}
