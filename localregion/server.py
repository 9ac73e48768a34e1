"""The local region's daemon: `python -m localregion.server SETTINGS` (JSON; started by localregion.region).

Its main thread owns the machines: the kernel ends a QEMU process with the thread that started it, so nothing survives
a daemon that was killed. Other threads serve the API, the instances' metadata, the mirror and the control socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from wsgiref.types import StartResponse, WSGIEnvironment

from botocore.loaders import JSONFileLoader

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import read_json, write_json
from gpu_ami.process import identify
from gpu_ami.progress import Progress
from localregion import state
from localregion.architectures import ARCHITECTURES
from localregion.control import Control, Holders, InstanceStatus, RegionDescription, RegionStatus
from localregion.loopback import API_ADDRESS, CLUSTER_ADDRESS, MIRROR_ADDRESS, claim_network
from localregion.machines import qemu_version
from localregion.state import FROM_BASE, FROM_LAYER, ImageRecord, Layout

_END_POLL_SECONDS = 0.05  # the API's server looks so often whether the region ends


@dataclass(frozen=True)
class Settings:
    """What `region.up` passes. lifeline: read end of a pipe whose writer is the caller; status: where to report;
    conditions: their name, "" for none; build: the caller is about to build an image, "from
    base" or "from layer"."""

    home: str
    persistent: bool
    lifeline: int | None
    status: int
    conditions: str = ""
    build: str = ""


class Daemon:
    """The region's parts; `run` returns when the region ends."""

    def __init__(self, settings: Settings) -> None:
        from localregion.images import ImageStore, SpareDisks

        self.layout = Layout(Path(settings.home))
        self._workers = workers = ThreadPoolExecutor(4, thread_name_prefix="disk")
        self.spares = SpareDisks(self.layout.spare, workers.submit)
        self._copy_last_source(settings.build)  # while moto is imported
        os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # only images that have a disk

        read_once()
        from localregion.api import conditions
        from localregion.backends import Ec2
        from localregion.machines import reconcile

        self.settings = settings
        self.decisions = conditions.Decisions(conditions.load(settings.conditions))
        self.stop = threading.Event()
        self.holders = Holders(settings.persistent, self.end)
        self.progress = Progress("plain", sys.stderr)
        self._awake = threading.Event()
        self.network = claim_network()
        self.ec2 = Ec2(self.network.cidr)
        self.images = ImageStore(self.layout, self.ec2, workers.submit, self.wake, self.progress)
        self.images.register_saved()
        self.mirror = _serve_mirror(self.layout.home)
        self._api = self._make_server()
        self.machines = self._make_machines()
        self.reconciler = reconcile.Reconciler(
            self.ec2, self.machines, self.images, workers.submit, self.wake, progress=self.progress,
            delays=self.decisions.conditions.delays, launch_failure=self.decisions.launch_failure,
        )  # fmt: skip

    def wake(self) -> None:
        self._awake.set()

    def end(self, *_signal: object) -> None:
        self.stop.set()
        self.wake()

    def _make_machines(self) -> Any:
        from localregion.machines import factory
        from localregion.sandbox import builder

        ports = (self.network.ssh_port, self._api.port, self.mirror[0] if self.mirror else None)
        rules = self.decisions.conditions.security_groups
        self.ec2.set_group_rules(rules, self.network.ssh_port)
        filtered = rules is not None
        sandboxes = None if filtered or builder.unusable() else builder.Sandboxes(self.layout.home)
        return factory.MachineFactory(
            self.layout, self.ec2, self.images.disk_of, self.wake, ports,
            filtered=filtered, sandboxes=sandboxes, spares=self.spares,
        )  # fmt: skip

    def _make_server(self) -> Any:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
        from werkzeug.serving import make_server

        from localregion import alarms
        from localregion.backends import install, service_application

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        install(self.decisions.conditions.delays, stacks=False)
        alarms.install()
        moto = DomainDispatcherApplication(service_application)

        def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            return self.api(environ, start_response)

        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
        self._moto = moto
        return server

    def run(self, ready: IO[str]) -> None:
        """Serves until `stop` is set, then removes every machine and disk of an instance."""
        from localregion import alarms
        from localregion.api import AccountLayer, Api, Authorization, ConditionsLayer, EksLayer, JsonLayer
        from localregion.backends import container_service
        from localregion.backends.systems_manager import SystemsManager

        systems_manager = SystemsManager(self.ec2, packages=functools.partial(distributed, self.layout.home))
        containers = container_service.ContainerService(self.ec2, endpoint=f"http://{API_ADDRESS}")
        moto = JsonLayer(self._moto, SystemsManager.services, systems_manager.answer)
        moto = JsonLayer(moto, container_service.ContainerService.services, containers.answer)
        judge = Authorization.of(self.decisions.conditions, self.ec2)
        api = AccountLayer(
            Api(moto, self.reconciler, self.images, self.layout), self.decisions.conditions.account, self.ec2, judge
        )
        layer = ConditionsLayer(api, self.decisions, authorization=judge, zone_of=self.ec2.zone_of)
        self.api = EksLayer(layer if self.settings.conditions else api, lambda: self.eks)
        serve = functools.partial(self._api.serve_forever, _END_POLL_SECONDS)
        threading.Thread(target=serve, name="api", daemon=True).start()
        threading.Thread(target=alarms.run, args=(self.stop,), name="alarms", daemon=True).start()
        if self.settings.lifeline is not None:
            threading.Thread(target=self.holders.watch_pipe, args=(self.settings.lifeline,), daemon=True).start()
        control = Control(self)
        write_json(self.layout.region_file, self.describe(), mode=0o600)
        try:
            print("ready", file=ready, flush=True)
            ready.close()
            self._loop()
        finally:
            self.layout.region_file.unlink(missing_ok=True)
            control.close()
            if "eks" in self.__dict__:
                self.eks.stop()
            self.reconciler.stop_all()
            self._api.shutdown()
            self.spares.end()
            self._workers.shutdown()  # nothing writes to files that are removed now
            state.clear_instances(self.layout)
            self.progress.note("the region is down")

    @functools.cached_property
    def eks(self) -> Any:
        """The EKS clusters; made at the first call that is theirs."""
        from localregion import eks

        known = eks.identities(self.ec2, {state.CALLER: state.CALLER})
        reach = eks.Reach(f"http://127.0.0.1:{self._api.port}", CLUSTER_ADDRESS, self.layout.cluster_port)
        folder, region = self.layout.clusters, self.ec2.backend.region_name
        return eks.Eks(self.layout.home, folder, region, reach, known, note=self.progress.note)

    def _loop(self) -> None:
        while not self.stop.is_set():
            self._awake.wait(1.0)
            self._awake.clear()
            self.reconciler.absorb()
            self.reconciler.step()
            self.machines.apply_security_groups()
            self.machines.cap_consoles()

    def describe(self) -> RegionDescription:
        """The content of region.json: how the region is reached, and what a launch needs."""
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
            "conditions": self.decisions.conditions.label,
            "hypervisor": qemu_version(),
        }

    def register_source_ami(self, record: ImageRecord, parameter: str) -> None:
        """Registers an AMI that a caller needs, and the SSM parameter that names it ("": none)."""
        with self.reconciler.lock:
            self.images.register(record)
            if parameter:
                self.ec2.point_parameter(parameter, record.id)

    def expect_launch(self, image_id: str) -> None:
        """Begins the copy of an image's disk that a caller is about to launch; an unknown image is its own error."""
        from gpu_ami.cloud import amis

        with contextlib.suppress(GpuAmiError), self.reconciler.lock:
            disk, record = self.images.disk_of(image_id)
            self.spares.begin(image_id, disk)
            build = FROM_LAYER if amis.TAG_LAYER in record.tags else FROM_BASE
            last = {**(read_json(self.layout.last_sources) or {}), build: {"image": image_id, "disk": str(disk)}}
            write_json(self.layout.last_sources, last)

    def _copy_last_source(self, build: str) -> None:
        """Begins the copy of what the last such build of this home started from: mostly, the next one does too."""
        last = (read_json(self.layout.last_sources) or {}).get(build) or {}
        image_id, disk = str(last.get("image", "")), Path(str(last.get("disk", "")))
        if image_id and disk.is_file():
            self.spares.guess(image_id, disk)

    def status(self) -> RegionStatus:
        """The instances, and who holds the region."""
        with self.reconciler.lock:
            instances: list[InstanceStatus] = [
                {
                    "id": unit.id,
                    "state": unit.shown,
                    "type": unit.instance.instance_type,
                    "image": unit.instance.image_id,
                    "address": unit.instance.private_ip,
                    "tags": self.ec2.tags(unit.id),
                    "problem": unit.problem,
                }
                for unit in self.reconciler.units.values()
            ]
        refused = self.decisions.refused()
        holders = {"persistent": self.holders.persistent, "holds": self.holders.names}
        return {**holders, "instances": instances, "refused": refused}  # type: ignore[typeddict-item]


