"""Programs that are sent to a host and run there, one a file, linted (shellcheck, ruff).

batch_shell          the loop of the batching shell (transport/shell.py)
kill_marked          ends everything that a batching shell has started
run_while_open       runs a command until the end of its standard input (transport/ssh.py)
host_constants       commands whose answers do not change during a run (transport/host_constants.py)
enter_image          mounts an image's files and changes root into them (transport/image_files.py)
bug_report           NVIDIA's bug report, bounded in time and size (evidence.py)
replica_packages     packages that stand in for the vendors' own (evidence.py)
replica_builds       kernel modules and libraries that do, and that no package lists (evidence.py)
unpackaged           files that no package owns (probes/unpackaged.py)
inventory            lists every file, package and account (file_account/, playbooks/image.yml; Python 3.6 or newer)
provoke_xid          makes one process fault on one GPU (Python 3.6 or newer)
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path


@functools.cache
def text(name: str) -> str:
    """The shell program NAME.sh as it is sent: without comment lines and indentation."""
    lines = (line.strip() for line in Path(__file__).with_name(f"{name}.sh").read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def with_arguments(name: str, *arguments: str) -> str:
    """The shell program NAME.sh with its positional parameters set."""
    return f"set -- {shlex.join(arguments)}\n{text(name)}"
