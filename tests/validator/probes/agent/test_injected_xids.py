"""Xids that a proof injects: what is written to the host, and what must arrive of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import INSTANCE, METADATA, PLAN, FakeMachine
from validator.observe import Observe
from validator.plan import as_plan
from validator.probes.agent import injected_lines

FILE = "/proc/driver/nvidia/gpus/0000:00:1b.0/xid"


def injected(table: dict[str, Any], suffix: str = "") -> injected_lines.Xids:
    plan, machine = as_plan(PLAN), FakeMachine(METADATA)
    return injected_lines.Xids.of_proof(table_host(table), plan, machine, None, suffix)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", [True, False])
def test_injected_xid_is_written_once_and_awaited_in_both_logs(kernel: bool) -> None:
    written: list[str] = []

    def inject(command: str) -> str:
        written.append(command)
        return "start 1.0\nseen 1.25\nseen 1.5\n"

    xids = injected({"ls -1 /proc/driver/nvidia/gpus/*/xid*": f"{FILE}\n", "sh -c*": inject})
    observe = Observe({})  # type: ignore[arg-type,typeddict-item]
    sent = xids.from_kernel(xids.kernel_files()[0], observe) if kernel else xids.from_userland("0000:00:1b.0", observe)
    (command,) = written
    body = f"31, pid=4242, name=gpu-ami-proof, Ch 00000010, intr 00000000. MMU Fault: {sent.nonce}"
    assert (
        body in command
        and (FILE in command) is kernel
        and ("<4>NVRM: Xid (PCI:0000:00:1b): 31" in command) is not kernel
    )
    assert (sent.device, sent.started, sent.raw, sent.json) == ("0000:00:1b.0", 1.0, 1.25, 1.5)
    assert xids.stream == INSTANCE
    assert injected_lines.line_start(sent) == "NVRM: Xid (PCI:0000:00:1b): 31, "
    fields = {"kind": "xid", "code": 31, "pci": "0000:00:1b.0", "pid": 4242, "process": "gpu-ami-proof"}
    assert injected_lines.fields(sent, "userland") == fields | {"origin": "userland"}
