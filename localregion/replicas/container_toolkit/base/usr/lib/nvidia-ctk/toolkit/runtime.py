"""nvidia-container-runtime: adds the requested GPUs to a container's configuration, then becomes runc.

Modes of the original: `cdi` from specifications on disk, `jit-cdi` from one that is made now. `auto` is the first where
all requested devices have their full names, else the second; before 1.18, `legacy`, which the replica has not.
"""

import json
import os
import shutil
import sys
from typing import NoReturn

from . import edits, registry, specification
from .log import Failure
from .settings import Settings
from .specification import Table

AUTOMATIC = "runtime.nvidia.com/gpu"


def visible_devices(spec: Table, prefixes: list[str]) -> list[str]:
    """What the container requests: by annotations, else by NVIDIA_VISIBLE_DEVICES."""
    rows = spec.get("annotations") or {}
    named = [name for key, value in rows.items() if key.startswith(tuple(prefixes)) for name in value.split(",")]
    if named:
        return named
    environment = dict(row.split("=", 1) for row in spec.get("process", {}).get("env") or [] if "=" in row)
    value = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if value in ("", "void"):
        return []
    return list(dict.fromkeys(name.strip() or "none" for name in value.split(",")))


def resolve_mode(settings: Settings, devices: list[str], version: tuple[int, ...]) -> str:
    if settings.mode != "auto":
        return str(settings.mode)
    if all(is_qualified(name) for name in devices):
        return "cdi"
    return "jit-cdi" if version >= (1, 18) else "legacy"


def is_qualified(name: str) -> bool:
    kind, sign, device = name.partition("=")
    return bool(sign and device and "/" in kind)


def requested_edits(settings: Settings, devices: list[str], version: tuple[int, ...]) -> list[Table]:
    mode = resolve_mode(settings, devices, version)
    if mode not in ("cdi", "jit-cdi"):
        raise Failure("failed to create NVIDIA Container Runtime: this replica has no mode %r" % mode)
    kind = settings.kind if mode == "cdi" else AUTOMATIC
    names = [name if is_qualified(name) else "%s=%s" % (kind, name) for name in devices]
    automatic = [name.partition("=")[2] for name in names if name.startswith(AUTOMATIC + "=")]
    if automatic and len(automatic) != len(names):
        raise Failure(
            "requesting a CDI device with vendor 'runtime.nvidia.com' is not supported"
            " when requesting other CDI devices"
        )
    return _automatic(automatic, version) if automatic else registry.resolve(names, settings.folders)


def _automatic(names: list[str], version: tuple[int, ...]) -> list[Table]:
    found = specification.gpus()
    why = 'failed to create the automatic CDI modifier: failed to generate CDI spec for mode "auto": '
    why += "failed to construct device spec generators: "
    if not found:
        raise Failure(why + "failed to initialize NVML: ERROR_DRIVER_NOT_LOADED")
    document = specification.specify(found, version, AUTOMATIC)
    devices = {device["name"]: device["containerEdits"] for device in document["devices"]} | {"none": {}}
    unknown = [name for name in names if name not in devices]
    if unknown:
        raise Failure(why + "failed to get device handle from index: Invalid Argument")
    return [document["containerEdits"], *(devices[name] for name in names)]


def asks_version(words: list[str]) -> bool:
    """The original prints its own version, and then runs runc, which prints its own (internal/runtime/runtime.go)."""
    return any(word.startswith("-") and word.partition("=")[0].lstrip("-") == "version" for word in words)


def specification_of(version: str) -> str:
    """The release of the runtime specification that a release was built with: 1.18.1 and 1.20.1 say so."""
    return "1.3.0" if tuple(int(part) for part in version.split(".")[:2]) >= (1, 20) else "1.2.1"


def bundle_of(words: list[str]) -> str | None:
    """The bundle's folder, if the command is `create` or `run`; None if not."""
    if not {"create", "run"} & set(words):
        return None
    for number, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in ("--bundle", "-bundle", "-b"):
            return value if sign else words[number + 1]
    return os.getcwd()


def modify(folder: str, version: tuple[int, ...], settings: Settings) -> None:
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    devices = visible_devices(spec, settings.prefixes)
    if devices:
        try:
            edits.apply(spec, requested_edits(settings, devices, version))
        except Failure as failure:
            where = "could not apply required modification to OCI specification: error modifying OCI spec: "
            raise Failure(where + str(failure)) from failure
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file)


def main(words: list[str], version: str) -> NoReturn:
    settings = Settings()
    program = next(filter(None, map(shutil.which, settings.runtimes)), None)
    if program is None:
        candidates = " ".join(settings.runtimes)
        raise Failure("error locating runtime: no runtime binary found from candidate list: [%s]" % candidates)
    folder = bundle_of(words)
    if folder is not None:
        modify(folder, specification.release(version), settings)
    if asks_version(words):
        sys.stdout.write("\n")
    sys.stdout.flush()
    os.execv(program, [program, *words])
