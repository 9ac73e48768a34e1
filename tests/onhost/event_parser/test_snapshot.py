"""The GPUs' state at boot, as `nvidia-smi -q -x` reports it: one recovery line for each GPU, with what to do."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import Bench, make_bench  # noqa: F401  (make_bench is the fixture `bench`)

snapshot_module = parser_module("snapshot")
GPU = """
<gpu id="00000000:{bus}:00.0">
  <uuid>GPU-{bus}</uuid>
  <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
    <remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>{failure}</remapped_row_failure></remapped_rows>
  <gpu_recovery_action>{action}</gpu_recovery_action>
</gpu>"""


def fake_nvidia_smi(folder: Path, script: str) -> str:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def recoveries(bench: Bench, *, late: bool = False) -> list[dict[str, Any]]:
    """Runs the service's snapshot to its end."""
    service = bench.start()
    poller = select.poll()
    service.start_snapshot(poller)
    while service.snapshot_process is not None:
        poller.poll(5000)
        service.end_snapshot(poller) if late else service.read_snapshot(poller)
    return [document for document in bench.documents() if document["kind"] == "recovery"]


def test_every_gpu_gets_its_state_and_what_to_do(bench: Bench) -> None:
    gpus = [
        GPU.format(bus="1E", pending="No", failure="No", action="None"),
        GPU.format(bus="1F", pending="Yes", failure="No", action="None"),
        GPU.format(bus="20", pending="Yes", failure="Yes", action="Drain and Reset"),
        GPU.format(bus="21", pending="No", failure="No", action="Reboot"),
    ]
    document = "<nvidia_smi_log><driver_version>580.65.06</driver_version>" + "".join(gpus) + "</nvidia_smi_log>"
    (bench.folder / "smi.xml").write_text(document)
    bench.options.nvidia_smi = fake_nvidia_smi(bench.folder, f"cat {bench.folder / 'smi.xml'}")
    healthy, pending, failed, reboot = recoveries(bench)
    assert (healthy["pci"], healthy["driver"], healthy["severity"]) == ("0000:1e:00.0", "580.65.06", "info")
    assert (healthy["ec2_action"], healthy["RowRemapPending"], healthy["RowRemapFailure"]) == ("none", 0, 0)
    assert (pending["action"], pending["RowRemapPending"]) == ("SCHEDULE_RESET", 1)
    assert pending["ec2_meaning"].startswith("Schedule a reset: let the jobs on GPU 0000:1f:00.0 finish")
    assert (failed["action"], failed["severity"], failed["RowRemapFailure"]) == ("ISOLATE", "fatal", 1)
    assert (reboot["action"], reboot["ec2_action"]) == ("RESTART_VM", "reboot")


@pytest.mark.parametrize(("script", "reason"), [("exit 9", "exit status 9"), ("kill -9 $$", "exit status 137")])
def test_failed_nvidia_smi_is_unknown_not_healthy(bench: Bench, script: str, reason: str) -> None:
    bench.options.nvidia_smi = fake_nvidia_smi(bench.folder, script)
    [recovery] = recoveries(bench)
    assert (recovery["answered"], recovery["RecoveryUnknown"]) == (False, 1)
    assert recovery["why"] == f"nvidia-smi: {reason}"
    assert "ec2_action" not in recovery


def test_nvidia_smi_that_hangs_is_ended_at_the_deadline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "DEADLINE_S", 0.0)
    bench.options.nvidia_smi = fake_nvidia_smi(bench.folder, "echo '<x'; exec sleep 60")
    [recovery] = recoveries(bench, late=True)
    assert recovery["why"] == "nvidia-smi: no answer within 0 s"


def test_incomplete_document_gives_the_gpus_read_so_far(bench: Bench) -> None:
    """The rest is unknown: a GPU that was not read to its end publishes no zero."""
    document = "<nvidia_smi_log>" + GPU.format(bus="1E", pending="Yes", failure="No", action="None") + "<gpu id='x'><uu"
    first, second, rest = answers(bench, document)
    assert (first["pci"], first["RowRemapPending"], first["answered"]) == ("0000:1e:00.0", 1, True)
    assert (second["pci"], second["answered"], second["RecoveryUnknown"]) == ("x", False, 1)
    assert "RowRemapPending" not in second and "RowRemapFailure" not in second
    assert rest["why"] == "nvidia-smi -q -x: the document is incomplete"


def answers(bench: Bench, document: str) -> list[dict[str, Any]]:
    (bench.folder / "smi.xml").write_text(document)
    bench.options.nvidia_smi = fake_nvidia_smi(bench.folder, f"cat {bench.folder / 'smi.xml'}")
    return recoveries(bench)


@pytest.mark.parametrize("document", ["", "<nvidia_smi_log></nvidia_smi_log>", "NVIDIA-SMI has failed"])
def test_no_gpu_is_unknown(bench: Bench, document: str) -> None:
    (recovery,) = answers(bench, document)
    assert (recovery["answered"], recovery["RecoveryUnknown"]) == (False, 1)
    assert recovery["why"] == "nvidia-smi -q -x: it names no GPU"


