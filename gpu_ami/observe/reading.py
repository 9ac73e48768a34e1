"""One execution of the reading program: on a host over SSH, on this machine, or on the files of an image.

The files of an image are read by this machine's own Python: no program of the image runs. A raw disk image is mounted
read-only in a mount namespace of its own, which ends with the program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import process
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.observe.observation import MISTAKES_SHOWN, Observation, wrong_types
from gpu_ami.recipes.components import Registry, components
from onhost import observation as program
from validator import remote
from validator.inputs import parse_json

if TYPE_CHECKING:
    from validator.transport import Target

SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)
_SECONDS = 300.0
_WAIT_SECONDS = 600.0
# Mounts the largest partition and reads it; noload: a journal is not replayed on what must not change.
_MOUNTED = (
    'mount -o "ro,noload,loop,offset=$2" -- "$1" "$3" 2>/dev/null || mount -o "ro,loop,offset=$2" -- "$1" "$3"'
    ' && exec "$4" -IS -c "$5" --root "$3" --request "$6"'
)
# A host that is still booting is not judged. `systemctl is-system-running --wait` needs systemd 240.
_BOOTED = (
    "if command -v cloud-init >/dev/null; then timeout {seconds} cloud-init status --wait >/dev/null 2>&1; fi; "
    "timeout {seconds} systemctl is-system-running --wait 2>/dev/null || systemctl is-system-running"
)


def request(registry: Registry | None = None) -> dict[str, list[list[str]]]:
    """Component → its sources, as the reading program is given them."""
    declared = registry or components()
    return {name: [one.request() for one in part.observed.sources] for name, part in declared.items() if part.observed}


def read_local(registry: Registry | None = None, *, wait: bool = True) -> Observation:
    """This machine, after its boot. Programs and libraries are asked as the caller's user: as root, all can be read."""
    state = _boot_of_this_machine() if wait and SYSTEMD.is_dir() else ""
    document = {**program.observe("", True, request(registry)), "system_state": state}
    return _observation(document, "this machine", registry)


def _boot_of_this_machine() -> str:
    """Waits for the end of the boot; what systemd then says of it. MachineError: it does not end."""
    command = ["sh", "-c", _BOOTED.format(seconds=int(_WAIT_SECONDS))]
    done = process.run(command, timeout=2 * _WAIT_SECONDS + 30, check=False, error=MachineError)
    return (done.stdout.strip().splitlines() or [""])[-1]


def read_files(path: Path, registry: Registry | None = None) -> Observation:
    """A mounted tree or a raw disk image. UsageError: it is neither, or cannot be mounted here."""
    if path.is_dir():
        if not any((path / name).exists() for name in ("etc/os-release", "usr/lib/os-release", "etc/passwd")):
            raise UsageError(f"{path}: not the root of a system: neither etc/os-release nor etc/passwd is there")
        return _observation(program.observe(str(path.resolve()), False, request(registry)), str(path), registry)
    if not path.is_file():
        raise UsageError(f"{path}: no such file or directory", hint="name a mounted tree or a raw disk image")
    return _observation(_of_disk(path, request(registry)), str(path), registry)


def _of_disk(path: Path, asked: Mapping[str, object]) -> Mapping[str, Any]:
    import tempfile

    from validator.transport import image_files

    if os.geteuid() != 0:
        raise UsageError(
            f"{path} can only be mounted by root", hint="run it with sudo, or mount it and name the folder"
        )
    with tempfile.TemporaryDirectory(prefix="gpu-ami-image-") as folder:
        offset = str(image_files.partition_offset(path))
        text = remote.program("observation")
        words = [_MOUNTED, "mounted", str(path.resolve()), offset, folder, sys.executable, text]
        done = process.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", *words, json.dumps(asked)],
            timeout=_SECONDS,
            check=False,
            error=MachineError,
        )
    if done.returncode != 0:
        raise UsageError(f"{path}: its file system cannot be read here", details=process.describe(done))
    return _document(done.stdout, str(path))


def read_host(target: Target, registry: Registry | None = None, *, wait: bool = True) -> Observation:
    """A running machine, as root. MachineError: it cannot be reached, or has no Python 3."""
    from validator.transport import Command, TransportFault, backend

    link = backend.HostLink(target)
    try:
        state = ""
        if wait:
            command = _BOOTED.format(seconds=int(_WAIT_SECONDS))
            (booted,), _ = link.execute([Command(command, 2 * _WAIT_SECONDS + 30)], root=True)
            state = (booted.stdout.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
        asked = remote.python("observation", "--running", "--request", json.dumps(request(registry)))
        (answer,), _ = link.execute([Command(asked, _SECONDS)], root=True)
    except TransportFault as fault:
        raise MachineError(f"{target.name}: {fault.message}", hint=fault.hint) from fault
    finally:
        link.close()
    if answer.expired or answer.rc != 0:
        said = answer.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no answer"]
        hint = "it needs python3 (3.6 or newer), and sudo for the login"
        raise MachineError(f"{target.name}: what is in it cannot be read: {said[0]}", hint=hint)
    document = {**_document(answer.stdout.decode("utf-8", "replace"), target.name), "system_state": state}
    return _observation(document, target.name, registry)


def _document(text: str, where: str) -> Mapping[str, Any]:
    try:
        document = parse_json(text)
    except ValueError as error:
        raise MachineError(f"{where}: the reading program printed no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("schema") != program.SCHEMA:
        raise MachineError(f"{where}: expected {program.SCHEMA} of the reading program")
    if wrong := wrong_types(document):
        raise MachineError(f"{where}: printed what the reading program never prints", details=wrong[:MISTAKES_SHOWN])
    return document


def _observation(document: Mapping[str, Any], where: str, registry: Registry | None) -> Observation:
    return Observation({**document, "read_of": where}, registry or components())
