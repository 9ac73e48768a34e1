"""Where a host is, how to get in, and whether it is still the host that it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.transport.errors import HostKeyChanged


@dataclass(frozen=True)
class Target:
    """Where a host is and how to get in.

    known_hosts: a file in OpenSSH's format. host_key: "trust-new" (a host that is not in known_hosts is recorded at
    first use), "strict" (it is refused), or the key itself as known_hosts writes it ("ssh-ed25519 AAAA…").
    agent, search_keys: only if asked. The timeouts are seconds.
    """

    address: str
    port: int = 22
    user: str = "root"
    key_file: Path | None = None
    password: str | None = None
    host_key: str = "trust-new"
    known_hosts: Path | None = None
    agent: bool = False
    search_keys: bool = False
    connect_timeout: float = 10.0
    banner_timeout: float = 15.0
    auth_timeout: float = 15.0

    @property
    def name(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def known_name(self) -> str:
        """As known_hosts files write it."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


def parse_url(url: str, **rest: object) -> Target:
    """`[ssh://]user@address[:port]` (IPv6 in brackets) as a Target; `rest` are further fields of it.

    Raises ValueError when it is not one.
    """
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url if "://" in url else f"ssh://{url}")
    if parts.scheme != "ssh" or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"{url!r} is not ssh://user@address:port")
    values: dict[str, object] = {"address": parts.hostname, "port": parts.port or 22}
    if parts.username:
        values["user"] = unquote(parts.username)
    if parts.password:
        values["password"] = unquote(parts.password)
    return Target(**(values | rest))  # type: ignore[arg-type]


def check_host_key(target: Target, seen: str, recorded: Sequence[str]) -> None:
    """Compares the key that a host shows ("ssh-ed25519 AAAA…") with those on record; the first of a host is recorded.

    HostKeyChanged: it is another one, or none is on record where that is not allowed.
    """
    recorded = [" ".join(key.split()[:2]) for key in recorded]
    if seen in recorded:
        return
    if recorded:
        source = "the pinned one" if " " in target.host_key else f"the one in {target.known_hosts}"
        hint = "another machine answers there; remove the old line only if you know why"
        raise HostKeyChanged(f"{target.name} shows another host key ({seen.split()[0]}) than {source}", hint)
    if target.host_key == "strict":
        raise HostKeyChanged(f"{target.name} is not in {target.known_hosts}", "add its host key there")
    if target.known_hosts is not None:
        target.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        with target.known_hosts.open("a") as file:
            file.write(f"{target.known_name} {seen}\n")
