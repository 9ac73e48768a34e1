"""Environment variables that a machine sets in every login shell and every service."""

from __future__ import annotations

import shlex
from typing import Any


def in_login_shell(command: str) -> str:
    """`command` in a login shell of root with an empty environment, which reads /etc/profile and similar files."""
    return f"env -i HOME=/root TERM=dumb bash -lc {shlex.quote(command)}"


# Source → command that prints it. A login shell reads /etc/profile and profile.d; PAM reads /etc/environment.
_COMMANDS = {
    "login shells": f"{in_login_shell('env')} 2>/dev/null",
    "/etc/environment": "cat /etc/environment",
    "services": "systemctl show-environment",
    "services' defaults": "systemctl show -p DefaultEnvironment --value | tr ' ' '\\n'",
}


def environments(host: Any) -> list[tuple[str, str]]:
    """Every setting as source and `NAME=value`. A source that the host does not have is left out."""
    settings = []
    for source, command in _COMMANDS.items():
        lines = [line.strip().removeprefix("export ") for line in host.run(command).stdout.splitlines()]
        settings += [(source, line) for line in lines if line.partition("=")[0].isidentifier()]
    return settings