# After a public capture of a lost GB200 (NVIDIA/k8s-test-infra, test data): errors in place of values, exit status 0.
LOST = """<nvidia_smi_log><driver_version>580.105.08</driver_version><gpu id="00000000:0B:00.0"><uuid>GPU-b</uuid>
<product_architecture>Blackwell</product_architecture><gpu_recovery_action>None</gpu_recovery_action>
<fb_memory_usage><total>{text}</total></fb_memory_usage><remapped_rows>{text}</remapped_rows>
<temperature><gpu_temp>{text}</gpu_temp></temperature></gpu></nvidia_smi_log>"""


@pytest.mark.parametrize("text", ["GPU is lost", "Unknown Error", "[GPU requires reset]", "ERR!", "Not Found"])
def test_lost_gpu_is_unknown_and_publishes_no_zero(bench: Bench, text: str) -> None:
    (lost,) = answers(bench, LOST.format(text=text))
    assert (lost["answered"], lost["RecoveryUnknown"], lost["unknown_count"]) == (False, 1, 3)
    assert lost["why"].startswith(f"3 values are unknown: fb_memory_usage/total: {text}")
    assert not {"RowRemapPending", "RowRemapFailure", "remap_pending", "remap_failure"} & lost.keys()
    assert (lost["severity"], lost["ec2_action"]) == ("warning", "reboot")
    metrics = [metric["Name"] for metric in lost["_aws"]["CloudWatchMetrics"][0]["Metrics"]]
    assert metrics == ["RecoveryUnknown"]


@pytest.mark.parametrize("rows", ["N/A", "<remapped_row_pending>Perhaps</remapped_row_pending>", ""])
def test_remapper_that_does_not_answer_is_unknown(bench: Bench, rows: str) -> None:
    text = f"<product_architecture>Hopper</product_architecture><remapped_rows>{rows}</remapped_rows>"
    (gpu,) = answers(bench, f'<nvidia_smi_log><gpu id="0000:1E:00.0">{text}</gpu></nvidia_smi_log>')
    assert (gpu["answered"], gpu["RecoveryUnknown"]) == (False, 1)
    assert "RowRemapPending" not in gpu and "RowRemapFailure" not in gpu


@pytest.mark.parametrize(
    "board",
    [
        "<product_architecture>Turing</product_architecture>",
        "<product_architecture>Ada Lovelace</product_architecture>"
        "<gpu_virtualization_mode><virtualization_mode>VGPU</virtualization_mode></gpu_virtualization_mode>",
        "<product_architecture>Ampere</product_architecture><mig_mode><current_mig>Enabled</current_mig></mig_mode>",
        # Public documents: of drivers up to R470 (430.26, 460.56), and of boards without ECC memory (RTX 3060).
        "<product_name>Tesla T4</product_name><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>",
        "<product_architecture>Ampere</product_architecture><ecc_mode><current_ecc>N/A</current_ecc></ecc_mode>",
    ],
)
def test_gpu_without_a_row_remapper_is_healthy_and_publishes_no_row(bench: Bench, board: str) -> None:
    text = f"{board}<remapped_rows>N/A</remapped_rows><processes><process_name>Not Found</process_name></processes>"
    (gpu,) = answers(bench, f'<nvidia_smi_log><gpu id="0000:1E:00.0">{text}</gpu></nvidia_smi_log>')
    assert (gpu["answered"], gpu["severity"]) == (True, "info")
    assert "RowRemapPending" not in gpu and gpu["RecoveryUnknown"] == 0


def test_known_fault_of_a_gpu_with_unknown_values_is_kept(bench: Bench) -> None:
    failed = GPU.format(bus="1E", pending="No", failure="Yes", action="None").replace(
        "</gpu>", "<serial>GPU is lost</serial></gpu>"
    )
    (gpu,) = answers(bench, f"<nvidia_smi_log>{failed}</nvidia_smi_log>")
    assert (gpu["RowRemapFailure"], gpu["RecoveryUnknown"], gpu["action"]) == (1, 1, "ISOLATE")


@pytest.mark.parametrize(
    ("repair", "value", "action", "severity"),
    [
        ("channel_repair_pending", "No", "IGNORE", "info"),
        ("channel_repair_pending", "Yes", "SCHEDULE_RESET", "critical"),
        ("tpc_repair_pending", "Yes", "SCHEDULE_RESET", "critical"),
        ("unrepairable_memory", "Yes", "ISOLATE", "fatal"),
        ("bank_remapper_pending", "No", "IGNORE", "info"),
        ("bank_remapper_pending", "Yes", "SCHEDULE_RESET", "warning"),
    ],
)
def test_repair_that_a_gpu_waits_for(bench: Bench, repair: str, value: str, action: str, severity: str) -> None:
    text = f"<product_architecture>Turing</product_architecture><ecc_errors><{repair}>{value}</{repair}></ecc_errors>"
    (gpu,) = answers(bench, f'<nvidia_smi_log><gpu id="0000:1E:00.0">{text}</gpu></nvidia_smi_log>')
    assert (gpu["action"], gpu["severity"], gpu.get(repair)) == (action, severity, "Yes" if value == "Yes" else None)
