"""A running machine that somebody else booted: its address as the user gives it, and one look whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
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
    login, at, address = url.partition("://")[2].rpartition("@")
    if at and ":" in login:
        raise UsageError(
            f"the address of {address} has a password in it: it would be in reports, logs and the list of processes",
            hint="use a key (-i KEY) or an SSH agent: ssh-copy-id installs a key, with the password, once",
        )
    try:
        parse_url(url)
    except ValueError as error:
        raise UsageError(
            f"--host {text}: not the address of a host ({error})",
            hint="expected ssh://user@address[:port], e.g. ssh://admin@10.0.0.7",
        ) from error
    return url


def ssh_target(url: str, identity: Path | None, known_hosts: Path | None = None) -> Target:
    """The host as the validator reaches it: OpenSSH's client configuration applies, and without `identity` its keys.

    known_hosts: a file to which the key of an unknown host is added; None: the user's, which is only read.
    """
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
        known_hosts=known_hosts,
        agent=key is None,
        search_keys=key is None,
        connect_timeout=CONNECT_SECONDS,
        banner_timeout=CONNECT_SECONDS,
        auth_timeout=CONNECT_SECONDS,
    )


@dataclass(frozen=True)
class HostKey:
    """The key of a host: a line of known_hosts, and a sentence about a host that was not known ("" otherwise)."""

    line: str
    first_contact: str


def require_reachable(url: str, identity: Path | None, known_hosts: Path | None = None) -> HostKey:
    """Logs in once. MachineError with the reason (refused, silent, wrong user or key) within one connect deadline."""
    from validator.transport import known_hosts as files
    from validator.transport import ssh

    target = ssh_target(url, identity, known_hosts)
    paths = [known_hosts] if known_hosts else files.files()
    is_known = bool(files.find(target.known_name, paths))
    try:
        with ssh.connect(target) as connection:
            key, fingerprint = connection.host_key, files.fingerprint(connection.host_key)
    except ssh.TransportFault as fault:
        raise MachineError(f"{url} was not checked: {fault.message}", hint=fault.hint) from fault
    where = f"added to {known_hosts}" if known_hosts else f"not in {paths[0]}: ssh, or --known-hosts FILE, records it"
    sentence = f"first contact with {target.known_name}: {key.split()[0]} key {fingerprint}, {where}"
    return HostKey(f"{target.known_name} {key}", "" if is_known else sentence)
