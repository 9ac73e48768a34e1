"""A booted image: launch it, follow its way to a shell stage by stage, and end it whatever happens.

Every stage of a boot (running, tcp, ssh, cloud-init, systemd) is timed by itself, so that a slow or dead machine says
where it stopped; a machine that does not boot gives its console's last lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import run as process
from gpu_ami import runs
from gpu_ami.aws import Cloud, Launch
from gpu_ami.errors import MachineError
from gpu_ami.sweep import key_name
from validator.kernel import troubles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_ami.log import Progress
    from gpu_ami.runs import Run
    from validator.ssh import Connection, Target

BOOT_SECONDS = 600.0  # p4d and larger need minutes on AWS, an emulated machine one
_POLL_SECONDS = 0.5
_CONSOLE_LINES = 30
# Terminates the machine even if nobody is left to do it: shutdown means terminate for every instance that we launch.
# A boothook runs at every boot, so a restart does not disarm it. It runs before the jobs that a timer waits for, which
# wait for cloud-init, which waits for whoever holds its output: so it goes on behind, until the timer is there.
_DEAD_MAN = """\
#cloud-boothook
#!/bin/sh
# The driver of this run may die; this machine then ends itself after {minutes} minutes.
exec </dev/null >/dev/null 2>&1
arm() {{
  systemd-run --quiet --unit=gpu-ami-dead-man --on-active={minutes}m systemctl poweroff
}}
until arm || systemctl --quiet is-active gpu-ami-dead-man.timer; do sleep 5; done &
"""


def dead_man_user_data(minutes: int) -> str:
    """User data with which an instance ends itself `minutes` after each of its boots."""
    return _DEAD_MAN.format(minutes=minutes)


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


@contextmanager
def temporary_key(cloud: Cloud, run: Run, tags: Mapping[str, str]) -> Iterator[str]:
    """Name of a key pair that lives as long as the block."""
    name = key_name(run.id)
    cloud.import_key(name, make_key(run), tags)
    try:
        yield name
    finally:
        with runs.cleaning_up(run):
            cloud.delete_key(name)


@contextmanager
def launched(
    cloud: Cloud, ami: str, instance_type: str, key: str, run: Run, tags: Mapping[str, str], efa_interfaces: int = 0
) -> Iterator[str]:
    """Id of an instance that is terminated when the block ends."""
    minutes = int(runs.LIFETIME.total_seconds() // 60)
    instance_id = cloud.launch(Launch(ami, instance_type, key, tags, dead_man_user_data(minutes), efa_interfaces))
    try:
        yield instance_id
    finally:
        with runs.cleaning_up(run):
            cloud.terminate([instance_id])


class Boot:
    """Follows one instance from `pending` to a system that has finished booting."""

    def __init__(self, cloud: Cloud, run: Run, user: str, progress: Progress, cancelled: threading.Event) -> None:
        self.cloud, self.run, self.user, self.progress, self.cancelled = cloud, run, user, progress, cancelled

    def follow(self, instance_id: str, instance_type: str, timeout: float = BOOT_SECONDS) -> Machine:
        """Waits for every stage under one deadline. MachineError: the stage that failed, and the console's tail."""
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
        found = self.cloud.wait_for_state(machine.instance_id, "running", timeout, self.cancelled.is_set)
        machine.address = _address(found, self.cloud.place.ssh_interface)
        self.mark(machine, "running", started)

    def arrive(
        self, machine: Machine, deadline: float, started: float, stages: Sequence[Settling], panics: int = 0
    ) -> None:
        """Waits for a boot that is not `machine.boot_id` to let us in and to come to rest.

        started: what the stages are timed from (time.monotonic(), as the deadline). panics: how many the console had
        before.
        """
        target = self.target(machine)
        name = f"{machine.instance_id} ({machine.instance_type})"
        connection, machine.boot_id = reach(
            target, deadline, self.cancelled, name, machine.boot_id, lambda: self._fail_on_panic(machine, panics)
        )
        try:
            machine.host_key = connection.host_key
            _remember(target, connection.host_key)
            self.mark(machine, "ssh", started)
            settle(connection, name, stages, deadline, self.cancelled, lambda stage: self.mark(machine, stage, started))
        finally:
            connection.close()

    def target(self, machine: Machine) -> Target:
        """How to get in; from the second boot on only to the host key of the first."""
        from validator import ssh

        known = {"key_file": machine.key_file, "known_hosts": machine.known_hosts}
        return ssh.parse_url(machine.url, **known, host_key=machine.host_key or "trust-new")

    def mark(self, machine: Machine, stage: str, started: float) -> None:
        machine.stages[stage] = round(time.monotonic() - started, 1)
        self.progress.note(
            f"{machine.instance_type} {machine.instance_id}: {stage} after {machine.stages[stage]:.0f} s"
        )

    def panics(self, machine: Machine) -> int:
        """How often a kernel has given up on this machine's console so far."""
        return len(troubles(self.cloud.console(machine.instance_id)))

    def _fail_on_panic(self, machine: Machine, known: int) -> None:
        found = troubles(self.cloud.console(machine.instance_id))
        if len(found) > known:
            raise MachineError(f"{machine.instance_id} ({machine.instance_type}) died while it booted: {found[-1]}")

    @contextmanager
    def console_on_error(self, machine: Machine) -> Iterator[None]:
        """Adds the console's last lines to what a machine did wrong."""
        try:
            yield
        except MachineError as error:
            if self.cancelled.is_set():
                raise
            tail = console_tail(self.cloud.console(machine.instance_id))
            details = [*error.details, f"the last {len(tail)} lines of its console:", *(f"| {line}" for line in tail)]
            hint = error.hint or "evidence/ has the whole console"
            raise type(error)(error.message, details=details, hint=hint) from error


