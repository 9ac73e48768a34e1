"""Pure readings: nvidia-smi's XML, PCI addresses, the agent's configuration, replicas, the plan."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from validator import agent_config, evidence, smi
from validator.plan import Plan

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:00:1B.0"><product_name>NVIDIA A10G</product_name><product_architecture>Ampere</product_architecture>
 <uuid>GPU-0</uuid><fan_speed>N/A</fan_speed>
 <fb_memory_usage><total>23028 MiB</total><used>1 MiB</used><free>22515 MiB</free></fb_memory_usage>
 <utilization><gpu_util>3 %</gpu_util><memory_util>0 %</memory_util></utilization>
 <temperature><gpu_temp>31 C</gpu_temp></temperature>
 <gpu_power_readings><power_draw>16.72 W</power_draw></gpu_power_readings>
 <pci><pci_gpu_link_info><pcie_gen><current_link_gen>1</current_link_gen></pcie_gen>
 <link_widths><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>
 <clocks><graphics_clock>210 MHz</graphics_clock><mem_clock>405 MHz</mem_clock></clocks></gpu>
<gpu id="00000000:00:1C.0"><product_name>NVIDIA A10G</product_name>
 <gpu_power_readings><power_draw>N/A</power_draw>
 <instant_power_draw>20.5 W</instant_power_draw></gpu_power_readings></gpu>
</nvidia_smi_log>"""


def test_smi_is_read_in_the_agents_units() -> None:
    first, second = smi.read(XML)
    assert (first.index, first.name, first.architecture, first.pci) == (0, "NVIDIA A10G", "Ampere", "0000:00:1b.0")
    assert first.values == {
        "memory_total": 23028, "memory_used": 1, "memory_free": 22515, "utilization_gpu": 3, "utilization_memory": 0,
        "temperature_gpu": 31, "power_draw": 16.72, "pcie_link_gen_current": 1, "pcie_link_width_current": 16,
        "clocks_current_graphics": 210, "clocks_current_memory": 405,
    }  # fmt: skip
    assert second.values == {"power_draw": 20.5}
    with pytest.raises(ValueError, match="gave no XML"):
        smi.read("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("00000000:00:1E.0", "0000:00:1e.0"),
        ("0000:a0:1c", "0000:a0:1c.0"),
        ("00010000:00:1e.0", "10000:00:1e.0"),
        ("nonsense", "nonsense"),
    ],
)
def test_pci_addresses_become_one(given: str, address: str) -> None:
    assert smi.pci_address(given) == address


def test_configurations_merge_and_differ_by_path() -> None:
    base = {"agent": {"debug": True}, "logs": {"list": [1]}}
    whole = agent_config.merged([base, {"metrics": {"a": 1}, "logs": {"list": [1, 2]}}])
    assert whole == {"agent": {"debug": True}, "logs": {"list": [1, 2]}, "metrics": {"a": 1}}
    assert base["logs"] == {"list": [1]}
    assert agent_config.differences(whole, whole) == []
    assert agent_config.differences({"a": {"b": [1, {"c": 2}]}, "x": 1}, {"a": {"b": [1, {"c": 3}]}, "y": 1}) == [
        "a.b[1].c: found 2, expected 3",
        "x: found 1, expected nothing",
        "y: missing, expected 1",
    ]


@pytest.mark.parametrize(("interval", "period"), [(1, 1), (7, 10), (10, 10), (45, 60), (60, 60), (90, 120), (300, 300)])
def test_period_can_be_asked_for(interval: int, period: int) -> None:
    config: dict[str, Any] = {"agent": {"metrics_collection_interval": interval}}
    assert agent_config.period(config) == period


def test_replicas_are_named() -> None:
    table = "yes\tamazon-cloudwatch-agent\t1.300071.0-1\tAmazon CloudWatch Agent (gpu-ami replica)\n"
    assert evidence.replicas(
        table, "nvidia (kernel module)\t550.163.01\tgpu-ami replica of the NVIDIA kernel module\n"
    ) == [
        {
            "package": "amazon-cloudwatch-agent",
            "version": "1.300071.0-1",
            "what": "Amazon CloudWatch Agent (gpu-ami replica)",
        },
        {
            "package": "nvidia (kernel module)",
            "version": "550.163.01",
            "what": "gpu-ami replica of the NVIDIA kernel module",
        },
    ]
    assert evidence.replicas("", "efa (kernel module)\t3.1.0g\tElastic Fabric Adapter (EFA)\n") == []


@pytest.mark.parametrize(
    ("tool", "prints"),
    [
        ("dpkg-query", "yes\tcuda\t1-1\tCUDA\n\tbash\t5\tshell\n"),
        ("rpm", "gpu-ami replica\tcuda\t1-1\tCUDA\nAmazon Linux\tbash\t5-1\tgpu-ami replica of none\n"),
    ],
)
def test_replicas_are_asked_of_either_package_manager(tmp_path: Path, tool: str, prints: str) -> None:
    for name in ("sed", "grep"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    (tmp_path / "listing").write_text(prints)
    (tmp_path / tool).write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done <{tmp_path}/listing\n')
    (tmp_path / tool).chmod(0o755)
    command = ["/bin/sh", "-c", evidence._REPLICA_PACKAGES]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert evidence.replicas(done.stdout, "") == [{"package": "cuda", "version": "1-1", "what": "CUDA"}]


def test_evidence_takes_no_secrets() -> None:
    for name, command in evidence.COMMANDS.items():
        for secret in (
            "shadow",
            "environ",
            "id_rsa",
            "ssh_host",
            "credentials",
            "common-config",
            "user-data",
            "sudoers",
        ):
            assert secret not in command, name


def test_what_the_plan_lacks_is_unproven(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "gpu-ami/plan/1", "os": {"id": "debian"}}))
    plan = Plan.load(tmp_path / "plan.json")
    assert plan["os"]["id"] == "debian"
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no os\.family"):
        plan["os"]["family"]
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="expected schema gpu-ami/plan/1, found None"):
        Plan.load(tmp_path / "plan.json")
