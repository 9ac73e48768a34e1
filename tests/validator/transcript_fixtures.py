"""What checks get of a transcript in place of a machine: the plan, the answers of probes, and fixtures.

A fixture takes the place of what several nodes, CloudWatch or a cluster would say; what was not recorded skips the
check.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.plan.document import image_tags
from gpu_ami.recipes import load_facts
from tests.onhost.neuron_monitor.programs import publisher_module
from validator import remote
from validator.checks import metrics, neuron_monitor, node_in_ecs, node_in_eks, node_in_slurm, seed_metrics
from validator.cloudwatch import Point, Series
from validator.probes import compute, containers, neuron_reports
from validator.probes.cluster import joined, mpi_jobs, nodes
from validator.transport import ssh, transcript, transcript_values

_GPU = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz", "pcie_gen",
    "pcie_width", "pci",
)  # fmt: skip


@functools.cache
def instance_types() -> Any:
    return load_facts().instance_types


def instance_type(name: str) -> dict[str, Any]:
    """The row that a plan has of an instance type of the facts."""
    table = instance_types()
    row = table["instance_types"][name]
    gpu = row.get("gpu")
    of_model = {**table["gpus"][gpu["model"]], **gpu} if gpu and "model" in gpu else dict(gpu or {})
    entry = {"name": name, "gpu_count": gpu["count"] if gpu else 0, "nvswitch": bool(row.get("nvswitch"))}
    entry |= {key: row.get(key, 0) for key in ("efa_interfaces", "vcpus", "memory_gib")}
    if gpu:
        entry["gpu"] = {key: of_model[key] for key in _GPU if key in of_model}
    return entry | ({"neuron": row["neuron"]} if "neuron" in row else {})


def plan_of(values: Any) -> dict[str, Any]:
    """The plan document with which a transcript is judged: its own sections, and the facts of its instance type."""
    system = {"id": "ubuntu", "version": "24.04", "family": "debian"} | values.system
    return {
        "schema": "gpu-ami/plan/1", "image": "transcript", "os": system, "architecture": "x86_64",
        "kernel": {"version": "unknown"}, "instance_types": [instance_type(values.machine)], **values.plan,
    }  # fmt: skip


def answer_container_probe(machine: transcript.Transcript) -> None:
    """The probe of containers runs here, on what the transcript's Docker answers: the machine has no programs."""
    values = machine.values
    known = [name for name in values.commands if name.startswith("docker ")]
    if "container" in values.compute:
        _answering_container(machine)
    elif "docker run *" not in known:
        return
    command = remote.python("container_probe", "--engine", "docker", "--seconds", f"{containers.SECONDS:g}")
    environment = {"PATH": f"{machine.programs}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env=environment)
    values.commands[command] = transcript_values.Output(done.stdout, done.returncode, done.stderr)
    answers = [f"compute {place}" for place in _IN_CONTAINER if place in values.compute]
    values.origins[command] = any(values.origins[name] for name in [*known, *answers])


_IN_CONTAINER = ("container", "container after daemon-reload")


def _answering_container(machine: transcript.Transcript) -> None:
    """`docker run` as a container that answers each request with what was recorded of it."""
    answers = [machine.values.compute[place] for place in _IN_CONTAINER]
    lines = "".join(
        json.dumps({"nodes": answer["nodes"], "status": 0, "printed": _of_probe(answer), "errors": ""}) + "\n"
        for answer in answers
    )
    recorded = machine.programs / ".container"
    recorded.write_text(lines)
    docker = machine.programs / "docker"
    others = docker.rename(machine.programs / ".docker")
    run = f"run) exec 3< {recorded}; while read -r asked && read -r answer <&3; do printf '%s\\n' \"$answer\"; done ;;"
    docker.write_text(f'#!/bin/sh\ncase "$1" in\n{run}\n*) exec {others} "$@" ;;\nesac\n')
    docker.chmod(0o755)


def answer_compute_probe(values: transcript_values.Values) -> None:
    """What the compute probe says of the machine, of what a program of others showed there."""
    if "machine" in values.compute:
        words = ["--mib", str(compute.MIB), "--seconds", f"{compute.SECONDS:g}"]
        command = remote.python("compute_probe", *words)
        values.commands[command] = transcript_values.Output(_of_probe(values.compute["machine"]))
        values.origins[command] = values.origins["compute machine"]


def _of_probe(shown: Mapping[str, Any]) -> str:
    """GPUs that CUDA shows, and copies between them, as onhost/compute_probe.py prints them."""
    uuids = shown["uuids"]
    machine = {"kind": "machine", "schema": compute.SCHEMA, "error": None, "unfinished": None, "replica": ""}
    rows: list[dict[str, Any]] = [{**machine, "count": len(uuids)}]
    for index, uuid in enumerate(uuids):
        row = shown["access"][index] if "access" in shown else ()  # of CUDA's P2P Connectivity Matrix
        peers = [
            {"index": other, "error": None, "access": bool(access)}
            for other, access in enumerate(row)
            if other != index
        ]
        # The least, since how much was computed was not recorded.
        rows.append({"kind": "gpu", "index": index, "uuid": uuid, "error": None, "peers": peers, "computed_mib": 1})
    return "".join(f"{json.dumps(row)}\n" for row in rows)


INSTANCE = "i-0123456789abcdef0"  # as a recorded transcript has it
_publisher = publisher_module("documents")
NODES = tuple(nodes.Node(f"node {number}", "") for number in range(2))
JOINED = joined.Joined("recorded", NODES[:1], cluster="recorded", run="recorded")


class _Unrecorded:
    """What a transcript does not have: to ask for it ends the check."""

    def __iter__(self) -> Any:
        pytest.skip(f"{transcript.NOT_IN}: the counters of the network")

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"{transcript.NOT_IN}: what a node or the cluster does ({name})")


