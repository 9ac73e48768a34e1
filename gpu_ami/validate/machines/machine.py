"""A booted image: follows its boot stage by stage until a login works.

Every stage of a boot (running, tcp, ssh, cloud-init, systemd) is timed by itself, so that a slow or dead machine says
where it stopped; a machine that does not boot gives its console's last lines.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, aws_errors, log_groups, login, security_groups
from gpu_ami.errors import CapacityError, CloudError, MachineError, UsageError
from gpu_ami.validate.machines import console, hanging
from gpu_ami.validate.machines.deadlines import deadlines
from gpu_ami.validate.machines.login import (
    CLOUD_INIT,
    SYSTEMD,
    WAIT_SECONDS,
    BootListener,
    Settling,
    order_reboot,
    reach,
    record_host_key,
    settle,
)
from gpu_ami.validate.machines.restarts import REBOOT, ImageAtFault, LoginFailed, LoginSilent
from validator.probes import troubles

if TYPE_CHECKING:
    from gpu_ami.cloud import Run
    from gpu_ami.progress import Progress
    from validator.transport import Target

_CONSOLE_LINES = 30
_JOB_SECONDS = 30  # that a job of a boot runs until it is worth a line
START_ROUND_SECONDS = 60.0
# DescribeInstances may call an instance running before it has the address that a start gave it.
ADDRESS_SECONDS, ADDRESS_POLL_SECONDS = 30.0, 1.0
_PROXY_SECONDS = 45.0  # until a tunnel stands and sshd's banner comes through it


@dataclass
class Machine:
    """One running instance, how it is reached, which boot of it, and the seconds of each stage of that boot."""

    instance_id: str
    instance_type: str
    address: str
    port: int
    user: str
    key_file: Path
    known_hosts: Path
    stages: dict[str, float] = field(default_factory=dict)
    boot_id: str = ""
    host_key: str = ""  # what sshd showed at the first boot, and must show ever after
    log_group_suffix: str = ""  # of the log groups that its agent sends to
    proxy_command: str = ""  # the program that leads to it; "" where its address does

    @property
    def url(self) -> str:
        return f"ssh://{self.user}@{self.address}:{self.port}"


def console_tail(console: str, lines: int = _CONSOLE_LINES) -> list[str]:
    return [line for line in console.splitlines() if line.strip()][-lines:]


class Boot:
    """Follows one instance from `pending` to a system that has finished booting."""

    def __init__(
        self,
        cloud: Cloud,
        run: Run,
        user: str,
        progress: Progress,
        cancelled: threading.Event,
        *,
        units: hanging.ImageUnits = hanging.ImageUnits(),  # noqa: B008  (frozen)
    ) -> None:
        self.cloud, self.run, self.user, self.progress, self.cancelled = cloud, run, user, progress, cancelled
        self.units = units
        self._console_refused = False

    def follow(self, instance_id: str, instance_type: str) -> Machine:
        """Waits for every stage under one deadline. MachineError: the stage that failed, and the console's tail."""
        timeout = deadlines(instance_type, self.cloud.place).boot_seconds
        machine = Machine(
            instance_id,
            instance_type,
            "",
            self.cloud.place.login.ssh_port,
            self.user,
            self.run.key_file,
            self.run.folder / f"known_hosts.{instance_id}",  # an address may be another machine's later in this run
            log_group_suffix=log_groups.suffix(self.cloud.place, self.run),
        )
        started = self.cloud.launched_at(instance_id)
        with self.console_on_error(machine):
            self.running(machine, timeout, started)
            self.arrive(machine, started + timeout, started, (CLOUD_INIT, SYSTEMD))
        return machine

    def running(self, machine: Machine, timeout: float, started: float) -> None:
        """Waits until EC2 says so, and learns the address: it may be another one after every start."""
        place, deadline = self.cloud.place, time.monotonic() + ADDRESS_SECONDS
        instance = self.cloud.wait_for_state(machine.instance_id, "running", timeout, self.cancelled.is_set)
        kind = login.ADDRESSES[place.login.ssh_interface]
        while not instance.get(kind) and time.monotonic() < deadline and not self.cancelled.wait(ADDRESS_POLL_SECONDS):
            instance = self.cloud.wait_for_state(machine.instance_id, "running", timeout, self.cancelled.is_set)
        machine.address = login.address(instance, place.login.ssh_interface)
        machine.proxy_command = login.proxy_command(place, machine.instance_id)
        self.mark(machine, "running", started)

    def arrive(
        self, machine: Machine, deadline: float, started: float, stages: Sequence[Settling], panics: int = 0
    ) -> None:
        """Waits for a boot that is not `machine.boot_id` to accept an SSH login and to reach a stable systemd state.

        started: what the stages are timed from (time.monotonic(), as the deadline). panics: how many the console had
        before.
        """
        target = self.target(machine)
        name = f"{machine.instance_id} ({machine.instance_type})"

        said = ""

        def look() -> None:
            nonlocal said
            text = self._console(machine)
            self._fail_on_panic(machine, panics, text)
            self._fail_if_not_running(machine)
            found, sentence = self._silence(text)
            if found != said and time.monotonic() - started > WAIT_SECONDS:
                said = found
                if sentence:
                    self.say(machine, f"no login yet: {sentence}")

        with self.ingress_on_error(machine) as on_silence:
            connection, machine.boot_id = reach(
                target, deadline, self.cancelled, name, machine.boot_id, look=look, on_silence=on_silence
            )
        try:
            if not machine.host_key:
                self.compare_with_console(machine, connection.host_key)
            machine.host_key = connection.host_key
            record_host_key(target, connection.host_key)
            self.mark(machine, "ssh", started)
            mark = functools.partial(self.mark, machine, started=started)
            listener = BootListener(mark, look, functools.partial(self.say, machine), self.units)
            settle(connection, name, stages, deadline, self.cancelled, listener=listener)
        finally:
            connection.close()

    def target(self, machine: Machine) -> Target:
        """How to get in; from the second boot on only to the host key of the first."""
        from validator.transport import ssh

        known: dict[str, object] = {"key_file": machine.key_file, "known_hosts": machine.known_hosts}
        if machine.proxy_command:
            known |= {
                "proxy_command": machine.proxy_command,
                "proxy_environment": self.cloud.place.api.keys(),
                "banner_timeout": _PROXY_SECONDS,
            }
        return ssh.parse_url(machine.url, **known, host_key=machine.host_key or "trust-new")

    def mark(self, machine: Machine, stage: str, started: float) -> None:
        machine.stages[stage] = round(time.monotonic() - started, 1)
        self.progress.note(
            f"{machine.instance_type} {machine.instance_id}: {stage} after {machine.stages[stage]:.0f} s"
        )

    def say(self, machine: Machine, text: str) -> None:
        self.progress.note(f"{machine.instance_type} {machine.instance_id}: {text}")

    def compare_with_console(self, machine: Machine, host_key: str) -> None:
        """MachineError where the console shows other host keys than the first contact: another machine answers.

        cloud-init writes the keys there at the first boot; a console that does not show them yet decides nothing.
        """
        if console.contradicts(self._console(machine), host_key):
            raise MachineError(
                f"{machine.instance_id} ({machine.instance_type}): {machine.address} shows another host key than the"
                " machine's console",
                hint="something else answers at this address: check routes, groups and DNS of the place",
            )

    def panics(self, machine: Machine) -> int:
        """How many kernel panics this machine's console shows so far."""
        return len(troubles(self._console(machine)))

    def _console(self, machine: Machine) -> str:
        """The console; "" where it cannot be read (GetConsoleOutput is a permission of its own, and is throttled)."""
        try:
            return self.cloud.console(machine.instance_id)
        except CloudError as error:
            if not self._console_refused:
                self._console_refused = True
                self.progress.note(f"{machine.instance_id}: the console cannot be read: {error.message}")
            return ""

    def _silence(self, text: str) -> tuple[str, str]:
        """What the console of a machine without a login shows: what to compare the next one with, and a sentence."""
        if hint := console.login_hint(text, self.user):
            return hint, hint
        job = hanging.on_console(text)
        if job is None or job.seconds < _JOB_SECONDS:
            return "", ""
        return job.name, f"its console shows that it waits for {job}"

    @staticmethod
    def _fail_on_panic(machine: Machine, known: int, text: str) -> None:
        panics = troubles(text)
        if len(panics) > known:
            raise ImageAtFault(f"{machine.instance_id} ({machine.instance_type}): kernel panic at boot: {panics[-1]}")

    def _fail_if_not_running(self, machine: Machine) -> None:
        try:
            reason = console.trouble(self.cloud.instance(machine.instance_id))
        except CloudError:  # refused or throttled: the next look asks again
            return
        if reason:
            raise MachineError(f"{machine.instance_type}: {reason}")

    @contextmanager
    def ingress_on_error(self, machine: Machine) -> Iterator[Callable[[], None]]:
        """Adds who may connect to a login that never got an answer; yields what to call at each such attempt.

        MachineError at the first of them where the security groups let nobody in. A program that leads to the machine
        connects from elsewhere, and its errors are its own.
        """
        read: list[security_groups.Ingress] = []

        def on_silence() -> None:
            if read or machine.proxy_command:
                return
            with contextlib.suppress(CloudError):  # refused or throttled: the next silence asks again
                read.append(self.cloud.ingress_of_instance(machine.instance_id))
            if read and read[0].is_closed:
                name = f"{machine.instance_id} ({machine.instance_type})"
                raise MachineError(f"{name}: no SSH login: {read[0]}", hint=read[0].remedy)

        try:
            yield on_silence
        except LoginSilent as error:  # a machine that answered last is not behind closed groups
            if not read or read[0].is_closed:
                raise
            details = [*error.details, str(read[0])]
            raise LoginSilent(error.message, details=details, hint=read[0].remedy) from error

    @contextmanager
    def console_on_error(self, machine: Machine) -> Iterator[None]:
        """Adds the console's last lines to what a machine did wrong."""
        try:
            yield
        except MachineError as error:
            if self.cancelled.is_set():
                raise
            text = self._console(machine)
            tail = console_tail(text)
            shown = [f"the last {len(tail)} lines of its console:", *(f"| {line}" for line in tail)] if tail else []
            job = hanging.on_console(text) if isinstance(error, LoginFailed) else None
            details = [*error.details, *([f"still starting, by its console: {job}"] if job else []), *shown]
            said = console.login_hint(text, self.user) if isinstance(error, LoginFailed) else ""
            hint = said or error.hint or "evidence/ has the whole console"
            raise type(error)(error.message, details=details, hint=hint) from error


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
            _start(boot, after, seconds, started)
        # What a boot needs does not depend on how long the one before it took to end.
        boot.arrive(after, time.monotonic() + seconds, started, (SYSTEMD,), panics)
    return after


def _start(boot: Boot, machine: Machine, seconds: float, started: float) -> None:
    """Orders the start and waits until the instance runs; again each minute while EC2 has no capacity for it.

    EC2 refuses the order, or the instance falls back to `stopped`, where it costs its volume alone.
    """
    place = boot.cloud.place
    minutes = max(place.capacity.minutes, place.capacity.start_minutes)
    deadline = time.monotonic() + 60.0 * minutes
    while True:
        try:
            boot.cloud.start(machine.instance_id)
            return boot.running(machine, seconds, started)
        except CapacityError as error:
            over = time.monotonic() + START_ROUND_SECONDS > deadline
            if over or aws_errors.is_quota(error.code) or boot.cancelled.wait(START_ROUND_SECONDS):
                raise


def require_interface(interface: str) -> None:
    """UsageError, before anything is launched, where machines cannot be reached by this `ssh_interface`."""
    if interface not in login.ADDRESSES:
        raise UsageError(
            f"ssh_interface {interface}: Packer can build with it, but the proof cannot log in to a machine",
            hint=f"set ssh_interface in the --where file to one of {', '.join(login.ADDRESSES)}",
        )
