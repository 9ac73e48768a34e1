"""Takes the inventory of a host under test, and finds the base AMI's: beside the plan, or in the image itself."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator import inputs, remote
from validator.file_account.explain import BuilderBoot, RoleTime
from validator.file_account.initial_ramdisk import InvalidRamdisk, read_ramdisks
from validator.file_account.inventory import InvalidInventory, Inventory, Ramdisk, read
from validator.file_account.rule_problems import Written, WrittenFile
from validator.transport import Command, Target, backend, image_files

PROGRAM = remote.PROGRAMS / "inventory.py"
FILE = "base-inventory.jsonl.gz"
KEPT_FILE = "inventory.jsonl.gz"  # of a host under test, in its folder of the evidence
IN_IMAGE = f"/usr/share/gpu-ami/{FILE}"
WRITTEN_FILE = "written-files.json"  # playbooks/callback_plugins/written_files.py
BOOTS_IN_IMAGE = "/usr/share/gpu-ami/builder-boots.jsonl"
SECONDS = 900.0  # every file is read, on a new volume for the first time
_RAMDISK_SECONDS = 90.0
_NO_PYTHON = 127


class NotTaken(Exception):
    """There is no inventory; the message says why."""


@dataclass(frozen=True)
class Base:
    """The base AMI's inventory, where it is from, when each role ran in the build, and boots of further builders.

    written: path → what a role of the build wrote there; None where the build's folder has no record of it.
    """

    inventory: Inventory
    source: str
    role_times: tuple[RoleTime, ...] = ()
    boots: tuple[BuilderBoot, ...] = ()
    written: Mapping[str, WrittenFile] | None = None


def take(host: Any, *, running: bool, hash_since: float = 0.0, keep: Path | None = None) -> Inventory:
    """The inventory of a host. NotTaken.

    hash_since: epoch seconds; files that have not changed since are not read. keep: a folder that gets the inventory
    as it was taken, if every file was read.
    """
    options = f"{'--running ' if running else ''}--hash-since={hash_since}"
    command = f"python3 -IS - {options} <<'END_OF_PROGRAM'\n{PROGRAM.read_text(encoding='utf-8')}END_OF_PROGRAM"
    done = host.run(command, timeout=SECONDS, pure=True)
    if done.rc == _NO_PYTHON:
        raise NotTaken("the image has no python3, which lists its files")
    if done.rc != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise NotTaken(f"the inventory could not be taken: {said[0]}")
    try:
        inventory = read(done.stdout_bytes)
    except InvalidInventory as error:
        raise NotTaken(f"the inventory could not be read: {error}") from error
    if keep is not None and not hash_since:
        (keep / KEPT_FILE).write_bytes(done.stdout_bytes)
    # Without the digests of all files there is nothing to compare a ramdisk with.
    return inventory if hash_since else replace(inventory, ramdisks=_ramdisks(host))


@dataclass(frozen=True)
class _Done:
    """What `take` reads of a command."""

    rc: int
    stdout_bytes: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")


class _Host:
    """A host or the files of an image as `take` uses them, over a link of their own and as root."""

    def __init__(self, target: Target | image_files.Image) -> None:
        self._link = backend.HostLink(target)

    def run(self, command: str, timeout: float, pure: bool) -> _Done:
        answers, _ = self._link.execute([Command(command, timeout)], root=True)
        answer = answers[0]
        if answer.expired:
            raise NotTaken(f"the inventory took more than {timeout:.0f} s")
        return _Done(answer.rc, answer.stdout, answer.stderr.decode("utf-8", "replace"))

    def close(self) -> None:
        self._link.close()


def take_over(target: Target | image_files.Image, *, running: bool) -> Inventory:
    """The inventory of a host, or of the files of an image, outside of the validator. NotTaken, TransportFault."""
    host = _Host(target)
    try:
        return take(host, running=running)
    finally:
        host.close()


def _ramdisks(host: Any) -> Mapping[str, Ramdisk]:
    """The initial ramdisks of a host; one without a path says why they are not known."""
    done = host.run(remote.python("initial_ramdisk"), timeout=_RAMDISK_SECONDS, pure=True)
    try:
        if done.rc != 0:
            raise InvalidRamdisk((done.stderr.strip().splitlines() or ["no output"])[-1])
        return read_ramdisks(done.stdout)
    except InvalidRamdisk as error:
        return {"": Ramdisk("the initial ramdisks", unknown=str(error))}


def find_base(host: Any, build: Path | None) -> Base:
    """The base AMI's inventory: the one in the folder of the build, if the image has the same; else the image's own.

    NotTaken: there is none, so it is unknown which files the base AMI had.
    """
    found = host.run(f"sha256sum {IN_IMAGE}", pure=True)
    if found.rc != 0:
        raise NotTaken(
            f"the image has no {IN_IMAGE}: it was not built by gpu-ami, or by a version without file account"
        )
    data = _kept(build)
    if data is not None and found.stdout.split()[0] == hashlib.sha256(data).hexdigest():
        return Base(_read(data), f"{build}/{FILE}", role_times(build), builder_boots(host), written_files(build))
    own = host.run(f"cat {IN_IMAGE}", timeout=SECONDS, pure=True)
    if own.rc != 0:
        raise NotTaken(f"{IN_IMAGE}: {own.stderr.strip()}")
    return Base(_read(own.stdout_bytes), "the image's own copy", boots=builder_boots(host))


def builder_boots(host: Any) -> tuple[BuilderBoot, ...]:
    """The boots of builders that began with a layer image; none where the image was built from nothing. NotTaken."""
    noted = host.run(f"cat {BOOTS_IN_IMAGE}", pure=True)
    if noted.rc != 0:
        return ()
    try:
        rows = [json.loads(line) for line in noted.stdout.splitlines()]
        return tuple(BuilderBoot(float(row["booted"]), float(row["roles"])) for row in rows)
    except (ValueError, LookupError, TypeError) as error:
        raise NotTaken(f"{BOOTS_IN_IMAGE}: expected a JSON object with booted and roles a line, got {error}") from error


def written_files(build: Path | None) -> Mapping[str, WrittenFile] | None:
    """Which files the roles of a build wrote, with their content's SHA-1; None without such a record. NotTaken."""
    path = build / WRITTEN_FILE if build else None
    if path is None or not path.is_file():
        return None
    try:
        rows = inputs.parse_json(path.read_text(encoding="utf-8"))
        return {str(name): WrittenFile(str(row["role"]), str(row["sha1"])) for name, row in rows.items()}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotTaken(f"{path}: expected role and sha1 of each path, got {error}") from error


