"""The replica refuses and accepts what the translator of the agent v1.300071.0 did of these configurations.

Linter and replica read one table; a plan has only keys of it (docs/lint-agent.md).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from localregion.replicas.cloudwatch_agent.cwagent import configuration, gpu, schema
from onhost import agent_schema
from validator import agent_document
from validator.measurement import MEASUREMENTS
from validator.probes.agent import findings

lint = import_module("validator.probes.agent.lint")  # the package exports a function of that name
known = findings.release_schema().keys
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


def test_linter_and_replica_read_one_table(update_golden: bool) -> None:
    """Its release_schema.json is the linter's table, and both compare with the same program."""
    table = yaml.safe_load(findings.RELEASE_SCHEMA.read_text())
    folder = Path(schema.__file__).parent
    if update_golden:
        (folder / "release_schema.json").write_text(json.dumps(table, indent=1) + "\n")
    assert json.loads((folder / "release_schema.json").read_text()) == table, "pytest --update-golden writes it"
    assert (folder / "agent_schema.py").resolve() == Path(agent_schema.__file__).resolve()


def test_linter_and_replica_replace_the_same_dimensions() -> None:
    assert set(lint.APPENDED_DIMENSIONS) == set(configuration.APPENDABLE) and lint.LOG_GROUP_CLASSES == schema.CLASSES


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


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        (agent_document.AgentConfig, known()),
        (agent_document.AgentSettings, known("agent") | set(lint.UNLISTED)),
        (agent_document.AgentLogs, known("logs")),
        (agent_document.AgentLogFile, known(*lint.LOG_ENTRIES["files"])),
        (agent_document.AgentMetrics, known("metrics")),
        (agent_document.AgentMetricsCollected, lint.PLUGINS),
        (agent_document.NvidiaGpuPlugin, lint.GPU_KEYS),
    ],
)
def test_plan_writes_only_keys_of_the_agent(kind: Any, known: Collection[str]) -> None:
    assert set(get_type_hints(kind)) <= set(known)
