"""The agent's configuration: files merge, and series and streams follow from it, also under MIG."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.probes.agent import config as agent_config
from validator.probes.nvidia_smi import Gpu

METADATA = {"instance-id": "i-1", "instance-type": "p4d.24xlarge", "ami-id": "ami-1", "hostname": "host-1"}
CONFIG = {
    "metrics": {
        "namespace": "GPU",
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
        "aggregation_dimensions": [["InstanceId"]],
        "metrics_collected": {
            "nvidia_gpu": {"measurement": ["utilization_gpu", {"name": "memory_total"}, "fan_speed"]}
        },
    }
}


def gpu(index: int, mig: str = "Disabled", **values: float) -> Gpu:
    return Gpu(index, "NVIDIA A100", "Ampere", f"GPU-{index}", f"0000:00:1{index}.0", values, mig=mig)


def names(gpus: list[Gpu], absent: list[str] | None = None) -> list[tuple[str, int | None]]:
    expected = agent_config.expected_series(CONFIG, gpus, METADATA, absent)
    return [
        (series.name.removeprefix("nvidia_smi_"), board.index if board else None) for series, board in expected.items()
    ]


def test_every_gpu_and_aggregate_has_a_series() -> None:
    whole = gpu(0, utilization_gpu=1.0, memory_total=40960.0)
    assert names([whole]) == [
        ("utilization_gpu", 0), ("utilization_gpu", None), ("memory_total", 0), ("memory_total", None),
    ]  # fmt: skip


def test_a_gpu_with_mig_publishes_no_utilization() -> None:
    divided = gpu(0, "Enabled", memory_total=40960.0)
    whole = gpu(1, utilization_gpu=1.0, memory_total=40960.0)
    assert names([divided], ["fan_speed"]) == [("memory_total", 0), ("memory_total", None)]
    assert ("utilization_gpu", 0) not in names([divided, whole], ["fan_speed"])
    assert ("utilization_gpu", 1) in names([divided, whole], ["fan_speed"])
    # Without MIG a missing value is not expected to be missing: the series must arrive.
    assert ("utilization_gpu", 0) in names([gpu(0, memory_total=1.0)], ["fan_speed"])


@pytest.mark.parametrize(("layout", "has"), [(10, False), (11, False), (12, True), (13, True), (0, True)])
def test_documents_before_layout_12_bring_no_architecture(layout: int, has: bool) -> None:
    """A T4 with driver 515 has the tag, and the agent's parser of v11 does not read it: its series have no `arch`."""
    board = dataclasses.replace(gpu(0, utilization_gpu=1.0), layout=layout)
    series = [one for one, of in agent_config.expected_series(CONFIG, [board], METADATA).items() if of]
    assert [("arch", "Ampere") in one.dimensions for one in series] == [has] * len(series) and series


def test_installed_files_are_merged_and_a_broken_one_is_named() -> None:
    parts = {"a.json": json.dumps({"agent": {"region": "x"}}), "b.json": json.dumps(CONFIG)}

    def host(files: dict[str, str]) -> Any:
        text = "".join(f"{name}\n{content}\x1e" for name, content in files.items())
        return table_host({"*": text})

    assert agent_config.installed(host(parts)) == {"agent": {"region": "x"}} | CONFIG
    with pytest.raises(ValueError, match=r"amazon-cloudwatch-agent\.d/b\.json is not JSON"):
        agent_config.installed(host(parts | {"b.json": "{"}))


def test_log_files_have_their_stream() -> None:
    entry = {"file_path": "/var/log/a", "log_group_name": "g-{hostname}", "retention_in_days": 7}
    config = {"logs": {"logs_collected": {"files": {"collect_list": [entry]}}}}
    assert agent_config.log_files(config, METADATA) == [agent_config.LogFile("/var/log/a", "g-host-1", "i-1", 7)]


@pytest.mark.parametrize(
    ("in_use", "namespace"),
    [
        ({"metrics": {"namespace": "Team-proof"}}, "Team-proof"),
        ({"metrics": {"namespace": "Team"}}, "Team"),  # systemd before 233 keeps the image's
        ({"metrics": {"namespace": "Stranger-proof"}}, "Team"),
        ({}, "Team"),
        (None, "Team"),
    ],
)
def test_series_are_expected_in_the_namespace_that_a_proofs_agent_uses(in_use: Any, namespace: str) -> None:
    config = {"metrics": {"namespace": "Team"}}
    assert agent_config.with_namespace_of(config, in_use) == {"metrics": {"namespace": namespace}}
    assert config == {"metrics": {"namespace": "Team"}}


