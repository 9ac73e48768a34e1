"""An inventory as `onhost/inventory.py` writes it: every file of a system, its packages and its accounts.

`differences` compares two states of a path: now, and in the base AMI or the certified image.

`merkle_root` is what a certificate signs of the entries: the root of a tree as in RFC 6962, section 2.1, with SHA-256.
Its leaves are the entries in the order of their paths (as UTF-8, surrogates as they are). A leaf is the entry's
canonical JSON without times, which differ between copies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validator import inputs

SCHEMA = "gpu-ami/inventory/1"


class InvalidInventory(ValueError):
    """Not an inventory, or one that was cut off; the message says which."""


@dataclass(frozen=True)
class Entry:
    """One path. kind: f, d, l, c, b, p or s, as `find -printf %y`; mode: permission bits; owner, group: names.

    sha256: of a file ("" where it was not read: `error` says why); target: of a link. attributes: extended attributes,
    name → hexadecimal. packages: which own the path; differs: what is not as the package has it, None where the package
    records nothing. bytecode: the three words behind the magic number of a .pyc. modified, changed: epoch seconds.
    """

    path: str
    kind: str
    mode: int
    owner: str
    group: str
    modified: int = 0
    changed: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""
    device: tuple[int, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    is_setting: bool = False
    differs: tuple[str, ...] | None = None
    bytecode: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Package:
    """An installed package. depends: alternatives of each requirement; provides: further names of it."""

    name: str
    version: str
    architecture: str = ""
    state: str = "installed"
    depends: tuple[tuple[str, ...], ...] = ()
    provides: tuple[str, ...] = ()
    automatic: bool = False


@dataclass(frozen=True)
class Account:
    """A line of /etc/passwd. password: "locked", "set" or "empty", "" where /etc/shadow has no such line."""

    name: str
    user_id: int
    group_id: int
    home: str
    shell: str
    password: str


@dataclass(frozen=True)
class Ramdisk:
    """An initial ramdisk. files: name, type, mode, SHA-256 or link target, size. texts: of files that tools generate.

    error: why it ends there; unknown: why it could not be read at all by the system's programs.
    """

    path: str
    files: Sequence[Sequence[Any]] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    unknown: str = ""


@dataclass(frozen=True)
class Inventory:
    """A system's files and what else was recorded with them. missing: packaged path → packages, where no file is.
    mounted: paths on which other file systems were mounted, so that nothing is known of what is below.

    ramdisks: of an image, path → its files (initial_ramdisk.py). grubenv: path → variables of the boot loader.
    diversions (path, to, package or ":"), overrides (owner, group, mode, path), marked (names that apt has as installed
    automatically), held (names that dpkg holds, and lines of version locks): None in an inventory that does not record
    them.

    groups: name → (id, members). boot_time (epoch seconds), command_line, mounts (mount point, type) and listeners
    (protocol, port, program) are of a system that ran; else 0 and empty. hash_since: older files have no digest.
    """

    entries: Mapping[str, Entry]
    packages: Mapping[str, Package] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mounted: frozenset[str] = frozenset()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    os: str = ""
    os_version: str = ""
    taken: float = 0.0
    running: bool = False
    boot_time: float = 0.0
    hash_since: float = 0.0
    command_line: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    listeners: tuple[tuple[str, int, str], ...] = ()
    ramdisks: Mapping[str, Ramdisk] = field(default_factory=dict)
    grubenv: Mapping[str, Mapping[str, str]] | None = None
    diversions: tuple[tuple[str, ...], ...] | None = None
    overrides: tuple[tuple[str, ...], ...] | None = None
    marked: frozenset[str] | None = None
    held: frozenset[str] | None = None


def read(data: bytes) -> Inventory:
    """Reads an inventory, compressed or not. InvalidInventory: another schema, cut off, or not an inventory."""
    try:
        text = inputs.gunzip(data) if data[:2] == b"\x1f\x8b" else data
        return _read([inputs.parse_json(line) for line in text.splitlines()])
    except InvalidInventory:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # other types than ours are there
        raise InvalidInventory(f"not an inventory: {type(error).__name__}: {error}") from error


def _read(records: list[Any]) -> Inventory:
    if not records or records[0].get("schema") != SCHEMA:
        raise InvalidInventory(f"expected schema {SCHEMA}, got {records[0].get('schema') if records else 'no line'}")
    header = records[0]
    users = {row[0]: name for name, row in reversed(header["accounts"].items())}
    groups = {row[0]: name for name, row in reversed(header["groups"].items())}
    entries = {record["p"]: _entry(record, users, groups) for record in records if "p" in record}
    if records[-1].get("end") != len(entries):
        raise InvalidInventory(f"cut off after {len(entries)} entries")
    packages = [_package(record["package"]) for record in records if "package" in record]
    return Inventory(
        entries=entries,
        packages={package.name: package for package in packages},
        missing={record["missing"]: tuple(record["o"]) for record in records if "missing" in record},
        mounted=frozenset(record["mounted"] for record in records if "mounted" in record),
        accounts={name: Account(name, *row) for name, row in header["accounts"].items()},
        groups={name: (row[0], tuple(row[1])) for name, row in header["groups"].items()},
        os=header["os"],
        os_version=header["os_version"],
        taken=header["time"],
        running=header["running"],
        boot_time=header.get("boot_time", 0.0),
        hash_since=header.get("hash_since", 0.0),
        command_line=tuple(header.get("command_line", ())),
        mounts=tuple((row[0], row[1]) for row in header.get("mounts", ())),
        listeners=tuple((row[0], row[1], row[2]) for row in header.get("listeners", ())),
        grubenv=header.get("grubenv"),
        diversions=_rows(header, "diversions"),
        overrides=_rows(header, "overrides"),
        marked=frozenset(header["marked"]) if "marked" in header else None,
        held=frozenset(header["held"]) if "held" in header else None,
    )


def _rows(header: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], ...] | None:
    return tuple(tuple(row) for row in header[key]) if key in header else None


def _entry(record: dict[str, Any], users: Mapping[int, str], groups: Mapping[int, str]) -> Entry:
    return Entry(
        path=record["p"],
        kind=record["t"],
        mode=record["m"],
        owner=users.get(record["u"], str(record["u"])),
        group=groups.get(record["g"], str(record["g"])),
        modified=record["a"],
        changed=record["c"],
        size=record.get("s", 0),
        sha256=record.get("h", ""),
        target=record.get("l", ""),
        device=tuple(record.get("d", ())),
        attributes=record.get("x", {}),
        packages=tuple(dict.fromkeys(record.get("o", ()))),
        is_setting="k" in record,
        differs=tuple(record["v"]) if "v" in record else None,
        bytecode=tuple(record.get("y", ())),
        error=record.get("e", ""),
    )


def _package(record: dict[str, Any]) -> Package:
    return Package(
        name=record["name"],
        version=record["version"],
        architecture=record["architecture"],
        state=record["state"],
        depends=tuple(tuple(row) for row in record["depends"]),
        provides=tuple(record["provides"]),
        automatic=record["automatic"],
    )


def differences(now: Entry, before: Entry, hash_since: float = 0.0) -> list[str]:
    """The differences between an entry and what it was before, each with both values; empty if there are none."""
    if now.kind != before.kind:
        return [f"a {kind_name(now.kind)}, was a {kind_name(before.kind)}"]
    found = []
    if now.mode != before.mode and now.kind != "l":
        found.append(f"mode {now.mode:04o}, was {before.mode:04o}")
    if (now.owner, now.group) != (before.owner, before.group):
        found.append(f"owner {now.owner}:{now.group}, was {before.owner}:{before.group}")
    if now.kind == "f" and (now.sha256 or now.changed >= hash_since) and now.sha256 != before.sha256:
        found.append(f"content ({now.size} bytes, was {before.size})")
    if now.target != before.target:
        found.append(f"link to {now.target}, was {before.target}")
    if now.device != before.device:
        found.append(f"device {now.device}, was {before.device}")
    if dict(now.attributes) != dict(before.attributes):
        names = sorted(set(now.attributes.items()) ^ set(before.attributes.items()))
        found.append(f"attributes {', '.join(dict.fromkeys(name for name, _ in names))}")
    return found


def unchanged_package(now: Entry, before: Entry, names: str) -> str:
    """How an entry that is as its package has it differs from the base AMI's, whose package is the same; "" if not.

    Content is no difference where the base AMI's was not the package's own: then the package was installed again.
    """
    found = differences(now, before)
    if before.differs:
        found = [text for text in found if not text.startswith("content")]
    return f"{', '.join(found)} (package {names}, the same as in the base AMI)" if found else ""


def same_mode_and_owner(now: Entry, before: Entry | None) -> bool:
    """Whether an entry was there before with this mode, owner and group."""
    return before is not None and (now.mode, now.owner, now.group) == (before.mode, before.owner, before.group)


def mode_and_owner(entry: Entry) -> str:
    return f"mode {entry.mode:04o}, owner {entry.owner}:{entry.group}"


def kind_name(kind: str) -> str:
    names = {"f": "file", "d": "directory", "l": "link", "p": "fifo", "s": "socket"}
    return names.get(kind, "device")


def merkle_leaf(entry: Entry) -> bytes:
    """The hash of an entry: everything that the inventory has of it but its times."""
    content = {
        "path": entry.path,
        "kind": entry.kind,
        "mode": entry.mode,
        "owner": entry.owner,
        "group": entry.group,
        "size": entry.size,
        "sha256": entry.sha256,
        "target": entry.target,
        "device": list(entry.device),
        "attributes": dict(entry.attributes),
        "packages": sorted(entry.packages),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"\0" + text.encode("ascii")).digest()


def merkle_root(inventory: Inventory) -> str:
    """The root over all entries, 64 hexadecimal digits."""
    return _root([merkle_leaf(entry) for entry in _ordered(inventory)]).hex()


def _ordered(inventory: Inventory) -> list[Entry]:
    return [inventory.entries[path] for path in sorted(inventory.entries, key=_key)]


def _key(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(count: int) -> int:
    """The largest power of two below count."""
    return 1 << (count - 1).bit_length() - 1


def _root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = _split(len(leaves))
    return _node(_root(leaves[:middle]), _root(leaves[middle:]))
