"""Reconciles the machines with the states in the API, and the states in the API with the machines.

moto changes an instance's state at once when a call arrives. `absorb`, called after each mutating call and before it is
answered, keeps that as the desired state and shows the transition instead (pending, stopping, …). `step`, called by the
daemon's main thread, starts and stops machines and shows the final state when it is reached. The desired state is
stored nowhere else: a state in moto that this module did not write is a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpu_ami.progress import Progress
from localregion.backends import NO_DELAYS, Delays, Ec2
from localregion.host import RESUME_BYTES, gib
from localregion.images import ImageJob, ImageStore
from localregion.machines.qemu import Exit

POWER_DOWN_SECONDS = 90.0  # EC2 gives a guest minutes; an emulated Debian needs about fifteen seconds
_TRANSITION = {"running": "pending", "stopped": "stopping", "terminated": "shutting-down"}


class Machine(Protocol):
    """A powered-on machine (localregion.machines.qemu.QemuMachine)."""

    @property
    def ready(self) -> bool: ...
    @property
    def stopped_by(self) -> str: ...
    def poll(self) -> Exit | None: ...
    def power_down(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...


class Machines(Protocol):
    """Creates machines (localregion.machines.factory.MachineFactory; a fake in tests)."""

    def prepare(self, instance: Any) -> Any:
        """Disk, boot files, boards. Slow; runs in a worker thread. Returns what `power_on` takes."""

    def power_on(self, prepared: Any) -> Machine: ...
    def discard(self, instance_id: str) -> None:
        """Removes all that the instance has on disk."""

    def folder(self, instance_id: str) -> Path:
        """Where the instance's disk is."""

    def free_space(self, instance_id: str) -> int:
        """Bytes free on the disk that holds the instance's disk."""

    def note(self, instance_id: str, text: str) -> None:
        """Writes a line of the region's own to the instance's console."""


@dataclass
class Unit:
    """One instance and its machine. desired: running, stopped or terminated. shown: the state last written to moto."""

    instance: Any
    desired: str = "running"
    shown: str = "pending"
    machine: Machine | None = None
    preparing: Future[Any] | None = None
    power_down_until: float | None = None  # the guest was asked to shut down; after this time it is killed
    force: bool = False
    not_before: float = 0.0  # conditions: no power-on, or no `stopped`, before this time
    launch_failure: tuple[str, str] | None = None  # conditions: code and message of a launch that fails
    launched: bool = False  # it has been running; a launch that fails before that ends in `terminated`
    paused_by: str = ""  # why the machine is paused
    failure: str = ""  # why the launch failed, or why the machine stopped by itself
    jobs: list[ImageJob] = field(default_factory=list)  # images being made of its disk

    @property
    def id(self) -> str:
        return str(self.instance.id)

    @property
    def problem(self) -> str:
        """What is wrong with the machine, in words, or ""."""
        return self.paused_by or self.failure