# In a mount namespace: the image's files, and a process that started with copies of them, as the agent's unit
# on a proof's machine does. Prints what the command, its last argument with PID for the process, prints then.
_AGENT = r"""
set -e
mount -t tmpfs agent /opt
etc=/opt/aws/amazon-cloudwatch-agent/etc
mkdir -p "$etc/amazon-cloudwatch-agent.d" /opt/copy/amazon-cloudwatch-agent.d
cd "$etc"
echo '{"metrics": {"namespace": "Team"}}' >amazon-cloudwatch-agent.json
echo '{"metrics": {"namespace": "Team-proof"}}' >/opt/copy/amazon-cloudwatch-agent.json
echo '{"agent": {"region": "copied"}}' >/opt/copy/amazon-cloudwatch-agent.d/part
mkfifo /opt/started
unshare --mount --propagation unchanged sh -c '
  mount --bind /opt/copy/amazon-cloudwatch-agent.d amazon-cloudwatch-agent.d
  [ "$1" = bare ] || mount --bind /opt/copy/amazon-cloudwatch-agent.json amazon-cloudwatch-agent.json
  echo >/opt/started
  exec sleep 60
' sh "$1" >&2 &
trap "kill $!" EXIT
read -r _ </opt/started
if [ "$2" = replaced ]; then sed -i s/Team/Changed/ amazon-cloudwatch-agent.json; fi
bound="/opt/copy/amazon-cloudwatch-agent.d:$etc/amazon-cloudwatch-agent.d:rbind"
[ "$1" = bare ] || bound="$bound /opt/copy/amazon-cloudwatch-agent.json:$etc/amazon-cloudwatch-agent.json:rbind"
mkdir /opt/bin
printf '#!/bin/sh\necho "%s"\n' "$bound" >/opt/bin/systemctl
chmod 755 /opt/bin/systemctl
cd /
PATH=/opt/bin:$PATH sh -c "$(echo "$3" | sed "s/PID/$!/g")"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and enter namespaces")
@pytest.mark.parametrize(
    ("mounts", "then", "namespace"),
    [
        ("both", "kept", "Team-proof"),
        ("both", "replaced", "Team-proof"),  # the kernel drops the mount with the file under it
        ("bare", "kept", "Team"),
    ],
)
def test_a_running_agent_uses_the_copy_with_which_it_started(mounts: str, then: str, namespace: str) -> None:
    class Machine:
        def run(self, command: str, *words: str) -> Any:
            text = command % tuple(words)
            if "MainPID" in text:
                return SimpleNamespace(stdout="PID\n", stderr="")
            program = ["unshare", "--mount", "sh", "-c", _AGENT, "sh", mounts, then, text]
            return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    assert agent_config.in_use(Machine()) == {"metrics": {"namespace": namespace}, "agent": {"region": "copied"}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"logs": {"logs_collected": []}}, "logs.logs_collected: expected an object, got list"),
        ({"logs": {"logs_collected": {"files": {"collect_list": {}}}}}, "collect_list: expected a list, got dict"),
        ({"logs": {"logs_collected": {"files": {"collect_list": [{"log_group_name": "g"}]}}}}, "object with file_path"),
    ],
)
def test_malformed_log_files_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        agent_config.log_files(config, METADATA)


@pytest.mark.parametrize(
    ("call", "config", "message"),
    [
        (agent_config.measurements, {"metrics": 1}, "metrics: expected an object, got int"),
        (agent_config.period, {"agent": {"metrics_collection_interval": "10"}}, "expected whole seconds, got '10'"),
    ],
)
def test_malformed_metrics_are_named(call: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call(config)


def test_configurations_merge_and_differ_by_path() -> None:
    base = {"agent": {"debug": True}, "logs": {"list": [1]}}
    whole = agent_config.merged([base, {"metrics": {"a": 1}, "logs": {"list": [1, 2]}}])
    assert whole == {"agent": {"debug": True}, "logs": {"list": [1, 2]}, "metrics": {"a": 1}}
    assert base["logs"] == {"list": [1]}
    assert agent_config.differences(whole, whole) == []
    assert agent_config.differences({"a": {"b": [1, {"c": 2}]}, "x": 1}, {"a": {"b": [1, {"c": 3}]}, "y": 1}) == [
        "a.b[1].c: expected 3, got 2",
        "x: expected nothing, got 1",
        "y: expected 1, but it is missing",
    ]


@pytest.mark.parametrize(("interval", "period"), [(1, 1), (7, 10), (10, 10), (45, 60), (60, 60), (90, 120), (300, 300)])
def test_period_is_one_that_cloudwatch_supports(interval: int, period: int) -> None:
    config: dict[str, Any] = {"agent": {"metrics_collection_interval": interval}}
    assert agent_config.period(config) == period
