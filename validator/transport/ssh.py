"""SSH connections, from TCP or a ProxyCommand to the login. No other module of this project opens SSH.

One TCP connection per host with TCP_NODELAY, and a deadline for every stage (connect, banner, authentication, command).
By default no SSH agent and no other keys than the named one are tried. The host key is checked, or recorded at first
use. Errors: `validator/transport/errors.py`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from validator import remote
from validator.transport import known_hosts
from validator.transport.budget import Budget
from validator.transport.errors import (
    AuthRefused,
    BudgetSpent,
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
from validator.transport.target import Target, check_host_key, parse_url

if TYPE_CHECKING:
    import paramiko

__all__ = [
    "AuthRefused", "CommandExpired", "Connection", "ConnectionDropped", "Finished", "HostKeyChanged", "HostRefused",
    "HostSilent", "HostUnreachable", "KeyFileUnusable", "SshError", "Target", "TransportFault",
    "bounded", "connect", "parse_url",
]  # fmt: skip

OUTPUT_BYTES = 64 << 20  # of each output of a command
LINE_BYTES = 1 << 20
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
    budget: Budget = field(default_factory=Budget, repr=False)
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
        Raises CommandExpired, BudgetSpent or a TransportFault.
        remote_deadline=False: for hosts without coreutils or busybox.
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
            self.budget.charge(self.target.name, seconds=time.monotonic() - started)
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
                if len(pending) > LINE_BYTES:  # a line without an end is given in parts
                    yield pending
                    pending = b""
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
        out = _Output(self.target.name, command, self.budget)
        err = _Output(self.target.name, command, self.budget)
        until = started + timeout + _SLACK_SECONDS
        while True:
            while channel.recv_stderr_ready() and time.monotonic() < until:
                err.append(channel.recv_stderr(_CHUNK))
            remaining = until - time.monotonic()
            if remaining <= 0:
                tail = (out.content + err.content)[-500:]
                raise CommandExpired(command, timeout, tail.decode(errors="replace").strip())
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
            while time.monotonic() < until and (data := channel.recv_stderr(_CHUNK)):
                err.append(data)
        return out.content, err.content

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


class _Output:
    """What a command has written. BudgetSpent at what is too much for it, or for its host."""

    def __init__(self, name: str, command: str, budget: Budget) -> None:
        self._name, self._command, self._budget = name, command, budget
        self._parts: list[bytes] = []
        self._bytes = 0

    def append(self, data: bytes) -> None:
        self._budget.charge(self._name, bytes=len(data))
        self._bytes += len(data)
        if self._bytes > OUTPUT_BYTES:
            most = f"more than {OUTPUT_BYTES >> 20} MiB of output"
            raise BudgetSpent(f"{self._name}: a command wrote {most}: {self._command[:200]}")
        self._parts.append(data)

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)


def bounded(command: str, seconds: float, grace: float = 1.0) -> str:
    """`command` by sh under `timeout` of the host: TERM to its process group, KILL `grace` seconds later."""
    return f"exec timeout -k {grace:g} {seconds:g} sh -c {shlex.quote(command)}"


def _until_stdin_closes(command: str) -> str:
    return f"exec sh -c {shlex.quote(remote.text('run_while_open'))} sh {shlex.quote(command)}"


def connect(where: Target | str, budget: Budget | None = None, **options: object) -> Connection:
    """Opens the connection. A TransportFault says at which stage it failed and why.

    where: a Target or a URL; options: with a URL, other fields of Target. budget: what the host has left of its own, if
    this is not its first connection.
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
    return Connection(target, transport, host_key, stages, budget=budget or Budget(), proxy=proxy)


def _open_proxy(target: Target) -> Proxy:
    return Proxy(proxy_words(target), target.proxy_environment)


def proxy_words(target: Target) -> str:
    """The target's proxy command as it is run."""
    return expand(target.proxy_command, target.address, target.port, target.user)


