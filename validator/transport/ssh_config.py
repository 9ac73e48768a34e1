"""OpenSSH's client configuration (~/.ssh/config): the options of a host that the validator follows."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict


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
