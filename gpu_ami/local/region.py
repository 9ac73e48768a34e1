"""The local region from outside: up, down, status, console.

    from gpu_ami.local import region
    place = region.up(embedded=True, progress=progress)    # a gpu_ami.place.Place to point plan, Packer and boto3 at
    ...                                                     # boto3.client("ec2", endpoint_url=place.endpoint, …)
    region.release()                                        # ends it if nobody else uses it

`embedded=True`: the region lives as long as a process that holds it: it goes down, machines and all, when the last
holder releases it or ends by whatever means (kill -9 included). `embedded=False` (`gpu-ami region up`): till `down`.
A region that is already up is shared, whoever started it.

In place: `offer(plan)` has the region show the AMI that the plan builds on; an instance's sshd is at its private
address (127.x.y.z), port `place.ssh_port`, key from the launch's key pair. Images are kept in the home and are there
again, under the same ids, at the next `up`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.home import home_dir
from gpu_ami.local import leftovers
from gpu_ami.local.qemu import API_ADDRESS, MIRROR_ADDRESS, read_console, short_path
from gpu_ami.local.state import LIFELINE, Layout, ProcessIdentity, load_images, read_json
from gpu_ami.log import Progress
from gpu_ami.place import Credentials, Mirror, Place
from gpu_ami.run import spawn

_UP_SECONDS = 60.0
KERNEL_SERIES = "6.1"  # Debian 12's, which is in every base image of the region
_DOWN_SECONDS = 30.0
# moto takes any keys; these say in a log where they belong.
_CREDENTIALS = Credentials("gpu-ami-local", "gpu-ami-local")


@dataclass(frozen=True)
class _Hold:
    """What keeps an embedded region up: the connection, or the write end of the daemon's pipe; its name there."""

    handle: socket.socket | int
    name: str

    def close(self) -> None:
        if isinstance(self.handle, int):
            os.close(self.handle)
        else:
            self.handle.close()


_held: dict[Path, _Hold] = {}  # by home


def up(home: Path | None = None, *, embedded: bool, progress: Progress) -> Place:
    """Brings the region up, or joins the one that is up. CloudError: it did not start (with the daemon's reason)."""
    layout = _layout(home)
    with progress.stage("local region"):
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline:
            found = _join(layout, embedded) or _start(layout, embedded)
            if found:
                return _place(found)
            time.sleep(0.2)  # another one is just coming up or going down
    raise CloudError(f"the local region did not come up within {_UP_SECONDS:.0f} s", hint=f"see {layout.log}")


def offer(plan: Mapping[str, Any], home: Path | None = None, *, progress: Progress) -> str:
    """Has a region that is up show the source AMI that a plan's filter finds; the AMI's id.

    The base image is made where it is not there (a minute or two for the first one, seconds for others). UsageError:
    the region has no base image for that system or node family; CloudError: the region is not up.
    """
    from gpu_ami.local import source_ami

    layout = _layout(home)
    record, parameter = source_ami.ensure(plan, layout.home, progress)
    if _ask(layout, {"do": "status", "image": asdict(record), "parameter": parameter}) is None:
        raise CloudError(f"the local region in {layout.home} is not up", hint="gpu-ami region up")
    return record.id


def local_place(home: Path | None = None) -> Place:
    """The region's place without bringing it up: all that a plan needs. Only a region that is up has an endpoint."""
    layout = _layout(home)
    running = _ask(layout, {"do": "status"})
    if running is not None:
        return _place(running)
    from gpu_ami.local import replica_git
    from gpu_ami.local.signing import signing_key

    return Place(
        name="local",
        region="us-east-1",
        ssh_interface="private_ip",
        ssh_port=2222,
        mirror=Mirror(f"http://{MIRROR_ADDRESS}", signing_key(layout.home).fingerprint, replica_git.commit),
        guest_endpoint=f"http://{API_ADDRESS}",
        simulated=True,
        kernel=KERNEL_SERIES,
        credentials=_CREDENTIALS,
    )


def release(home: Path | None = None) -> None:
    """Gives up an embedded region; returns when it is down, if this was its last holder."""
    layout = _layout(home)
    held = _held.pop(layout.home, None)
    if held is None:
        return
    described = read_json(layout.region_file) or {}
    held.close()
    deadline = time.monotonic() + _DOWN_SECONDS
    answer = _ask(layout, {"do": "status"})
    while answer and held.name in answer["holds"] and time.monotonic() < deadline:
        time.sleep(0.02)  # the daemon has not noticed yet
        answer = _ask(layout, {"do": "status"})
    if answer is None or not (answer["persistent"] or answer["holds"]):
        _wait_gone(ProcessIdentity.from_json(described.get("process")), _DOWN_SECONDS)


def down(home: Path | None = None) -> bool:
    """Ends the region, whoever holds it, and clears what a crash left. False: there was nothing."""
    layout = _layout(home)
    held = _held.pop(layout.home, None)
    described = read_json(layout.region_file) or {}
    identity = ProcessIdentity.from_json(described.get("process"))
    was_up = _ask(layout, {"do": "stop"}) is not None
    if held:
        held.close()
    if identity:
        _wait_gone(identity, _DOWN_SECONDS)
        leftovers.end(identity)
    return bool(clean_leftovers(layout.home)) or was_up


