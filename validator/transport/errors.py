"""Errors of connections and commands; raised by `ssh.py`.

SshError                      (never raised itself)     kind
├── TransportFault            (never raised itself)
│   ├── HostSilent            no answer, or the connection is accepted without a banner  "silent"
│   ├── HostRefused           no process listens on the port                             "refused"
│   ├── HostUnreachable       no route, or unknown host name                             "unreachable"
│   ├── ConnectionDropped     the connection was closed while it was in use              "dropped"
│   ├── AuthRefused           the host rejects the key or the user                       "auth"
│   ├── HostKeyChanged        the host key differs from the recorded one                 "host key changed"
│   ├── KeyFileUnusable       the private key cannot be read                             "key file"
│   └── HostGivenUp           the host's budget is spent: it is asked nothing more       "given up"
├── CommandExpired            a command did not complete within its deadline             "deadline"
└── BudgetSpent               the host sent too much, or too slowly (budget.py)          "budget"
"""

from __future__ import annotations


class SshError(Exception):
    """The base class of these errors. kind: the kind of error in a word."""

    kind = "ssh"


class TransportFault(SshError):
    """The connection failed. message: what happened; hint: what to do."""

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


class HostGivenUp(TransportFault):
    kind = "given up"


class CommandExpired(SshError):
    """A command did not complete within its deadline and was killed."""

    kind = "deadline"

    def __init__(self, command: str, seconds: float, output: str = "") -> None:
        shown = command if len(command) <= 200 else command[:197] + "..."
        tail = f"\nlast output: {output}" if output else ""
        super().__init__(f"command did not complete within {seconds:g} s: {shown}{tail}")
        self.command = command
        self.seconds = seconds


class BudgetSpent(SshError):
    """The host sent more, or answered more slowly, than a host that is asked these questions does."""

    kind = "budget"