def import_paramiko() -> None:
    """Imports paramiko without invoke, which takes two fifths of the import time.

    Only `Match exec` of a client configuration needs it: ssh_config.py imports paramiko with it, before this is called.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]  # makes `import invoke` fail
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]


def open_socket(target: Target) -> socket.socket:
    where = f"{target.address}:{target.port}"
    try:
        sock = socket.create_connection((target.address, target.port), timeout=target.connect_timeout)
    except TimeoutError as error:
        hint = "is it running, and does its security group allow SSH from this machine?"
        raise HostSilent(f"{where} did not answer within {target.connect_timeout:g} s", hint) from error
    except ConnectionRefusedError as error:
        raise HostRefused(f"{where} refuses connections", "sshd is not (yet) listening") from error
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        raise HostUnreachable(f"{where} cannot be reached ({name}: {error})") from error
    # Without it Nagle's algorithm and delayed ACKs add some 40 ms to every command on a fast link.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def greet(transport: paramiko.Transport, target: Target, stages: dict[str, float]) -> str:
    """Key exchange, check of the host key, login. Returns the host key; adds the seconds of banner and auth."""
    clock = time.monotonic()
    _prefer_known_key_type(transport, target)
    _negotiate(transport, target)
    stages["banner"] = time.monotonic() - clock
    key = transport.get_remote_server_key()
    host_key = f"{key.get_name()} {key.get_base64()}"
    _check_recorded_lines(target, host_key)
    check_host_key(target, host_key, _recorded_keys(target))
    clock = time.monotonic()
    _authenticate(transport, target)
    stages["auth"] = time.monotonic() - clock
    return host_key


def _negotiate(transport: paramiko.Transport, target: Target) -> None:
    import paramiko

    where = f"{target.address}:{target.port}"
    started = time.monotonic()
    try:
        transport.start_client(timeout=2 * target.banner_timeout)
    except (paramiko.SSHException, EOFError, OSError) as error:
        text = str(error)
        # paramiko reports "Error reading SSH protocol banner" for both: a closed connection comes before the deadline.
        early = time.monotonic() - started < target.banner_timeout - 0.05
        if isinstance(error, EOFError | ConnectionError) or (early and "banner" in text):
            raise ConnectionDropped(f"{where} closed the connection before it was set up ({text or 'EOF'})") from error
        if "banner" in text or "Timeout" in text or isinstance(error, TimeoutError):
            raise _no_banner(target) from error
        raise ConnectionDropped(f"{where}: key exchange failed ({text})") from error
    if not transport.initial_kex_done:  # start_client does not raise at its own deadline
        if not transport.remote_version:  # on a busy machine it comes before paramiko's deadline of the banner
            raise _no_banner(target)
        raise HostSilent(f"{where} did not finish the key exchange within {2 * target.banner_timeout:g} s")


def _no_banner(target: Target) -> HostSilent:
    hint = "the port accepts connections, but it is not (yet) an SSH server"
    where = f"{target.address}:{target.port}"
    return HostSilent(f"{where} sent no SSH banner within {target.banner_timeout:g} s", hint)


def _authenticate(transport: paramiko.Transport, target: Target) -> None:
    import paramiko

    keys = list(_keys(target))
    refused = ""
    try:
        for key in keys:
            try:
                transport.auth_publickey(target.user, key)
                return
            except paramiko.AuthenticationException as error:
                refused = str(error)
        if target.password is not None:
            transport.auth_password(target.user, target.password)
            return
        if not keys:
            transport.auth_none(target.user)
            return
    except paramiko.AuthenticationException as error:
        refused = str(error)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise ConnectionDropped(f"{target.name} closed the connection during the login ({error})") from error
    offered = f"the key {target.key_file}" if target.key_file else "all offered keys"
    raise AuthRefused(f"{target.name} rejects {offered} ({refused})", "check the user and the key")


def _keys(target: Target) -> Iterator[paramiko.PKey]:
    import paramiko

    if target.key_file is not None:
        try:
            yield paramiko.PKey.from_path(target.key_file)
        except (OSError, paramiko.SSHException, ValueError, TypeError) as error:
            raise KeyFileUnusable(f"private key {target.key_file} cannot be used ({error})") from error
    if target.agent:
        yield from paramiko.Agent().get_keys()
    if target.search_keys:
        for path in sorted((Path.home() / ".ssh").glob("id_*")):
            with contextlib.suppress(Exception):
                yield paramiko.PKey.from_path(path)


def _recorded_keys(target: Target) -> list[str]:
    if " " in target.host_key:
        return [target.host_key]
    return [line.key for line in _known(target) if not line.revoked]


def _known(target: Target) -> list[known_hosts.KnownKey]:
    """From the target's file; without one, from the user's, which are only read."""
    paths = [target.known_hosts] if target.known_hosts is not None else known_hosts.files()
    return known_hosts.find(target.known_name, paths)


def _check_recorded_lines(target: Target, host_key: str) -> None:
    """The messages of OpenSSH for a key that is revoked, or is not the known one."""
    if " " in target.host_key:
        return
    known = _known(target)
    if any(line.revoked and line.key == host_key for line in known):
        raise HostKeyChanged(f"the host key of {target.name} is revoked in {known[0].where}", "do not connect to it")
    others = [line for line in known if not line.revoked]
    if others and host_key not in [line.key for line in others]:
        line = others[0]
        file = line.where.rpartition(":")[0]
        found = f"{host_key.split()[0]}, {known_hosts.fingerprint(host_key)}"
        remove = f"ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(target.known_name)}"
        raise HostKeyChanged(
            f"the host key of {target.name} ({found}) differs from the one in {line.where}",
            "somebody may be between you and the host, or it was installed again: compare the fingerprint with the one"
            f" on its console; then remove the old key with: {remove}",
        )


def _prefer_known_key_type(transport: paramiko.Transport, target: Target) -> None:
    kinds = [recorded.split()[0] for recorded in _recorded_keys(target)]
    if kinds:
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda kind: kind not in kinds)


_END_SECONDS = 2.0


def expand(command: str, address: str, port: int, user: str) -> str:
    """The command with OpenSSH's tokens replaced: %h host, %p port, %r user, %% a per cent sign."""
    values = {"h": shlex.quote(address), "p": str(port), "r": shlex.quote(user), "%": "%"}
    return re.sub(r"%([hpr%])", lambda match: values[match[1]], command)


class Proxy:
    """A running program; `socket` is connected with its standard input and output."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C ends it through close(), after what SSH still has to say
            )

    def close(self) -> None:
        """Ends the program and everything it started."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()

    def failure(self) -> str:
        """Exit status and last line of errors of a program that has ended; "" while it runs."""
        try:
            status = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"exited with status {status}{f': {lines[-1]}' if lines else ''}"
