"""testinfra's `ssh://` as the validator has it: one connection a host, one `sh`, commands in batches.

`host.run(command, timeout=5)` gives a command another deadline than the run's. The first transport fault that
connecting again does not mend is the answer to every later command: a silent host costs one connect deadline.
"""

from __future__ import annotations

import contextlib
import copy
import getpass
import shlex
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from testinfra.backend import base

from validator.transport import host_constants
from validator.transport.image_files import Entered, Image, enter
from validator.transport.shell import Answer, Command, NotRoot, Shell
from validator.transport.ssh import (
    CommandExpired,
    Connection,
    ConnectionDropped,
    SshError,
    Target,
    TransportFault,
    configured,
    connect,
)

_REACH_AGAIN_SECONDS = 20.0
_Given = TypeVar("_Given")


@dataclass
class Defaults:
    """What the command line says for all hosts; `validator/plugin.py` fills it in."""

    command_deadline: float = 120.0
    known_hosts: Path | None = None
    connect_timeout: float = 15.0
    ahead: bool = False  # connect as soon as a host is named, not when it is first asked
    as_root: bool = False  # it will be root's shell that is asked first


DEFAULTS = Defaults()


class HostLink:
    """The connection to one host, or into an image's files, and its shells."""

    def __init__(self, target: Target | Image) -> None:
        self.target = target
        self.fault: TransportFault | None = None
        self.reconnects = 0
        self.rounds = 0
        self.commands = 0
        self.execs = 0
        self.connections = 0
        self._connection: Connection | Entered | None = None
        self._ahead: Future[_Reached] | None = None
        self._known: dict[bool, Mapping[str, Answer]] = {}
        self._shells: dict[bool, Shell] = {}
        self._closed = False
        self._one_at_a_time = threading.Lock()  # a check may ask from a thread of its own

    def reach_ahead(self, *, root: bool) -> None:
        """Begins to connect and asks what is always asked, in a thread of its own, while checks are collected."""
        if self._ahead is None and self._connection is None:
            self._ahead = in_background(self._reach, root)

    def _reach(self, root: bool) -> _Reached:
        reached = _Reached(self._connect(), self._is_root(root))
        with contextlib.suppress(SshError):  # who needs that shell will meet the same, and tell
            shell = Shell(reached.connection, root=reached.root)
            reached.answers = host_constants.read(shell.execute([host_constants.ASK])[0])
            reached.shell = shell
        return reached

    def _settle(self) -> None:
        """Takes over what was begun ahead, once it has come to its end."""
        if self._ahead is None:
            return
        ahead, self._ahead = self._ahead, None
        try:
            reached = ahead.result()
        except TransportFault as fault:
            self.fault = fault
            return
        self._connection = reached.connection
        self.connections += 1
        if reached.shell is not None:
            self._shells[reached.root] = reached.shell
            self.execs, self.rounds, self.commands = self.execs + 1, self.rounds + 1, self.commands + 1
            self.learn(reached.root, reached.answers)

    def learn(self, root: bool, answers: Mapping[str, Answer]) -> None:
        """Takes in the answers to known.ASK."""
        self._known[self._is_root(root)] = answers

    def known(self, root: bool) -> Mapping[str, Answer] | None:
        """What need not be asked any more; None where known.ASK has not been asked yet."""
        self._settle()
        return self._known.get(self._is_root(root))

    def _is_root(self, root: bool) -> bool:
        return root or self.target.user == "root"

    @property
    def connection(self) -> Connection | Entered:
        self._settle()
        if self.fault is not None:
            raise self.fault
        if self._connection is None:
            try:
                self._connection = self._connect()
            except TransportFault as fault:
                self.fault = fault
                raise
            self.connections += 1
        return self._connection

    def execute(self, commands: Sequence[Command], *, root: bool, resend: bool = True) -> tuple[list[Answer], int]:
        """Answers in the commands' order, and the attempts it took. `resend=False`: what must not happen twice."""
        with self._one_at_a_time:
            self.rounds += 1
            self.commands += len(commands)
            try:
                return self._shell(root).execute(commands), 1
            except ConnectionDropped as dropped:
                if self._closed:  # by us, while this was on its way
                    raise
                self._forget()
                self._reach_again(dropped)
                if not resend:
                    raise
            return self._shell(root).execute(commands), 2

    @property
    def cost(self) -> dict[str, int]:
        """What the host was asked for: connections, executions (shells), round trips (batches), commands."""
        return {
            "connections": self.connections,
            "executions": self.execs,
            "round_trips": self.rounds,
            "commands": self.commands,
        }

    def close(self) -> None:
        if self._ahead is not None:  # nobody has asked this host for anything
            self._ahead.add_done_callback(lambda done: None if done.exception() else done.result().connection.close())
        self._closed = True
        for shell in list(self._shells.values()):
            with contextlib.suppress(Exception):
                shell.close()
        self._forget()

    def _shell(self, root: bool) -> Shell:
        root = self._is_root(root)
        self._settle()
        if root not in self._shells:
            connection = self.connection
            self._shells[root] = Shell(connection, root=root)
            self.execs += 1
        return self._shells[root]

    def _reach_again(self, dropped: ConnectionDropped) -> None:
        # The only place where a transport is retried; a machine that is gone for longer is that host's end.
        until = time.monotonic() + _REACH_AGAIN_SECONDS
        while True:
            try:
                self._connection = self._connect()
            except TransportFault as fault:
                if time.monotonic() < until and fault.kind in ("refused", "dropped"):
                    time.sleep(0.5)
                    continue
                dropped.hint = f"and connecting again failed: {fault}"
                self.fault = dropped
                raise dropped from fault
            self.connections += 1
            self.reconnects += 1
            return

    def _connect(self) -> Connection | Entered:
        return enter(self.target) if isinstance(self.target, Image) else connect(self.target)

    def _forget(self) -> None:
        self._shells.clear()
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@dataclass
class _Reached:
    """What was begun ahead: a connection and, where it gave one, a shell and what it answered."""

    connection: Connection | Entered
    root: bool
    shell: Shell | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)


