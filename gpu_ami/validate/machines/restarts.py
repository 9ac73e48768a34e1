"""How a boot and a restart are judged: the errors of a boot, which of them blame the image, a restart's record.

A restart is seen by the kernel's boot id, on a connection that shows the host key of the first boot (login.reach). What
must survive it (`@pytest.mark.survives`) is then checked again; the records made here say whether the machine came back
at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_ami.errors import CapacityError, GpuAmiError, MachineError, UsageError
from gpu_ami.report import COMES_BACK, FAIL, PASS, UNAVAILABLE, UNPROVEN
from validator.probes import PANIC
from validator.results import CheckRecord, Hop

if TYPE_CHECKING:
    from gpu_ami.cloud import Capacity
    from validator.results import Verdict

REBOOT, STOP_START = "reboot", "stop-start"
RESTARTS = (REBOOT, STOP_START)


class NotRestarted(MachineError):
    """The machine did not accept the reboot command, so its next boot cannot be judged."""


class LoginFailed(MachineError):
    """No login before the deadline. The machine answered the last attempt: what it said is the reason."""


class LoginSilent(LoginFailed):
    """Nothing answered the last attempt: the way to the machine may be closed."""


class ImageAtFault(MachineError):
    """The image is the cause: its kernel panicked, or its host key changed. Other failures may be the cloud's."""


def is_at_fault(error: GpuAmiError) -> bool:
    """Whether an error shows a defect of the image: by its kind, or by a panic in the console that it quotes."""
    return isinstance(error, ImageAtFault) or bool(PANIC.search(str(error)))


def parse(text: str) -> tuple[str, ...]:
    """`reboot`, `stop-start`, both with a comma, or `none`. UsageError for anything else."""
    requested = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in requested if name not in (*RESTARTS, "none")]
    if unknown or not requested or ("none" in requested and len(requested) > 1):
        raise UsageError(f"--restarts {text}: expected {','.join(RESTARTS)}, one of them, or none")
    return tuple(name for name in RESTARTS if name in requested)


def left_out_by(how: str, instance_type: str, requested: Sequence[str], capacity: Capacity | None) -> str:
    """What leaves a restart of a machine out on purpose: the option, or the key of the place; "" where it is done."""
    if how not in requested:
        return "--restarts"
    return "no_stop_start of the place" if how == STOP_START and capacity and not capacity.stops(instance_type) else ""


def came_back(how: str, stages: Mapping[str, float], before: str, after: str, where: str) -> CheckRecord:
    """The record of a machine that came back as another boot of itself."""
    hops, last = [], (how, 0.0)
    for stage, seconds in stages.items():
        hops.append(Hop(f"{last[0]} → {stage}", round(seconds - last[1], 1)))
        last = (stage, seconds)
    observed = {"boot id": after, "boot id before": before, "at": where}
    return replace(_record(how, PASS, ""), observed=observed, seconds=last[1], hops=tuple(hops))


def not_back(how: str, error: GpuAmiError) -> CheckRecord:
    """The record of a machine that did not come back. FAIL only where the image is the cause."""
    if isinstance(error, CapacityError):
        return _record(how, UNAVAILABLE, str(error))
    return _record(how, FAIL if is_at_fault(error) else UNPROVEN, str(error))


def not_done(how: str, reason: str) -> CheckRecord:
    """The record of a restart that was not tried."""
    return _record(how, UNPROVEN, reason)


def _record(how: str, verdict: Verdict, message: str) -> CheckRecord:
    restart = {REBOOT: "a reboot", STOP_START: "stop and start"}[how]
    return CheckRecord(
        id=f"{COMES_BACK}@{how}",
        role="boot",
        tier="T1",
        promise=f"The machine comes back from {restart} by itself: another boot, the same host key.",
        verdict=verdict,
        planned="another boot id, the same host key",
        message=message,
        after=how,
    )
