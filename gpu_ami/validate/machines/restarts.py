"""Restarts within a proof: a reboot by the guest, then stop and start by EC2, which moves it to another host on AWS.

A restart is seen by the kernel's boot id, on a connection that shows the host key of the first boot. What must survive
it (`@pytest.mark.survives`) is then checked again; the records made here say whether the machine came back at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_ami.errors import CapacityError, GpuAmiError, MachineError, UsageError
from gpu_ami.report import COMES_BACK, FAIL, PASS, UNAVAILABLE, UNPROVEN
from gpu_ami.validate.machines.deadlines import deadlines
from gpu_ami.validate.machines.login import SYSTEMD, is_at_fault, reach, settle
from gpu_ami.validate.machines.machine import Boot, Machine
from validator.results import CheckRecord, Hop

if TYPE_CHECKING:
    from validator.results import Verdict
    from validator.transport import Target

REBOOT, STOP_START = "reboot", "stop-start"
RESTARTS = (REBOOT, STOP_START)
_ORDER = 'if [ "$(id -u)" = 0 ]; then systemctl reboot; else sudo -n systemctl reboot; fi'


class NotRestarted(MachineError):
    """The machine did not accept the reboot command, so its next boot cannot be judged."""


def parse(text: str) -> tuple[str, ...]:
    """`reboot`, `stop-start`, both with a comma, or `none`. UsageError for anything else."""
    requested = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in requested if name not in (*RESTARTS, "none")]
    if unknown or not requested or ("none" in requested and len(requested) > 1):
        raise UsageError(f"--restarts {text}: expected {','.join(RESTARTS)}, one of them, or none")
    return tuple(name for name in RESTARTS if name in requested)


def restart(boot: Boot, machine: Machine, how: str) -> Machine:
    """Restarts one of our own instances and waits for its next boot; its stages are timed from the order.

    NotRestarted, MachineError (it did not come back), CapacityError (nowhere to start again), CloudError.
    """
    panics = boot.panics(machine)
    within = deadlines(machine.instance_type, boot.cloud.place)
    seconds = within.boot_seconds
    started = time.monotonic()
    after = replace(machine, stages={})
    with boot.console_on_error(after):
        if how == REBOOT:
            order_reboot(boot.target(machine), machine.instance_id)
        else:
            boot.cloud.stop(machine.instance_id)
            boot.cloud.wait_for_state(machine.instance_id, "stopped", within.stop_seconds, boot.cancelled.is_set)
            boot.mark(after, "stopped", started)
            boot.cloud.start(machine.instance_id)
            boot.running(after, seconds, started)
        # What a boot needs does not depend on how long the one before it took to end.
        boot.arrive(after, time.monotonic() + seconds, started, (SYSTEMD,), panics)
    return after


def reboot_host(
    target: Target, cancelled: threading.Event, instance_type: str = ""
) -> tuple[dict[str, float], str, str]:
    """Reboots a machine that gpu-ami did not launch: stages of its next boot, and boot ids before and after."""
    name = target.name
    started = time.monotonic()
    before, host_key = order_reboot(target, name)
    deadline = time.monotonic() + deadlines(instance_type).boot_seconds
    stages: dict[str, float] = {}

    def mark(stage: str) -> None:
        stages[stage] = round(time.monotonic() - started, 1)

    pinned = replace(target, host_key=host_key)
    connection, boot_id = reach(pinned, deadline, cancelled, name, before, lambda: None)
    with connection:
        mark("ssh")
        settle(connection, name, (SYSTEMD,), deadline, cancelled, mark)
    return stages, before, boot_id


def order_reboot(target: Target, name: str) -> tuple[str, str]:
    """Runs `systemctl reboot` on the guest; returns the boot id before it, and the host key."""
    from validator.transport import errors, ssh

    try:
        with ssh.connect(target) as connection:
            boot_id = connection.run("cat /proc/sys/kernel/random/boot_id", timeout=30).text.strip()
            try:
                done = connection.run(_ORDER, timeout=60)
            except errors.ConnectionDropped:  # it goes down faster than it answers
                return boot_id, connection.host_key
            if done.rc != 0:
                output = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()[-5:]
                raise NotRestarted(f"{name} refused to reboot: systemctl ended with {done.rc}", details=output)
            return boot_id, connection.host_key
    except errors.SshError as error:
        raise NotRestarted(f"{name} could not be told to reboot: {error}") from error


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
