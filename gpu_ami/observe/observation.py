"""What was read of an image, component by component: version, where each source has it, and whether they agree.

The reading program is executed once: on a host over SSH, on this machine, or on the files of an image. These are read
by this machine's own Python: no program of the image runs. A raw disk image is mounted read-only in a mount namespace
of its own, which ends with the program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from gpu_ami import process
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.files import read_document
from gpu_ami.recipes.components import Registry, components
from gpu_ami.recipes.facts import Facts, Row, parts
from onhost import observation as program
from onhost.observation import SCHEMA
from validator import remote
from validator.inputs import parse_json
from validator.results import typed_mistakes

if TYPE_CHECKING:
    from validator.transport import Target


OBSERVATION_FILE = "observation.json"
# Whose word counts where sources differ: what runs before what lies on disk, that before what a database says.
_PREFERRED = (
    "module loaded", "library's own word", "program", "module on disk", "library file", "link", "version.json",
    "file", "package database", "DKMS", "driver tree", "installer's record",
)  # fmt: skip
_MANY = 3  # readings of a source that are shown
MISTAKES_SHOWN = 20
MOUNT_LINES = 3  # of what mount(8) says


@dataclass(frozen=True)
class Found:
    """A component that is in the image.

    version: "" where it is there and no source names one. by_source: source → its versions, the newest first.
    disagreement: "" where all sources agree. full: package → its full version in the package database.
    """

    name: str
    label: str
    version: str
    readings: Sequence[Mapping[str, Any]]
    by_source: Mapping[str, Sequence[str]]
    disagreement: str
    packages: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """Where its version was read, source by source."""
        shown = []
        for source in dict.fromkeys(str(reading["source"]) for reading in self.readings):
            places = [str(reading["where"]) for reading in self.readings if reading["source"] == source]
            rest = f" and {len(places) - 1} more" if len(places) > 1 else ""
            shown.append(f"{source} ({places[0]}{rest})")
        return ", ".join(shown)

    @property
    def sources(self) -> int:
        """How many sources show it."""
        return len({reading["source"] for reading in self.readings})

    def to_json(self) -> dict[str, object]:
        """Of observation.json."""
        return {
            "name": self.name, "version": self.version, "agrees": not self.disagreement,
            "disagreement": self.disagreement, "packages": dict(self.packages), "held": sorted(self.held),
            "sources": [{key: value for key, value in reading.items() if value != ""} for reading in self.readings],
        }  # fmt: skip


class ReadingDetails(TypedDict):
    """What some sources say beside a version.

    full: the package's version in the database; kernel: of a module; says: a loaded module of itself.
    """

    package: NotRequired[str]
    full: NotRequired[str]
    held: NotRequired[bool]
    kernel: NotRequired[str]
    license: NotRequired[str]
    built_for: NotRequired[str]
    says: NotRequired[str]
    error: NotRequired[str]


class Reading(ReadingDetails):
    """One source's word on a component."""

    source: str
    version: str
    where: str


class System(TypedDict):
    """Of os-release."""

    id: str
    version: str
    name: str
    codename: str


class AgentPart(TypedDict):
    """A file of the agent's configuration, as it is."""

    path: str
    config: dict[str, object]


class FetchedConfig(TypedDict):
    """A command of the boot that fetches the agent's configuration."""

    path: str
    command: str


class Agent(TypedDict):
    """The CloudWatch agent, as onhost/shippers.py reads it."""

    installed: bool
    parts: list[AgentPart]
    mistakes: list[str]
    common_config: list[str]
    fetched_at_boot: list[FetchedConfig]
    enabled: bool
    masked: bool
    collector: NotRequired[list[str]]
    translated: NotRequired[bool]
    unread: NotRequired[list[str]]


class Script(TypedDict):
    """A program that looks for the driver's lines."""

    path: str
    started_by: str
    how: str
    again: bool
    writes: list[str]
    reads: NotRequired[list[str]]
    off: NotRequired[str]
    ships: NotRequired[list[str]]


class SyslogFile(TypedDict):
    """A file that rsyslog writes kernel lines to."""

    file: str
    rule: NotRequired[str]
    off: NotRequired[str]