def take_written(host: Any, base: Base) -> Written | None:
    """What the roles wrote, with what the files of the image have now; None where it is not known."""
    if base.written is None:
        return None
    listed = "\n".join(path for path in base.written if "\n" not in path)
    command = f"xargs -d '\\n' sha1sum -z -- <<'END_OF_PATHS'\n{listed}\nEND_OF_PATHS"
    rows = (row.partition("  ") for row in host.run(command, timeout=SECONDS, pure=True).stdout.split("\0"))
    return Written(base.written, {path: digest for digest, _, path in rows if path}, is_whole=not base.boots)


def _kept(build: Path | None) -> bytes | None:
    path = build / FILE if build else None
    return path.read_bytes() if path is not None and path.is_file() else None


@functools.lru_cache(maxsize=2)
def _read(data: bytes) -> Inventory:
    """Once for all checks that compare with it."""
    try:
        return read(data)
    except InvalidInventory as error:
        raise NotTaken(f"the base AMI's inventory: {error}") from error


def role_times(build: Path | None) -> tuple[RoleTime, ...]:
    """When each role ran, from build.json; none where it does not say."""
    try:
        document = json.loads((build / "build.json").read_text(encoding="utf-8")) if build else {}
        rows: Sequence[Any] = (document.get("ansible") or {}).get("roles", ())
        return tuple(RoleTime(str(row[0]), float(row[1]), float(row[2])) for row in rows)
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return ()
