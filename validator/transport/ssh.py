"""SSH connections. No other module of this project opens SSH; `handshake.py` has the steps until the login.

One TCP connection per host with TCP_NODELAY, and a deadline for every stage (connect, banner, authentication, command).
By default no SSH agent and no other keys than the named one are tried. The host key is checked, or recorded at first
use. Errors: `validator/transport/errors.py`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from validator import remote
from validator.transport.errors import (
    AuthRefused,
    CommandExpired,
    ConnectionDropped,
    HostKeyChanged,
    HostRefused,
    HostSilent,
    HostUnreachable,
    KeyFileUnusable,
    SshError,
    TransportFault,
)
from validator.transport.handshake import Proxy, expand, greet, import_paramiko, open_socket
from validator.transport.target import Target, parse_url

if TYPE_CHECKING:
    import paramiko

__all__ = [
    "AuthRefused", "CommandExpired", "Connection", "ConnectionDropped", "Finished", "HostKeyChanged", "HostRefused",
    "HostSilent", "HostUnreachable", "KeyFileUnusable", "SshError", "Target", "TransportFault",
    "bounded", "connect", "parse_url",
]  # fmt: skip

_CHUNK = 1 << 16
_POLL_SECONDS = 2.0  # paramiko's thread wakes so often when nothing comes; its own 0.1 s costs with many hosts
_SLACK_SECONDS = 1.0  # after a command's deadline, for the host to kill it and to answer


@dataclass(frozen=True)
class Finished:
    """The result of a command: exit status, outputs (bytes), seconds including the round trip."""

    rc: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")


@dataclass
class Connection:
    """An authenticated connection. execs: how many programs were started on it."""

    target: Target
    transport: paramiko.Transport
    host_key: str  # of the host: "ssh-ed25519 AAAA…"
    stages: dict[str, float]  # seconds: connect, banner (with key exchange), auth
    execs: int = 0
    proxy: Proxy | None = field(default=None, repr=False)
    _closed: bool = field(default=False, repr=False)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.host_key.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def alive(self) -> bool:
        return not self._closed and self.transport.is_active()

    def open(self, command: str, *, timeout: float = 15.0) -> paramiko.Channel:
        """Starts `command` and returns its channel, for a dialogue with it (`validator/transport/shell.py`)."""
        try:
            channel = self.transport.open_session(timeout=timeout, window_size=1 << 24)
            channel.settimeout(timeout)
            channel.exec_command(command)
        except Exception as error:
            raise self._dropped(error) from error
        self.execs += 1
        return channel

    def run(
        self, command: str, timeout: float = 60.0, input: bytes | None = None, *, remote_deadline: bool = True
    ) -> Finished:
        """Runs `command` by `sh` and waits until it ends.

        Both ends enforce the deadline: `timeout` on the host (it kills the command's process group), a clock here.
        Raises CommandExpired or a TransportFault. remote_deadline=False: for hosts without coreutils or busybox.
        """
        started = time.monotonic()
        channel = self.open(bounded(command, timeout) if remote_deadline else f"exec sh -c {shlex.quote(command)}")
        try:
            if input is not None:
                self._send(channel, input, started + timeout + _SLACK_SECONDS)
            channel.shutdown_write()
            out, err = self._collect(channel, command, started, timeout)
            rc = self._exit_status(channel, command, started, timeout)
        except SshError:
            raise
        except (
            Exception
        ) as error:  # OSError, EOFError or SSHException: paramiko has no one class for a broken connection
            raise self._dropped(error) from error
        finally:
            channel.close()
        seconds = time.monotonic() - started
        if rc in (124, 137) and seconds >= timeout:
            raise CommandExpired(command, timeout, (out + err)[-500:].decode(errors="replace").strip())
        return Finished(rc, out, err, seconds)

    def stream(self, command: str, *, idle_seconds: float | None = None) -> Iterator[bytes]:
        """Lines of a command's standard output as they come, without newline; closing the iterator ends the command.

        With `idle_seconds`, CommandExpired when no line came for that long.
        """
        channel = self.open(_until_stdin_closes(command))
        channel.settimeout(idle_seconds)
        pending = b""
        try:
            while True:
                try:
                    data = channel.recv(_CHUNK)
                except TimeoutError:
                    raise CommandExpired(command, idle_seconds or 0.0) from None
                except Exception as error:
                    raise self._dropped(error) from error
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                yield from lines
            if pending:
                yield pending
            if not self.alive:
                raise self._dropped(None)
        finally:
            channel.close()

    def put(self, content: bytes | Path, path: str, *, mode: int = 0o600, timeout: float = 120.0) -> None:
        """Writes a file on the host atomically (a temporary file beside it, then renamed)."""
        data = content.read_bytes() if isinstance(content, Path) else content
        quoted = shlex.quote(path)
        script = f"umask 077; cat > {quoted}.part && chmod {mode:o} {quoted}.part && mv -f -- {quoted}.part {quoted}"
        done = self.run(script, timeout, data)
        if done.rc != 0:
            raise OSError(f"{self.target.name}: cannot write {path}: {done.stderr.decode(errors='replace').strip()}")

    def get(self, path: str, *, timeout: float = 120.0) -> bytes:
        """A file's content. FileNotFoundError or OSError with the error of `cat`."""
        done = self.run(f"cat -- {shlex.quote(path)}", timeout)
        if done.rc != 0:
            error = done.stderr.decode(errors="replace").strip()
            raise (FileNotFoundError if "No such file" in error else OSError)(f"{self.target.name}: {error}")
        return done.stdout

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # ends the thread that reads; paramiko would wait for its next look
            self.transport.sock.shutdown(socket.SHUT_RDWR)
        self.transport.close()
        if self.proxy is not None:
            self.proxy.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, channel: paramiko.Channel, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            channel.settimeout(max(0.1, until - time.monotonic()))
            try:
                sent = channel.send(bytes(view[:_CHUNK]))
            except Exception as error:
                if channel.closed or channel.exit_status_ready():
                    return  # the command ended without reading all of its input
                raise self._dropped(error) from error
            view = view[sent:]

    def _collect(self, channel: paramiko.Channel, command: str, started: float, timeout: float) -> tuple[bytes, bytes]:
        out: list[bytes] = []
        err: list[bytes] = []
        until = started + timeout + _SLACK_SECONDS
        while True:
            while channel.recv_stderr_ready():
                err.append(channel.recv_stderr(_CHUNK))
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise CommandExpired(command, timeout, b"".join(out + err)[-500:].decode(errors="replace").strip())
            # stderr has no event of its own: read it at least five times a second, so that its pipe does not fill.
            channel.settimeout(min(remaining, 0.2))
            try:
                data = channel.recv(_CHUNK)
            except TimeoutError:
                if not self.alive:
                    raise self._dropped(None) from None
                continue
            if not data:
                break
            out.append(data)
        channel.settimeout(max(0.1, until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            while data := channel.recv_stderr(_CHUNK):
                err.append(data)
        return b"".join(out), b"".join(err)

    def _exit_status(self, channel: paramiko.Channel, command: str, started: float, timeout: float) -> int:
        if not channel.status_event.wait(max(0.1, started + timeout + _SLACK_SECONDS - time.monotonic())):
            raise CommandExpired(command, timeout)
        if channel.exit_status == -1:
            raise self._dropped(None)
        return int(channel.exit_status)

    def _dropped(self, error: BaseException | None) -> ConnectionDropped:
        cause = self.transport.get_exception() or error
        why = f" ({type(cause).__name__}: {cause})" if cause else ""
        hint = "look at its console: it may have rebooted"
        return ConnectionDropped(f"{self.target.name} closed the connection{why}", hint)


def bounded(command: str, seconds: float, grace: float = 1.0) -> str:
    """`command` by sh under `timeout` of the host: TERM to its process group, KILL `grace` seconds later."""
    return f"exec timeout -k {grace:g} {seconds:g} sh -c {shlex.quote(command)}"


def _until_stdin_closes(command: str) -> str:
    return f"exec sh -c {shlex.quote(remote.text('run_while_open'))} sh {shlex.quote(command)}"


def connect(where: Target | str, **options: object) -> Connection:
    """Opens the connection. A TransportFault says at which stage it failed and why.

    where: a Target or a URL; options: with a URL, other fields of Target.
    """
    import_paramiko()
    import paramiko

    # It logs a traceback for every refused connection; the TransportFault has the reason in one line.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    target = parse_url(where, **options) if isinstance(where, str) else where

    clock = time.monotonic()
    proxy = _open_proxy(target) if target.proxy_command else None
    sock = proxy.socket if proxy else open_socket(target)
    stages = {"connect": time.monotonic() - clock}
    transport = None
    try:
        transport = paramiko.Transport(sock, default_window_size=1 << 24)
        transport.daemon = True
        transport.banner_timeout = target.banner_timeout
        transport.auth_timeout = target.auth_timeout
        host_key = greet(transport, target, stages)
        sock.settimeout(_POLL_SECONDS)
    except BaseException as error:
        failed = proxy.failure() if proxy and isinstance(error, ConnectionDropped | HostSilent) else ""
        if transport is not None:
            transport.close()
        sock.close()
        if proxy is not None:
            proxy.close()
        if failed:
            hint = "the program that leads to the host; run it by hand"
            raise HostUnreachable(f"{target.name}: `{proxy_words(target)}` {failed}", hint) from error
        raise
    return Connection(target, transport, host_key, stages, proxy=proxy)


def _open_proxy(target: Target) -> Proxy:
    return Proxy(proxy_words(target), target.proxy_environment)


def proxy_words(target: Target) -> str:
    """The target's proxy command as it is run."""
    return expand(target.proxy_command, target.address, target.port, target.user)
