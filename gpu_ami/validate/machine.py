"""A booted image: launches it, follows its boot stage by stage until a login works, and always terminates it.

Every stage of a boot (running, tcp, ssh, cloud-init, systemd) is timed by itself, so that a slow or dead machine says
where it stopped; a machine that does not boot gives its console's last lines.
"""

from __future__ import annotations

import fnmatch
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.cloud import Cloud, Launch, key_name, runs
from gpu_ami.errors import CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.validate import console, watch
from gpu_ami.validate.user_data import user_data
from validator.probes import PANIC, troubles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_ami.cloud import Run
    from gpu_ami.progress import Progress
    from validator.transport import Connection, Target

BOOT_SECONDS = 600.0
# Types that need longer, by pattern: bare metal 20 minutes and more to boot and to stop, p5 and p6 ten and more
# (https://github.com/canonical/pycloudlib/issues/192 and field reports, read 2026-11).
_SLOW_TYPES = (("*.metal*", 2700.0), ("p5*", 1500.0), ("p6*", 1500.0))
_POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0  # between two looks at console and state of a machine that does not answer
_SETTLE_SECONDS = 30.0  # a machine that is busy with its boot answers slowly
_CONSOLE_LINES = 30


class ImageAtFault(MachineError):
    """The image is the cause: its kernel panicked, or its host key changed. Other failures may be the cloud's."""


def is_at_fault(error: GpuAmiError) -> bool:
    """Whether an error shows a defect of the image: by its kind, or by a panic in the console that it quotes."""
    return isinstance(error, ImageAtFault) or bool(PANIC.search(str(error)))


def boot_seconds(instance_type: str) -> float:
    """Deadline of a boot of this instance type."""
    return next((seconds for like, seconds in _SLOW_TYPES if fnmatch.fnmatchcase(instance_type, like)), BOOT_SECONDS)


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

    @property
    def url(self) -> str:
        return f"ssh://{self.user}@{self.address}:{self.port}"


def console_tail(console: str, lines: int = _CONSOLE_LINES) -> list[str]:
    return [line for line in console.splitlines() if line.strip()][-lines:]


def make_key(run: Run) -> str:
    """Makes the run's temporary key (0600) once; returns its public half."""
    if not run.key_file.exists():
        keygen = process.find_tool("ssh-keygen", package="openssh-client")
        command: list[str | Path] = [keygen, "-q", "-t", "ed25519", "-N", ""]
        command += ["-C", key_name(run.id), "-f", run.key_file]
        process.run(command, timeout=30)
    return run.key_file.with_suffix(".pub").read_text().strip()


Leftover = Callable[[GpuAmiError], object]


def _clean_up(run: Run, remove: Callable[[], object], on_leftover: Leftover | None) -> None:
    """Removes something. What cannot be removed stays in the run's record for `sweep`, and does not hide results."""
    try:
        with runs.cleaning_up(run):
            remove()
    except GpuAmiError as error:
        if on_leftover is None:
            raise
        on_leftover(error)


@contextmanager
def temporary_key(
    cloud: Cloud, run: Run, tags: Mapping[str, str], on_leftover: Leftover | None = None
) -> Iterator[str]:
    """Name of a key pair that lives as long as the block. on_leftover: gets the error if it cannot be deleted."""
    name = key_name(run.id)
    cloud.import_key(name, make_key(run), tags)
    try:
        yield name
    finally:
        _clean_up(run, lambda: cloud.delete_key(name), on_leftover)