class _Node(_Unrecorded):
    """One of several nodes, which all show what the transcript has."""

    def __init__(self, machine: transcript.Transcript, number: int) -> None:
        self.machine, self.name, self.address = machine, f"node {number}", f"node{number}"
        self.connection, self.network = self, "10.0.0.0/24"
        self.boot_id = f"{number}"

    def run(self, command: str, timeout: float = 0, input: bytes | None = None) -> ssh.Finished:
        command = _JOB.sub("", command)
        try:
            status, text, errors = self.machine.answer(command)
        except transcript.Missing as missing:
            pytest.skip(f"{transcript.NOT_IN}: {missing}")
        note(command, self.machine.is_sourced(command))
        return ssh.Finished(status, text.encode(), errors.encode(), 0.0)

    def start(self, command: str, seconds: float) -> io.StringIO:
        """A program that serves another node: it prints nothing."""
        return io.StringIO()

    def stream(self, command: str, idle_seconds: float) -> Iterator[bytes]:
        """The port of a program that listens."""
        yield b"40001\n"


# What precedes mpirun in the command of a job: the folder, and Open MPI's variables.
_JOB = re.compile(r"cd \S+ && (?:\w+=(?:'[^']*'|[^\s'])* )+")


class _Together(_Unrecorded):
    folder = "/tmp/nodes"

    def __init__(self, members: list[_Node]) -> None:
        self.members = members

    def ssh_command(self) -> str:
        return "ssh"

    def put(self, name: str, text: str) -> str:
        return f"{self.folder}/{name}"

    def silent(self) -> list[str]:
        return []

    def each(self, step: Any) -> list[Any]:
        return [step(member) for member in self.members]


def note(what: str, is_sourced: bool) -> None:
    transcript.trace.append((os.environ.get("PYTEST_CURRENT_TEST", ""), what, is_sourced))


class _Made:
    """A pytest plugin with what was recorded, in place of machines that would do it: a check's fixtures by file.

    What the transcript does not have ends a check as with any transcript.
    """

    request: Any

    def __init__(self, values: transcript_values.Values) -> None:
        self.values = values

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        make = getattr(self, f"{Path(fixturedef.baseid).stem or 'all'}_{fixturedef.argname}", None)
        if make is None:
            return None
        self.request = request
        try:
            made = make()
            found = self if made is None else made
        except pytest.skip.Exception as reason:
            fixturedef.cached_result = (None, fixturedef.cache_key(request), (reason, reason.__traceback__))
            raise
        fixturedef.cached_result = (found, fixturedef.cache_key(request), None)
        return found


