"""The daemon's control socket: a line of JSON in, a line of JSON out.

{"do": "hold" | "keep" | "status" | "expect" | "stop"}; with "image" (an ImageRecord) and "parameter", that source AMI
is registered first. A "hold" lasts as long as its connection. "expect" says which image is launched soon ("launch").
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Annotated, NotRequired, Protocol, TypedDict

from gpu_ami.process import ProcessIdentity
from localregion.machines import short_path
from localregion.state import LIFELINE, ImageFields, ImageRecord, Layout

STATES = ("pending", "running", "shutting-down", "terminated", "stopping", "stopped")


class Request(TypedDict):
    """do: "hold", "keep", "status", "expect" or "stop". image: fields of an ImageRecord; parameter: an SSM parameter,
    or "". launch: the id of an AMI."""

    do: str
    image: NotRequired[ImageFields]
    parameter: NotRequired[str]
    launch: NotRequired[str]


class MirrorDescription(TypedDict):
    """Where a guest finds the package mirror, and the fingerprint of its key."""

    url: str
    key_fingerprint: str


class RegionDescription(TypedDict):
    """region.json: how a region that is up is reached, and what a launch needs. hypervisor: QEMU's version, or ""."""

    process: Annotated[dict[str, object], ProcessIdentity]
    endpoint: str
    guest_endpoint: str
    mirror: MirrorDescription | None
    region: str
    network: str
    subnet_id: str
    security_group_ids: list[str]
    instance_profile: str
    ssh_port: int
    conditions: str
    hypervisor: str


class InstanceStatus(TypedDict):
    """One instance of the region. problem: why its machine is paused or failed, or ""."""

    id: str
    state: Annotated[str, STATES]
    type: str
    image: str
    address: str
    tags: dict[str, str]
    problem: str


class RegionStatus(TypedDict):
    """persistent: until `region down`; holds: who uses the region. refused: calls by their error, under conditions."""

    persistent: bool
    holds: list[str]
    instances: list[InstanceStatus]
    refused: dict[str, int]


class Answer(RegionDescription):
    """What the daemon answers: the status, or to "hold" the hold's name."""

    persistent: NotRequired[bool]
    holds: NotRequired[list[str]]
    instances: NotRequired[list[InstanceStatus]]
    refused: NotRequired[dict[str, int]]
    hold: NotRequired[str]


def connect(layout: Layout) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    try:
        with short_path(layout.control) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return connection


def exchange(connection: socket.socket, request: Request) -> Answer | None:
    """The daemon's answer; None if the connection ends before it."""
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
    answer: Answer = json.loads(received)
    return answer if isinstance(answer, dict) else None


def ask(layout: Layout, request: Request) -> Answer | None:
    """The daemon's answer; None if no daemon answers."""
    connection = connect(layout)
    if connection is None:
        return None
    with connection:
        return exchange(connection, request)


class Holders:
    """Who holds the region: callers with a connection or the lifeline pipe, and `region up` until `region down`."""

    def __init__(self, persistent: bool, end: Callable[[], None]) -> None:
        self.persistent = persistent
        self._end = end
        self._names: set[str] = set()
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._names)

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Holds the region during the block; the last holder to leave ends it."""
        with self._lock:
            self._names.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._names.discard(name)
                if not self._names and not self.persistent:
                    self._end()

    def watch_pipe(self, lifeline: int) -> None:
        """Holds the region until the pipe's writer has ended, also by SIGKILL."""
        with self.held(LIFELINE), os.fdopen(lifeline, "rb") as pipe:
            pipe.read()


class ControlledDaemon(Protocol):
    """What the socket's requests act on (localregion.server.Daemon)."""

    layout: Layout
    holders: Holders

    def describe(self) -> RegionDescription: ...
    def status(self) -> RegionStatus: ...
    def end(self) -> None: ...
    def register_source_ami(self, record: ImageRecord, parameter: str) -> None: ...
    def expect_launch(self, image_id: str) -> None: ...


class Control:
    """Serves the control socket of a daemon."""

    def __init__(self, daemon: ControlledDaemon) -> None:
        self._daemon = daemon
        self._path = daemon.layout.control
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self._path) as name:
            self._socket.bind(name)
        self._path.chmod(0o600)
        self._socket.listen(16)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the region ends
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as stream, contextlib.suppress(OSError, ValueError):
            request: Request = json.loads(stream.readline())
            if image := request.get("image"):
                self._daemon.register_source_ami(ImageRecord(**image), request.get("parameter", ""))
            if request["do"] == "hold":
                name = uuid.uuid4().hex
                with self._daemon.holders.held(name):
                    self._answer(stream, {**self._daemon.describe(), "hold": name})
                    stream.read()  # until the caller has ended
                return
            if request["do"] == "keep":
                self._daemon.holders.persistent = True
            elif request["do"] == "expect":
                self._daemon.expect_launch(request.get("launch", ""))
            elif request["do"] == "stop":
                self._daemon.end()
            self._answer(stream, {**self._daemon.describe(), **self._daemon.status()})

    @staticmethod
    def _answer(stream: IO[str], answer: Mapping[str, object]) -> None:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()