class Shipper(TypedDict):
    """What sends logs or metrics beside the agent."""

    name: str
    kernel: str
    groups: list[str]
    config: list[str]
    off: str


class Captures(TypedDict):
    """What may send the driver's lines anywhere."""

    scripts: list[Script]
    syslog: list[SyslogFile]
    shippers: NotRequired[list[Shipper]]


class Settings(TypedDict):
    """What rules ask beside versions."""

    blacklisted_in: dict[str, list[str]]  # module of Linux → files
    of_linux_for: dict[str, list[str]]  # module of Linux → kernels that have it
    nvidia_options: list[str]
    enabled: list[str]
    login_user: str
    runtime_mode: str
    no_cgroups: bool
    runtimes: list[str]
    has_runtime: list[str]
    masked: NotRequired[list[str]]
    loader_stubs: NotRequired[list[str]]
    nvidia_smi: NotRequired[list[str]]
    firmware: NotRequired[list[str]]
    environments: NotRequired[list[dict[str, str]]]
    uvm_for: NotRequired[list[str]]
    runtime_packages: NotRequired[dict[str, str]]


class ObservationDocument(TypedDict):
    """What the reading program prints (onhost/observation.py). An earlier version did not print all of it."""

    running: bool
    os: System
    architecture: Literal["", "x86_64", "arm64"]
    kernels: list[str]
    running_kernel: str
    package_database: str
    packages: int  # how many it has
    errors: list[str]
    readings: dict[str, list[Reading]]
    agent: Agent
    captures: Captures
    settings: Settings
    devices: list[dict[str, str]]
    unfinished: NotRequired[list[str]]
    unread: NotRequired[list[str]]
    system_state: NotRequired[str]
    read_of: NotRequired[str]


def same(first: str, second: str) -> bool:
    """Whether two versions are the same as far as both go: 12.9 and 12.9.1."""
    one, other = first.split("."), second.split(".")
    most = min(len(one), len(other))
    return one[:most] == other[:most]


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


