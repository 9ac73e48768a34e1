"""Programs that are sent to a host and run there. shellcheck and ruff check them.

batch_shell          the loop of the batching shell (transport/shell.py)
kill_marked          kills everything that a batching shell has started
run_while_open       runs a command until the end of its standard input (transport/ssh.py)
host_constants       commands whose answers do not change during a run (transport/shell.py)
enter_image          mounts an image's files and changes root into them (transport/image_files.py)
bug_report           NVIDIA's bug report, with a time and a size limit (evidence.py)
replica_packages     packages that replace the vendors' (evidence.py)
replica_builds       replica kernel modules and libraries without a package (evidence.py)
unpackaged           files that no package owns (probes/unpackaged.py)
image_inodes         the inodes of an image's directories, and their last change (evidence.py)
changed_since        what has changed on a machine since its image (probes/since_image.py)
verify_partly        dpkg --verify without some directories (probes/packages.py)
inventory            lists every file, package and account (file_account/, playbooks/image.yml; Python 3.6 or newer)
initial_ramdisk      lists the files of initial ramdisks (file_account/; Python 3.6 or newer)
system_upgrade       simulates an upgrade of the whole system (probes/system_upgrade.py; Python 3.6 or newer)
materials            packages with their sources, and kernel modules (evidence.py; Python 3.6 or newer)
diagnose             gpu-ami-diagnose: GPUs, events, monitor, EFA (evidence.py, roles/event_parser; Python 3.7 or newer)
telemetry_attachment puts telemetry on a machine, and takes it back (gpu_ami/fleet; Python 3.7 or newer)
interruption_drill   plays notices to the drain hook (checks/drain_hook.py; Python 3.7 or newer)
readings             one value of a tool: known, absent or unknown; a link to the event parser's module (diagnose)
support_bundle       what AWS Support asks for; table of files (evidence.py, roles/event_parser)
container_probe      starts containers with GPUs (probes/containers.py; Python 3.6 or newer)
compute_probe        computes on every GPU and compares every result (probes/compute.py; Python 3.6 or newer)
mpi_allreduce        one rank of an Open MPI job (checks/several_nodes.py; Python 3.6 or newer)
tcp_exchange         connections between nodes (checks/several_nodes.py; Python 3.6 or newer)
provoke_xid          causes a fault of one process on one GPU (Python 3.6 or newer)
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path


@functools.cache
def text(name: str) -> str:
    """The shell program NAME.sh as it is sent, without comment lines and indentation."""
    lines = (line.strip() for line in Path(__file__).with_name(f"{name}.sh").read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


# Programs that import a module of the event parser, which a host without it does not have.
_NEEDS = {"diagnose": ("readings",)}
# Programs that start another one, whose text they have as a constant.
_STARTS = {"container_probe": "compute_probe"}


def source(name: str) -> str:
    """The program NAME.py, for a node that keeps it as a file while it is needed."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def python(name: str, *arguments: str) -> str:
    """The program NAME.py as a command: the host's own python3 reads it from standard input, with its modules."""
    program = "".join(_module(needed) for needed in _NEEDS.get(name, ()))
    if started := _STARTS.get(name):
        program += f"{started.upper()} = {source(started)!r}\n"
    program += Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return f"python3 -IS - {shlex.join(arguments)} <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM"


def _module(name: str) -> str:
    """Lines that make hwevents.NAME importable."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (
        "import sys, types\n"
        "hwevents = sys.modules.setdefault('hwevents', types.ModuleType('hwevents'))\n"
        f"hwevents.{name} = sys.modules['hwevents.{name}'] = types.ModuleType('hwevents.{name}')\n"
        f"exec(compile({source!r}, '{name}.py', 'exec'), hwevents.{name}.__dict__)\n"
    )


def with_arguments(name: str, *arguments: str) -> str:
    """The shell program NAME.sh with its positional parameters set."""
    return f"set -- {shlex.join(arguments)}\n{text(name)}"
