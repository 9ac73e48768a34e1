"""A judge that runs one check against a scripted host as the plugin would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.files import data_dir
from tests.scripted_host import Reply, table_host
from validator.cloudwatch import ApiRefused
from validator.observe import Observe
from validator.plan import as_plan
from validator.probes import footprints
from validator.probes.machine import Clock
from validator.probes.nvidia_smi import Gpu
from validator.results import ERROR, FAIL, PASS, UNPROVEN, CheckRecord, RunningCheck, Verdict

_TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
INSTANCE = "i-0123456789abcdef0"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKq8H0launchlaunchlaunchlaunchlaunchlaunch launch"
METADATA = {
    "instance-id": INSTANCE,
    "instance-type": "g5.12xlarge",
    "ami-id": "ami-1",
    "private-ip": "10.0.0.7",
    "public-keys": [KEY],
}
# A simulated board, with NVIDIA's own module on disk, or with one that drives it.
_BOARD = {"for d in *": "0000:00:1b.0 0x1af4 0x1110 0x050000 \n"}
REAL_DRIVER = _BOARD | {"grep -e *": "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n"}
REPLICA = _BOARD | {"grep -e *": "alias pci:v00001AF4d00001110sv*sd*bc*sc*i* nvidia\n"}
# What /proc/driver/nvidia/version has of the planned driver.
PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs@u)\nGCC version:\n"


def transcript(name: str) -> dict[str, tuple[int, str]]:
    """Command → exit status and output, as tests/transcripts has them of real programs."""
    rows = yaml.safe_load((_TRANSCRIPTS / f"{name}.yml").read_text(encoding="utf-8"))
    return {row["command"]: (row["status"], row["stdout"]) for row in rows}


@dataclass
class FakeMachine:
    """What `validator.probes.machine.MachineUnderTest` would have found."""

    metadata: dict[str, Any]
    clock: Clock = field(default_factory=lambda: Clock(-0.1, 0.1))
    boot_time: float = 1000.0
    first_boot_time: float = 1030.0
    gpus: tuple[Gpu, ...] = ()
    instance_id: str = INSTANCE
    instance_type: str = "g5.12xlarge"

    def require_clock(self) -> None:
        """The clock is right."""


@dataclass
class Since:
    """What a machine still has of its image."""

    kept: tuple[str, ...]
    judged: bool = True

    def passed(self, check: str) -> CheckRecord | None:
        return CheckRecord(check, "", "T0", "", verdict=PASS, observed=["seen"], planned="x") if self.judged else None

    def trees(self) -> list[str]:
        return ["/usr", "/opt/x"]

    def unchanged(self, paths: list[str]) -> list[str]:
        return [path for path in paths if path in self.kept]


PLAN: dict[str, Any] = {
    "schema": "gpu-ami/plan/1",
    "os": {"id": "debian", "family": "debian", "ssh_user": "admin"},
    "instance_types": [
        {
            "name": "g5.12xlarge",
            "gpu_count": 2,
            "gpu": {
                "name": "NVIDIA A10G", "memory_mib": 23028, "power_limit_w": 300, "pcie_gen": 4, "pcie_width": 16,
                "max_clock_mhz": {"graphics": 1710, "sm": 1710, "memory": 6251, "video": 1500},
            },
        }
    ],
    "nvidia_driver": {
        "version": "550.163.01", "package": "nvidia-open-dkms", "package_version": "550.163.01-1",
        "packages": {"nvidia-driver-cuda": "550.163.01-1"},
    },
    "cloudwatch_agent": {
        "version": "1.300071.0",
        "config": {
            "agent": {"metrics_collection_interval": 10},
            "logs": {"logs_collected": {"files": {"collect_list": [
                {"file_path": "/var/log/gpuevent.log", "log_group_name": "raw", "log_stream_name": "{instance_id}",
                 "retention_in_days": 90},
                {"file_path": "/var/log/gpuevent.jsonl", "log_group_name": "json", "log_stream_name": "{instance_id}",
                 "retention_in_days": 90},
            ]}}},
        },
        "gpu_config": {"metrics": {
            "namespace": "CWAgent", "aggregation_dimensions": [["InstanceId"]],
            "append_dimensions": {
                "InstanceId": "${aws:InstanceId}", "AutoScalingGroupName": "${aws:AutoScalingGroupName}",
            },
            "metrics_collected": {"nvidia_gpu": {"measurement": ["utilization_gpu", "memory_total"]}},
        }},
    },
    "event_parser": {"raw_log": "/var/log/gpuevent.log", "json_log": "/var/log/gpuevent.jsonl", "log_buf_len": "4M"},
    "telemetry": {
        "interval_s": 10, "namespace": "CWAgent", "measurements": ["utilization_gpu", "memory_total"],
        "raw_log_group": "raw", "json_log_group": "json", "log_stream": "{instance_id}",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """What the plugin would have written."""

    verdict: Verdict
    message: str
    check: CheckRecord


Judge = Callable[..., Judgement]


@pytest.fixture
def judge() -> Judge:
    """`judge(check, table, **others)`: others are arguments of the check that replace the usual ones."""

    def run(check: Callable[..., None], table: Mapping[str, Reply], **others: Any) -> Judgement:
        host = table_host(table)
        running = RunningCheck(CheckRecord(check.__name__, "", "T1", check.__doc__ or ""))
        known = {
            "host": host,
            "plan": as_plan(PLAN),
            "machine": FakeMachine(METADATA),
            "observe": Observe(running),
            "golden_file": None,
            "log_group_suffix": "",
            "since_image": None,
        } | others
        wanted = check.__code__.co_varnames[: check.__code__.co_argcount]
        if "declared" in wanted and "declared" not in known:
            known["declared"] = footprints.load([data_dir("roles")], known["plan"])
        known.setdefault("declared_programs", footprints.Declared((), ()))
        try:
            check(**{name: known[name] for name in wanted})
        except pytest.skip.Exception as reason:
            return Judgement(UNPROVEN, str(reason.msg), running.record)
        except (pytest.fail.Exception, AssertionError) as reason:
            return Judgement(FAIL, str(reason), running.record)
        except ApiRefused as refusal:
            return Judgement(ERROR, str(refusal), running.record)
        return Judgement(PASS, "", running.record)

    return run
