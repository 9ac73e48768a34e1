"""A booted image: launch it, follow its way to a shell stage by stage, and end it whatever happens.

Every stage of a boot (running, tcp, ssh, cloud-init, systemd) is timed by itself, so that a slow or dead machine says
where it stopped; a machine that does not boot gives its console's last lines.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import run as process
from gpu_ami import runs
from gpu_ami.aws import Cloud, Launch
from gpu_ami.errors import GpuAmiError, MachineError
from gpu_ami.sweep import key_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_ami.log import Progress
    from gpu_ami.runs import Run
    from validator.ssh import Connection

BOOT_SECONDS = 600.0  # p4d and larger need minutes on AWS, an emulated machine one
_POLL_SECONDS = 0.5
_CONSOLE_LINES = 30
# What a kernel prints on its way down; a console with one of these is the image's fault, not the network's.
PANIC = re.compile(
    r"Kernel panic - not syncing|Oops: [0-9a-f]{4}|BUG: unable to handle|general protection fault|"
    r"VFS: Unable to mount root|Gave up waiting for root|You are in emergency mode|watchdog: BUG: soft lockup"
)
# Terminates the machine even if nobody is left to do it: shutdown means terminate for every instance that we launch.
_DEAD_MAN = """\
#!/bin/sh
# The driver of this run may die; this machine then ends itself after {minutes} minutes.
systemd-run --quiet --unit=gpu-ami-dead-man --on-active={minutes}m systemctl poweroff
"""


def dead_man_user_data(minutes: int) -> str:
    """User data with which an instance ends itself `minutes` after its first boot."""
    return _DEAD_MAN.format(minutes=minutes)


@dataclass
class Machine:
    """One running instance, how it is reached, and the seconds of each stage of its boot."""

    instance_id: str
    instance_type: str
    address: str
    port: int
    user: str
    key_file: Path
    known_hosts: Path
    stages: dict[str, float] = field(default_factory=dict)

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
def launched(cloud: Cloud, ami: str, instance_type: str, key: str, run: Run, tags: Mapping[str, str]) -> Iterator[str]:
    """Id of an instance that is terminated when the block ends."""
    minutes = int(runs.LIFETIME.total_seconds() // 60)
    instance_id = cloud.launch(Launch(ami, instance_type, key, tags, dead_man_user_data(minutes)))
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
        started = time.monotonic()
        deadline = started + timeout
        place = self.cloud.place
        machine = Machine(
            instance_id,
            instance_type,
            "",
            place.ssh_port,
            self.user,
            self.run.key_file,
            self.run.folder / "known_hosts",
        )
        try:
            found = self.cloud.wait_for_state(instance_id, "running", timeout, self.cancelled.is_set)
            machine.address = _address(found, place.ssh_interface)
            self._mark(machine, "running", started)
            connection = self._connect(machine, deadline)
            try:
                self._mark(machine, "ssh", started)
                self._settle(machine, connection, deadline, started)
            finally:
                connection.close()
        except GpuAmiError as error:
            if self.cancelled.is_set() or not isinstance(error, MachineError):
                raise
            raise self._with_console(error, machine) from error
        return machine

    def _mark(self, machine: Machine, stage: str, started: float) -> None:
        machine.stages[stage] = round(time.monotonic() - started, 1)
        self.progress.note(
            f"{machine.instance_type} {machine.instance_id}: {stage} after {machine.stages[stage]:.0f} s"
        )

    def _connect(self, machine: Machine, deadline: float) -> Connection:
        from validator import ssh, ssh_faults

        target = ssh.parse_url(machine.url, key_file=machine.key_file, known_hosts=machine.known_hosts)
        last = "nothing answered yet"
        while time.monotonic() < deadline and not self.cancelled.is_set():
            try:
                return ssh.connect(target)
            except ssh_faults.HostKeyChanged:
                raise
            except ssh_faults.TransportFault as error:  # sshd is not up yet, or cloud-init has not put the key there
                last = str(error)
                self._fail_on_panic(machine)
            self.cancelled.wait(_POLL_SECONDS)
        message = f"{machine.instance_id} ({machine.instance_type}) did not let us in by ssh"
        raise MachineError(message, details=[f"last answer: {last}"])

    def _settle(self, machine: Machine, connection: Connection, deadline: float, started: float) -> None:
        """cloud-init has ended and systemd has no job left. How they ended is for the boot checks to judge."""
        for stage, command, over in (
            ("cloud-init", "cloud-init status", lambda out: "status: running" not in out and "not run" not in out),
            ("systemd", "systemctl is-system-running", lambda out: out.strip() not in ("initializing", "starting", "")),
        ):
            self._poll(connection, command, over, deadline, f"{machine.instance_id}: {stage} did not come to an end")
            self._mark(machine, stage, started)

    def _poll(
        self, connection: Connection, command: str, over: Callable[[str], bool], deadline: float, failure: str
    ) -> None:
        out = ""
        while time.monotonic() < deadline and not self.cancelled.is_set():
            out = connection.run(command, timeout=60).text
            if over(out):
                return
            self.cancelled.wait(_POLL_SECONDS)
        raise MachineError(failure, details=[f"$ {command}", *out.splitlines()[-5:]])

    def _fail_on_panic(self, machine: Machine) -> None:
        console = self.cloud.console(machine.instance_id)
        found = PANIC.search(console)
        if found:
            raise MachineError(
                f"{machine.instance_id} ({machine.instance_type}) died while it booted: {found.group(0)}"
            )

    def _with_console(self, error: MachineError, machine: Machine) -> MachineError:
        tail = console_tail(self.cloud.console(machine.instance_id))
        details = [*error.details, f"the last {len(tail)} lines of its console:", *(f"| {line}" for line in tail)]
        return MachineError(error.message, details=details, hint=error.hint or "evidence/ has the whole console")


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