@dataclass(frozen=True)
class Settling:
    """A stage that ends a boot: what is asked, and whether the answer says that it has come to its end."""

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

    look: called after each attempt that failed; it raises what makes further ones useless. MachineError: the deadline
    is over, or another machine answers.
    """
    from validator import ssh, ssh_faults

    last = "nothing answered yet"
    while time.monotonic() < deadline and not cancelled.is_set():
        try:
            connection = ssh.connect(target)
            boot_id = _boot_id(connection)
            if boot_id != old_boot:
                return connection, boot_id
            connection.close()
            last = f"boot {old_boot} is still up"
        except ssh_faults.HostKeyChanged as error:
            raise MachineError(f"{name} is not the machine that it was", details=[str(error)]) from error
        except ssh_faults.SshError as error:  # sshd is not up yet, or cloud-init has not put the key there
            last = str(error)
            look()
        cancelled.wait(_POLL_SECONDS)
    raise MachineError(f"{name} did not let us in by ssh", details=[f"last answer: {last}"])


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
) -> None:
    """Waits for each stage in turn; `mark` is told when one is over. MachineError: the first that does not end."""
    from validator import ssh_faults

    for one in stages:
        while True:
            try:
                out = connection.run(one.command, timeout=60).text
                if one.over(out):
                    break
            except ssh_faults.CommandExpired as error:  # a machine that is busy with its boot may need longer
                out = str(error)
            except ssh_faults.SshError as error:
                raise MachineError(f"{name} was lost while it booted", details=[str(error)]) from error
            if time.monotonic() > deadline or cancelled.is_set():
                raise MachineError(
                    f"{name}: {one.stage} did not come to an end", details=[f"$ {one.command}", *out.splitlines()[-5:]]
                )
            cancelled.wait(_POLL_SECONDS)
        mark(one.stage)


def _remember(target: Target, host_key: str) -> None:
    """Writes down the key at the address where it was seen: after stop and start one that nobody knows yet."""
    line = f"{target.known_name} {host_key}"
    known = target.known_hosts
    if known and (not known.exists() or line not in known.read_text(encoding="utf-8").splitlines()):
        with known.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _address(instance: Mapping[str, object], interface: str) -> str:
    keys = {
        "public_ip": "PublicIpAddress",
        "private_ip": "PrivateIpAddress",
        "public_dns": "PublicDnsName",
        "private_dns": "PrivateDnsName",
    }
    if interface not in keys:
        raise MachineError(
            f"the validator cannot reach an instance by {interface}", hint=f"ssh_interface: one of {', '.join(keys)}"
        )
    address = str(instance.get(keys[interface]) or "")
    if not address:
        raise MachineError(
            f"{instance['InstanceId']} has no {keys[interface]}",
            hint="another ssh_interface, or a subnet that gives public addresses",
        )
    return address