class Jobs(_Made):
    """What nccl-tests printed on two nodes, and what programs of the nodes print."""

    def __init__(self, values: transcript_values.Values, machine: transcript.Transcript) -> None:
        super().__init__(values)
        self.machine = machine

    def several_nodes_together(self) -> _Together:
        return _Together([_Node(self.machine, number) for number in range(len(NODES))])

    def several_nodes_mpi(self) -> mpi_jobs.OpenMpi | _Unrecorded:
        known = [name.removesuffix(" *") for name in self.values.commands if name.endswith("/mpirun *")]
        return mpi_jobs.OpenMpi(known[0], "not recorded", "libmpi.so.40") if known else _Unrecorded()

    def several_nodes_adapters(self) -> int:
        return int(instance_type(self.values.machine)["efa_interfaces"])

    def several_nodes_collectives(self) -> Any:
        for job in self.values.jobs:
            note(job, not self.values.origins[f"job {job}"])
        return {job: (mpi_jobs.read(text), "", _Unrecorded()) for job, text in self.values.jobs.items()}


class Sent(_Made):
    """What the CloudWatch agent sent of the machine's GPUs, in place of CloudWatch: which series follow from its
    configuration and from nvidia-smi is the check's own work."""

    arrival_seconds = 0.0

    def _points(self) -> dict[Series, Point]:
        points = {}
        for row in self.values.metrics:
            note("metrics", not self.values.origins[f"metrics {row['dimensions']}"])
            dimensions = tuple(sorted(row["dimensions"].items()))
            namespace = row.get("namespace", "CWAgent")
            prefix = "nvidia_smi_" if namespace == "CWAgent" else ""
            points |= {
                Series(namespace, f"{prefix}{name}", dimensions): Point(0.0, float(value))
                for name, value in row["values"].items()
            }
        return points

    def metrics_arrival(self) -> metrics.Arrival:
        machine, config = (self.request.getfixturevalue(name) for name in ("machine", "config"))
        absent = metrics.planned_absent(self.values.plan, machine)
        expected = metrics.agent_config.expected_series(config, machine.gpus, {"instance-id": INSTANCE}, absent)
        points = self._points()
        return metrics.Arrival(expected, {series: points.get(series) for series in expected}, 0.0)

    def seed_metrics_arrival(self) -> seed_metrics.Arrival:
        host = self.request.getfixturevalue("host")
        expected = seed_metrics.expected_series(host, INSTANCE, self.values.machine)
        points = self._points()
        return seed_metrics.Arrival(expected, {series: points.get(series) for series in expected}, 0.0)

    def all_cloudwatch(self) -> None:
        return None

    def wait(self, look: Any, *_: Any, **__: Any) -> Any:
        return look()

    def known_series(self, *_: Any) -> set[Series]:
        return set(self._points())


class Published(Sent):
    """What the image's publisher makes of the recorded report of neuron-monitor, in place of CloudWatch."""

    points: dict[Series, Point]

    def _points(self) -> dict[Series, Point]:
        return self.points

    def neuron_monitor_arrival(self) -> neuron_monitor.Arrival:
        planned = self.values.plan["neuron_monitor"]
        report = neuron_reports.first_report(self.request.getfixturevalue("host"))
        assert isinstance(report, dict), report
        report["instance_info"]["instance_id"] = INSTANCE  # which no transcript has
        own = _publisher.Settings(planned["namespace"], tuple(planned["dimensions"]), planned["high_resolution"])
        self.points = {
            Series(made["Namespace"], metric["Name"], tuple(sorted((name, document[name]) for name in names))): Point(
                0.0, float(document[metric["Name"]])
            )
            for document in _publisher.documents(report, own, 0)[0]
            for made in document["_aws"]["CloudWatchMetrics"]
            for names in made["Dimensions"]
            for metric in made["Metrics"]
        }
        metadata = {"instance-id": INSTANCE, "instance-type": self.values.machine}
        expected = neuron_reports.expected_series(report, planned, metadata)
        return neuron_monitor.Arrival(expected, {series: self.points.get(series) for series in expected}, 0.0)


