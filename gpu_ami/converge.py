"""A plan's roles on a machine that runs: what changed, in how many tasks, how long.

A second time nothing may change: what a role does again at each run it has never looked at.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_ami.errors import BuildError, CloudError
from gpu_ami.run import Completed, find_tool, run

CONVERGE_SECONDS = 3600.0
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.+?)\] \**$")
_CHANGED = re.compile(r"^changed: \[")
_RECAP = re.compile(
    r"^\S+\s+: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+unreachable=(?P<lost>\d+)\s+failed=(?P<failed>\d+)"
)
_FAILED = re.compile(r"^(?:fatal|failed): \[|^\[ERROR\]|^ERROR!")


def ansible_playbook() -> str:
    """The program beside our interpreter, or the system's. MissingTool: there is neither."""
    own = Path(sys.executable).parent / "ansible-playbook"
    return str(own if own.exists() else find_tool("ansible-playbook", package="ansible-core"))


def ansible_settings(*, simulated: bool) -> list[str]:
    """NAME=VALUE of Ansible's environment: emulated machines get mitogen, which spares them most Python starts."""
    mitogen = find_spec("ansible_mitogen") if simulated else None
    if not mitogen or not mitogen.submodule_search_locations:
        return []
    plugins = Path(mitogen.submodule_search_locations[0]) / "plugins" / "strategy"
    return [
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


@dataclass(frozen=True)
class Converged:
    """How a run ended. ok: tasks that ran, changing something or not; changed: the names of those that did."""

    ok: int
    changed: tuple[str, ...]
    slowest: tuple[tuple[str, float], ...]
    seconds: float

    def text(self) -> str:
        """One line: `ok=58 changed=2 in 41.0 s`."""
        return f"ok={self.ok} changed={len(self.changed)} in {self.seconds:.1f} s"


class _Reader:
    """Ansible's output, line by line: which task changed something, and how long each took."""

    def __init__(self, note: Callable[[str], None] | None) -> None:
        self._note = note
        self._task, self._since = "", time.monotonic()
        self.changed: list[str] = []
        self.times: dict[str, float] = {}
        self.recap: Mapping[str, str] | None = None
        self.failures: list[str] = []

    def line(self, text: str) -> None:
        task, recap = _TASK.match(text), _RECAP.match(text)
        if task or text.startswith("PLAY RECAP"):
            self._ended(task["name"] if task else "")
        elif _CHANGED.match(text) and self._task not in self.changed[-1:]:
            self.changed.append(self._task)
        elif _FAILED.match(text):
            self.failures.append(f"{self._task}: {text}")
        if recap:
            self.recap = recap.groupdict()

    def _ended(self, following: str) -> None:
        now = time.monotonic()
        if self._task:
            self.times[self._task] = self.times.get(self._task, 0.0) + now - self._since
            if self._note and now - self._since >= 5.0:
                self._note(f"{self._task} ({now - self._since:.0f} s)")
        self._task, self._since = following, now


def converge(
    root: Path,
    variables: Path,
    machine: Machine,
    *,
    playbook: str = "attach",
    roles: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> Converged:
    """Runs `playbooks/<playbook>.yml` of the checkout `root` with a plan's ansible.json on a machine.

    roles: these alone, instead of all the plan's.
    BuildError: a task failed (its name and message). CloudError: the machine could not be reached.
    """
    key = ["--private-key", str(machine.key)] if machine.key else []
    only = ["-e", json.dumps({"gpu_ami_roles": list(roles)})] if roles else []
    command = [
        ansible_playbook(), "-i", f"{machine.address},", "-u", machine.user, "-e", f"ansible_port={machine.port}", *key,
        "-e", f"@{variables}", *only, str(root / "playbooks" / f"{playbook}.yml"),
    ]  # fmt: skip
    environment = dict(one.split("=", 1) for one in ansible_settings(simulated=machine.simulated))
    reader, started = _Reader(note), time.monotonic()
    done = run(
        command,
        timeout=CONVERGE_SECONDS,
        env=environment | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(root / "ansible.cfg")},
        cwd=root,
        check=False,
        on_line=reader.line,
        error=BuildError,
    )
    if done.returncode != 0 or reader.recap is None:
        raise _failure(done, reader, machine)
    slowest = sorted(reader.times.items(), key=lambda item: -item[1])[:5]
    return Converged(int(reader.recap["ok"]), tuple(reader.changed), tuple(slowest), time.monotonic() - started)


def _failure(done: Completed, reader: _Reader, machine: Machine) -> BuildError | CloudError:
    tail = done.stdout.strip().splitlines()[-20:]
    where = f"{machine.user}@{machine.address}:{machine.port}"
    if reader.recap and int(reader.recap["lost"]):
        return CloudError(f"{where} could not be reached", details=tail, hint="is sshd up there, and is the key right?")
    return BuildError(reader.failures[0] if reader.failures else f"Ansible failed on {where}", details=tail)
