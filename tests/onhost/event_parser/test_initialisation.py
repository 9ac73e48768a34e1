"""A GPU that cannot be initialised and PCIe errors, live: what the kernel prints in, the two log files out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import Bench, make_bench, record, settle  # noqa: F401  (fixture `bench`)

kmsg, environment = parser_module("kmsg"), parser_module("environment")
FAILED = "NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)"
MINOR = "NVRM: GPU 0000:4b:00.0: rm_init_adapter failed, device minor number 5"
MINUTE = 60 * 1000000


def test_dead_gpu_is_one_event_in_both_logs_and_again_after_a_restart_none(bench: Bench) -> None:
    service = bench.start()
    for number in range(3):
        start = 1000 + number * MINUTE
        bench.print(
            record(3 * number + 1, FAILED, microseconds=start),
            record(3 * number + 2, MINOR, microseconds=start + 500),
            record(3 * number + 3, "nvidia: probe of 0000:4b:00.0 failed with error -1", microseconds=start + 900),
        )  # fmt: skip
        settle(service)
    [event] = bench.events()
    assert (event["kind"], event["code"], event["pci"], event["origin"]) == (
        "gpu_init_failed", "RM_INIT_FAILED", "0000:4b:00.0", "kernel",
    )  # fmt: skip
    assert (event["GpuInitFailedEvents"], event["GpuInitError"], event["ec2_action"]) == (
        1, "RM_INIT_FAILED", "stop_start",
    )  # fmt: skip
    assert len(bench.raw()) == 9
    service.stop()
    settle(bench.start())
    assert len(bench.events()) == 1


def test_drill_of_a_dead_gpu_is_a_drill(bench: Bench) -> None:
    service = bench.start()
    bench.print(record(1, FAILED, priority=12))
    settle(service)
    [event] = bench.events()
    assert (event["origin"], event["DrillEvents"]) == ("userland", 1)


def test_pcie_error_before_an_xid_is_kept_over_a_restart(bench: Bench) -> None:
    service = bench.start()
    service.tracker.pcie.ports_of = lambda pci: ["0000:3a:00.0"]
    bench.print(
        record(1, "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)")
    )
    settle(service)
    service.stop()
    service = bench.start()
    service.tracker.pcie.ports_of = lambda pci: ["0000:3a:00.0"]
    bench.print(record(2, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."))
    settle(service)
    [event] = bench.events()
    assert event["likely_cause"] == "PCIe error (Corrected) of 0000:3a:00.0, the GPU's port, 0.0 s before"
    assert [line for line in bench.raw() if "pcieport" in line] == []


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3a:00.0",
            "0000:3a:00.0, a port of which the log does",
        ),
        ("pcieport 0000:3a:00.0: DPC: containment event, status:0x1f01 source:0x0000", "PCIe error (Uncorrected)"),
        (
            "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
            "the GPU, 0.",
        ),
        (
            "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0",
            "PCIe error (Corrected) of 0000:3b:00.0, the GPU, as 0000:3a:00.0 reports, 0.",
        ),
        ("pcieport 0000:3a:00.0: AER: Corrected error received: 0000:5e:00.0", ""),
        ("mlx5_core 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", ""),
    ],
)
def test_whose_pcie_error_it_is(bench: Bench, line: str, cause: str) -> None:
    service = bench.start()
    bench.print(record(1, line), record(2, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."))
    settle(service)
    [event] = bench.events()
    assert cause in event.get("likely_cause", "") and bool(cause) == ("likely_cause" in event)


def test_ports_above_a_device_are_read_from_the_kernel_s_tree(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:00/0000:00:01.0/0000:3a:00.0/0000:3b:00.0"
    device.mkdir(parents=True)
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus/0000:3b:00.0").symlink_to(device)
    assert environment.read_ports("0000:3b:00.0", str(tmp_path / "bus")) == ["0000:3a:00.0", "0000:00:01.0"]
    assert environment.read_ports("0000:99:00.0", str(tmp_path / "bus")) == []


@pytest.mark.parametrize("text", ["usb 1-1: probe failed", "nvme 0000:00:1f.0: failed with error -2", "AEROSPACE"])
def test_other_records_are_not_looked_at(text: str) -> None:
    assert kmsg.interesting(record(1, text)) == (text == "AEROSPACE")
