"""Where a plan is carried out: AWS, as a `--where FILE` says, or the local region.

Nothing past this module asks which of the two it is: a place is an endpoint, a network and names to use there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import UsageError

# What Packer's amazon-ebs takes for `ssh_interface`.
SSH_INTERFACES = ("public_ip", "private_ip", "public_dns", "private_dns", "session_manager")
_MAX_TAGS = 40  # EC2 allows 50 on a resource; ours (run id, recipe, digest, expiry, …) need room


@dataclass(frozen=True)
class Mirror:
    """A signed mirror of the vendors' hosts: `https://HOST/PATH` is found at `{url}/HOST/PATH`.

    `key_fingerprint`: 40 upper-case hex digits of the OpenPGP key that signed everything in it. `commit`: of a git
    repository's URL and tag, where its repositories are not the vendors' own; None: the vendor's commit is there.
    """

    url: str
    key_fingerprint: str
    commit: Callable[[str, str], str | None] = field(default=lambda _url, _tag: None, repr=False, compare=False)


@dataclass(frozen=True)
class Credentials:
    """Static keys, only for an endpoint that is not AWS; for AWS, boto3 finds them (profile, environment, role)."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True)
class Place:
    """A region and what to use in it.

    endpoint: URL where *we* reach the AWS API; None: AWS itself. guest_endpoint: where an *instance* reaches it.
    instance_profile: name of the profile that instances run with. ssh_interface: as in Packer's amazon-ebs.
    ssh_port: of every instance. source_ami: id that overrides the plan's. simulated: hardware is simulated there.
    kernel: series of the kernel that every machine there boots, whatever its AMI's own would be.
    """

    name: str
    region: str
    profile: str | None = None
    endpoint: str | None = None
    subnet_id: str | None = None
    security_group_ids: tuple[str, ...] = ()
    instance_profile: str | None = None
    ssh_interface: str = "public_ip"
    ssh_port: int = 22
    kms_key_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    source_ami: str | None = None
    mirror: Mirror | None = None
    guest_endpoint: str | None = None
    simulated: bool = False
    kernel: str | None = None
    credentials: Credentials | None = None


class _Wrong(Exception):
    """One or more mistakes in a value, each (path below the key, sentence)."""

    def __init__(self, *mistakes: tuple[str, str]) -> None:
        super().__init__(mistakes)
        self.mistakes = mistakes


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(("", f"expected text, found {value!r}"))
    return value


def _matching(pattern: str, example: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise _Wrong(("", f"expected something like {example}, found {value!r}"))
        return value

    return read


_url = _matching(r"https?://[^\s/]+(/\S*)?", "https://host:port")
_group_id = _matching(r"sg-[0-9a-f]{8,17}", "sg-0123456789abcdef0")
_fingerprint = _matching(r"[0-9A-Fa-f]{40}", "a fingerprint of 40 hex digits")


def _groups(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong(("", f"expected a list of security group ids, found {value!r}"))
    return _all({f"[{index}]": item for index, item in enumerate(value)}, _group_id)


def _all(items: Mapping[str, object], read: Callable[[object], str]) -> tuple[str, ...]:
    good: list[str] = []
    bad: list[tuple[str, str]] = []
    for path, item in items.items():
        try:
            good.append(read(item))
        except _Wrong as wrong:
            bad += [(path + below, sentence) for below, sentence in wrong.mistakes]
    if bad:
        raise _Wrong(*bad)
    return tuple(good)


def _interface(value: object) -> str:
    if value not in SSH_INTERFACES:
        raise _Wrong(("", f"expected one of {', '.join(SSH_INTERFACES)}, found {value!r}"))
    return str(value)


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise _Wrong(("", f"expected a port from 1 to 65535, found {value!r}"))
    return value


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Wrong(("", f"expected a mapping of tag names to values, found {value!r}"))
    bad = []
    if len(value) > _MAX_TAGS:
        bad.append(("", f"{len(value)} tags; a resource has room for {_MAX_TAGS} of yours"))
    for key, text in value.items():
        if not isinstance(key, str) or not 1 <= len(key) <= 128 or key.startswith("aws:"):
            bad.append((f".{key}", "a tag's name is text of 1 to 128 characters that does not start with aws:"))
        if not isinstance(text, str) or len(text) > 256:
            bad.append((f".{key}", f"a tag's value is text of at most 256 characters (quote it), found {text!r}"))
    if bad:
        raise _Wrong(*bad)
    return dict(value)


def _mirror(value: object) -> Mirror:
    if not isinstance(value, dict):
        raise _Wrong(("", f"expected url and key_fingerprint, found {value!r}"))
    bad = [(f".{key}", "unknown key; a mirror has url and key_fingerprint") for key in value if key not in _MIRROR]
    try:
        found = _all({f".{key}": value.get(key) for key in _MIRROR}, lambda item: _text(item))
    except _Wrong as wrong:
        raise _Wrong(*bad, *wrong.mistakes) from None
    for key, read, item in zip(_MIRROR, (_url, _fingerprint), found, strict=True):
        try:
            read(item)
        except _Wrong as wrong:
            bad += [(f".{key}", sentence) for _, sentence in wrong.mistakes]
    if bad:
        raise _Wrong(*bad)
    return Mirror(url=found[0].rstrip("/"), key_fingerprint=found[1].upper())


_MIRROR = ("url", "key_fingerprint")
_READERS: dict[str, Callable[[object], object]] = {
    "name": _text,
    "region": _matching(r"[a-z]{2}(-[a-z]+)+-\d", "eu-central-1"),
    "profile": _text,
    "endpoint": _url,
    "subnet_id": _matching(r"subnet-[0-9a-f]{8,17}", "subnet-0123456789abcdef0"),
    "security_group_ids": _groups,
    "instance_profile": _matching(r"[\w+=,.@-]{1,128}", "a profile's name (not its ARN)"),
    "ssh_interface": _interface,
    "ssh_port": _port,
    "kms_key_id": _text,
    "tags": _tags,
    "source_ami": _matching(r"ami-[0-9a-f]{8,17}", "ami-0123456789abcdef0"),
    "mirror": _mirror,
    "guest_endpoint": _url,
}


def load_place(path: Path) -> Place:
    """Reads a `--where` file (YAML). UsageError names every mistake with its key path."""
    document = _read_yaml(path)
    values: dict[str, object] = {"name": path.stem}
    mistakes: list[str] = []
    for key, value in document.items():
        reader = _READERS.get(key) if isinstance(key, str) else None
        if reader is None:
            mistakes.append(f"{key}: {_unknown(str(key))}")
            continue
        try:
            values[str(key)] = reader(value)
        except _Wrong as wrong:
            mistakes += [f"{key}{below}: {sentence}" for below, sentence in wrong.mistakes]
    if "region" not in document:
        mistakes.append("region: missing; say in which AWS region to work, such as eu-central-1")
    if mistakes:
        raise UsageError(
            f"{path}: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}",
            details=mistakes,
            hint=f"a place has the keys {', '.join(_READERS)}",
        )
    return Place(**values)  # type: ignore[arg-type]  # each value went through its key's reader


def _unknown(key: str) -> str:
    if key == "credentials":
        return "secrets do not belong into this file; name a profile, or let boto3 find them in the environment"
    near = difflib.get_close_matches(key, _READERS, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"


def _read_yaml(path: Path) -> dict[object, object]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="--where takes a YAML file; see the README") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML", details=str(error).splitlines()) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected keys and values, found {type(document).__name__}", hint="see the README")
    return document
