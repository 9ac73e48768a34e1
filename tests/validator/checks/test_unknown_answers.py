"""An answer that is an error, missing or unparsable is unknown to every reader: a finding, no zero, no good value.

The texts are those of nvmlErrorString and of public captures (NVIDIA/k8s-test-infra, test data of a lost GB200):
nvidia-smi prints them in place of values and exits with 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu_ami.events.reader import parser_module
from localregion.replicas.cloudwatch_agent.cwagent import gpu as agent
from onhost import diagnose, readings
from tests.onhost.neuron_monitor.programs import publisher_module, report, runtime
from tests.validator.checks.conftest import Judge
from validator.checks import hardware as hardware_checks
from validator.checks import nvidia_driver
from validator.measurement import MEASUREMENTS
from validator.probes import hardware, nvidia_smi

ERRORS = (
    "GPU is lost",
    "[GPU is lost]",
    "Unknown Error",
    "[Unknown Error]",
    "ERR!",
    "Not Found",
    "[GPU requires reset]",
)
UNKNOWN = (*ERRORS, "", "perhaps", "12,5", "0x1f")
VALUES = {
    "product_name": "NVIDIA H100 80GB HBM3", "product_architecture": "Hopper", "uuid": "GPU-1",
    "utilization/gpu_util": "7 %", "utilization/memory_util": "3 %", "temperature/gpu_temp": "30 C",
    "fb_memory_usage/total": "81559 MiB", "fb_memory_usage/used": "1 MiB", "fb_memory_usage/free": "81079 MiB",
    "clocks/graphics_clock": "345 MHz", "clocks/sm_clock": "345 MHz", "clocks/mem_clock": "2619 MHz",
    "gpu_power_readings/average_power_draw": "N/A", "gpu_power_readings/instant_power_draw": "68.92 W",
    "remapped_rows/remapped_row_pending": "No", "remapped_rows/remapped_row_failure": "No",
    "ecc_errors/volatile/dram_uncorrectable": "0", "gpu_recovery_action": "None", "fan_speed": "N/A",
    "fabric/state": "Completed", "fabric/status": "Success", "fabric/health/summary": "Healthy",
}  # fmt: skip
GROUPS = ("temperature", "utilization", "fb_memory_usage", "clocks", "remapped_rows")
REQUIRED = [*(path for path in VALUES if path.split("/")[0] in GROUPS), "gpu_power_readings/instant_power_draw"]


def xml(**changed: str | None) -> bytes:
    """nvidia-smi -q -x of one GPU; changed: path → text, None for an element that is not there."""
    gpu = ElementTree.Element("gpu", id="00000000:1B:00.0")
    for path, text in (VALUES | changed).items():
        if text is None:
            continue
        node = gpu
        for tag in path.split("/"):
            below = node.find(tag)
            node = below if below is not None else ElementTree.SubElement(node, tag)
        node.text = text
    log = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(log, "driver_version").text = "580.105.08"
    log.append(gpu)
    return ElementTree.tostring(log)


def lost(text: str) -> bytes:
    """Every reading of the GPU in its place, the identity as NVML remembers it."""
    return xml(**{path: text for path in VALUES if path not in ("product_name", "product_architecture", "uuid")})


def _snapshot(document: bytes) -> list[str]:
    snapshot = parser_module("snapshot")
    (board,), whole = snapshot.boards(document)
    fields, metrics = snapshot.with_metrics(board)
    assert whole and not {"RowRemapPending", "RowRemapFailure"} & (metrics.keys() | fields.keys())
    assert fields["answered"] is False and metrics == {"RecoveryUnknown": "Count"}
    return [str(fields["why"])]


def _diagnosis(document: bytes) -> list[str]:
    machine = SimpleNamespace(run=lambda *_: document.decode(), root="/none")
    rows, findings = diagnose.gpus(machine)  # type: ignore[arg-type]
    assert rows[0]["ecc"]["volatile"] == {}
    return [one.text for one in findings if one.level == "action"]


def _probe(document: bytes) -> list[str]:
    (gpu,) = nvidia_smi.read(document.decode())
    assert gpu.values == {}
    with pytest.raises(hardware.Unseen, match="expected MiB, got"):
        hardware.describe([], [gpu], "")
    return [readings.shown_unknown(gpu.unknown), *gpu.fabric_faults]


def _agent(document: bytes) -> list[str]:
    _, ((_, values),) = agent.parse(document, "1.300071.0")
    assert values == {}
    return ["no value"]


@pytest.mark.parametrize("reader", [_snapshot, _diagnosis, _probe, _agent])
@pytest.mark.parametrize("text", ERRORS)
def test_lost_gpu_is_a_finding_and_no_value(reader: Callable[[bytes], list[str]], text: str) -> None:
    assert reader(lost(text))


@pytest.mark.parametrize("text", [*UNKNOWN, "N/A", None])
@pytest.mark.parametrize("path", REQUIRED)
def test_each_value_that_a_board_has_is_missed(path: str, text: str | None) -> None:
    (gpu,) = nvidia_smi.read(xml(**{path: text}).decode())
    assert gpu.unknown == {path: (text or "")}
    measurement = next((row.name for row in MEASUREMENTS if path in row.paths), "")
    assert measurement not in gpu.values
    machine = SimpleNamespace(run=lambda *_: xml(**{path: text}).decode(), root="/none")
    _, findings = diagnose.gpus(machine)  # type: ignore[arg-type]
    kind = "stop_start" if "is lost" in (text or "") else "reboot" if "requires reset" in (text or "") else "unknown"
    assert [(one.level, one.kind) for one in findings] == [("action", kind)]
    assert findings[0].text == f"unknown: {path}: {text or 'no value'}"


def test_whole_answer_has_no_finding(judge: Judge) -> None:
    (gpu,) = nvidia_smi.read(xml().decode())
    assert (gpu.unknown, gpu.fabric, gpu.fabric_faults) == ({}, "Completed", ())
    assert gpu.values["memory_total"] == 81559 and "fan_speed" not in gpu.values
    found = judge(hardware_checks.test_every_gpu_answers, {}, machine=SimpleNamespace(gpus=[gpu]))
    assert (found.verdict, found.message) == ("PASS", "")


@pytest.mark.parametrize("text", ERRORS)
def test_check_names_the_gpu_that_does_not_answer(judge: Judge, text: str) -> None:
    gpus = nvidia_smi.read(lost(text).decode())
    found = judge(hardware_checks.test_every_gpu_answers, {}, machine=SimpleNamespace(gpus=gpus))
    assert found.verdict == "FAIL"
    assert found.message.startswith("unknown values: GPU 0 (0000:1b:00.0): ")
    assert f"values, the first utilization/gpu_util: {text}" in found.message


# NVIDIA/DCGM#263, utkuozdemir/nvidia_gpu_exporter#393: it has no error in its values, and no program can use it.
@pytest.mark.parametrize(
    ("element", "text", "asked"),
    [
        ("gpu_recovery_action", "Reset", "Reset"),
        ("gpu_recovery_action", "Drain and Reset", "Drain and Reset"),
        ("recovery_action", "Reboot", "Reboot"),
        ("gpu_recovery_action", "a label of a later driver", "a label of a later driver"),
        ("gpu_reset_status/reset_required", "Yes", "Reset"),
        ("gpu_reset_status/drain_and_reset_recommended", "Yes", "Drain and Reset"),
    ],
)
def test_check_names_the_gpu_that_waits_for_an_action(judge: Judge, element: str, text: str, asked: str) -> None:
    gone = {"gpu_recovery_action": None} if element != "gpu_recovery_action" else {}
    gpus = nvidia_smi.read(xml(**gone | {element: text}).decode())
    found = judge(hardware_checks.test_every_gpu_answers, {}, machine=SimpleNamespace(gpus=gpus))
    assert (found.verdict, found.message) == ("FAIL", f"GPU 0 (0000:1b:00.0): the driver asks for: {asked}")


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("gpu_recovery_action", "None"),
        ("gpu_recovery_action", "N/A"),
        ("gpu_reset_status/reset_required", "Requested functionality has been deprecated"),
        ("gpu_reset_status/reset_required", "No"),
    ],
)
def test_gpu_that_waits_for_nothing_is_healthy(judge: Judge, element: str, text: str) -> None:
    gpus = nvidia_smi.read(xml(**{element: text}).decode())
    assert judge(hardware_checks.test_every_gpu_answers, {}, machine=SimpleNamespace(gpus=gpus)).verdict == "PASS"


def test_port_of_the_host_is_no_value_of_the_gpu(judge: Judge) -> None:
    """Eight healthy V100 of a virtual machine without PCIe ports, driver 550.127.05 (thamada/nvidia-smi)."""
    document = xml(**{"pci/pci_gpu_link_info/pcie_gen/max_host_link_gen": "Unknown Error"})
    assert not _snapshot_unknown(document)
    found = judge(
        hardware_checks.test_every_gpu_answers, {}, machine=SimpleNamespace(gpus=nvidia_smi.read(document.decode()))
    )
    assert (found.verdict, found.message) == ("PASS", "")
    machine = SimpleNamespace(run=lambda *_: document.decode(), root="/none")
    assert diagnose.gpus(machine)[1] == []  # type: ignore[arg-type]


def _snapshot_unknown(document: bytes) -> dict[str, str]:
    (board,), _ = parser_module("snapshot").boards(document)
    unknown: dict[str, str] = board["unknown"]
    return unknown


@pytest.mark.parametrize("text", ERRORS)
@pytest.mark.parametrize("check", [nvidia_driver.test_power_is_not_limited, nvidia_driver.test_persistence_daemon_runs])
def test_table_with_errors_is_red(judge: Judge, check: Callable[..., None], text: str) -> None:
    good = "0, 00000000:1B:00.0, NVIDIA H100, 81559, Enabled, 700.00, 700.00, Default\n"
    bad = f"1, 00000000:1C:00.0, NVIDIA H100, 81559, {text}, {text}, 700.00, Default\n"
    units = {"systemctl cat *": "", "systemctl is-active *": "active", "systemctl is-enabled *": "enabled"}
    found = judge(check, units | {"*": good + bad})
    assert (found.verdict, "GPU 1: " + text in found.message) == ("FAIL", True), found


@pytest.mark.parametrize("text", [*ERRORS, ""])
def test_former_metrics_have_no_zero(text: str) -> None:
    seed = parser_module("seed")
    line = f"0, NVIDIA H100, 580.105.08, {', '.join([text] * len(seed.GPU_METRICS))}\n".encode()
    assert [values for _, values in seed.gpu_rows(line)] == [{}] and seed.has_unknown(line)


@pytest.mark.parametrize("value", [None, "ERR!", "nan", float("nan"), True, ""])
def test_neuron_totals_have_no_zero(value: Any) -> None:
    """A total without one runtime's part is no total."""
    documents = publisher_module("documents")
    told = report(runtime("a", 0), runtime("b", 1), devices=1)
    told["system_data"]["neuron_hw_counters"]["neuron_devices"][0]["mem_ecc_uncorrected"] = value
    told["neuron_runtime_data"][1]["report"]["memory_used"]["neuron_runtime_used_bytes"]["host"] = value
    told["neuron_runtime_data"][0]["report"]["execution_stats"]["error_summary"]["hardware"] = value
    made, problems = documents.documents(told, documents.Settings("N", ("instance_id",), False), 0)
    published = {name for document in made for name in document}
    assert not {"mem_ecc_uncorrected", "runtime_memory_host", "execution_errors_hardware"} & published
    assert {"sram_ecc_uncorrected", "runtime_memory_neuron_device", "execution_errors_generic"} <= published
    assert len([problem for problem in problems if " is unknown: " in problem]) == 3
    assert made[0]["report_errors"] == len(problems)


def test_efa_without_an_answer_is_a_finding(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/rdmap0s6/ports/1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "hw_counters/rx_drops").write_text("Unknown Error\n")
    _, findings = diagnose.efa(diagnose.Machine(str(tmp_path)))
    assert [one.text for one in findings] == [
        "rx_drops is unknown: Unknown Error", "it has no counters", "the state of its port is unknown: no value",
    ]  # fmt: skip
