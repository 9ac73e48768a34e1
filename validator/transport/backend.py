"""The validator's backend of testinfra for `ssh://`: one connection per host, one `sh`, commands in batches.

`host.run(command, timeout=5)` sets the deadline of one command. After a transport error that reconnecting does not
solve, every later command fails with the same error at once: a silent host costs one connect timeout.
"""

from __future__ import annotations

import contextlib
import copy
import getpass
import logging
import shlex
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from testinfra.backend import base

from validator.deadline import CheckTimeout
from validator.transport.budget import TOTAL_SECONDS, Budget
from validator.transport.errors import BudgetSpent, HostGivenUp
from validator.transport.image_files import Entered, Image, enter
from validator.transport.shell import Answer, Command, NotRoot, Shell
from validator.transport.ssh import (
    CommandExpired,
    Connection,
    ConnectionDropped,
    SshError,
    Target,
    TransportFault,
    connect,
)
from validator.transport.target import configured

_RECONNECT_SECONDS = 20.0
_PROXY_SECONDS = 45.0  # until a tunnel stands and sshd's banner comes through it
_Result = TypeVar("_Result")


@dataclass
class Defaults:
    """Settings of the command line for all hosts; `validator/plugin.py` sets them."""

    command_deadline: float = 120.0
    host_seconds: float = TOTAL_SECONDS
    known_hosts: Path | None = None
    connect_timeout: float = 15.0
    proxy_command: str = ""
    connect_early: bool = False  # connect when a host is created, not at its first command
    keep_round_trips: bool = False  # for the evidence
    as_root: bool = False  # the first commands will run as root


DEFAULTS = Defaults()


@dataclass(frozen=True)
class RoundTrip:
    """A batch of commands that was answered. began: seconds since 1970; seconds: until all answers had come.

    commands: the text of each, and the seconds that it ran on the host.
    """

    began: float
    seconds: float
    commands: tuple[tuple[str, float], ...]


