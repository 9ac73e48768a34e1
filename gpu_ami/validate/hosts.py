"""A running machine that somebody else booted: its address as the user gives it, and one look whether it answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError, UsageError

if TYPE_CHECKING:
    from validator.transport import Target

CONNECT_SECONDS = 15.0  # as the validator's own --connect-timeout


def host_url(text: str) -> str:
    """`ssh://user@address[:port]` of what --host was given; `user@address` is understood. UsageError for anything else.

    The validator takes an address without `ssh://` for another kind of host.
    """
    from validator.transport import parse_url

    url = text if "://" in text else f"ssh://{text}"
    try:
        parse_url(url)
    except ValueError as error:
        raise UsageError(
            f"--host {text}: not the address of a host ({error})",
            hint="expected ssh://user@address[:port], e.g. ssh://admin@10.0.0.7",
        ) from error
    return url


def ssh_target(url: str, identity: Path | None) -> Target:
    """The host as the validator reaches it: OpenSSH's client configuration applies, and without `identity` its keys."""
    import getpass
    from urllib.parse import urlsplit

    from validator.transport import parse_url, target

    parts = urlsplit(url)
    named = parse_url(url)
    known = target.configured(named.address)
    key = identity or next((Path(path).expanduser() for path in known.get("identityfile", [])), None)
    return parse_url(
        url,
        address=known.get("hostname", named.address),
        user=named.user if parts.username else known.get("user") or getpass.getuser(),
        port=int(parts.port or known.get("port", 22)),
        key_file=key,
        agent=key is None,
        search_keys=key is None,
        connect_timeout=CONNECT_SECONDS,
        banner_timeout=CONNECT_SECONDS,
        auth_timeout=CONNECT_SECONDS,
    )


def require_reachable(url: str, identity: Path | None) -> None:
    """Logs in once. MachineError with the reason (refused, silent, wrong user or key) within one connect deadline."""
    from validator.transport import ssh

    try:
        ssh.connect(ssh_target(url, identity)).close()
    except ssh.TransportFault as fault:
        raise MachineError(f"{url} was not checked: {fault.message}", hint=fault.hint) from fault
