"""What a machine gives to every login shell and to every service without being asked."""

from __future__ import annotations

import shlex
from typing import Any


def in_login_shell(command: str) -> str:
    """`command` as root's login shell runs it: of nobody else's environment, after /etc/profile and its like."""
    return f"env -i HOME=/root TERM=dumb bash -lc {shlex.quote(command)}"


# Each with the place that its lines come from. A login shell reads /etc/profile and its .d; PAM reads /etc/environment.
_ASKED = {
    "login shells": f"{in_login_shell('env')} 2>/dev/null",
    "/etc/environment": "cat /etc/environment",
    "services": "systemctl show-environment",
    "services' defaults": "systemctl show -p DefaultEnvironment --value | tr ' ' '\\n'",
}


def environments(host: Any) -> list[tuple[str, str]]:
    """Every setting, `NAME=value`, with who is given it. What a host does not have gives nothing."""
    found = []
    for where, command in _ASKED.items():
        lines = [line.strip().removeprefix("export ") for line in host.run(command).stdout.splitlines()]
        found += [(where, line) for line in lines if line.partition("=")[0].isidentifier()]
    return found
