"""The replica refuses and accepts what the translator of the agent v1.300071.0 did of these configurations."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.local.replicas.cloudwatch_agent.cwagent import configuration

FILE = {"file_path": "/var/log/a", "log_group_name": "g", "log_stream_name": "{instance_id}", "retention_in_days": 90}
LOGS: dict[str, Any] = {"logs": {"logs_collected": {"files": {"collect_list": [FILE]}}}}
METRICS: dict[str, Any] = {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["power_draw"]}}}}


def logs(*others: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"logs": {"logs_collected": {"files": {"collect_list": [FILE | changes, *others]}}}}


def section(base: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(base)
    config[name] = config.get(name, {}) | changes
    return config


def gpu(**changes: Any) -> dict[str, Any]:
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
        (gpu(metrics_collection_interval=172801), "nvidia_gpu/metrics_collection_interval"),
        (gpu(metrics_collection_interval="10"), "nvidia_gpu/metrics_collection_interval"),
        (gpu(measurement=["power_draw", "power_draw"]), "nvidia_gpu/measurement"),
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
