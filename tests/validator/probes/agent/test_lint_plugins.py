"""The linter's rules for cpu, disk, mem and other system plugins."""

from __future__ import annotations

from typing import Any

import pytest

from validator.probes.agent.lint import lint, plugin_findings


def test_measurements_of_the_agent_have_no_findings() -> None:
    plugins = {
        "cpu": {"measurement": ["cpu_usage_idle", "time_user"], "totalcpu": True},
        "disk": {"measurement": ["used_percent", {"name": "disk_free", "rename": "Free"}], "resources": ["*"]},
        "diskio": {"measurement": ["ebs_volume_performance_exceeded_iops"]},
        "mem": {"measurement": ["mem_used_percent"], "metrics_collection_interval": 10},
        "collectd": {},
        "procstat": [{"pattern": "x", "measurement": ["cpu_usage"]}],
    }
    assert list(plugin_findings(plugins)) == []


@pytest.mark.parametrize(
    ("name", "plugin", "message"),
    [
        ("disk", {"resources": ["*"]}, "disk.measurement: missing or empty"),
        (
            "mem",
            {"measurement": ["mem_used_pct"]},
            "'mem_used_pct' is not a measurement of mem; did you mean used_percent?",
        ),
        ("net", {"measurement": ["byte_sent"]}, "net.measurement[0]: 'byte_sent' is not"),
        ("cpu", {"measurement": ["usage_idle", "usage_idle"]}, "cpu.measurement[1]: duplicate measurement"),
        ("swap", ["free"], "swap: expected an object, got list"),
        ("cpu", {"measurement": ["usage_idle"], "metrics_collection_interval": 0}, "expected whole seconds from 1"),
    ],
)
def test_each_rule(name: str, plugin: Any, message: str) -> None:
    assert any(message in str(finding) for finding in plugin_findings({name: plugin}))


def aggregated(plugins: dict[str, Any], *sets: list[str]) -> list[str]:
    config = {"metrics": {
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"}, "aggregation_dimensions": list(sets),
        "metrics_collected": plugins,
    }}  # fmt: skip
    return [str(finding) for finding in lint(config)]


CPU = {"measurement": ["usage_idle"], "append_dimensions": {"team": "x"}}
DISK = {"measurement": ["used_percent"]}


@pytest.mark.parametrize(
    ("plugins", "names"),
    [
        ({"cpu": CPU}, ["InstanceId", "cpu", "team"]), ({"disk": DISK}, ["path", "fstype"]), ({"mem": DISK}, []),
        ({"cpu": CPU, "statsd": {}}, ["anything"]), ({"cpu": CPU, "disk": DISK}, ["path"]),
        ({"procstat": [{"exe": "sshd", "measurement": ["cpu_usage"], "append_dimensions": {"a": "b"}}]}, ["exe", "a"]),
    ],
)  # fmt: skip
def test_aggregation_dimensions_that_a_metric_has(plugins: dict[str, Any], names: list[str]) -> None:
    assert aggregated(plugins, names) == []


@pytest.mark.parametrize(
    ("plugins", "names", "message"),
    [
        ({"cpu": CPU}, ["d1"], "no metric has the dimension 'd1'"), ({"mem": DISK}, ["path"], "the dimension 'path'"),
        ({"disk": DISK, "nvidia_gpu": {"measurement": ["power_draw"]}}, ["gpu"], "no metric has the dimension 'gpu'"),
        ({"cpu": CPU, "disk": DISK}, ["cpu", "path"], "no metric has all of cpu, path"),
    ],
)  # fmt: skip
def test_aggregation_dimensions_that_no_metric_has(plugins: dict[str, Any], names: list[str], message: str) -> None:
    """The agent starts with them, as with `d1` in AWS's own sample: a warning."""
    findings = aggregated(plugins, names)
    assert len(findings) == 1 and message in findings[0] and findings[0].startswith("warning")


def test_counters_and_paths_of_windows_are_warnings() -> None:
    """AWS's samples for Windows are valid there."""
    plugins = {"LogicalDisk": {"measurement": ["% Free Space"]}, "mem": {"measurement": ["used"]}}
    config = {
        "metrics": {"metrics_collected": plugins},
        "logs": {"logs_collected": {"files": {"collect_list": [
            {"file_path": "c:\\\\logs\\\\a.log", "log_group_name": "g", "timestamp_format": "%H"},
        ]}}},
    }  # fmt: skip
    assert {str(finding).partition(":")[0] for finding in lint(config)} == {"warning"}
