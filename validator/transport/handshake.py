"""The way to a connection: TCP or a program (OpenSSH's ProxyCommand), key exchange, host key, login.

SSH speaks to the standard input and output of a ProxyCommand.
"""

from __future__ import annotations

import contextlib
import errno
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
from pathlib import Path
from typing import IO, TYPE_CHECKING

from validator.transport import known_hosts
from validator.transport.errors import (
    AuthRefused,
    ConnectionDropped,
    HostKeyChanged,
    HostRefused,
    HostSilent,
    HostUnreachable,
    KeyFileUnusable,
)
from validator.transport.target import Target, check_host_key

if TYPE_CHECKING:
    import paramiko


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
