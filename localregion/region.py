"""The local region from outside: up, down, status, console.

    from localregion import region
    place = region.up(embedded=True, progress=progress)    # a gpu_ami.cloud.Place: plan, Packer, boto3 use it
    ...                                                     # boto3.client("ec2", endpoint_url=place.api.endpoint, …)
    region.release()                                        # ends it if nobody else uses it

`embedded=True`: the region lives as long as a process that holds it: it goes down, machines and all, when the last
holder releases it or ends by whatever means (kill -9 included). `embedded=False` (`gpu-ami region up`): till `down`.
A region that is already up is shared, whoever started it.

`publish_source_ami(plan)` registers the AMI that the plan builds on. An instance's sshd listens on its private address
(127.x.y.z), port `place.login.ssh_port`, with the key of the launch's key pair. Images are kept in the home; the next
`up` registers them under the same ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict, cast

from gpu_ami.cloud import (
    ApiAccess,
    Capacity,
    Clusters,
    Credentials,
    Login,
    MachineTraits,
    Mirror,
    Network,
    Place,
    preload,
)
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.files import home_dir, read_json
from gpu_ami.process import ProcessIdentity, end, spawn
from gpu_ami.progress import Progress
from localregion import control, host, kubernetes, state
from localregion.control import InstanceStatus, MirrorDescription, RegionDescription
from localregion.debian import BOOKWORM, RELEASES
from localregion.loopback import API_ADDRESS, ARCHIVES, CLUSTER_ADDRESS, MIRROR_ADDRESS
from localregion.machines import read_console
from localregion.state import CALLER, LIFELINE, Layout, load_images

if TYPE_CHECKING:
    from localregion.images import source_ami
    from localregion.state import ImageFields

_UP_SECONDS = 60.0
# Whose archives are beside the replicas; the first is for emulated distributions, which are made of it.
DISTRIBUTIONS = tuple(release.name for release in RELEASES.values())
_KERNELS = {release.name.lower(): release.kernel for release in RELEASES.values()}
_DOWN_SECONDS = 30.0
_CREDENTIALS = Credentials(CALLER, CALLER)  # moto accepts any keys


@dataclass(frozen=True)
class _Hold:
    """Holds an embedded region: a connection to the daemon or the write end of its pipe; its name in the daemon."""

    handle: socket.socket | int
    name: str

    def close(self) -> None:
        if isinstance(self.handle, int):
            os.close(self.handle)
        else:
            self.handle.close()


_held: dict[Path, _Hold] = {}  # by home


class ImageSummary(TypedDict):
    """An AMI of the region."""

    id: str
    name: str
    created: str
    tags: dict[str, str]


class RegionReport(TypedDict):
    """`gpu-ami region status`; what is NotRequired is there while the region is up."""

    up: bool
    home: str
    images: list[ImageSummary]
    acceleration: Annotated[str | None, ("KVM", "emulation", None)]
    instances: NotRequired[list[InstanceStatus]]
    process: NotRequired[Annotated[dict[str, object], ProcessIdentity]]
    endpoint: NotRequired[str]
    guest_endpoint: NotRequired[str]
    mirror: NotRequired[MirrorDescription | None]
    region: NotRequired[str]
    network: NotRequired[str]
    subnet_id: NotRequired[str]
    security_group_ids: NotRequired[list[str]]
    instance_profile: NotRequired[str]
    ssh_port: NotRequired[int]
    conditions: NotRequired[str]
    hypervisor: NotRequired[str]
    persistent: NotRequired[bool]
    holds: NotRequired[list[str]]
    refused: NotRequired[dict[str, int]]


def up(home: Path | None = None, *, embedded: bool, progress: Progress, conditions: str = "", build: str = "") -> Place:
    """Brings the region up, or joins the one that is up. conditions: NAME or NAME:SEED (docs/conditions.md), "" none.

    build: FROM_BASE or FROM_LAYER where an image is about to be built in a sandbox, "" else.
    UsageError: no such conditions. CloudError: it did not start (with the daemon's reason), or it is up under others.
    """
    if conditions:
        from localregion.api import conditions as condition_files

        conditions = condition_files.load(conditions).label
    layout = _layout(home)
    with progress.stage("local region"):
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline:
            described = _join(layout, embedded) or _start(layout, embedded, conditions, build)
            if described:
                _check_conditions(described, conditions, home)
                return _place(described)
            time.sleep(0.2)  # another daemon is starting or ending
    raise CloudError(f"the local region did not come up within {_UP_SECONDS:.0f} s", hint=f"see {layout.log}")


def _check_conditions(described: RegionDescription, conditions: str, home: Path | None) -> None:
    """CloudError where a region that was up has other conditions than were asked for."""
    current = described["conditions"]
    if conditions and current != conditions:
        release(home)
        raise CloudError(
            f"the local region is up under conditions {current or 'none'}, expected {conditions}",
            hint="gpu-ami region down, then the same command again",
        )


def publish_source_ami(plan: source_ami.SystemPlan, home: Path | None = None, *, progress: Progress) -> str:
    """Registers the source AMI that a plan's filter finds, in a region that is up; returns the AMI's id.

    The base image is built if it is missing (a minute or two for the first one, seconds for others). UsageError:
    the region has no base image for that system or node family; CloudError: the region is not up, or there is
    not enough disk space for a build.
    """
    from localregion.images import source_ami

    layout = _layout(home)
    record, parameter = source_ami.ensure(plan, layout.home, progress)
    host.require_for_build(layout.images, record.disk_path(layout), f"a build on {record.name}", layout.spare)
    image = cast("ImageFields", asdict(record))
    if control.ask(layout, {"do": "status", "image": image, "parameter": parameter}) is None:
        raise CloudError(f"the local region in {layout.home} is not up", hint="gpu-ami region up")
    return record.id


def expect_launch(image_id: str, home: Path | None = None) -> None:
    """Tells the region, if one is up, which image is launched soon, so that the copy of its disk begins."""
    control.ask(_layout(home), {"do": "expect", "launch": image_id})


def local_place(home: Path | None = None) -> Place:
    """The region's place without starting it, as a plan needs it. Only a region that is up has an endpoint."""
    layout = _layout(home)
    running = control.ask(layout, {"do": "status"})
    if running is not None:
        return _place(running)
    from localregion.mirror import archives, git_repositories, signing_key

    return Place(
        name="local",
        region="us-east-1",
        mirror=Mirror(
            f"http://{MIRROR_ADDRESS}",
            signing_key(layout.home).fingerprint,
            git_repositories.commit,
            archives.digest,
            ARCHIVES,
            DISTRIBUTIONS,
        ),
        api=ApiAccess(guest_endpoint=f"http://{API_ADDRESS}", credentials=_CREDENTIALS),
        login=Login(ssh_interface="private_ip", ssh_port=2222),
        capacity=Capacity(start_minutes=0),
        machines=MachineTraits(
            simulated=True, billed=False, slow_python=True, kernel=BOOKWORM.kernel, kernels=_KERNELS
        ),
    )


def release(home: Path | None = None) -> None:
    """Releases an embedded region; returns when it is down, if this was its last holder."""
    layout = _layout(home)
    held = _held.pop(layout.home, None)
    if held is None:
        return
    described = read_json(layout.region_file) or {}
    held.close()
    deadline = time.monotonic() + _DOWN_SECONDS
    answer = control.ask(layout, {"do": "status"})
    while answer and held.name in answer.get("holds", []) and time.monotonic() < deadline:
        time.sleep(0.02)  # the daemon has not seen the closed connection yet
        answer = control.ask(layout, {"do": "status"})
    if answer is None or not (answer.get("persistent") or answer.get("holds")):
        _wait_gone(ProcessIdentity.from_json(described.get("process")), _DOWN_SECONDS)


def down(home: Path | None = None) -> bool:
    """Ends the region, also if others hold it, and clears what a crash left. False: there was nothing to do."""
    layout = _layout(home)
    held = _held.pop(layout.home, None)
    described = read_json(layout.region_file) or {}
    identity = ProcessIdentity.from_json(described.get("process"))
    was_up = control.ask(layout, {"do": "stop"}) is not None
    if held:
        held.close()
    if identity:
        _wait_gone(identity, _DOWN_SECONDS)
        end(identity, first=signal.SIGKILL)
    return bool(clean_leftovers(layout.home)) or was_up


def clean_leftovers(home: Path | None = None) -> list[str]:
    """Clears machines, disks and sockets of a region that was killed; a line for each. Does nothing while it is up."""
    layout = _layout(home)
    deadline = time.monotonic() + _DOWN_SECONDS
    while True:
        with kept_down(layout.home) as free:
            if free:
                return state.clear(layout)
        # A killed daemon is a zombie at once, but its lock is held until the last of its threads has ended.
        if is_up(home) or time.monotonic() > deadline:
            return []
        time.sleep(0.02)


def is_up(home: Path | None = None) -> bool:
    return control.ask(_layout(home), {"do": "status"}) is not None


def status(home: Path | None = None) -> RegionReport:
    """The region's state."""
    layout = _layout(home)
    answer = control.ask(layout, {"do": "status"})
    images: list[ImageSummary] = [
        {"id": record.id, "name": record.name, "created": record.creation_date, "tags": record.tags}
        for record in load_images(layout)
    ]
    kvm = read_json(layout.kvm)
    acceleration = None if kvm is None else "KVM" if kvm.get("usable") else "emulation"
    home_name, is_answered = str(layout.home), answer is not None
    report: RegionReport = {"up": is_answered, "home": home_name, "images": images, "acceleration": acceleration}
    return cast(RegionReport, {**report, "instances": [], **(answer or {})})


def console(home: Path | None, instance_id: str) -> str:
    """The whole serial console of an instance. UsageError: no such instance."""
    folder = _layout(home).instance(instance_id)
    if not folder.is_dir():
        known = sorted(path.name for path in folder.parent.glob("i-*"))
        hint = f"instances: {', '.join(known)}" if known else "there are no instances"
        raise UsageError(f"the local region has no instance {instance_id}", hint=hint)
    return read_console(folder, limit=1 << 30).decode(errors="replace")


def _layout(home: Path | None) -> Layout:
    layout = Layout((home or home_dir()).resolve())
    layout.make()
    return layout


def _place(described: RegionDescription) -> Place:
    from localregion.api import conditions as condition_files
    from localregion.mirror import archives, git_repositories

    mirror, conditions = described["mirror"], described.get("conditions", "")
    return Place(
        name="local",
        region=described["region"],
        instance_profile=described["instance_profile"],
        mirror=Mirror(
            mirror["url"], mirror["key_fingerprint"], git_repositories.commit, archives.digest, ARCHIVES, DISTRIBUTIONS
        )
        if mirror
        else None,
        conditions=conditions,
        expect_launch=expect_launch,
        api=ApiAccess(
            endpoint=described["endpoint"],
            guest_endpoint=described["guest_endpoint"],
            credentials=_CREDENTIALS,
            consistent_seconds=30.0 if conditions else 5.0,
            is_account=bool(conditions) and condition_files.load(conditions).has_account,
        ),
        network=Network(
            subnet_ids=(described["subnet_id"],), security_group_ids=tuple(described["security_group_ids"])
        ),
        login=Login(ssh_interface="private_ip", ssh_port=described["ssh_port"]),
        capacity=Capacity(start_minutes=0),
        clusters=Clusters(versions=kubernetes.built(home_dir()), guest_endpoint=f"https://{CLUSTER_ADDRESS}"),
        machines=MachineTraits(
            simulated=True,
            billed=False,
            slow_python=True,
            kernel=BOOKWORM.kernel,
            kernels=_KERNELS,
            hypervisor=described.get("hypervisor"),
        ),
    )


def _join(layout: Layout, embedded: bool) -> RegionDescription | None:
    """Joins a region that is up; None if none is."""
    if not embedded or layout.home in _held:
        return control.ask(layout, {"do": "status" if embedded else "keep"})
    connection = control.connect(layout)
    if connection is None:
        return None
    answer = control.exchange(connection, {"do": "hold"})
    if answer is None:
        connection.close()
    else:
        _held[layout.home] = _Hold(connection, answer.get("hold", ""))
    return answer


def _start(layout: Layout, embedded: bool, conditions: str, build: str) -> RegionDescription | None:
    """Starts the daemon; None if another one is starting or ending."""
    status_read, status_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    settings = {
        "home": str(layout.home),
        "persistent": not embedded,
        "lifeline": lifeline_read if embedded else None,
        "status": status_write,
        "conditions": conditions,
        "build": build,
    }
    try:
        with layout.log.open("ab") as log:
            spawn(
                [sys.executable, "-m", "localregion.server", json.dumps(settings)],
                cwd=layout.home,
                env={"PYTHONPATH": _python_path()},
                stdout=log.fileno(),
                death_signal=None,
                pass_fds=[status_write, lifeline_read],
            )
    finally:
        os.close(status_write)
        os.close(lifeline_read)
    preload()  # while it starts: whoever asks for a region calls its API next
    with os.fdopen(status_read) as status:
        report = status.readline().strip()
    if report == "ready" and embedded:
        _held[layout.home] = _Hold(lifeline_write, LIFELINE)
    else:
        os.close(lifeline_write)
    if report == "ready":
        return cast("RegionDescription | None", read_json(layout.region_file))
    if report == "busy":
        return None
    raise _not_started(layout, report)


def _not_started(layout: Layout, report: str) -> CloudError:
    """report: the daemon's reason, as JSON."""
    try:
        reason = json.loads(report)
    except ValueError:
        reason = {"message": "exited without output", "hint": f"see {layout.log}"}
    message = f"the local region did not start: {reason['message']}"
    return CloudError(message, hint=reason["hint"], details=reason.get("details", ()))


def _python_path() -> str:
    """The folder that this package was imported from (a checkout need not be installed), for the daemon."""
    here = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _wait_gone(identity: ProcessIdentity | None, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while identity and identity.alive() and time.monotonic() < deadline:
        time.sleep(0.02)


@contextlib.contextmanager
def kept_down(home: Path | None = None) -> Iterator[bool]:
    """True inside the block if no daemon runs; none can start meanwhile."""
    with _layout(home).lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