def _serve_mirror(home: Path) -> tuple[int, str]:
    from localregion.mirror import mirror

    port, fingerprint = mirror.serve(home)
    return int(port), str(fingerprint)


def distributed(home: Path, name: str, architecture: str) -> dict[str, str]:
    """Where a guest finds a package of Distributor in the mirror: format → URL."""
    tree = home / "mirror" / "current"
    folder = f"amazoncloudwatch-agent.s3.amazonaws.com/*/{ARCHITECTURES[architecture].debian}/*"
    files = {"AmazonCloudWatchAgent": f"{folder}/amazon-cloudwatch-agent"}
    pattern = files.get(name, "")
    found = {kind: sorted(tree.glob(f"{pattern}.{kind}")) for kind in ("deb", "rpm")} if pattern else {}
    return {kind: f"http://{MIRROR_ADDRESS}/{paths[-1].relative_to(tree)}" for kind, paths in found.items() if paths}


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
            state.clear(layout)
            daemon = Daemon(settings)
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, daemon.end)
            daemon.run(status)
        except GpuAmiError as error:
            print(json.dumps({"message": error.message, "hint": error.hint, "details": error.details}), file=status)
            return error.exit_code
        except Exception as error:  # reported to the caller; the traceback is in the log
            if not status.closed:
                report = {"message": f"{type(error).__name__}: {error}", "hint": f"see {layout.log}"}
                print(json.dumps(report), file=status)
            raise
    return 0


_read = JSONFileLoader.load_file
read_files: dict[str, Any] = {}  # by path, without its suffix


def read_once() -> None:
    """Lets every session of this process share what has been read; to be called before moto is imported."""
    JSONFileLoader.load_file = _load_file  # type: ignore[method-assign]


def _load_file(self: JSONFileLoader, file_path: str) -> Any:
    if file_path not in read_files:
        content = _read(self, file_path)
        if content is None:  # no such file in this one of the loader's folders
            return None
        read_files[file_path] = content
    return read_files[file_path]


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stderr.flush()
    os._exit(code)  # the region is down: Python would take half a second to free what moto has loaded
