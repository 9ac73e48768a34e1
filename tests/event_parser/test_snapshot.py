"""The GPUs' state at boot, as `nvidia-smi -q -x` reports it: one recovery line for each GPU, with what to do."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.event_parser.parser_bench import Bench, make_bench  # noqa: F401  (make_bench is the fixture `bench`)

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
    service._start_snapshot(poller)
    while service._snapshot is not None:
        poller.poll(5000)
        service._end_snapshot(poller) if late else service._read_snapshot(poller)
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


def test_incomplete_document_gives_the_gpus_read_so_far() -> None:
    document = "<nvidia_smi_log>" + GPU.format(bus="1E", pending="Yes", failure="No", action="None") + "<gpu id='x'><uu"
    first, second = snapshot_module.boards(document.encode())
    assert (first["pci"], first["remap_pending"]) == ("0000:1e:00.0", "Yes")
    assert second == {"pci": "x", "driver": None}