class HostLink:
    """The connection to one host, or to an image's files, and its shells."""

    def __init__(self, target: Target | Image) -> None:
        self.target = target
        self.budget = Budget(seconds=DEFAULTS.host_seconds)
        self.fault: TransportFault | None = None
        self.reconnects = 0
        self.rounds = 0
        self.commands = 0
        self.execs = 0
        self.connections = 0
        self.round_trips: list[RoundTrip] = []  # if they are kept
        self.askers: dict[str, dict[str, None]] = {}  # by command: the checks that asked for it, if they are kept
        self.backends: list[BatchBackend] = []  # of testinfra's hosts that use it
        self._connection: Connection | Entered | None = None
        self._early: Future[_EarlyConnection] | None = None
        self._known: dict[bool, Mapping[str, Answer]] = {}
        self._shells: dict[bool, Shell] = {}
        self._closed = False
        self._lock = threading.Lock()  # a check may run commands in its own threads

    def connect_early(self, *, root: bool) -> None:
        """Connects and starts a shell in a separate thread, while checks are collected."""
        if self._early is None and self._connection is None:
            self._early = in_background(self._connect_and_read, root)

    def _connect_and_read(self, root: bool) -> _EarlyConnection:
        early = _EarlyConnection(self._connect(), self._is_root(root))
        with contextlib.suppress(SshError):  # the first command of that shell raises the same error
            shell = Shell(early.connection, root=early.root)
            shell.wait_until_ready()
            early.shell = shell
        return early

    @property
    def connecting(self) -> Future[_EarlyConnection] | None:
        """The early connection until it is made or has failed."""
        return self._early if self._early is not None and not self._early.done() else None

    def _finish_early_connection(self) -> None:
        """Waits for the early connection, if there is one, and uses it."""
        if self._early is None:
            return
        pending, self._early = self._early, None
        try:
            early = pending.result()
        except TransportFault as fault:
            self.fault = fault
            return
        self._connection = early.connection
        self.connections += 1
        if early.shell is not None:
            self._shells[early.root] = early.shell
            self.execs, self.rounds = self.execs + 1, self.rounds + 1
            self._known[early.root] = early.shell.constants

    def known(self, root: bool) -> Mapping[str, Answer] | None:
        """The answers to constant commands; None before the shell has started. Does not wait for a connection."""
        if self.connecting is None:
            self._finish_early_connection()
        return self._known.get(self._is_root(root))

    def _is_root(self, root: bool) -> bool:
        return root or self.target.user == "root"

    @property
    def connection(self) -> Connection | Entered:
        self._finish_early_connection()
        if self.fault is not None:
            raise self.fault.with_traceback(None)
        if self._connection is None:
            try:
                self._connection = self._connect()
            except TransportFault as fault:
                self.fault = fault
                raise
            self.connections += 1
        return self._connection

    def execute(self, commands: Sequence[Command], *, root: bool, resend: bool = True) -> tuple[list[Answer], int]:
        """The answers in order, and the number of attempts. resend=False: do not repeat commands after a reconnect."""
        with self._lock:
            self.rounds += 1
            self.commands += len(commands)
            began, started = time.time(), time.monotonic()
            answers, attempts = self._execute_or_reconnect(commands, root, resend)
            if DEFAULTS.keep_round_trips:
                took = tuple((command.text, answer.seconds) for command, answer in zip(commands, answers, strict=True))
                self.round_trips.append(RoundTrip(began, time.monotonic() - started, took))
            return answers, attempts

    def _execute_or_reconnect(self, commands: Sequence[Command], root: bool, resend: bool) -> tuple[list[Answer], int]:
        try:
            return self._execute(commands, root), 1
        except ConnectionDropped as dropped:
            if self._closed:  # by this process, during the batch
                raise
            self._forget()
            self._reconnect(dropped)
            if not resend:
                raise
        except BudgetSpent as spent:
            # The finding of this check; for all others there is no host any more.
            self.fault = HostGivenUp(str(spent))
            self._forget()
            raise
        except CheckTimeout:
            self._end_shell(root)
            raise
        return self._execute(commands, root), 2

    def note_asker(self, command: str, check: str) -> None:
        """Keeps which check asked for a command, if round trips are kept."""
        if DEFAULTS.keep_round_trips:
            self.askers.setdefault(command, {})[check] = None

    def _execute(self, commands: Sequence[Command], root: bool) -> list[Answer]:
        shell = self._shell(root)
        answers = shell.execute(commands)
        self._known[self._is_root(root)] = shell.constants
        return answers

    @property
    def cost(self) -> dict[str, int]:
        """Numbers of connections, executions (shells), round trips (batches) and commands."""
        return {
            "connections": self.connections,
            "executions": self.execs,
            "round_trips": self.rounds,
            "commands": self.commands,
        }

    def close(self) -> None:
        if self._early is not None:  # the host was not used
            self._early.add_done_callback(lambda done: None if done.exception() else done.result().connection.close())
        self._closed = True
        for shell in list(self._shells.values()):
            with contextlib.suppress(Exception):
                shell.close()
        self._forget()

    def _shell(self, root: bool) -> Shell:
        root = self._is_root(root)
        self._finish_early_connection()
        if root not in self._shells:
            connection = self.connection
            self._shells[root] = Shell(connection, root=root)
            self.execs += 1
        return self._shells[root]

    def _end_shell(self, root: bool) -> None:
        """Ends a shell that still runs the commands of a check that was interrupted."""
        shell = self._shells.pop(self._is_root(root), None)
        if shell is not None:
            with contextlib.suppress(Exception):
                shell.close()

    def _reconnect(self, dropped: ConnectionDropped) -> None:
        # The only place where a connection is retried; after that the host counts as lost.
        deadline = time.monotonic() + _RECONNECT_SECONDS
        while True:
            try:
                self._connection = self._connect()
            except TransportFault as fault:
                if time.monotonic() < deadline and fault.kind in ("refused", "dropped"):
                    time.sleep(0.5)
                    continue
                dropped.hint = f"and reconnecting failed: {fault}"
                self.fault = dropped
                raise dropped from fault
            self.connections += 1
            self.reconnects += 1
            return

    def _connect(self) -> Connection | Entered:
        if isinstance(self.target, Image):
            return enter(self.target, self.budget)
        return connect(self.target, self.budget)

    def _forget(self) -> None:
        self._shells.clear()
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@dataclass
class _EarlyConnection:
    """A connection that was opened early and, if it could be started, a shell."""

    connection: Connection | Entered
    root: bool
    shell: Shell | None = None