class Cluster(_Made):
    """What a cluster knows of a node, by the names of docs/transcripts.md."""

    def __init__(self, values: transcript_values.Values, machine: transcript.Transcript) -> None:
        super().__init__(values)
        self.machine, self.known = machine, _Known(values)

    def all_cluster_file(self) -> _Join:
        return _Join(self.known)

    def all_cloudwatch(self) -> _Known:
        return self.known

    def node_in_eks_found(self) -> Any:
        return node_in_eks.Found(self.known.of("node"))

    def node_in_eks_others(self) -> dict[str, Any]:
        return {}

    def node_in_eks_image(self) -> tuple[str, str]:
        return "image", "/usr/bin/python3"

    def node_in_eks_cluster(self) -> _Known:
        return self.known

    def node_in_ecs_registered(self) -> Any:
        instance = node_in_ecs.read_instance({"containerInstanceArn": ""} | self.known.of("container instance"))
        return node_in_ecs.Registered(JOINED, self.known, instance)  # type: ignore[arg-type]

    def node_in_ecs_tasks(self) -> _Tasks:
        return _Tasks(self.request.getfixturevalue("host"), self.known)

    def node_in_slurm_started(self) -> Any:
        rows: Any = _Unrecorded()
        if "scontrol" in self.values.cluster:
            rows = tuple(node_in_slurm.read_nodes(self.known.of("scontrol")))
        return node_in_slurm.Started(_Slurm(self.known, self.machine, rows), registered=rows)  # type: ignore[arg-type]


class _Join(_Unrecorded):
    """What `gpu-ami` learns of an AMI of ParallelCluster before the checks start."""

    def __init__(self, known: _Known) -> None:
        self.known = known

    @property
    def expected_tags(self) -> dict[str, str]:
        return image_tags(plan_of(self.known.values))

    @property
    def tags(self) -> Any:
        return self.known.of("ami tags")

    @property
    def dry_run(self) -> Any:
        return self.known.of("dry run")


class _Slurm(_Unrecorded):
    """Slurm and munge as their programs printed, on the nodes that slurmctld has, or on two."""

    versions = ("not recorded",)
    strangers = node_in_slurm.SlurmCluster.strangers

    def __init__(self, known: _Known, machine: transcript.Transcript, rows: Any) -> None:
        self.known, self.machine = known, machine
        self.names = [row.name for row in rows] if isinstance(rows, tuple) else [node.name for node in NODES]
        self.together = _Together([_Node(machine, number) for number in range(len(self.names))])

    @property
    def uuids(self) -> list[list[str]]:
        listed = [member.run("nvidia-smi -L").text for member in self.together.members]
        return [re.findall(r"\(UUID: (GPU-[0-9a-f-]+)\)", text) for text in listed]

    def run(self, _: int, gpus: int) -> ssh.Finished:
        done = self.known.of(f"srun --gres=gpu:{gpus}")
        text = "".join(_labelled(number, task) for number, task in enumerate(done.get("tasks", ())))
        return ssh.Finished(done["status"], text.encode(), done.get("stderr", "").encode(), 0.0)

    def logs(self) -> str:
        return "not recorded"


def _labelled(number: int, task: Mapping[str, Any]) -> str:
    """What `srun --label` prints of a task: its node, and the GPUs that it saw."""
    lines = [f"node {task['node']}", *_of_probe(task).splitlines()]
    return "".join(f"{number}: {line}\n" for line in lines)


@dataclass
class _Tasks(_Unrecorded):
    """Tasks of ECS as it answered."""

    host: Any
    service: _Known

    @property
    def registered(self) -> _Tasks:
        return self

    def start(self, gpus: int) -> Any:
        return node_in_ecs.read_started(self.service.of(f"task for {gpus} GPUs"))


class _Partial(dict[str, Any]):
    """An object of which not every member was recorded."""

    def __missing__(self, name: str) -> Any:
        pytest.skip(f"{transcript.NOT_IN}: {name}")


def _partial(value: Any) -> Any:
    if isinstance(value, dict):
        return _Partial({name: _partial(member) for name, member in value.items()})
    return [_partial(member) for member in value] if isinstance(value, list) else value


class _Known(_Unrecorded):
    """The cluster as checks ask it: EKS's API, ECS's tasks, the programs of Slurm."""

    instance_id = "i-0"

    def __init__(self, values: transcript_values.Values) -> None:
        self.values = values

    def of(self, name: str) -> Any:
        if name not in self.values.cluster:
            pytest.skip(f"{transcript.NOT_IN}: what the cluster says ({name})")
        note(name, not self.values.origins[f"cluster {name}"])
        return _partial(self.values.cluster[name])

    def wait_node(self, *_: Any) -> Any:
        return self.of("node")

    def create_pod(self, purpose: str, *_: Any) -> str:
        return f"pod {purpose}"

    def wait_pod(self, name: str, _: float) -> Any:
        return self.of(name)

    def delete_pod(self, _: str) -> None:
        pass

    def ended(self, *_: Any) -> Any:
        return node_in_ecs.read_started({"tasks": [self.of("ended task")]})