class Reconciler:
    """All instances of the region. `step` must run in the thread that may own machines (see gpu_ami.process.spawn)."""

    def __init__(
        self,
        ec2: Ec2,
        machines: Machines,
        images: ImageStore,
        submit: Callable[..., Future[Any]],
        wake: Callable[[], None],
        *,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        delays: Delays = NO_DELAYS,
        launch_failure: Callable[[str], tuple[str, str] | None] = lambda _: None,
    ) -> None:
        """launch_failure: by instance type, code and message of the StateReason of an instance that is to fail."""
        self.ec2, self.machines, self.images = ec2, machines, images
        self.units: dict[str, Unit] = {}
        self.lock = threading.RLock()
        self.wake = wake
        self._submit, self._progress, self._clock = submit, progress, clock
        self._delays, self._launch_failure = delays, launch_failure

    # What API calls change

    def absorb(self) -> None:
        """Reads what API calls have changed. Quick; any thread may call it."""
        changed = False
        with self.lock:
            for instance in self.ec2.instances():
                unit = self.units.get(instance.id)
                if unit is None:
                    self._admit(instance)
                    changed = True
                elif instance.state != unit.shown:
                    unit.desired = instance.state
                    self._show(unit, _TRANSITION[unit.desired])
                    changed = True
            for job in self.images.absorb():
                self._assign(job)
                changed = True
        if changed:  # the daemon's loop calls this too; waking it each time would make it spin
            self.wake()

    def _admit(self, instance: Any) -> None:
        self.ec2.settle_launch(instance)
        unit = self.units[instance.id] = Unit(instance, not_before=self._clock() + self._delays.boot)
        unit.launch_failure = self._launch_failure(instance.instance_type) or self.ec2.key_failure(instance)
        if instance.state in ("stopped", "terminated"):
            unit.desired = instance.state
        self._show(unit, _TRANSITION[unit.desired])
        self._progress.note(f"{unit.id}: {instance.instance_type} of {instance.image_id}, {instance.private_ip}")

    def _assign(self, job: ImageJob) -> None:
        unit = self.units.get(job.record.source_instance_id or "")
        if unit:
            unit.jobs.append(job)

    def reboot(self, instance_id: str) -> None:
        """Asks the guest to shut down; the machine starts again because `running` stays the desired state."""
        with self.lock:
            unit = self.units.get(instance_id)
            if unit and unit.desired == "running":
                self._press_power_button(unit)
        self.wake()

    def force(self, instance_id: str) -> None:
        """StopInstances with Force: does not wait for the guest."""
        with self.lock:
            if instance_id in self.units:
                self.units[instance_id].force = True
        self.wake()

    def _show(self, unit: Unit, state: str, code: str = "", message: str = "") -> None:
        unit.shown = state
        self.ec2.set_state(unit.instance, state, code, message)

    # What the machines do

    def step(self) -> None:
        """Does for each instance and image what can be done now."""
        with self.lock:
            for unit in list(self.units.values()):
                if unit.shown != "terminated":
                    self._step(unit)
            self.images.step()

    def _step(self, unit: Unit) -> None:
        self._notice_exit(unit)
        self._check_space(unit)
        if unit.desired == "terminated" and unit.machine:
            unit.machine.kill()
            unit.machine = None
        self._step_jobs(unit)
        if unit.jobs:
            return
        if unit.desired == "running":
            self._run(unit)
        elif unit.machine and unit.desired == "stopped":
            self._bring_down(unit)
        elif unit.machine is None and unit.preparing is None:
            self._settle(unit)
        elif unit.preparing and unit.preparing.done():
            unit.preparing = None
            self.wake()

    def _settle(self, unit: Unit) -> None:
        """Shows that the machine is off, once."""
        if unit.shown == unit.desired or (unit.desired == "stopped" and self._clock() < unit.not_before):
            return
        if unit.desired == "terminated":
            self.machines.discard(unit.id)
        self._show(unit, unit.desired)
        self._progress.note(f"{unit.id}: {unit.desired}")

    def _notice_exit(self, unit: Unit) -> None:
        ended = unit.machine.poll() if unit.machine else None
        if ended is None:
            return
        asked, unit.machine, unit.power_down_until = unit.power_down_until is not None, None, None
        if unit.desired != "running" or ended.cause == "reset" or (asked and ended.cause == "shutdown"):
            return
        if ended.cause == "shutdown":
            self._guest_shut_down(unit)
        else:
            self._fail(unit, ended.detail)

    def _guest_shut_down(self, unit: Unit) -> None:
        """Stops or terminates, as InstanceInitiatedShutdownBehavior says, when a guest powers itself off."""
        if unit.instance.instance_initiated_shutdown_behavior == "terminate":
            unit.instance.terminate()
        else:
            unit.instance.stop()
        unit.desired = unit.instance.state
        code = "Client.InstanceInitiatedShutdown"
        self._show(unit, _TRANSITION[unit.desired], code, "Instance initiated shutdown")
        self._progress.note(f"{unit.id}: the guest shut down")

    def _fail(self, unit: Unit, detail: str) -> None:
        """The machine ended by itself: as on EC2, a launch ends `terminated`, an instance that ran `stopped`."""
        if not unit.launched:
            self._fail_launch(unit, detail)
            return
        unit.instance.stop()
        unit.desired = "stopped"
        unit.failure = detail
        self._show(unit, "stopping", "Server.InternalError", detail)
        self._progress.note(f"{unit.id}: {detail}")

    def _fail_launch(self, unit: Unit, detail: str, code: str = "Server.InternalError") -> None:
        unit.instance.terminate()
        unit.desired, unit.launch_failure = "terminated", None
        prefix = "Internal error on launch: " if code == "Server.InternalError" else ""
        unit.failure = f"{prefix}{detail}"
        self._show(unit, "shutting-down", code, unit.failure)
        self._progress.note(f"{unit.id}: launch failed: {detail}")

    def _check_space(self, unit: Unit) -> None:
        """Names a machine that QEMU stopped at a full disk, and resumes it when there is room again."""
        machine = unit.machine
        stopped_by = machine.stopped_by if machine else ""
        if machine and stopped_by and self.machines.free_space(unit.id) >= RESUME_BYTES:
            machine.resume()
        if bool(stopped_by) == bool(unit.paused_by):
            return
        folder = self.machines.folder(unit.id)
        reason = f"no space left on the disk of {folder}" if stopped_by == "no space" else f"{stopped_by} in {folder}"
        unit.paused_by = f"paused: {reason}; it resumes when {gib(RESUME_BYTES)} are free" if stopped_by else ""
        self.ec2.set_reason(unit.instance, "Server.InternalError" if stopped_by else "", unit.paused_by)
        text = unit.paused_by or "resumed: there is space again"
        self.machines.note(unit.id, text)
        self._progress.note(f"{unit.id}: {text}")

    def _run(self, unit: Unit) -> None:
        if unit.launch_failure:
            code, message = unit.launch_failure
            self._fail_launch(unit, message, code)
            self.wake()
            return
        if unit.machine is None and self._clock() < unit.not_before:
            return
        if unit.machine is None and unit.preparing is None:
            unit.preparing = self._submit(self.machines.prepare, unit.instance)
            unit.preparing.add_done_callback(lambda _: self.wake())
        if unit.machine is None and unit.preparing and unit.preparing.done():
            prepared, unit.preparing = unit.preparing, None
            try:
                unit.machine = self.machines.power_on(prepared.result())
            except Exception as error:  # the instance must show it and not stay pending
                self._fail(unit, str(error))
                self.wake()
        elif unit.machine and unit.power_down_until is not None:  # a reboot, or StartInstances while it was stopping
            self._bring_down(unit)
        elif unit.machine and unit.machine.ready and unit.shown == "pending":
            unit.launched, unit.failure = True, ""
            self._show(unit, "running")
            self._progress.note(f"{unit.id}: running")

    def _press_power_button(self, unit: Unit) -> None:
        if unit.machine and unit.machine.ready and unit.power_down_until is None:
            unit.machine.power_down()
            unit.power_down_until = self._clock() + POWER_DOWN_SECONDS

    def _bring_down(self, unit: Unit) -> None:
        assert unit.machine
        self._press_power_button(unit)
        if unit.desired == "stopped":
            unit.not_before = self._clock() + self._delays.stop
        overdue = unit.power_down_until is not None and self._clock() > unit.power_down_until
        if unit.force or overdue:
            unit.machine.kill()
            unit.machine, unit.power_down_until, unit.force = None, None, False
            self.wake()

    # Images of an instance's disk

    def _step_jobs(self, unit: Unit) -> None:
        """Copies a disk while nothing writes to it: the machine is off, or (NoReboot) paused."""
        if unit.preparing and unit.preparing.done() is False:
            return
        for job in unit.jobs:
            if job.started:
                continue
            if unit.machine is None:
                self.images.start(job)
            elif job.no_reboot and unit.machine.ready:
                unit.machine.pause()
                job.paused = True
                self.images.start(job)
            else:
                self._bring_down(unit)
        for job in [job for job in unit.jobs if job.done]:
            unit.jobs.remove(job)
            if job.paused and unit.machine:
                unit.machine.resume()

    def stop_all(self) -> None:
        """Kills every machine: the region ends."""
        with self.lock:
            for unit in self.units.values():
                if unit.machine:
                    unit.machine.kill()
                    unit.machine = None
            for instance_id in self.units:
                self.machines.discard(instance_id)
