"""Keeps the machines in step with what the API says, and what the API says in step with the machines.

moto changes an instance's state the moment a call comes in. `absorb`, called after every mutating call and before its
answer goes out, takes that as what is wanted and shows the state of transition instead (pending, stopping, …); `step`,
called by the daemon's main thread, moves the machines and shows the final state when it is true. Nothing is stored
about intentions elsewhere: a state in moto that we did not write is one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_ami.local.ec2 import Ec2
from gpu_ami.local.images import ImageJob, ImageStore
from gpu_ami.local.qemu import Exit
from gpu_ami.log import Progress

POWER_DOWN_SECONDS = 90.0  # EC2 gives a guest minutes; an emulated Debian needs about fifteen seconds
_TRANSITION = {"running": "pending", "stopped": "stopping", "terminated": "shutting-down"}


class Machine(Protocol):
    """A powered-on machine (gpu_ami.local.qemu.QemuMachine)."""

    @property
    def ready(self) -> bool: ...
    def poll(self) -> Exit | None: ...
    def power_down(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...


class Machines(Protocol):
    """Where machines come from (gpu_ami.local.machines.MachineRoom; a fake in tests)."""

    def prepare(self, instance: Any) -> Any:
        """Disk, boot files, boards. Slow; runs in a worker thread. Returns what `power_on` takes."""

    def power_on(self, prepared: Any) -> Machine: ...
    def discard(self, instance_id: str) -> None:
        """Removes all that the instance has on disk."""


@dataclass
class Unit:
    """One instance and its machine. wanted: running, stopped, terminated. shown: the state that we last wrote."""

    instance: Any
    wanted: str = "running"
    shown: str = "pending"
    machine: Machine | None = None
    preparing: Future[Any] | None = None
    power_down_until: float | None = None  # the guest was asked to shut down; past this the plug is pulled
    force: bool = False
    jobs: list[ImageJob] = field(default_factory=list)  # images being made of its disk

    @property
    def id(self) -> str:
        return str(self.instance.id)


class Reconciler:
    """All instances of the region. `step` must run in the thread that may own machines (see gpu_ami.run.spawn)."""

    def __init__(
        self,
        ec2: Ec2,
        machines: Machines,
        images: ImageStore,
        submit: Callable[..., Future[Any]],
        wake: Callable[[], None],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ec2, self.machines, self.images = ec2, machines, images
        self.units: dict[str, Unit] = {}
        self.lock = threading.RLock()
        self.wake = wake
        self._submit, self._progress, self._clock = submit, progress, clock

    # What the API wants

    def absorb(self) -> None:
        """Takes over what API calls have changed. Quick; in any thread."""
        changed = False
        with self.lock:
            for instance in self.ec2.instances():
                unit = self.units.get(instance.id)
                if unit is None:
                    self._admit(instance)
                    changed = True
                elif instance.state != unit.shown:
                    unit.wanted = instance.state
                    self._show(unit, _TRANSITION[unit.wanted])
                    changed = True
            for job in self.images.absorb():
                self._assign(job)
                changed = True
        if changed:  # the daemon's own loop calls this too: waking it each time would have it spin
            self.wake()

    def _admit(self, instance: Any) -> None:
        self.ec2.settle_launch(instance)
        unit = self.units[instance.id] = Unit(instance)
        if instance.state in ("stopped", "terminated"):
            unit.wanted = instance.state
        self._show(unit, _TRANSITION[unit.wanted])
        self._progress.note(f"{unit.id}: {instance.instance_type} of {instance.image_id}, {instance.private_ip}")

    def _assign(self, job: ImageJob) -> None:
        unit = self.units.get(job.record.source_instance_id or "")
        if unit:
            unit.jobs.append(job)

    def reboot(self, instance_id: str) -> None:
        """The guest is asked to go down; the machine starts again since `running` stays wanted."""
        with self.lock:
            unit = self.units.get(instance_id)
            if unit and unit.wanted == "running":
                self._press_power_button(unit)
        self.wake()

    def force(self, instance_id: str) -> None:
        """StopInstances with Force: no waiting for the guest."""
        with self.lock:
            if instance_id in self.units:
                self.units[instance_id].force = True
        self.wake()

    def _show(self, unit: Unit, state: str, code: str = "", message: str = "") -> None:
        unit.shown = state
        self.ec2.set_state(unit.instance, state, code, message)

    # What the machines do

    def step(self) -> None:
        """Moves everything on by what can be done at once."""
        with self.lock:
            for unit in list(self.units.values()):
                if unit.shown != "terminated":
                    self._step(unit)
            self.images.step()

    def _step(self, unit: Unit) -> None:
        self._notice_exit(unit)
        if unit.wanted == "terminated" and unit.machine:
            unit.machine.kill()
            unit.machine = None
        self._step_jobs(unit)
        if unit.jobs:
            return
        if unit.wanted == "running":
            self._run(unit)
        elif unit.machine and unit.wanted == "stopped":
            self._bring_down(unit)
        elif unit.machine is None and unit.preparing is None:
            self._settle(unit)
        elif unit.preparing and unit.preparing.done():
            unit.preparing = None
            self.wake()

    def _settle(self, unit: Unit) -> None:
        """The machine is off, as wanted: so it is shown, once."""
        if unit.shown == unit.wanted:
            return
        if unit.wanted == "terminated":
            self.machines.discard(unit.id)
        self._show(unit, unit.wanted)
        self._progress.note(f"{unit.id}: {unit.wanted}")

    def _notice_exit(self, unit: Unit) -> None:
        ended = unit.machine.poll() if unit.machine else None
        if ended is None:
            return
        asked, unit.machine, unit.power_down_until = unit.power_down_until is not None, None, None
        if unit.wanted != "running" or ended.cause == "reset" or (asked and ended.cause == "shutdown"):
            return
        if ended.cause == "shutdown":
            self._guest_shut_down(unit)
        else:
            self._fail(unit, ended.detail)

    def _guest_shut_down(self, unit: Unit) -> None:
        """As EC2 does when a guest powers itself off: what the instance's attribute says."""
        if unit.instance.instance_initiated_shutdown_behavior == "terminate":
            unit.instance.terminate()
        else:
            unit.instance.stop()
        unit.wanted = unit.instance.state
        code = "Client.InstanceInitiatedShutdown"
        self._show(unit, _TRANSITION[unit.wanted], code, "Instance initiated shutdown")
        self._progress.note(f"{unit.id}: the guest shut down")

    def _fail(self, unit: Unit, detail: str) -> None:
        """The machine is gone though nobody wanted that: it is down, and says why."""
        unit.instance.stop()
        unit.wanted = "stopped"
        self._show(unit, "stopping", "Server.InternalError", detail)
        self._progress.note(f"{unit.id}: {detail}")

    def _refuse(self, unit: Unit, error: Exception) -> None:
        """It could not be powered on: on EC2, such an instance goes from pending to terminated."""
        unit.instance.terminate()
        unit.wanted = "terminated"
        self._show(unit, "shutting-down", "Server.InternalError", f"Internal error on launch: {error}")
        self._progress.note(f"{unit.id}: could not be started: {error}")

    def _run(self, unit: Unit) -> None:
        if unit.machine is None and unit.preparing is None:
            unit.preparing = self._submit(self.machines.prepare, unit.instance)
            unit.preparing.add_done_callback(lambda _: self.wake())
        if unit.machine is None and unit.preparing and unit.preparing.done():
            prepared, unit.preparing = unit.preparing, None
            try:
                unit.machine = self.machines.power_on(prepared.result())
            except Exception as error:  # whatever it was, the instance must say so and not stay pending
                self._refuse(unit, error)
                self.wake()
        elif unit.machine and unit.power_down_until is not None:  # a reboot, or Start while it was stopping
            self._bring_down(unit)
        elif unit.machine and unit.machine.ready and unit.shown == "pending":
            self._show(unit, "running")
            self._progress.note(f"{unit.id}: running")

    def _press_power_button(self, unit: Unit) -> None:
        if unit.machine and unit.machine.ready and unit.power_down_until is None:
            unit.machine.power_down()
            unit.power_down_until = self._clock() + POWER_DOWN_SECONDS

    def _bring_down(self, unit: Unit) -> None:
        assert unit.machine
        self._press_power_button(unit)
        overdue = unit.power_down_until is not None and self._clock() > unit.power_down_until
        if unit.force or overdue:
            unit.machine.kill()
            unit.machine, unit.power_down_until, unit.force = None, None, False
            self.wake()

    # Images of an instance's disk

    def _step_jobs(self, unit: Unit) -> None:
        """A disk is copied while nothing writes to it: the machine is off, or (NoReboot) paused."""
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
        """Ends every machine at once: the region goes down."""
        with self.lock:
            for unit in self.units.values():
                if unit.machine:
                    unit.machine.kill()
                    unit.machine = None
            for instance_id in self.units:
                self.machines.discard(instance_id)
