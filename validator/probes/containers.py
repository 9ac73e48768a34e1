"""What containers with GPUs are and see: the configuration that containerd runs with, and the result of
onhost/container_probe.py. `probe` and `dumped` alone do input or output."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validator import remote
from validator.probes import compute

SCHEMA = "gpu-ami/containers/1"
SECONDS = 540.0  # five containers compute on up to eight GPUs; an emulated machine beside others needs minutes
_ANSWER_SECONDS = 60.0  # to start, and to remove what it made
# Configuration of nvidia-container-runtime; `nvidia-ctk config` prints it with the defaults of what it leaves out.
RUNTIME_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_SIMULATED = ("cdi", "jit-cdi")  # what the replica of the runtime does (localregion/replicas/container_toolkit)
_CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")  # version 3 and 2 of the configuration


class Unanswered(Exception):
    """There is no result; the message says what there was."""


@dataclass(frozen=True)
class ContainerdConfig:
    """What `containerd config dump` says of containers. runtimes: name → its options; cdi: None where this release of
    containerd does not know CDI."""

    default_runtime: str
    runtimes: Mapping[str, Mapping[str, Any]]
    cdi: bool | None
    cdi_folders: tuple[str, ...]


def read_config(text: str) -> ContainerdConfig:
    """Unanswered: not the output of `containerd config dump`."""
    try:
        plugins = tomllib.loads(text).get("plugins", {})
    except tomllib.TOMLDecodeError as error:
        raise Unanswered(f"containerd config dump: {error}") from error
    plugin = next((plugins[name] for name in _CRI if isinstance(plugins.get(name), dict)), None)
    if plugin is None:
        raise Unanswered(
            f"containerd config dump: expected plugin {' or '.join(_CRI)}, got {', '.join(plugins) or 'none'}"
        )
    section = plugin.get("containerd", {})
    return ContainerdConfig(
        default_runtime=str(section.get("default_runtime_name", "")),
        runtimes={name: row.get("options", {}) for name, row in section.get("runtimes", {}).items()},
        cdi=plugin.get("enable_cdi"),
        cdi_folders=tuple(plugin.get("cdi_spec_dirs", ())),
    )


def dumped(host: Any) -> ContainerdConfig:
    """The effective configuration. Unanswered: containerd prints none."""
    done = host.run("containerd config dump", pure=True)
    if done.rc != 0:
        raise Unanswered(f"containerd config dump: {done.stderr.strip() or f'exit status {done.rc}'}")
    return read_config(done.stdout)


@dataclass(frozen=True)
class Runtime:
    """nvidia-container-runtime: version, mode of its configuration ("" if that cannot be read), whether it is a
    replica."""

    version: tuple[int, ...]
    mode: str
    is_replica: bool

    def mode_of(self, *, qualified: bool) -> str:
        """The mode for a request. qualified: by full names of CDI devices, as in nvidia.com/gpu=all.

        Source: NVIDIA/nvidia-container-toolkit, internal/info/auto.go: `auto` is cdi for full names, else jit-cdi from
        1.18.0 on and legacy before.
        """
        if self.mode != "auto":
            return self.mode
        return "cdi" if qualified else "jit-cdi" if self.version >= (1, 18) else "legacy"

    def not_simulated(self, *, qualified: bool) -> str:
        """Why containers by this runtime prove nothing: a replica does not have its mode; "" if they do."""
        mode = self.mode_of(qualified=qualified)
        if not self.is_replica or not mode or mode in _SIMULATED:
            return ""
        set_to = "" if mode == self.mode else f" (mode {self.mode} of release {'.'.join(map(str, self.version))})"
        return (
            f"nvidia-container-runtime gives containers GPUs in mode {mode}{set_to}, {RUNTIME_CONFIG}; the local "
            f"region's replica has modes {' and '.join(_SIMULATED)} alone: validate the image on EC2"
        )


def read_runtime(version: str, config: str) -> Runtime:
    """version: output of `nvidia-container-runtime --version`; config: the file's text, "" if there is none."""
    match = re.search(r"^NVIDIA Container Runtime version (\d+)\.(\d+)", version, re.MULTILINE)
    try:
        mode = str(tomllib.loads(config).get("nvidia-container-runtime", {}).get("mode", "") or "auto")
    except (tomllib.TOMLDecodeError, AttributeError):  # the runtime does not start then
        mode = ""
    numbers = (int(match[1]), int(match[2])) if match else ()
    return Runtime(numbers, mode, "commit: replica" in version)


def runtime(host: Any) -> Runtime:
    """The machine's."""
    version = str(host.run("nvidia-container-runtime --version", pure=True).stdout)
    return read_runtime(version, str(host.run(f"cat {RUNTIME_CONFIG}", pure=True).stdout))