class _Loggers(dict[str, Any]):
    def values(self) -> Any:
        return self.copy().values()


def _let_loggers_be_made() -> None:
    """Lets a thread make loggers while the main one iterates over those that exist.

    pytest 9.2 does so before the first check and around each, to attach its handler. Where a connection's libraries
    were loaded meanwhile, the run ended with "dictionary changed size during iteration".
    """
    manager = logging.Logger.manager
    if not isinstance(manager.loggerDict, _Loggers):
        manager.loggerDict = _Loggers(manager.loggerDict)


def in_background(work: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
    """The result of `work(*arguments)`, run in a daemon thread, which does not delay the end of the process."""
    future: Future[_Result] = Future()

    def fulfil() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as fault:
            future.set_exception(fault)

    _let_loggers_be_made()
    threading.Thread(target=fulfil, daemon=True).start()
    return future


_links: dict[Target | Image, HostLink] = {}


def link_to(target: Target | Image) -> HostLink:
    """The link to a host; there is one per host in this process."""
    return _links.setdefault(target, HostLink(target))


def close_all() -> None:
    for link in _links.values():
        link.close()
    _links.clear()


@dataclass(frozen=True)
class Request:
    """A command of a check. pure: it is read-only, so duplicates in a batch run once."""

    link: HostLink
    command: Command
    root: bool
    pure: bool = False


def run_at_once(request: Request) -> tuple[Answer, int]:
    """Runs one command as a batch of its own, which is never resent."""
    answers, attempts = request.link.execute([request.command], root=request.root, resend=False)
    return answers[0], attempts


# Runs a command. `validator/engine/scheduler.py` replaces it while checks run concurrently.
runner: Callable[[Request], tuple[Answer, int]] = run_at_once


class BatchBackend(base.BaseBackend):  # type: ignore[misc]
    """The backend of `--hosts=ssh://user@address:port` with `-p validator.plugin`."""

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
        self.link.backends.append(self)
        self.port = target.port
        if DEFAULTS.connect_early:
            self.link.connect_early(root=DEFAULTS.as_root or (self.sudo and self.sudo_user is None))

    def as_root(self) -> BatchBackend:
        """The same link, through its root shell."""
        twin = copy.copy(self)
        twin.__dict__.pop("get_command", None)  # of a `with host.sudo()` around this call
        twin.sudo, twin.sudo_user = True, None
        self.link.backends.append(twin)
        return twin

    def __repr__(self) -> str:
        return f"<{self.get_pytest_id()}>"

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
        """Runs one command. CommandExpired after its deadline; TransportFault if the host cannot be reached.

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
        return text  # as root: the root shell runs it


class ImageBackend(BatchBackend):
    """The backend of `--hosts=image://PATH` (PATH percent-encoded): the same shell in the files of an image."""

    NAME = "image"

    def __init__(self, hostspec: str, **_: Any) -> None:
        path = Path(urllib.parse.unquote(hostspec))
        base.BaseBackend.__init__(self, str(path))
        self.link = link_to(Image(path))
        self.link.backends.append(self)


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
        banner_timeout=max(seconds, _PROXY_SECONDS) if DEFAULTS.proxy_command else seconds,
        proxy_command=DEFAULTS.proxy_command,
    )


__all__ = ["DEFAULTS", "BatchBackend", "HostLink", "ImageBackend", "NotRoot", "Request", "close_all", "link_to"]
