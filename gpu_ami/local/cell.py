"""A cell: a base image's tree, copy-on-write, in namespaces of its own, with sshd on a port of the host's loopback.

    with cell.entered(Base("debian12"), Devices(gpu=8), home, progress) as one:
        ...                                     # ssh -i one.key -p one.port one.user@one.host

It is a place to try a role at native speed, many at a time: packages install, modules build against the base's own
kernel headers, units are enabled. It is no machine: no kernel of its own, no systemd (`systemctl start` does nothing,
as in any chroot), devices are plain files. `gpu_ami/local/cell_room.py` is what happens inside.

Whatever a role writes is gone with the cell: it lies in memory that only the cell's mount namespace knows. When the
process that holds a cell ends, by whatever means, the kernel ends every process in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.home import home_dir
from gpu_ami.local import trees
from gpu_ami.local.devices import Devices, devices_of
from gpu_ami.local.state import ProcessIdentity, identify, read_json, write_json
from gpu_ami.local.trees import Base, Tree, require_root
from gpu_ami.log import Progress
from gpu_ami.run import find_tool, run, spawn, stop

_PROCESS = "process.json"


@dataclass(frozen=True)
class Cell:
    """How one gets in. key: path of the private key; mirror: the package mirror as the cell sees it, or None."""

    host: str
    port: int
    user: str
    key: str
    kernel: str
    mirror: str | None


@contextlib.contextmanager
def entered(base: Base, devices: Devices, home: Path, progress: Progress) -> Iterator[Cell]:
    """A cell for the length of the block. UsageError: not root; CloudError: it did not come up, with the reason."""
    require_root("a cell")
    tree = trees.ensure(base, home, progress)
    with progress.stage(f"cell of {base.name}"), contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder(home / "cells"))
        cell = stack.enter_context(_started(tree, devices, home, folder))
        left = stack.pop_all()
    with left:
        yield cell


@contextlib.contextmanager
def _folder(cells: Path) -> Iterator[Path]:
    """The cell's folder, for as long as we live; those of processes that were killed are removed."""
    cells.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in cells.iterdir():
        owner = ProcessIdentity.from_json((read_json(old / _PROCESS) or {}).get("process"))
        if owner and not owner.alive():
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cells) as name:
        folder = Path(name)
        me = identify(os.getpid())
        assert me
        write_json(folder / _PROCESS, {"process": asdict(me)})
        yield folder


@contextlib.contextmanager
def _started(tree: Tree, devices: Devices, home: Path, folder: Path) -> Iterator[Cell]:
    key = folder / "id_ed25519"
    keygen = find_tool("ssh-keygen", package="openssh-client")
    run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", "cell", "-f", key], timeout=30, error=CloudError)
    said_read, said_write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = int(door.getsockname()[1])
        settings = {
            "folder": str(folder),
            "layers": [str(layer) for layer in tree.layers],
            "kernel": tree.kernel(),
            "home": str(home),
            "devices": asdict(devices),
            "public_key": key.with_suffix(".pub").read_text().strip(),
            "door": door.fileno(),
            "said": said_write,
        }
        with (folder / "log").open("wb") as log:
            process = spawn(
                [*_namespaces(), sys.executable, "-m", "gpu_ami.local.cell_room", json.dumps(settings)],
                env={"PYTHONPATH": os.pathsep.join(filter(None, [_package_root(), os.environ.get("PYTHONPATH", "")]))},
                stdout=log.fileno(),
                death_signal=signal.SIGKILL,
                pass_fds=[door.fileno(), said_write],
            )
    os.close(said_write)
    try:
        with os.fdopen(said_read) as said:
            answer = _answer(said.readline(), folder / "log")
        yield Cell("127.0.0.1", port, answer["user"], str(key), tree.kernel(), answer["mirror"])
    finally:
        stop(process)


def _namespaces() -> list[str]:
    # Everything of a cell hangs on unshare: with it goes the room (--kill-child), and with the room the namespaces.
    kinds = ["--mount", "--pid", "--net", "--uts", "--ipc"]
    return [find_tool("unshare", package="util-linux"), *kinds, "--fork", "--kill-child=SIGKILL"]


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[2])


def _answer(line: str, log: Path) -> Mapping[str, Any]:
    """The room's first line; CloudError with its reason, or with the log's end if it says nothing."""
    answer = json.loads(line) if line else {"error": "it ended without a word"}
    if "error" in answer:
        tail = log.read_text(errors="replace").splitlines()[-5:]
        raise CloudError(f"the cell did not come up: {answer['error']}", details=[*answer.get("details", ()), *tail])
    return dict(answer)


def main(arguments: Sequence[str]) -> int:
    """`python -m gpu_ami.local.cell debian12`: prints how to get in, as JSON, and holds the cell till Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m gpu_ami.local.cell", description=main.__doc__)
    parser.add_argument("base", metavar="BASE", help="debian12, al2023, ubuntu2404, al2023+eks-1.33, …")
    parser.add_argument("--devices", default="", metavar="LIST", help="device nodes: gpu=8,nvswitch=6,efa=4,neuron=0")
    parser.add_argument("--instance-type", metavar="TYPE", help="device nodes of that type, as the facts have it")
    parser.add_argument("--home", type=Path, help="state directory (default: gpu-ami's)")
    args = parser.parse_args(arguments)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)
    try:
        home = (args.home or home_dir()).resolve()
        devices = devices_of(args.instance_type) if args.instance_type else Devices.parse(args.devices)
        with entered(Base.parse(args.base), devices, home, Progress("plain")) as cell:
            print(json.dumps(asdict(cell)), file=sys.stdout, flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 130
    except GpuAmiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
