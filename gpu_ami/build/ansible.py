"""Runs a plan's roles on a running machine, and reports tasks, changes and times.

A second run must change nothing: the roles are idempotent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_ami.build.ansible_output import Converged, Play
from gpu_ami.errors import BuildError, CloudError
from gpu_ami.plan import SITE_FOLDER, roles_path
from gpu_ami.process import Completed, compiled_python, find_tool, run

CONVERGE_SECONDS = 3600.0


def ansible_playbook() -> str:
    """The program beside our interpreter, or the system's. MissingTool: there is neither."""
    own = Path(sys.executable).parent / "ansible-playbook"
    return str(own if own.exists() else find_tool("ansible-playbook", package="ansible-core"))


def ansible_settings(*, simulated: bool) -> list[str]:
    """NAME=VALUE of Ansible's environment: emulated machines get mitogen, which spares them most Python starts."""
    settings = [f"{name}={value}" for name, value in compiled_python().items()]
    mitogen = find_spec("ansible_mitogen") if simulated else None
    if not mitogen or not mitogen.submodule_search_locations:
        return settings
    plugins = Path(mitogen.submodule_search_locations[0]) / "plugins" / "strategy"
    return [
        *settings,
        f"ANSIBLE_STRATEGY_PLUGINS={plugins}",
        "ANSIBLE_STRATEGY=mitogen_linear",
        "ANSIBLE_DEPRECATION_WARNINGS=False",  # that strategies from outside Ansible will go
    ]


@dataclass(frozen=True)
class Machine:
    """Where the machine is and how to get in. simulated: it is emulated, and Python starts slowly on it."""

    address: str
    port: int
    user: str
    key: Path | None = None
    simulated: bool = False


def converge(
    root: Path,
    variables: Path,
    machine: Machine,
    *,
    playbook: str = "attach",
    roles: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
    on_task: Callable[[int, str], None] | None = None,
) -> Converged:
    """Runs `playbooks/<playbook>.yml` of the checkout `root` with a plan's ansible.json on a machine.

    roles: these alone, instead of all the plan's. on_task: called with number and name of each task that starts.
    BuildError: a task failed (its name and message). CloudError: the machine could not be reached.
    """
    key = ["--private-key", str(machine.key)] if machine.key else []
    only = ["-e", json.dumps({"gpu_ami_roles": list(roles)})] if roles else []
    command = [
        ansible_playbook(), "-i", f"{machine.address},", "-u", machine.user, "-e", f"ansible_port={machine.port}", *key,
        "-e", f"@{variables}", *only, str(root / "playbooks" / f"{playbook}.yml"),
    ]  # fmt: skip
    environment = dict(setting.split("=", 1) for setting in ansible_settings(simulated=machine.simulated))
    play = Play(note, on_task)
    done = run(
        command,
        timeout=CONVERGE_SECONDS,
        env={
            **environment,
            **roles_path(variables.parent / SITE_FOLDER),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        },
        cwd=root,
        check=False,
        on_line=play.line,
        error=BuildError,
    )
    if done.returncode != 0 or play.converged is None:
        raise _failure(done, play, machine)
    return play.converged


def _failure(done: Completed, play: Play, machine: Machine) -> BuildError | CloudError:
    tail = done.stdout.strip().splitlines()[-20:]
    where = f"{machine.user}@{machine.address}:{machine.port}"
    if play.lost:
        return CloudError(f"{where} could not be reached", details=tail, hint="is sshd up there, and is the key right?")
    return BuildError(play.failures[0] if play.failures else f"Ansible failed on {where}", details=tail)