@dataclass(frozen=True)
class Observation:
    """What the reading program printed, and what follows from it. document: observation.json, as it was printed."""

    document: Mapping[str, Any]
    registry: Registry

    def closed(self, *folders: str) -> list[str]:
        """What the reading user might not read in these folders or above them; of all, without any."""
        unread = [str(path) for path in self.document.get("unread") or ()]
        below = [(path, folder) for path in unread for folder in folders or ("/",)]
        return sorted({path for path, folder in below if _is_in(path, folder) or _is_in(folder, path)})

    def named(self, name: str) -> Observation:
        """The same, of an image that is called so."""
        return Observation({**self.document, "read_of": name}, self.registry)

    @cached_property
    def found(self) -> Mapping[str, Found]:
        """Component → what was found of it, in the order of a plan; those that are absent are not among them."""
        rows = {name: self._found(name) for name in self.registry if self.document["readings"].get(name)}
        return {name: row for name, row in rows.items() if row is not None}

    def _found(self, name: str) -> Found | None:
        declared = self.registry[name]
        readings = [row for row in self.document["readings"][name] if not row.get("error")]
        by_source: dict[str, list[str]] = {}
        for row in readings:
            versions = by_source.setdefault(str(row["source"]), [])
            if row["version"] and row["version"] not in versions:
                versions.append(str(row["version"]))
        by_source = {source: sorted(versions, key=parts, reverse=True) for source, versions in by_source.items()}
        if not readings:
            return None
        named = {source: versions for source, versions in by_source.items() if versions}
        order = [source for source in _PREFERRED if source in named] + [one for one in named if one not in _PREFERRED]
        version = named[order[0]][0] if order else ""
        several = bool(declared.observed and declared.observed.several)
        others = [
            f"{source} {', '.join(versions[:_MANY])}"
            for source, versions in named.items()
            # Of driver trees, which lie beside each other, a boot takes one.
            if not (any if several or source == "driver tree" else all)(same(version, other) for other in versions)
        ]
        return Found(
            name,
            declared.label or name.replace("_", " "),
            version,
            readings,
            by_source,
            f"{order[0]} {version}; {'; '.join(others)}" if others else "",
            {str(row["package"]): str(row["full"]) for row in readings if "package" in row},
            frozenset(str(row["package"]) for row in readings if row.get("held")),
        )

    @property
    def absent(self) -> list[str]:
        """Components that no source shows. `absent_sources` says how many sources were asked."""
        return [name for name, one in self.registry.items() if one.observed and name not in self.found]

    @property
    def absent_sources(self) -> list[str]:
        """What shows that a component is absent: the package database, if it could be read, and the files."""
        database = str(self.document["package_database"])
        return [*([database] if database else []), "its files"]

    @property
    def running(self) -> bool:
        return bool(self.document["running"])

    @property
    def architecture(self) -> str:
        return str(self.document["architecture"] or "x86_64")

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.document["settings"]  # type: ignore[no-any-return]

    @property
    def agent(self) -> Mapping[str, Any]:
        return self.document["agent"]  # type: ignore[no-any-return]

    def system(self, facts: Facts) -> tuple[str, Row | None]:
        """Name and row of the operating system in the facts; None where they do not have it."""
        read = self.document["os"]
        for name, row in facts.operating_systems.items():
            if (str(row["id"]), str(row["version"])) == (read["id"], read["version"]):
                return name, row
        return str(read["name"] or read["id"] or "an unknown system"), None

    @property
    def kernel(self) -> str:
        """The release of the running kernel, of image files the newest installed one."""
        installed = sorted(self.document["kernels"], key=lambda release: parts(_numbers(release)))
        return str(self.document["running_kernel"] or (installed[-1] if installed else ""))

    @property
    def kernel_series(self) -> str:
        return ".".join(_numbers(self.kernel).split(".")[:2])

    @property
    def node(self) -> tuple[str, str]:
        """Node family and version of its orchestrator; `ec2` and "" of a plain instance."""
        for name in ("node_parallelcluster", "node_eks", "node_ecs", "node_dlami"):
            if name in self.found:
                return name.removeprefix("node_"), self.found[name].version
        return "ec2", ""

    @property
    def accelerator(self) -> str:
        """nvidia, neuron or "": of what is installed."""
        return "nvidia" if "nvidia_driver" in self.found else "neuron" if "neuron" in self.found else ""

    @property
    def flavour(self) -> str:
        """open or proprietary: of the loaded module by its own word, else of the modules on disk by their licence.

        boot where both are on disk; "" where it is unknown.
        """
        driver = self.found.get("nvidia_driver")
        readings = driver.readings if driver else ()
        loaded = {
            "open" if " Open Kernel Module" in row["says"] else "proprietary" for row in readings if row.get("says")
        }
        if loaded:
            return loaded.pop()
        licences = {str(row["license"]) for row in readings if row.get("license")}
        flavours = {"open" if "MIT" in licence or "GPL" in licence else "proprietary" for licence in licences}
        return "boot" if len(flavours) > 1 else next(iter(flavours), "")

    def kernels_without(self, component: str) -> list[str]:
        """Installed kernels that have no module of a component that has one for another kernel, or a source for it."""
        readings = self.document["readings"].get(component, ())  # with those of files that could not be read
        having = {str(row["kernel"]) for row in readings if row.get("kernel")}
        return [kernel for kernel in self.document["kernels"] if kernel not in having]

    def to_json(self) -> dict[str, object]:
        """observation.json: what was printed, with what follows from it."""
        return {**self.document, "components": [one.to_json() for one in self.found.values()], "absent": self.absent}


def _numbers(release: str) -> str:
    import re

    match = re.match(r"[\d.]+", release)
    return match[0].strip(".") if match else "0"


def wrong_types(document: Mapping[str, object]) -> list[str]:
    """Where a document is not what the reading program prints: a host or a person may have sent any other."""
    return list(typed_mistakes(ObservationDocument, document, "")) or list(_halves(document["readings"]))


def _halves(readings: Any) -> Iterator[str]:
    """Readings of the package database that name a package without its version, or a version of no package."""
    for name, rows in readings.items():
        for index, row in enumerate(rows):
            if missing := [
                key for key in ("package", "full") if key not in row and {"package", "full", "held"} & {*row}
            ]:
                yield f"readings.{name}[{index}]: missing: {', '.join(missing)}"


