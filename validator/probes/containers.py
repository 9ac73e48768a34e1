"""What containers with GPUs are and see: the configuration that containerd runs with, and the result of
remote/container_probe.py. `probe` and `dumped` alone do input or output."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validator import remote
from validator.probes import compute

SCHEMA = "gpu-ami/containers/1"
SECONDS = 540.0  # five containers compute on up to eight GPUs; an emulated machine beside others needs minutes
_ANSWER_SECONDS = 60.0  # to start, and to remove what it made
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
class Container:
    """One way to request GPUs. how: its options; error: why there is no result; before, after: `systemctl
    daemon-reload`; nodes: device nodes of GPUs in it."""

    way: str
    how: str
    error: str = ""
    nodes: tuple[str, ...] = ()
    before: compute.Compute | None = None
    after: compute.Compute | None = None


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
