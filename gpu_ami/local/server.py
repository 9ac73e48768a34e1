"""The local region's daemon: `python -m gpu_ami.local.server SETTINGS` (JSON; started by gpu_ami.local.region).

Its main thread owns the machines: the kernel ends a QEMU process with the thread that started it, so nothing survives
a daemon that was killed. Other threads serve the API, the instances' metadata, the mirror and the control socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpu_ami.errors import GpuAmiError
from gpu_ami.local import leftovers
from gpu_ami.local.network import claim_network
from gpu_ami.local.qemu import API_ADDRESS, MIRROR_ADDRESS, short_path
from gpu_ami.local.state import LIFELINE, ImageRecord, Layout, identify, write_json
from gpu_ami.log import Progress


@dataclass(frozen=True)
class Settings:
    """What `region.up` passes. lifeline: read end of a pipe whose writer is the caller; status: where to report."""

    home: str
    persistent: bool
    lifeline: int | None
    status: int


class Holders:
    """Who wants the region to be up: callers that hold a connection (or the lifeline), and `region up` for good."""

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
        """Counts as a holder for the length of the block; the last one to leave ends the region."""
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
        """Holds till the pipe's writer is gone, by whatever means."""
        with self.held(LIFELINE), os.fdopen(lifeline, "rb") as pipe:
            pipe.read()


class Daemon:
    """Everything that runs; `run` returns when the region goes down."""

    def __init__(self, settings: Settings) -> None:
        os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # only images that have a disk
        from gpu_ami.local.ec2 import Ec2
        from gpu_ami.local.images import ImageStore
        from gpu_ami.local.reconcile import Reconciler

        self.settings = settings
        self.layout = Layout(Path(settings.home))
        self.stop = threading.Event()
        self.holders = Holders(settings.persistent, self.end)
        self.progress = Progress("plain", sys.stderr)
        self._awake = threading.Event()
        workers = ThreadPoolExecutor(4, thread_name_prefix="disk")
        self.network = claim_network()
        self.ec2 = Ec2(self.network.cidr)
        self.images = ImageStore(self.layout, self.ec2, workers.submit, self.wake, self.progress)
        self.images.register_saved()
        self.mirror = _serve_mirror(self.layout.home)
        self._api = self._make_server()
        self.rooms = self._make_rooms()
        self.reconciler = Reconciler(self.ec2, self.rooms, self.images, workers.submit, self.wake, self.progress)

    def wake(self) -> None:
        self._awake.set()

    def end(self, *_signal: object) -> None:
        self.stop.set()
        self.wake()

    def _make_rooms(self) -> Any:
        from gpu_ami.local.machines import MachineRoom

        ports = (self.network.ssh_port, self._api.port, self.mirror[0] if self.mirror else None)
        return MachineRoom(self.layout, self.ec2, self.images.disk_of, self.wake, ports)

    def _make_server(self) -> Any:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        from gpu_ami.local.cloudwatch import install

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        install()
        moto = DomainDispatcherApplication(create_backend_app)

        def application(environ: dict[str, Any], start_response: Any) -> Any:
            return self.api(environ, start_response)

        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
        self._moto = moto
        return server

    def run(self, ready: IO[str]) -> None:
        """Serves till `stop` is set; then nothing of the region is left."""
        from gpu_ami.local.api import Api

        self.api = Api(self._moto, self.reconciler, self.images, self.layout)
        threading.Thread(target=self._api.serve_forever, name="api", daemon=True).start()
        if self.settings.lifeline is not None:
            threading.Thread(target=self.holders.watch_pipe, args=(self.settings.lifeline,), daemon=True).start()
        control = Control(self)
        write_json(self.layout.region_file, self.describe())
        try:
            print("ready", file=ready, flush=True)
            ready.close()
            self._loop()
        finally:
            self.layout.region_file.unlink(missing_ok=True)
            control.close()
            self.reconciler.stop_all()
            self._api.shutdown()
            leftovers.clear_instances(self.layout)
            self.progress.note("the region is down")

    def _loop(self) -> None:
        while not self.stop.is_set():
            self._awake.wait(1.0)
            self._awake.clear()
            self.reconciler.absorb()
            self.reconciler.step()
            self.rooms.cap_consoles()

    def describe(self) -> dict[str, Any]:
        """What region.json says: how the region is reached, and what an instance needs there."""
        me = identify(os.getpid())
        assert me
        return {
            "process": {"pid": me.pid, "started": me.started},
            "endpoint": f"http://127.0.0.1:{self._api.port}",
            "guest_endpoint": f"http://{API_ADDRESS}",
            "mirror": {"url": f"http://{MIRROR_ADDRESS}", "key_fingerprint": self.mirror[1]} if self.mirror else None,
            "region": self.ec2.backend.region_name,
            "network": self.network.cidr,
            "subnet_id": self.ec2.subnet_id,
            "security_group_ids": [self.ec2.group_id],
            "instance_profile": self.ec2.profile,
            "ssh_port": self.network.ssh_port,
        }

    def status(self) -> dict[str, Any]:
        with self.reconciler.lock:
            instances = [
                {
                    "id": unit.id,
                    "state": unit.shown,
                    "type": unit.instance.instance_type,
                    "image": unit.instance.image_id,
                    "address": unit.instance.private_ip,
                    "tags": self.ec2.tags(unit.id),
                }
                for unit in self.reconciler.units.values()
            ]
        return {"persistent": self.holders.persistent, "holds": self.holders.names, "instances": instances}


