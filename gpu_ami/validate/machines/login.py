"""The login after a boot: waits until SSH accepts it, and until cloud-init and systemd settled; orders a reboot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError
from gpu_ami.validate.machines import hanging
from gpu_ami.validate.machines.deadlines import deadlines
from gpu_ami.validate.machines.restarts import ImageAtFault, LoginFailed, LoginSilent, NotRestarted

if TYPE_CHECKING:
    from validator.transport import Connection, Target


WAIT_SECONDS = 15.0  # between two looks at the units that a boot waits for
LOOK_SECONDS = 5.0  # between two looks at console and state of a machine that does not answer


POLL_SECONDS = 0.5


_SETTLE_SECONDS = 30.0  # a machine that is busy with its boot answers slowly


@dataclass(frozen=True)
class Settling:
    """A stage at the end of a boot: the command, and whether its output says that the stage is over.

    script: what is run for the command, where that is more than itself.
    """

    stage: str
    command: str
    over: Callable[[str], bool]
    script: str = ""


# Waits on the machine for the file that `cloud-init status` looks for: that program would take the processor from the
# boot it waits for, seconds each time on an emulated one. Without the file it is asked once in a while.
_AWAIT_CLOUD_INIT = """\
n=0
while test -d RUN && ! test -e RUN/disabled && ! test -e RUN/result.json && test $n -lt 13; do
  sleep 2; n=$((n + 1))
done
if test -e RUN/result.json; then echo 'status: done'; else cloud-init status; fi""".replace("RUN", "/run/cloud-init")


# How they ended is for the boot checks to judge.
CLOUD_INIT = Settling(
    "cloud-init",
    "cloud-init status",
    lambda out: "status: running" not in out and "not run" not in out,
    _AWAIT_CLOUD_INIT,
)


SYSTEMD = Settling(
    "systemd", "systemctl is-system-running", lambda out: out.strip() not in ("initializing", "starting", "")
)


def reach(
    target: Target,
    deadline: float,
    cancelled: threading.Event,
    name: str,
    old_boot: str,
    *,
    look: Callable[[], None],
    on_silence: Callable[[], None] = lambda: None,
) -> tuple[Connection, str]:
    """A connection to a boot that is not `old_boot`, and that boot's id.

    look: called after each attempt that failed, at most every few seconds; it raises what makes further attempts
    useless. on_silence: the same for attempts that got no answer at all. MachineError: the deadline is over.
    ImageAtFault: another host key.
    """
    from validator.transport import errors, ssh

    last, answered = "nothing answered yet", False  # a way that once led to sshd is open
    kind: type[LoginFailed] = LoginSilent
    look, on_silence = _seldom(look), _seldom(on_silence)
    while time.monotonic() < deadline and not cancelled.is_set():
        try:
            connection = ssh.connect(target)
            boot_id = read_boot_id(connection)
            if boot_id != old_boot:
                return connection, boot_id
            connection.close()
            last, kind = f"boot {old_boot} is still up", LoginFailed
        except errors.HostKeyChanged as error:
            raise ImageAtFault(f"{name} shows another host key than at its first boot", details=[str(error)]) from error
        except errors.SshError as error:  # sshd is not up yet, or cloud-init has not put the key there
            last = str(error)
            silent = isinstance(error, errors.HostSilent)
            answered |= isinstance(error, errors.AuthRefused)
            kind = LoginSilent if silent and not answered else LoginFailed
            look()
            if kind is LoginSilent:
                on_silence()
        cancelled.wait(POLL_SECONDS)
    if cancelled.is_set():
        raise MachineError(f"{name}: the run was interrupted before an SSH login", details=[f"last answer: {last}"])
    raise kind(f"{name}: SSH login failed before the deadline", details=[f"last answer: {last}"])


@dataclass(frozen=True)
class BootListener:
    """What a boot that is followed tells.

    mark: gets the name of each stage at its end. look: called between the attempts; it raises what makes further ones
    useless. say: gets what the boot waits for, when that changes. units: of the image, which blame it.
    """

    mark: Callable[[str], None]
    look: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda _: None
    units: hanging.ImageUnits = field(default_factory=hanging.ImageUnits)


def settle(
    connection: Connection,
    name: str,
    stages: Sequence[Settling],
    deadline: float,
    cancelled: threading.Event,
    *,
    listener: BootListener,
) -> None:
    """Waits for each stage in turn. MachineError: the first that does not complete.

    ImageAtFault: it waits for a unit of the image.
    """
    from validator.transport import errors

    look = _seldom(listener.look)
    said = ""

    def tell() -> None:
        nonlocal said
        waiting = hanging.read(connection)
        names = ", ".join(unit.unit for unit in waiting.units)
        if names and names != said:
            listener.say(
                f"waits for {waiting.units[0]}" + (f"; and {len(waiting.units) - 1} more" if waiting.units[1:] else "")
            )
        said = names or said

    tell = _seldom(tell, WAIT_SECONDS, first=WAIT_SECONDS)
    for settling in stages:
        while True:
            try:
                out = connection.run(settling.script or settling.command, timeout=_SETTLE_SECONDS).text
                if settling.over(out):
                    break
            except errors.CommandExpired as error:  # a machine that is busy with its boot may need longer
                out = str(error)
            except errors.SshError as error:
                look()
                raise MachineError(f"{name}: the connection was lost during the boot", details=[str(error)]) from error
            if time.monotonic() > deadline or cancelled.is_set():
                waiting = hanging.Waiting() if cancelled.is_set() else hanging.read(connection, owners=True)
                details = [*waiting.lines(), f"$ {settling.command}", *out.splitlines()[-5:]]
                if hangs := waiting.of_the_image(listener.units):
                    raise ImageAtFault(f"{name}: the boot hangs in {hangs}", details=details)
                by = f": it waits for {waiting.units[0]}" if waiting.units else ""
                raise MachineError(f"{name}: {settling.stage} did not complete{by}", details=details)
            look()
            tell()
            cancelled.wait(POLL_SECONDS)
        listener.mark(settling.stage)


def read_boot_id(connection: Connection) -> str:
    """Return the kernel's id of this boot; closes the connection where the machine does not answer."""
    try:
        return connection.run("cat /proc/sys/kernel/random/boot_id", timeout=30).text.strip()
    except BaseException:
        connection.close()
        raise


