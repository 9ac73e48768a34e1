"""The publisher's modules as role neuron_monitor installs them, beside the event parser's package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from tests.role_modules import role_module

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "onhost" / "neuron_monitor"
SCRIPT = FILES / "neuron-metrics.py"
INSTANCE = {"instance_id": "i-0011223344556677a", "instance_type": "trn1.32xlarge", "ami_id": "ami-1", "error": ""}


def publisher_module(name: str) -> ModuleType:
    """A module of the publisher, for example "documents"."""
    return role_module(FILES, f"neuron_metrics.{name}")


def runtime(tag: str, *cores: int, host: int = 1000, errors: int = 0, latency: float | None = 0.011) -> dict[str, Any]:
    """An application's part of a report; format: Neuron Monitor User Guide."""
    percentiles = dict.fromkeys(("p0", "p1", "p25", "p50", "p75", "p99", "p100"), latency) if latency else None
    return {
        "pid": 7, "address": "", "neuron_runtime_tag": tag, "error": "",
        "report": {
            "neuroncore_counters": {
                "period": 5.0, "error": "",
                "neuroncores_in_use": {
                    str(core): {"neuroncore_utilization": 40.0 + core, "flops": 1} for core in cores
                },
            },
            "execution_stats": {
                "period": 5.0, "error": "",
                "error_summary": {"generic": errors, "hardware": 0},
                "execution_summary": {"completed": 123, "timed_out": 0},
                "latency_stats": {"total_latency": percentiles, "device_latency": None},
            },
            "memory_used": {
                "period": 5.0, "error": "", "loaded_models": [],
                "neuron_runtime_used_bytes": {"host": host, "neuron_device": 2 * host, "usage_breakdown": {}},
            },
        },
    }  # fmt: skip


def report(*runtimes: dict[str, Any], devices: int = 2, uncorrected: int = 0, **instance: str) -> dict[str, Any]:
    """A report of an instance with these applications."""
    counters = [
        {
            "neuron_device_index": index, "mem_ecc_corrected": 0, "mem_ecc_uncorrected": uncorrected,
            "sram_ecc_uncorrected": 0, "sram_ecc_corrected": 0,
        }
        for index in range(devices)
    ]  # fmt: skip
    return {
        "neuron_runtime_data": list(runtimes),
        "system_data": {"neuron_hw_counters": {"period": 5.0, "neuron_devices": counters, "error": ""}},
        "instance_info": INSTANCE | instance,
        "neuron_hardware_info": {
            "neuron_device_type": "trainium", "neuron_device_count": devices, "neuroncore_per_device_count": 2,
            "neuron_device_memory_size": 32 << 30, "logical_neuroncore_config": 1, "error": "",
        },
    }  # fmt: skip
