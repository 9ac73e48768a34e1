"""How the way to a host can fail; raised by `validator/transport/ssh.py`.

SshError                      (never raised itself)   kind
├── TransportFault            (never raised itself)
│   ├── HostSilent            nothing answers, or something accepts and says nothing   "silent"
│   ├── HostRefused           nobody listens on the port                               "refused"
│   ├── HostUnreachable       no route, no such name                                   "unreachable"
│   ├── ConnectionDropped     the connection ended while it was in use                 "dropped"
│   ├── AuthRefused           the host does not take the key or the user               "auth"
│   ├── HostKeyChanged        another host key than the one that is known              "host key changed"
│   └── KeyFileUnusable       the private key cannot be read                           "key file"
└── CommandExpired            a command did not end within its deadline                "deadline"
"""

from __future__ import annotations


class SshError(Exception):
    """All that this door raises: `kind` in one word."""

    kind = "ssh"


class TransportFault(SshError):
    """The way to a host failed: `kind` in one word, message with what was seen, `hint` with what to do."""

    kind = "transport"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class HostSilent(TransportFault):
    kind = "silent"


class HostRefused(TransportFault):
    kind = "refused"


class HostUnreachable(TransportFault):
    kind = "unreachable"


class ConnectionDropped(TransportFault):
    kind = "dropped"


class AuthRefused(TransportFault):
    kind = "auth"


class HostKeyChanged(TransportFault):
    kind = "host key changed"


class KeyFileUnusable(TransportFault):
    kind = "key file"


class CommandExpired(SshError):
    """A command did not end within its deadline; both ends have let it go."""

    kind = "deadline"

    def __init__(self, command: str, seconds: float, output: str = "") -> None:
        shown = command if len(command) <= 200 else command[:197] + "..."
        said = f"\nlast output: {output}" if output else ""
        super().__init__(f"command did not end within {seconds:g} s: {shown}{said}")
        self.command = command
        self.seconds = seconds
