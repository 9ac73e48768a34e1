"""A sandbox: a base image's tree, copy-on-write, in namespaces of its own, with sshd on a port of the host's loopback.

    with sandbox.entered(Base("debian12"), Devices(gpu=8), home, progress) as box:
        ...                                     # ssh -i box.key -p box.port box.user@box.host

Roles can be tested in it at native speed, several at a time: packages install, modules build against the base image's
kernel headers, units are enabled. It is not a machine: it has no kernel of its own, no systemd (`systemctl start` does
nothing, as in any chroot), devices are plain files. Its programs run in a cage
(validator/transport/cage.py). `localregion/sandbox/sandbox_init.py` is what happens inside.

What a role writes is lost when the sandbox ends: it is in a tmpfs of the sandbox's mount namespace. When the process
that holds a sandbox ends, also by SIGKILL, the kernel ends every process in it.

Builds a driver's module on the kernel of the plan's base image, in a sandbox: `gpu-ami sources --build`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from gpu_ami.errors import BuildError, CloudError, GpuAmiError, UsageError, end_as_by_ctrl_c
from gpu_ami.files import home_dir, read_json, write_json
from gpu_ami.process import ChildProcess, ProcessIdentity, find_tool, identify, run, spawn, stop
from gpu_ami.progress import Progress
from localregion.architectures import DEFAULT
from localregion.images import Base, Tree, require_root, rootfs_layers
from localregion.machines import Devices, devices_of
from localregion.mirror import debian_archive
from localregion.sandbox import sandbox_init
from validator.plan_document import NvidiaDriver, section
from validator.transport import cage

if TYPE_CHECKING:
    from gpu_ami.plan import Plan


_PROCESS = "process.json"
_EMPTY = "init"  # in the folder: where process 1 mounts its root


@dataclass(frozen=True)
class Sandbox:
    """How to log in. key: path of the private key; mirror: URL of the package mirror inside the sandbox, or None.

    root: where root of the host sees the files, as long as the sandbox runs.
    """

    host: str
    port: int
    user: str
    key: str
    kernel: str
    mirror: str | None
    root: str


@contextlib.contextmanager
def entered(base: Base, devices: Devices, home: Path, progress: Progress) -> Iterator[Sandbox]:
    """A sandbox for the length of the block. UsageError: not root; CloudError: it did not start, with the reason."""
    require_root("a sandbox")
    tree = rootfs_layers.ensure(base, home, progress)
    with progress.stage(f"sandbox of {base.name}"), contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(home / "sandboxes"))
        sandbox = stack.enter_context(_started(tree, devices, home, folder, base.architecture))
        left = stack.pop_all()
    with left:
        yield sandbox


@contextlib.contextmanager
def _folder(sandboxes: Path) -> Iterator[Path]:
    """The sandbox's folder during the block; folders of processes that were killed are removed."""
    sandboxes.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sandboxes.iterdir():
        owner = ProcessIdentity.from_json((read_json(old / _PROCESS) or {}).get("process"))
        if owner and not owner.alive():
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=sandboxes) as name:
        folder = Path(name)
        me = identify(os.getpid())
        assert me
        write_json(folder / _PROCESS, {"process": asdict(me)}, mode=0o600)
        yield folder


@contextlib.contextmanager
def _started(tree: Tree, devices: Devices, home: Path, folder: Path, architecture: str = DEFAULT) -> Iterator[Sandbox]:
    key = folder / "id_ed25519"
    keygen = find_tool("ssh-keygen", package="openssh-client")
    run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", key], timeout=30, error=CloudError)
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("wb") as log:
        port = int(listener.getsockname()[1])
        public_key = key.with_suffix(".pub").read_text().strip()
        settings: dict[str, object] = {"home": str(home), "public_key": public_key, "architecture": architecture}
        settings |= {"layers": [str(layer) for layer in tree.layers], "devices": asdict(devices)}
        process, report_read = start(folder, settings, listener, log.fileno())
    try:
        with os.fdopen(report_read) as report:
            started = read_report(report.readline(), folder / "log")
        root = f"/proc/{process.pid}/root{folder}/root"  # of the sandbox's own mount namespace
        yield Sandbox("127.0.0.1", port, started["user"], str(key), tree.kernel(), started["mirror"], root)
    finally:
        stop(process)


def start(
    folder: Path, settings: Mapping[str, object], listener: socket.socket, output: int, kept: Sequence[int] = ()
) -> tuple[ChildProcess, int]:
    """Starts a sandbox, which lives no longer than this thread; its reader of `read_report`'s line.

    settings: those of sandbox_init without folder and descriptors. output: fd for what it prints. kept: descriptors
    that stay open until its root is mounted.
    """
    settings_of_the_host = json.dumps(sandbox_init.read_settings("/proc/sys/net"))
    (folder / sandbox_init.OF_THE_HOST).write_text(settings_of_the_host, encoding="ascii")
    report_read, report_write = os.pipe()
    ours, packages = socket.socketpair()
    archives = Path(str(settings["home"])) / "mirror" / debian_archive.FOLDER
    threading.Thread(target=debian_archive.serve, args=(ours, archives), name="packages", daemon=True).start()
    try:
        passed = {**settings, "folder": str(folder), "listener": listener.fileno(), "report": report_write}
        passed["packages"] = packages.fileno()
        passed["kept"] = list(kept)
        builder = [sys.executable, "-P", "-m", "localregion.sandbox.sandbox_init", json.dumps(passed)]
        (folder / _EMPTY).mkdir(exist_ok=True)
        process = spawn(
            [*_namespaces(), *cage.command("init", folder / _EMPTY, builder)],
            env={"PYTHONPATH": os.pathsep.join(filter(None, [_package_root(), os.environ.get("PYTHONPATH", "")]))},
            stdout=output,
            death_signal=signal.SIGKILL,
            pass_fds=[listener.fileno(), report_write, packages.fileno(), *kept],
        )
    except BaseException:
        os.close(report_read)
        raise
    finally:
        os.close(report_write)
        packages.close()
    return process, report_read