def clean_leftovers(home: Path | None = None) -> list[str]:
    """Clears what a region left that was killed: machines, disks, sockets. Nothing while a region is up."""
    layout = _layout(home)
    deadline = time.monotonic() + _DOWN_SECONDS
    while True:
        with _locked(layout) as free:
            if free:
                return leftovers.clear(layout)
        # A killed daemon is a zombie at once, but has its lock until the last of its threads is gone.
        if is_up(home) or time.monotonic() > deadline:
            return []
        time.sleep(0.02)


def is_up(home: Path | None = None) -> bool:
    return _ask(_layout(home), {"do": "status"}) is not None


def status(home: Path | None = None) -> dict[str, Any]:
    """What runs and what is kept: up, endpoint, instances (id, state, type, image, address, tags), images."""
    layout = _layout(home)
    answer = _ask(layout, {"do": "status"})
    images = [
        {"id": record.id, "name": record.name, "created": record.creation_date, "tags": record.tags}
        for record in load_images(layout)
    ]
    kvm = read_json(layout.kvm)
    return {
        "up": answer is not None,
        "home": str(layout.home),
        **(answer or {"instances": []}),
        "images": images,
        "acceleration": None if kvm is None else "KVM" if kvm.get("usable") else "emulation",
    }


def console(home: Path | None, instance_id: str) -> str:
    """All that the region has of an instance's serial console. UsageError: no such instance."""
    folder = _layout(home).instance(instance_id)
    if not folder.is_dir():
        known = sorted(path.name for path in folder.parent.glob("i-*"))
        hint = f"instances: {', '.join(known)}" if known else "no instance is there; gpu-ami region status"
        raise UsageError(f"the local region has no instance {instance_id}", hint=hint)
    return read_console(folder, limit=1 << 30).decode(errors="replace")


def _layout(home: Path | None) -> Layout:
    layout = Layout((home or home_dir()).resolve())
    layout.make()
    return layout


def _place(described: dict[str, Any]) -> Place:
    from gpu_ami.local import replica_git

    mirror = described["mirror"]
    return Place(
        name="local",
        region=described["region"],
        endpoint=described["endpoint"],
        subnet_id=described["subnet_id"],
        security_group_ids=tuple(described["security_group_ids"]),
        instance_profile=described["instance_profile"],
        ssh_interface="private_ip",
        ssh_port=described["ssh_port"],
        mirror=Mirror(mirror["url"], mirror["key_fingerprint"], replica_git.commit) if mirror else None,
        guest_endpoint=described["guest_endpoint"],
        simulated=True,
        kernel=KERNEL_SERIES,
        credentials=_CREDENTIALS,
    )


def _join(layout: Layout, embedded: bool) -> dict[str, Any] | None:
    """Joins a region that is up; None if there is none."""
    if not embedded or layout.home in _held:
        return _ask(layout, {"do": "status" if embedded else "keep"})
    connection = _connect(layout)
    if connection is None:
        return None
    answer = _exchange(connection, {"do": "hold"})
    if answer is None:
        connection.close()
    else:
        _held[layout.home] = _Hold(connection, answer["hold"])
    return answer


def _start(layout: Layout, embedded: bool) -> dict[str, Any] | None:
    """Starts the daemon; None if another one is there (coming up or going down)."""
    status_read, status_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    settings = {
        "home": str(layout.home),
        "persistent": not embedded,
        "lifeline": lifeline_read if embedded else None,
        "status": status_write,
    }
    try:
        with layout.log.open("ab") as log:
            spawn(
                [sys.executable, "-m", "gpu_ami.local.server", json.dumps(settings)],
                cwd=layout.home,
                env={"PYTHONPATH": _python_path()},
                stdout=log.fileno(),
                death_signal=None,
                pass_fds=[status_write, lifeline_read],
            )
    finally:
        os.close(status_write)
        os.close(lifeline_read)
    with os.fdopen(status_read) as status:
        said = status.readline().strip()
    if said == "ready" and embedded:
        _held[layout.home] = _Hold(lifeline_write, LIFELINE)
    else:
        os.close(lifeline_write)
    if said == "ready":
        return read_json(layout.region_file)
    if said == "busy":
        return None
    raise _not_started(layout, said)


def _not_started(layout: Layout, said: str) -> CloudError:
    """`said`: the daemon's reason, as JSON."""
    try:
        reason = json.loads(said)
    except ValueError:
        reason = {"message": "it ended without a word", "hint": f"see {layout.log}"}
    message = f"the local region did not start: {reason['message']}"
    return CloudError(message, hint=reason["hint"], details=reason.get("details", ()))


def _python_path() -> str:
    """This package, wherever it was imported from (a checkout need not be installed)."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _connect(layout: Layout) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    try:
        with short_path(layout.control) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return connection


def _exchange(connection: socket.socket, request: dict[str, Any]) -> dict[str, Any] | None:
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        received = b""
        while not received.endswith(b"\n"):
            chunk = connection.recv(65536)
            if not chunk:
                return None
            received += chunk
    except OSError:
        return None
    answer = json.loads(received)
    return answer if isinstance(answer, dict) else None


def _ask(layout: Layout, request: dict[str, Any]) -> dict[str, Any] | None:
    """The daemon's answer; None if no daemon answers."""
    connection = _connect(layout)
    if connection is None:
        return None
    with connection:
        return _exchange(connection, request)


def _wait_gone(identity: ProcessIdentity | None, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while identity and identity.alive() and time.monotonic() < deadline:
        time.sleep(0.02)


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[bool]:
    """True inside the block if no daemon runs; none can start meanwhile."""
    with layout.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
