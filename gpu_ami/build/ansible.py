"""Runs a plan's roles on a running machine, and reads ansible-playbook's output: tasks, changes, times and failures.

A second run must change nothing: the roles are idempotent.
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
from gpu_ami.plan import SITE_FOLDER, roles_path
from gpu_ami.process import Completed, find_tool, run

CONVERGE_SECONDS = 3600.0


def ansible_playbook() -> str:
    """The program beside our interpreter, or the system's. MissingTool: there is neither."""
    own = Path(sys.executable).parent / "ansible-playbook"
    return str(own if own.exists() else find_tool("ansible-playbook", package="ansible-core"))


def ansible_settings(*, slow_python: bool) -> list[str]:
    """NAME=VALUE of Ansible's environment: emulated machines get mitogen, which spares them most Python starts."""
    mitogen = find_spec("ansible_mitogen") if slow_python else None
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
    """Where the machine is and how to get in. slow_python: it is emulated, and Python starts slowly on it.

    known_hosts: a file with its key, which no other key is accepted beside; None: any key is.
    """

    address: str
    port: int
    user: str
    key: Path | None = None
    slow_python: bool = False
    known_hosts: Path | None = None

    def settings(self) -> dict[str, str]:
        """Ansible's variables for its host key."""
        if self.known_hosts is None:
            return {}
        options = [
            f'UserKnownHostsFile="{self.known_hosts}"',
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
        ]
        control = "-o ControlMaster=auto -o ControlPersist=60s -o LogLevel=ERROR"
        return {
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_SSH_ARGS": " ".join([control, *(f"-o {option}" for option in options)]),
        }


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
    environment = dict(setting.split("=", 1) for setting in ansible_settings(slow_python=machine.slow_python))
    play = Play(note, on_task)
    done = run(
        command,
        timeout=CONVERGE_SECONDS,
        env={
            **environment,
            **machine.settings(),
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


# Tasks that take longer are reported as progress.
SLOW_SECONDS = 5.0
_SLOWEST = 5
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.+?)\] \**$")
_CHANGED = re.compile(r"^changed: \[")
_RECAP = re.compile(
    r"^\S+\s+: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+unreachable=(?P<lost>\d+)\s+failed=(?P<failed>\d+)"
)
# Prefixes of Ansible's error messages.
_FAILED_TASK = re.compile(r"^(?:fatal|failed): \[")
_FAILED = re.compile(_FAILED_TASK.pattern + r"|^\[ERROR\]|^ERROR!")


@dataclass(frozen=True)
class Converged:
    """Result of a run. ok: number of tasks without failure; changed: names of the tasks that changed something.

    slowest: (task, seconds), the longest first. roles: (role, start, end) in their order, epoch seconds.
    """

    ok: int
    changed: tuple[str, ...]
    slowest: tuple[tuple[str, float], ...]
    seconds: float
    roles: tuple[tuple[str, float, float], ...] = ()

    def text(self) -> str:
        """One line: `ok=58 changed=2 in 41.0 s`."""
        return f"ok={self.ok} changed={len(self.changed)} in {self.seconds:.1f} s"


class Play:
    """One run's output, line by line. `note` gets the tasks that are slow, `on_task` the number and name of each.

    playing: the play has begun and not yet ended; failures: `task: message`; lost: whether a host was unreachable.
    """

    def __init__(
        self, note: Callable[[str], None] | None = None, on_task: Callable[[int, str], None] | None = None
    ) -> None:
        self._note, self._on_task = note, on_task
        self._count = 0
        self._task, self._since = "", 0.0
        self._began = self._ended = time.monotonic()
        self._changed: list[str] = []
        self._times: dict[str, float] = {}
        self._task_started = 0.0  # epoch seconds
        self._roles: list[tuple[str, float, float]] = []
        self._recap: Mapping[str, str] | None = None
        self.playing = False
        self._errors: list[tuple[str, str]] = []

    def line(self, text: str) -> bool:
        """Reads one line. Returns whether it is a heading of Ansible's output (play, task, recap)."""
        if task := _TASK.match(text):
            self._next(task["name"])
        elif text.startswith("PLAY [") and not self.playing:
            self._began, self.playing = time.monotonic(), True
        elif text.startswith("PLAY RECAP"):
            self._next("")
            self._ended, self.playing = time.monotonic(), False
        elif recap := _RECAP.match(text):
            self._recap = recap.groupdict()
        else:
            if _CHANGED.match(text) and self._task not in self._changed[-1:]:
                self._changed.append(self._task)
            elif is_failure(text):
                self._errors.append((self._task, text))
            return False
        return True

    def end(self) -> None:
        """Ends the last task's time at the end of the output."""
        self._next("")

    @property
    def failures(self) -> list[str]:
        """`task: message` of every error line, failed tasks before anything else that looks like an error."""
        tasks_first = sorted(self._errors, key=lambda error: not _FAILED_TASK.match(error[1]))
        return [f"{task}: {text}" if task else text for task, text in tasks_first]

    @property
    def failed(self) -> bool:
        """Whether a task failed, or the run ended before its recap."""
        return self._recap is None or int(self._recap["failed"]) > 0

    @property
    def lost(self) -> bool:
        """Whether the host could not be reached."""
        return bool(self._recap and int(self._recap["lost"]))

    @property
    def converged(self) -> Converged | None:
        """The result; None if the output ended before the recap."""
        if self._recap is None:
            return None
        slowest = sorted(self._times.items(), key=lambda item: -item[1])[:_SLOWEST]
        rounded = tuple((name, round(seconds, 1)) for name, seconds in slowest)
        seconds = round(self._ended - self._began, 1)
        return Converged(int(self._recap["ok"]), tuple(self._changed), rounded, seconds, tuple(self._roles))

    def _next(self, task: str) -> None:
        now = time.monotonic()
        if self._task:
            seconds = now - self._since
            self._times[self._task] = self._times.get(self._task, 0.0) + seconds
            if self._note and seconds >= SLOW_SECONDS:
                self._note(f"{self._task} ({seconds:.0f} s)")
        self._note_role()
        self._task, self._since = task, now
        if task:
            self._count += 1
            if self._on_task:
                self._on_task(self._count, task)

    def _note_role(self) -> None:
        """Adds the last task's time to its role's; a role's tasks are named `role : task`."""
        role, colon, _ = self._task.partition(" : ")
        now = round(time.time(), 1)
        if colon and self._roles and self._roles[-1][0] == role:
            self._roles[-1] = (role, self._roles[-1][1], now)
        elif colon:
            self._roles.append((role, self._task_started, now))
        self._task_started = now


def is_failure(text: str) -> bool:
    """Whether this line begins with one of Ansible's error prefixes."""
    return _FAILED.match(text) is not None
