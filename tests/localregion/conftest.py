"""A region without machines: real moto, real images on disk, fake power."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.progress import Progress
from localregion.machines.qemu import Exit
from localregion.state import ImageRecord, Layout

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqMyRWr1wAJYt6OZjNRZqGjpbPFWYzBqkHRmSXLcSVp test"
CIDR = "127.99.0.0/16"
SSH_PORT = 2222
SILENT_SECONDS = 12.0  # until an agent that does not ask counts as lost


class FakeMachine:
    """Does what it is told and remembers it; the test says how it ends."""

    def __init__(self) -> None:
        self.ready = True
        self.told: list[str] = []
        self.ended: Exit | None = None
        self.stopped_by = ""  # QEMU stopped the guest by itself

    def poll(self) -> Exit | None:
        return self.ended

    def power_down(self) -> None:
        self.told.append("power_down")

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")
        self.stopped_by = ""

    def kill(self) -> None:
        self.told.append("kill")


@dataclass
class FakeMachines:
    layout: Layout
    started: list[FakeMachine] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    broken: str = ""
    free: int = 1 << 40
    notes: list[str] = field(default_factory=list)

    def prepare(self, instance: Any) -> str:
        folder = self.layout.instance(instance.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "disk.raw").write_bytes(instance.id.encode())
        return str(instance.id)

    def power_on(self, prepared: str) -> FakeMachine:
        if self.broken:
            raise RuntimeError(self.broken)
        self.started.append(FakeMachine())
        return self.started[-1]

    def folder(self, instance_id: str) -> Path:
        return self.layout.instance(instance_id)

    def free_space(self, instance_id: str) -> int:
        return self.free

    def note(self, instance_id: str, text: str) -> None:
        self.notes.append(text)

    def discard(self, instance_id: str) -> None:
        self.discarded.append(instance_id)


def at_once(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """Everything of a region but the daemon and QEMU. `settle` is the daemon's loop, a few times round."""

    def __init__(self, home: Path, conditions: str = "") -> None:
        from localregion.api.conditions import Decisions, load
        from localregion.backends.ec2 import Ec2
        from localregion.images.store import ImageStore
        from localregion.machines.reconcile import Reconciler

        self.layout = Layout(home)
        self.layout.make()
        self.clock = Clock()
        self.ec2 = Ec2(CIDR)
        quiet = Progress("quiet")
        self.images = ImageStore(self.layout, self.ec2, at_once, lambda: None, quiet)
        self.machines = FakeMachines(self.layout)
        self.decisions = Decisions(load(conditions))
        self.rules = self.decisions.conditions.security_groups
        self.ec2.set_group_rules(self.rules, SSH_PORT)
        delays, failure = self.decisions.conditions.delays, self.decisions.launch_failure
        self.reconciler = Reconciler(
            self.ec2,
            self.machines,
            self.images,
            at_once,
            lambda: None,
            progress=quiet,
            clock=self.clock,
            delays=delays,
            launch_failure=failure,
        )
        self.images.register(base_image(self.layout))
        self.images.register_saved()

    systems_manager: Any = None  # of `served`
    container_service: Any = None  # the same
    later: float = 0.0  # seconds by which Systems Manager's clock is ahead
    packages: Mapping[str, Mapping[str, str]] = {}

    def settle(self, rounds: int = 4) -> None:
        for _ in range(rounds):
            self.reconciler.absorb()
            self.reconciler.step()

    @property
    def machine(self) -> FakeMachine:
        return self.machines.started[-1]

    def launch(self, **changes: Any) -> Any:
        """An instance as RunInstances makes it; absorbed, not yet running."""
        backend = self.ec2.backend
        if "k" not in backend.key_pairs:
            backend.import_key_pair("k", PUBLIC_KEY.encode(), {})
        asked: dict[str, Any] = {
            "instance_type": "g5.12xlarge",
            "is_instance_type_default": False,
            "region_name": "us-east-1",
            "subnet_id": self.ec2.subnet_id,
            "key_name": "k",
            "security_group_ids": [self.ec2.group_id],
            "tags": {"instance": {"Name": "one"}},
        }
        image = changes.pop("image_id", BASE_ID)
        user_data = changes.pop("user_data", None)
        instance = backend.run_instances(image, 1, user_data, [], **(asked | changes)).instances[0]
        self.reconciler.absorb()
        return instance


BASE_ID = "ami-0000000000000000b"


def base_image(layout: Layout) -> ImageRecord:
    disk = layout.home / "base.raw"
    disk.write_bytes(b"base")
    return ImageRecord(
        id=BASE_ID,
        name="debian-12-amd64-test",
        description="",
        owner_id="136693071363",
        architecture="x86_64",
        root_device_name="/dev/xvda",
        snapshot_id="snap-0000000000000000b",
        size_gib=8,
        creation_date="2026-11-01T00:00:00.000Z",
        public=True,
        disk=str(disk),
    )


@pytest.fixture
def empty_moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto's state is the process's: every test starts from none, and leaves none."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    from moto.backends import get_backend

    def reset() -> None:
        for service in ("ec2", "iam", "kms", "logs", "cloudwatch", "ssm", "ecs"):
            get_backend(service).reset()  # type: ignore[arg-type]

    reset()
    yield
    reset()


@pytest.fixture
def world(empty_moto: None, tmp_path: Path) -> World:
    return World(tmp_path / "home")


@pytest.fixture
def endpoint(world: World) -> Iterator[str]:
    with served(world) as url:
        yield url


@contextlib.contextmanager
def served(world: World, *, conditions: bool = False, hold_seconds: float = 0) -> Iterator[str]:
    """The API of `world` on a port; with its conditions, by the world's clock, where asked for.

    hold_seconds: of calls that describe what is changing; it changes in `settle` alone.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    from localregion.api import AccountLayer, Api, Authorization, ConditionsLayer, JsonLayer
    from localregion.backends import install
    from localregion.backends.container_service import ContainerService
    from localregion.backends.systems_manager import SystemsManager

    install(world.decisions.conditions.delays)
    world.systems_manager = SystemsManager(
        world.ec2, lambda: time.time() + world.later, SILENT_SECONDS, poll_seconds=0.2,
        packages=lambda name, _architecture: world.packages.get(name, {}),
    )  # fmt: skip
    world.container_service = ContainerService(
        world.ec2, lambda: time.time() + world.later, SILENT_SECONDS, poll_seconds=0.2, endpoint="http://region"
    )

    def answer(*words: Any) -> Any:  # looked up at each call: tests replace it
        return world.systems_manager.answer(*words)

    moto = JsonLayer(DomainDispatcherApplication(create_backend_app), SystemsManager.services, answer)
    moto = JsonLayer(moto, ContainerService.services, world.container_service.answer)
    judge = Authorization.of(world.decisions.conditions, world.ec2) if conditions else None
    api: Any = Api(moto, world.reconciler, world.images, world.layout, hold_seconds)
    api = AccountLayer(api, world.decisions.conditions.account, world.ec2, judge)
    if conditions:
        api = ConditionsLayer(api, world.decisions, world.clock, judge, world.ec2.zone_of)
    server = make_server("127.0.0.1", 0, api, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join()
    install()


Region = Callable[[str], tuple[World, str]]


@pytest.fixture
def region(empty_moto: None, tmp_path: Path) -> Iterator[Region]:
    """Starts a region under conditions; the world and its endpoint."""
    with contextlib.ExitStack() as stack:

        def up(conditions: str) -> tuple[World, str]:
            world = World(tmp_path / "home", conditions)
            return world, stack.enter_context(served(world, conditions=True))

        yield up
