"""The linter's rules for cpu, disk, mem and other system plugins."""

from __future__ import annotations

from typing import Any

import pytest

from validator.probes.agent.lint_plugins import plugin_findings


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