def _serve_mirror(home: Path) -> tuple[int, str] | None:
    from importlib.util import find_spec

    if find_spec("gpu_ami.local.mirror") is None:
        return None
    from gpu_ami.local import mirror

    port, fingerprint = mirror.serve(home)
    return int(port), str(fingerprint)


class Control:
    """The control socket: a line of JSON in, a line of JSON out. {"do": "hold" | "keep" | "status" | "stop"}; with
    "image" (an ImageRecord) and "parameter", the region has that source AMI from then on."""

    def __init__(self, daemon: Daemon) -> None:
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
        with contextlib.suppress(OSError):  # closed: the region goes down
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as stream, contextlib.suppress(OSError, ValueError):
            request = json.loads(stream.readline())
            self._introduce(request.get("image"), request.get("parameter"))
            if request["do"] == "hold":
                name = uuid.uuid4().hex
                with self._daemon.holders.held(name):
                    self._say(stream, self._daemon.describe() | {"hold": name})
                    stream.read()  # till the caller is gone
                return
            if request["do"] == "keep":
                self._daemon.holders.persistent = True
            elif request["do"] == "stop":
                self._daemon.end()
            self._say(stream, self._daemon.describe() | self._daemon.status())

    def _introduce(self, image: dict[str, Any] | None, parameter: str | None) -> None:
        """A caller that needs a source AMI brings it along, and the SSM parameter by which it is found."""
        if image:
            record = ImageRecord(**image)
            with self._daemon.reconciler.lock:
                self._daemon.images.register(record)
                if parameter:
                    self._daemon.ec2.point_parameter(parameter, record.id)

    @staticmethod
    def _say(stream: IO[str], answer: dict[str, Any]) -> None:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()


def main(argv: list[str]) -> int:
    """Runs the daemon; errors go to the status pipe, one line of JSON."""
    settings = Settings(**json.loads(argv[1]))
    layout = Layout(Path(settings.home))
    layout.make()
    with os.fdopen(settings.status, "w") as status, layout.lock.open("a") as lock:
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("busy", file=status, flush=True)
                return 0
            leftovers.clear(layout)
            daemon = Daemon(settings)
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, daemon.end)
            daemon.run(status)
        except GpuAmiError as error:
            print(json.dumps({"message": error.message, "hint": error.hint, "details": error.details}), file=status)
            return error.exit_code
        except Exception as error:  # the caller must hear of it; the traceback is in the log
            if not status.closed:
                said = {"message": f"{type(error).__name__}: {error}", "hint": f"see {layout.log}"}
                print(json.dumps(said), file=status)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