def load(path: Path) -> Observation:
    """An observation.json. UsageError: it is none."""
    document = read_document(path, SCHEMA, "observe")
    if wrong := wrong_types(document):
        hint = "`gpu-ami observe` writes a new one"
        raise UsageError(f"{path}: not an observation as gpu-ami writes it", details=wrong[:MISTAKES_SHOWN], hint=hint)
    # The reading program alone, as EC2 Image Builder runs it, knows no name of what it read.
    return Observation({"read_of": str(path), **document}, components())


SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)
_SECONDS = 300.0
_WAIT_SECONDS = 600.0
_SYSTEM_HAS = ("etc/os-release", "usr/lib/os-release", "etc/passwd")
NO_SYSTEM = 66  # EX_NOINPUT
# Mounts a file system and reads it; noload: a journal is not replayed on what must not change.
_MOUNTED = (
    '{ mount -o "ro,noload,loop,offset=$2" -- "$1" "$3" 2>/dev/null || mount -o "ro,loop,offset=$2" -- "$1" "$3"; }'
    f' || exit 1; cd "$3"; ls -d {" ".join(_SYSTEM_HAS)} 2>/dev/null | grep -q . || exit {NO_SYSTEM}; cd /;'
    ' exec "$4" -IS -c "$5" --root "$3" --request "$6"'
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
        if not any((path / name).exists() for name in _SYSTEM_HAS):
            raise UsageError(f"{path}: not the root of a system: neither etc/os-release nor etc/passwd is there")
        return _observation(program.observe(str(path.resolve()), False, request(registry)), str(path), registry)
    if not (path.is_file() or path.is_block_device()):
        what = "neither a folder nor a disk" if path.exists() else "no such file or directory"
        raise UsageError(f"{path}: {what}", hint="name a mounted tree or a raw disk image")
    return _observation(*_of_disk(path, request(registry)), registry)


def _of_disk(path: Path, asked: Mapping[str, object]) -> tuple[Mapping[str, Any], str]:
    """What the reading program prints of the largest file system with a system, and its name."""
    from validator.transport import image_files

    try:
        offsets = image_files.file_systems(path)
    except image_files.ImageUnusable as fault:
        raise UsageError(fault.message, hint=fault.hint) from fault
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="run it with sudo") from error
    if os.geteuid() != 0:
        raise UsageError(
            f"{path} can only be mounted by root", hint="run it with sudo, or mount it and name the folder"
        )
    for offset in offsets:
        done = _read_disk(path, offset, asked)
        if done.returncode == 0:
            where = f"{path} (file system at byte {offset})" if len(offsets) > 1 else str(path)
            return _document(done.stdout, str(path)), where
        if done.returncode != NO_SYSTEM:
            details = [line for line in done.stderr.splitlines() if line.strip()][-MOUNT_LINES:]
            hint = "mount it yourself, read-only, and name the folder"
            raise UsageError(
                f"{path}: the file system at byte {offset} cannot be read here", details=details, hint=hint
            )
    raise UsageError(
        f"{path}: not the disk of a system: neither etc/os-release nor etc/passwd is in its file systems"
        f" (at byte {', '.join(map(str, offsets))})",
        hint="of btrfs, mount the subvolume of the root (mount -o subvol=…), and name the folder",
    )


def _read_disk(path: Path, offset: int, asked: Mapping[str, object]) -> process.Completed:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpu-ami-image-") as folder:
        text = remote.program("observation")
        words = [_MOUNTED, "mounted", str(path.resolve()), str(offset), folder, sys.executable, text]
        return process.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", *words, json.dumps(asked)],
            timeout=_SECONDS,
            check=False,
            error=MachineError,
        )


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
        raise MachineError(f"{where}: unexpected output of the reading program", details=wrong[:MISTAKES_SHOWN])
    return document


def _observation(document: Mapping[str, Any], where: str, registry: Registry | None) -> Observation:
    return Observation({**document, "read_of": where}, registry or components())