def _seldom(look: Callable[[], None], every: float | None = None, first: float = 0.0) -> Callable[[], None]:
    """The same, but at most every few seconds: each call asks AWS. first: seconds before the first call."""
    seconds = LOOK_SECONDS if every is None else every
    last = time.monotonic() - seconds + first

    def at_most() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            look()
            last = time.monotonic()

    return at_most


def record_host_key(target: Target, host_key: str) -> None:
    """Writes down the key at the address where it was seen: after stop and start one that nobody knows yet."""
    line = f"{target.known_name} {host_key}"
    known = target.known_hosts
    if known and (not known.exists() or line not in known.read_text(encoding="utf-8").splitlines()):
        with known.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


_ORDER = 'if [ "$(id -u)" = 0 ]; then systemctl reboot; else sudo -n systemctl reboot; fi'


def reboot_host(
    target: Target,
    cancelled: threading.Event,
    instance_type: str = "",
    boot_seconds: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    units: hanging.ImageUnits = hanging.ImageUnits(),  # noqa: B008  (frozen)
) -> tuple[dict[str, float], str, str]:
    """Reboots a machine that gpu-ami did not launch: stages of its next boot, and boot ids before and after.

    boot_seconds: its deadline; None: that of the instance type.
    """
    name = target.name
    started = time.monotonic()
    before, host_key = order_reboot(target, name)
    deadline = time.monotonic() + (boot_seconds or deadlines(instance_type).boot_seconds)
    stages: dict[str, float] = {}

    def mark(stage: str) -> None:
        stages[stage] = round(time.monotonic() - started, 1)

    pinned = replace(target, host_key=host_key)
    connection, boot_id = reach(pinned, deadline, cancelled, name, before, look=lambda: None)
    with connection:
        mark("ssh")
        settle(connection, name, (SYSTEMD,), deadline, cancelled, listener=BootListener(mark, say=say, units=units))
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