@contextmanager
def launched(
    cloud: Cloud,
    ami: str,
    instance_type: str,
    key: str,
    run: Run,
    tags: Mapping[str, str],
    efa_interfaces: int = 0,
    on_leftover: Leftover | None = None,
    roles: Sequence[str] = (),
) -> Iterator[str]:
    """Id of an instance that is terminated when the block ends. on_leftover: gets the error if that fails.

    roles: the plan's; node families get user data of their own.
    """
    minutes = int(runs.LIFETIME.total_seconds() // 60)
    instance_id = cloud.launch(
        Launch(ami, instance_type, key, tags, user_data(minutes, key_name(run.id), roles), efa_interfaces)
    )
    try:
        yield instance_id
    finally:
        _clean_up(run, lambda: cloud.terminate([instance_id]), on_leftover)


class Boot:
    """Follows one instance from `pending` to a system that has finished booting."""

    def __init__(self, cloud: Cloud, run: Run, user: str, progress: Progress, cancelled: threading.Event) -> None:
        self.cloud, self.run, self.user, self.progress, self.cancelled = cloud, run, user, progress, cancelled
        self._console_refused = False

    def follow(self, instance_id: str, instance_type: str) -> Machine:
        """Waits for every stage under one deadline. MachineError: the stage that failed, and the console's tail."""
        timeout = boot_seconds(instance_type)
        machine = Machine(
            instance_id,
            instance_type,
            "",
            self.cloud.place.ssh_port,
            self.user,
            self.run.key_file,
            self.run.folder / f"known_hosts.{instance_id}",  # an address may be another machine's later in this run
        )
        started = time.monotonic()
        with self.console_on_error(machine):
            self.running(machine, timeout, started)
            self.arrive(machine, started + timeout, started, (CLOUD_INIT, SYSTEMD))
        return machine

    def running(self, machine: Machine, timeout: float, started: float) -> None:
        """Waits until EC2 says so, and learns the address: it may be another one after every start."""
        instance = self.cloud.wait_for_state(machine.instance_id, "running", timeout, self.cancelled.is_set)
        machine.address = _address(instance, self.cloud.place.ssh_interface)
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

        def look() -> None:
            self._fail_on_panic(machine, panics)
            self._fail_if_not_running(machine)

        connection, machine.boot_id = reach(target, deadline, self.cancelled, name, machine.boot_id, look)
        try:
            if not machine.host_key:
                self._compare_with_console(machine, connection.host_key)
            machine.host_key = connection.host_key
            _remember(target, connection.host_key)
            self.mark(machine, "ssh", started)
            mark = functools.partial(self.mark, machine, started=started)
            settle(connection, name, stages, deadline, self.cancelled, mark, look)
        finally:
            connection.close()

    def target(self, machine: Machine) -> Target:
        """How to get in; from the second boot on only to the host key of the first."""
        from validator.transport import ssh

        known = {"key_file": machine.key_file, "known_hosts": machine.known_hosts}
        return ssh.parse_url(machine.url, **known, host_key=machine.host_key or "trust-new")

    def mark(self, machine: Machine, stage: str, started: float) -> None:
        machine.stages[stage] = round(time.monotonic() - started, 1)
        self.progress.note(
            f"{machine.instance_type} {machine.instance_id}: {stage} after {machine.stages[stage]:.0f} s"
        )

    def _compare_with_console(self, machine: Machine, host_key: str) -> None:
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

    def _fail_on_panic(self, machine: Machine, known: int) -> None:
        panics = troubles(self._console(machine))
        if len(panics) > known:
            raise ImageAtFault(f"{machine.instance_id} ({machine.instance_type}): kernel panic at boot: {panics[-1]}")

    def _fail_if_not_running(self, machine: Machine) -> None:
        try:
            reason = watch.trouble(self.cloud.instance(machine.instance_id))
        except CloudError:  # refused or throttled: the next look asks again
            return
        if reason:
            raise MachineError(f"{machine.instance_type}: {reason}")

    @contextmanager
    def console_on_error(self, machine: Machine) -> Iterator[None]:
        """Adds the console's last lines to what a machine did wrong."""
        try:
            yield
        except MachineError as error:
            if self.cancelled.is_set():
                raise
            tail = console_tail(self._console(machine))
            shown = [f"the last {len(tail)} lines of its console:", *(f"| {line}" for line in tail)] if tail else []
            details = [*error.details, *shown]
            hint = error.hint or "evidence/ has the whole console"
            raise type(error)(error.message, details=details, hint=hint) from error


@dataclass(frozen=True)
class Settling:
    """A stage at the end of a boot: the command, and whether its output says that the stage is over."""

    stage: str
    command: str
    over: Callable[[str], bool]


# How they ended is for the boot checks to judge.
CLOUD_INIT = Settling(
    "cloud-init", "cloud-init status", lambda out: "status: running" not in out and "not run" not in out
)
SYSTEMD = Settling(
    "systemd", "systemctl is-system-running", lambda out: out.strip() not in ("initializing", "starting", "")
)


def reach(
    target: Target, deadline: float, cancelled: threading.Event, name: str, old_boot: str, look: Callable[[], None]
) -> tuple[Connection, str]:
    """A connection to a boot that is not `old_boot`, and that boot's id.

    look: called after each attempt that failed, at most every few seconds; it raises what makes further attempts
    useless. MachineError: the deadline is over. ImageAtFault: another host key.
    """
    from validator.transport import errors, ssh

    last = "nothing answered yet"
    look = _seldom(look)
    while time.monotonic() < deadline and not cancelled.is_set():
        try:
            connection = ssh.connect(target)
            boot_id = _boot_id(connection)
            if boot_id != old_boot:
                return connection, boot_id
            connection.close()
            last = f"boot {old_boot} is still up"
        except errors.HostKeyChanged as error:
            raise ImageAtFault(f"{name} shows another host key than at its first boot", details=[str(error)]) from error
        except errors.SshError as error:  # sshd is not up yet, or cloud-init has not put the key there
            last = str(error)
            look()
        cancelled.wait(_POLL_SECONDS)
    if cancelled.is_set():
        raise MachineError(f"{name}: the run was interrupted before an SSH login", details=[f"last answer: {last}"])
    raise MachineError(f"{name}: SSH login failed before the deadline", details=[f"last answer: {last}"])


def _boot_id(connection: Connection) -> str:
    try:
        return connection.run("cat /proc/sys/kernel/random/boot_id", timeout=30).text.strip()
    except BaseException:
        connection.close()
        raise


def settle(
    connection: Connection,
    name: str,
    stages: Sequence[Settling],
    deadline: float,
    cancelled: threading.Event,
    mark: Callable[[str], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Waits for each stage in turn and calls `mark` at its end. MachineError: the first that does not complete.

    look: called between the attempts; it raises what makes further ones useless.
    """
    from validator.transport import errors

    look = _seldom(look)
    for settling in stages:
        while True:
            try:
                out = connection.run(settling.command, timeout=_SETTLE_SECONDS).text
                if settling.over(out):
                    break
            except errors.CommandExpired as error:  # a machine that is busy with its boot may need longer
                out = str(error)
            except errors.SshError as error:
                look()
                raise MachineError(f"{name}: the connection was lost during the boot", details=[str(error)]) from error
            if time.monotonic() > deadline or cancelled.is_set():
                raise MachineError(
                    f"{name}: {settling.stage} did not complete",
                    details=[f"$ {settling.command}", *out.splitlines()[-5:]],
                )
            look()
            cancelled.wait(_POLL_SECONDS)
        mark(settling.stage)


def _seldom(look: Callable[[], None]) -> Callable[[], None]:
    """The same, but at most every few seconds: each call asks AWS."""
    last = -LOOK_SECONDS

    def at_most() -> None:
        nonlocal last
        if time.monotonic() - last >= LOOK_SECONDS:
            look()
            last = time.monotonic()

    return at_most


def _remember(target: Target, host_key: str) -> None:
    """Writes down the key at the address where it was seen: after stop and start one that nobody knows yet."""
    line = f"{target.known_name} {host_key}"
    known = target.known_hosts
    if known and (not known.exists() or line not in known.read_text(encoding="utf-8").splitlines()):
        with known.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


_ADDRESSES = {
    "public_ip": "PublicIpAddress",
    "private_ip": "PrivateIpAddress",
    "public_dns": "PublicDnsName",
    "private_dns": "PrivateDnsName",
}


def require_interface(interface: str) -> None:
    """UsageError, before anything is launched, where machines cannot be reached by this `ssh_interface`."""
    if interface not in _ADDRESSES:
        raise UsageError(
            f"ssh_interface {interface}: Packer can build with it, but the proof cannot log in to a machine",
            hint=f"set ssh_interface in the --where file to one of {', '.join(_ADDRESSES)}",
        )


def _address(instance: Mapping[str, object], interface: str) -> str:
    address = str(instance.get(_ADDRESSES[interface]) or "")
    if not address:
        raise MachineError(
            f"{instance['InstanceId']} has no {_ADDRESSES[interface]}",
            hint="choose another ssh_interface, or a subnet that assigns public addresses",
        )
    return address
