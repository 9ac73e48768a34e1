"""The CloudWatch agent's two documents."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes.agent import JSON_TIMESTAMP, agent_config, gpu_config, publishers

TELEMETRY: dict[str, Any] = {
    "interval_s": 10, "namespace": "Fleet", "measurements": ["utilization_gpu", "memory_used"],
    "raw_log_group": "/raw", "json_log_group": "/json", "log_stream": "{instance_id}", "retention_days": 30,
}  # fmt: skip
PARSER = {"raw_log": "/var/log/a.log", "json_log": "/var/log/a.jsonl"}


def test_each_log_file_goes_to_its_own_group() -> None:
    files = agent_config(TELEMETRY, PARSER, None)["logs"]["logs_collected"]["files"]["collect_list"]
    shared = {"log_stream_name": "{instance_id}", "retention_in_days": 30}
    assert files == [
        {"file_path": "/var/log/a.log", "log_group_name": "/raw", **shared},
        {
            "file_path": "/var/log/a.jsonl",
            "log_group_name": "/json",
            **shared,
            "timestamp_format": JSON_TIMESTAMP,
            "timezone": "UTC",
        },
    ]


def test_retention_is_left_out_where_the_recipe_sets_none() -> None:
    telemetry = {key: value for key, value in TELEMETRY.items() if key != "retention_days"}
    files = agent_config(telemetry, PARSER, None)["logs"]["logs_collected"]["files"]["collect_list"]
    assert all("retention_in_days" not in entry for entry in files)


def test_metrics_are_in_the_second_document_only() -> None:
    assert set(agent_config(TELEMETRY, PARSER, None)) == {"agent", "logs"}
    metrics = gpu_config(TELEMETRY, None)["metrics"]
    assert metrics["namespace"] == "Fleet"
    assert metrics["metrics_collected"] == {
        "nvidia_gpu": {"measurement": ["utilization_gpu", "memory_used"], "metrics_collection_interval": 10}
    }
    assert metrics["append_dimensions"]["InstanceId"] == "${aws:InstanceId}"


@pytest.mark.parametrize(("interval", "flush"), [(1, 5), (10, 10), (300, 60)])
def test_flush_of_metrics_follows_the_interval_within_bounds(interval: int, flush: int) -> None:
    telemetry = TELEMETRY | {"interval_s": interval}
    config = agent_config(telemetry, PARSER, None)
    assert config["agent"]["metrics_collection_interval"] == interval
    assert config["logs"]["force_flush_interval"] == 5  # an Xid does not wait for metrics
    assert gpu_config(telemetry, None)["metrics"]["force_flush_interval"] == flush


def test_endpoint_overrides_both_services_or_none() -> None:
    endpoint = "http://127.0.0.1:4566"
    assert agent_config(TELEMETRY, PARSER, endpoint)["logs"]["endpoint_override"] == endpoint
    assert gpu_config(TELEMETRY, endpoint)["metrics"]["endpoint_override"] == endpoint
    assert "endpoint_override" not in agent_config(TELEMETRY, PARSER, None)["logs"]
    assert "endpoint_override" not in gpu_config(TELEMETRY, None)["metrics"]


def test_neuron_s_metrics_are_a_log_file_with_its_own_time() -> None:
    neuron: Any = {"log": "/var/log/neuron.jsonl", "log_group": "/neuron"}
    files = agent_config(TELEMETRY, PARSER, None, neuron)["logs"]["logs_collected"]["files"]["collect_list"]
    assert files[2] == {
        "file_path": "/var/log/neuron.jsonl",
        "log_group_name": "/neuron",
        "log_stream_name": "{instance_id}",
        "retention_in_days": 30,
        "timestamp_format": JSON_TIMESTAMP,
        "timezone": "UTC",
    }


def test_a_section_that_the_plan_has_not_adds_no_log() -> None:
    drain: Any = {"log": "/var/log/drain.jsonl", "log_group": "/drain"}
    own = publishers({"drain_hook": drain, "telemetry": {}})
    assert own == {"drain_hook": drain}
    files = agent_config(TELEMETRY, PARSER, None, *own.values())["logs"]["logs_collected"]["files"]["collect_list"]
    assert [file["file_path"] for file in files[2:]] == ["/var/log/drain.jsonl"]