def _namespaces() -> list[str]:
    # The sandbox ends with unshare: the kernel kills process 1 (--kill-child), and with it every process inside.
    kinds = ["--mount", "--pid", "--net", "--uts", "--ipc"]
    return [find_tool("unshare", package="util-linux"), *kinds, "--fork", "--kill-child=SIGKILL"]


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[2])


class Started(TypedDict):
    """What the builder reports: the login user, and the URL of the package mirror if there is one."""

    user: str
    mirror: str | None


def read_report(line: str, log: Path) -> Started:
    """The first line of the builder. CloudError: its reason, or the log's end if it printed nothing."""
    report = json.loads(line) if line else {"error": "exited without output"}
    if "error" in report:
        tail = log.read_text(errors="replace").splitlines()[-5:]
        raise CloudError(f"the sandbox did not start: {report['error']}", details=[*report.get("details", ()), *tail])
    return {"user": str(report["user"]), "mirror": report["mirror"]}


def main(arguments: Sequence[str]) -> int:
    """`python -m localregion.sandbox debian12`: prints host, port, user and key as JSON, and ends with Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m localregion.sandbox", description=main.__doc__)
    parser.add_argument("base", metavar="BASE", help="debian12, al2023, al2023-arm64, al2023+eks-1.33, …")
    parser.add_argument("--devices", default="", metavar="LIST", help="device nodes: gpu=8,nvswitch=6,efa=4,neuron=0")
    parser.add_argument("--instance-type", metavar="TYPE", help="device nodes of that type, as the facts have it")
    parser.add_argument("--home", type=Path, help="state directory (default: gpu-ami's)")
    args = parser.parse_args(arguments)
    end_as_by_ctrl_c()
    try:
        home = (args.home or home_dir()).resolve()
        devices = devices_of(args.instance_type) if args.instance_type else Devices.parse(args.devices)
        with entered(Base.parse(args.base), devices, home, Progress("plain")) as sandbox:
            print(json.dumps(asdict(sandbox)), file=sys.stdout, flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 130
    except GpuAmiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


_ROLES = ("kernel", "nvidia_driver")
_ERROR = re.compile(r"error: (.+)")


def require_buildable(plan: Plan) -> None:
    """UsageError where the local region has no real packages of the driver, or we are not root."""
    from localregion.images import rootfs_layers

    driver = section(plan.document, "nvidia_driver", NvidiaDriver)
    if not driver or "provided_by" in driver:
        raise UsageError(
            f"{plan.image}: --build tries the NVIDIA driver that a plan installs, and this plan installs none"
        )
    if driver.get("source") != "distribution":
        raise UsageError(
            f"{plan.image}: --build has real packages of the system's own archive alone, and this driver is NVIDIA's",
            hint="`nvidia_driver: {source: distribution}`; for NVIDIA's own packages the local region has replicas, "
            "whose build says nothing of the driver's",
        )
    rootfs_layers.require_root("sources --build")


def try_build(plan: Plan, progress: Progress) -> dict[str, Any]:
    """A row of `builds` in variables/facts/distribution_drivers.yml: what DKMS makes of the planned module."""
    from gpu_ami.build import Machine, converge
    from gpu_ami.files import data_root, home_dir
    from gpu_ami.plan import ANSIBLE_FILE, ansible_variables
    from localregion.images import source_ami
    from localregion.machines import Devices
    from localregion.mirror import mirror
    from localregion.sandbox import sandbox

    home, base = home_dir(), source_ami.base_of(plan.document)
    mirror.ensure(home, plan=plan.document, agent_package=None, progress=progress)
    with tempfile.TemporaryDirectory() as name, sandbox.entered(base, Devices(), home, progress) as box:
        variables = Path(name) / ANSIBLE_FILE
        variables.write_text(json.dumps(ansible_variables(plan.document)), encoding="utf-8")
        machine = Machine(box.host, box.port, box.user, Path(box.key), slow_python=True)
        error = ""
        try:
            with progress.stage(f"build the kernel module of {plan.image} on {box.kernel}"):
                converge(data_root(), variables, machine, roles=_ROLES, note=progress.note)
        except BuildError as failed:
            error = module_error(Path(box.root))
            if not error:  # something other than the module's build
                raise failed
    return build_row(plan, box.kernel, base.name, error)


def build_row(plan: Plan, kernel: str, base: str, error: str) -> dict[str, Any]:
    """The row as rule module_builds_on_kernel reads it."""
    driver = section(plan.document, "nvidia_driver", NvidiaDriver)
    row: dict[str, Any] = {"kernel": kernel, "driver": driver["version"], "flavour": driver["flavour"]}
    row |= {"builds": not error} | ({"error": error} if error else {})
    source = f"DKMS on {kernel} in a sandbox of {base} (gpu-ami sources --build)"
    return row | {"source": source, "date": datetime.date.today().isoformat()}


def module_error(root: Path) -> str:
    """The compiler's first error in DKMS's newest log below `root`; empty where nothing was built or nothing failed."""
    logs = sorted(root.glob("var/lib/dkms/*/*/build/make.log"), key=lambda path: path.stat().st_mtime)
    for log in reversed(logs):
        found = _ERROR.search(log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1].strip()
    return ""
