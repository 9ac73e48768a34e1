"""Address, login and host key of a host.

OpenSSH's client configuration (~/.ssh/config): the options of a host that the validator follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from validator.transport.errors import HostKeyChanged


@dataclass(frozen=True)
class Target:
    """Address and login of a host.

    known_hosts: a file in OpenSSH's format. host_key: "trust-new" (an unknown host is recorded at first use), "strict"
    (an unknown host is refused), or the key itself as in known_hosts ("ssh-ed25519 AAAA…"). agent, search_keys: whether
    keys of an SSH agent and of ~/.ssh are tried. proxy_command: a program through which the host is reached, as
    OpenSSH's ProxyCommand (%h, %p, %r); proxy_environment is added to its environment. Timeouts are in seconds.
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
    proxy_command: str = ""
    proxy_environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)  # targets are hashed

    @property
    def name(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def known_name(self) -> str:
        """The name of the host in known_hosts files."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


def parse_url(url: str, **rest: object) -> Target:
    """Reads `[ssh://]user@address[:port]` (IPv6 in brackets). rest: other fields of Target.

    Raises ValueError for another form.
    """
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url if "://" in url else f"ssh://{url}")
    if parts.scheme != "ssh" or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"expected ssh://user@address:port, got {url!r}")
    values: dict[str, object] = {"address": parts.hostname, "port": parts.port or 22}
    if parts.username:
        values["user"] = unquote(parts.username)
    if parts.password:
        values["password"] = unquote(parts.password)
    return Target(**(values | rest))  # type: ignore[arg-type]


def check_host_key(target: Target, host_key: str, recorded: Sequence[str]) -> None:
    """Compares a host's key ("ssh-ed25519 AAAA…") with the recorded ones; records the first key of a host.

    HostKeyChanged: the key differs, or the host is unknown and host_key is "strict".
    """
    recorded = [" ".join(key.split()[:2]) for key in recorded]
    if host_key in recorded:
        return
    if recorded:
        source = "the pinned one" if " " in target.host_key else f"the one in {target.known_hosts}"
        hint = "another machine uses this address; remove the old line only if you know why"
        raise HostKeyChanged(f"the host key of {target.name} ({host_key.split()[0]}) differs from {source}", hint)
    if target.host_key == "strict":
        raise HostKeyChanged(f"{target.name} is not in {target.known_hosts}", "add its host key there")
    if target.known_hosts is not None:
        target.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        with target.known_hosts.open("a") as file:
            file.write(f"{target.known_name} {host_key}\n")


class HostOptions(TypedDict, total=False):
    """A host's options in OpenSSH's client configuration that the validator follows."""

    hostname: str
    user: str
    port: str
    identityfile: list[str]


def configured(name: str, config: Path | None = None) -> HostOptions:
    """The options of a host in OpenSSH's client configuration (default: ~/.ssh/config); empty without such a file."""
    path = config or Path.home() / ".ssh" / "config"
    if not path.exists():
        return {}
    import paramiko

    values = paramiko.SSHConfig.from_path(str(path)).lookup(name)
    options: HostOptions = {"hostname": str(values["hostname"]), "identityfile": list(values.get("identityfile", []))}
    if "user" in values:
        options["user"] = str(values["user"])
    if "port" in values:
        options["port"] = str(values["port"])
    return options
