"""What is shown of neuron-monitor's metrics: on the dashboard, and on the page of what CloudWatch has."""

from __future__ import annotations

from dataclasses import dataclass

UTILIZATION, DEVICES = "neuroncore_utilization", "neuron_device_count"


@dataclass(frozen=True)
class Shown:
    """A metric with its title, and the statistic that says something of it."""

    title: str
    metric: str
    statistic: str


SHOWN = (
    Shown("Utilization of the cores (%)", UTILIZATION, "Average"),
    Shown("Memory of the devices (bytes)", "runtime_memory_neuron_device", "Maximum"),
    Shown("Memory of the host (bytes)", "runtime_memory_host", "Maximum"),
    Shown("Latency of executions, p99 (s)", "total_latency_p99", "Maximum"),
    Shown("Executions completed", "executions_completed", "Sum"),
    Shown("Executions timed out", "executions_timed_out", "Sum"),
    Shown("Hardware errors", "execution_errors_hardware", "Sum"),
    Shown("Uncorrected ECC errors of HBM", "mem_ecc_uncorrected", "Maximum"),
    Shown("Uncorrected ECC errors of SRAM", "sram_ecc_uncorrected", "Maximum"),
    Shown("Corrected ECC errors of HBM", "mem_ecc_corrected", "Maximum"),
    Shown("Devices", DEVICES, "Minimum"),
    Shown("Reports of neuron-monitor", "reports", "Sum"),
)