def in_background(work: Callable[..., _Given], *given: Any) -> Future[_Given]:
    """What `work(*given)` gives, by a thread that nobody waits for when the process ends."""
    future: Future[_Given] = Future()

    def fulfil() -> None:
        try:
            future.set_result(work(*given))
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=fulfil, daemon=True).start()
    return future


_links: dict[Target | Image, HostLink] = {}


def link_to(target: Target | Image) -> HostLink:
    """The one link to a host in this process."""
    return _links.setdefault(target, HostLink(target))


def close_all() -> None:
    for link in _links.values():
        link.close()
    _links.clear()


@dataclass(frozen=True)
class Request:
    """A command that a check asks a host to run. pure: it only looks, so asked twice at a time it is run once."""

    link: HostLink
    command: Command
    root: bool
    pure: bool = False


def run_at_once(request: Request) -> tuple[Answer, int]:
    """Runs one command as a batch of its own, never sent twice."""
    answers, attempts = request.link.execute([request.command], root=request.root, resend=False)
    return answers[0], attempts


# Who runs a command. `validator/engine/scheduler.py` replaces it while checks run concurrently.
runner: Callable[[Request], tuple[Answer, int]] = run_at_once


class BatchBackend(base.BaseBackend):  # type: ignore[misc]
    """What `--hosts=ssh://user@address:port` means under `-p validator.plugin`."""

    NAME = "ssh"

    def __init__(
        self,
        hostspec: str,
        ssh_config: str | None = None,
        ssh_identity_file: str | None = None,
        timeout: float | None = None,
        **rest: Any,
    ) -> None:
        spec = self.parse_hostspec(hostspec)
        super().__init__(spec.name, sudo=bool(rest.get("sudo")), sudo_user=rest.get("sudo_user"))
        target = _target(spec, ssh_config, ssh_identity_file, timeout)
        self.link = link_to(target)
        self.port = target.port
        if DEFAULTS.ahead:
            self.link.reach_ahead(root=DEFAULTS.as_root or (self.sudo and self.sudo_user is None))

    def as_root(self) -> BatchBackend:
        """The same link, through its root shell."""
        twin = copy.copy(self)
        twin.sudo, twin.sudo_user = True, None
        return twin

    def get_pytest_id(self) -> str:
        target = self.link.target
        if isinstance(target, Image):
            return f"image://{target.path}"
        return f"ssh://{target.address}" + (f":{target.port}" if target.port != 22 else "")

    @property
    def encoding(self) -> str:
        return "utf-8"

    def decode(self, data: bytes) -> str:
        return data.decode("utf-8", errors="replace")

    def encode(self, data: str) -> bytes:
        return data.encode()

    def run(self, command: str, *args: str, **kwargs: Any) -> base.CommandResult:
        """Runs one command. CommandExpired past its deadline; a TransportFault when the host cannot be reached.

        timeout: its deadline in seconds. pure: see Request.
        """
        deadline = float(kwargs.get("timeout") or DEFAULTS.command_deadline)
        # `with host.sudo()` replaces get_command on the instance and wraps the text itself.
        text = self.get_command(command, *args)
        root = self.sudo and self.sudo_user is None
        answer, _ = runner(Request(self.link, Command(text, deadline), root, bool(kwargs.get("pure"))))
        if answer.expired:
            tail = (answer.stdout + answer.stderr)[-500:]
            raise CommandExpired(text, deadline, self.decode(tail).strip())
        return self.result(answer.rc, text.encode(), answer.stdout, answer.stderr)

    def get_command(self, command: str, *args: str) -> str:
        text = str(self.quote(command, *args))
        if self.sudo and self.sudo_user is not None:
            return f"sudo -n -u {shlex.quote(self.sudo_user)} /bin/sh -c {shlex.quote(text)}"
        return text  # as root: the root shell takes it


class ImageBackend(BatchBackend):
    """What `--hosts=image://PATH` (PATH percent-encoded) means: the same shell, within the files of an image."""

    NAME = "image"

    def __init__(self, hostspec: str, **_: Any) -> None:
        path = Path(urllib.parse.unquote(hostspec))
        base.BaseBackend.__init__(self, str(path))
        self.link = link_to(Image(path))


def _target(spec: Any, ssh_config: str | None, key_file: str | None, timeout: float | None) -> Target:
    options = configured(spec.name, Path(ssh_config).expanduser() if ssh_config else None)
    identity = key_file or next(iter(options.get("identityfile", [])), None)
    seconds = float(timeout or DEFAULTS.connect_timeout)
    return Target(
        address=options.get("hostname", spec.name),
        port=int(spec.port or options.get("port", 22)),
        user=spec.user or options.get("user") or getpass.getuser(),
        key_file=Path(identity).expanduser() if identity else None,
        password=spec.password,
        known_hosts=DEFAULTS.known_hosts,
        # Without a key, the agent and the default keys are used, as ssh does.
        agent=identity is None,
        search_keys=identity is None,
        connect_timeout=seconds,
        banner_timeout=seconds,
    )


__all__ = ["DEFAULTS", "BatchBackend", "HostLink", "ImageBackend", "NotRoot", "Request", "close_all", "link_to"]