@dataclass(frozen=True)
class Container:
    """One way to request GPUs. how: its options; error: why there is no result; before, after: `systemctl
    daemon-reload`; nodes: device nodes of GPUs in it."""

    way: str
    how: str
    error: str = ""
    nodes: tuple[str, ...] = ()
    before: compute.Compute | None = None
    after: compute.Compute | None = None

    @property
    def is_native(self) -> bool:
        """Whether the engine processed the CDI request itself, without the runtime nvidia."""
        return self.how.startswith("--device ")


@dataclass(frozen=True)
class Containers:
    """The result of a machine. cgroups: who manages them (systemd or cgroupfs); error: why nothing was started."""

    engine: str
    version: str
    cgroups: str
    error: str
    ways: tuple[Container, ...]

    def way(self, name: str) -> Container:
        return next(
            (row for row in self.ways if row.way == name), Container(name, "", self.error or "it was not started")
        )


@dataclass(frozen=True)
class Started:
    """The result of a machine, or why there is none; UUIDs of its GPUs, by index; its runtime nvidia."""

    result: Containers | None
    why: str
    uuids: list[str]
    runtime: Runtime

    def way(self, name: str) -> Container:
        return self.result.way(name) if self.result else Container(name, "", self.why)

    def text(self, name: str) -> list[str]:
        """For the report."""
        way, result = self.way(name), self.result
        library = (way.before or way.after or compute.Compute()).library
        mode = "" if way.is_native else f", mode {self.runtime.mode_of(qualified=name == 'cdi') or 'unknown'}"
        engine = f"{result.engine} {result.version}, cgroups by {result.cgroups}" if result else ""
        return [engine, f"{way.how}{mode}", library]

    def not_simulated(self, name: str) -> str:
        """Why this way proves nothing, as Runtime.not_simulated; "" where it does not pass the runtime nvidia."""
        return "" if self.way(name).is_native else self.runtime.not_simulated(qualified=name == "cdi")


def probe(host: Any, engine: str) -> Containers:
    """Starts the containers. Unanswered: the probe printed no result."""
    words = ["--engine", engine, "--seconds", f"{SECONDS:g}"]
    done = host.run(remote.python("container_probe", *words), timeout=SECONDS + _ANSWER_SECONDS)
    return read(done.stdout, f"exit status {done.rc}: {(done.stderr or done.stdout).strip()[-300:] or 'no output'}")


def make_image(host: Any, name: str) -> str:
    """Makes an image of that name on the machine's Docker: its Python, and the compute probe; the path of Python in it.

    `PYTHON -IS /probe/task.py …` computes with these options of the probe, writes /result/result.json, and ends with
    the probe's exit status. Unanswered: there is no image.
    """
    words = ["--engine", "docker", "--image", name]
    done = host.run(remote.python("container_probe", *words), timeout=SECONDS + _ANSWER_SECONDS)
    try:
        document = json.loads(done.stdout)
        if document["error"]:
            raise Unanswered(str(document["error"]))
        return str(document["python"])
    except (ValueError, LookupError, TypeError) as error:
        text = (done.stderr or done.stdout).strip()[-300:] or "no output"
        raise Unanswered(f"the container probe made no image ({error}): exit status {done.rc}: {text}") from error


def read(printed: str, otherwise: str = "") -> Containers:
    """What the probe has printed. Unanswered, with `otherwise`: no result."""
    try:
        document = json.loads(printed)
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, got {document['schema']}")
        return Containers(
            engine=str(document["engine"]),
            version=str(document["version"]),
            cgroups=str(document["cgroups"]),
            error=str(document["error"]),
            ways=tuple(_container(row) for row in document["ways"]),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise Unanswered(f"the container probe printed no result ({error}); {otherwise}") from error


def _container(row: Mapping[str, Any]) -> Container:
    error = str(row["error"])
    answers: list[compute.Compute | None] = []
    for when in ("before", "after"):
        try:
            answers.append(compute.read(row[when]["printed"], row[when]["errors"]) if row[when] else None)
        except compute.Unanswered as reason:
            answers.append(None)
            error = error or str(reason)
    before = row["before"] or {}
    nodes = tuple(name for name in before.get("nodes", ()) if name.removeprefix("/dev/nvidia").isdecimal())
    return Container(str(row["way"]), str(row["how"]), error, nodes, *answers)


def defect(result: compute.Compute | None, expected: list[str]) -> str:
    """What is wrong with what a container computed; "" if nothing is. expected: UUIDs of the GPUs that it requested."""
    if result is None:
        return "no result"
    if result.error:
        return f"CUDA does not start: {result.error}"
    uuids = sorted(gpu.uuid for gpu in result.gpus)
    if uuids != sorted(expected):
        return f"expected {len(expected)} GPUs ({', '.join(sorted(expected))}), got {len(uuids)} ({', '.join(uuids)})"
    if result.unfinished:
        return result.unfinished
    wrong = [text for gpu in result.gpus for text in compute.defects(gpu, simulated=bool(result.replica), mib=1)]
    return "; ".join(wrong)
