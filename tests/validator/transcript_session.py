"""Runs the whole suite over transcripts: one process that has imported everything, a child of it for each transcript.

`python -m tests.validator.transcript_session OUT FOLDER…` writes OUT/<name>.json:
check id → [verdict, message, sourced].
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import re
import subprocess
import sys
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.plan.document import image_tags
from gpu_ami.recipes import load_facts
from gpu_ami.validate.machine_group import known_of
from tests.onhost.neuron_monitor.programs import publisher_module
from validator import isolation, remote
from validator.checks import metrics, neuron_monitor, node_in_ecs, node_in_eks, node_in_slurm, seed_metrics
from validator.cloudwatch import Point, Series
from validator.engine import pytest_internals
from validator.probes import compute, containers, neuron_reports
from validator.probes.cluster import joined, mpi_jobs, nodes
from validator.transport import ssh, transcript, transcript_values

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "validator" / "checks"
_GPU = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz", "pcie_gen",
    "pcie_width", "pci",
)  # fmt: skip


@functools.cache
def _instance_types() -> Any:
    return load_facts().instance_types


def instance_type(name: str) -> dict[str, Any]:
    """The row that a plan has of an instance type of the facts."""
    table = _instance_types()
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


# Plugins of pytest that no check uses: each call of a hook goes through all of them, 5000 times a session.
_UNUSED = (
    "cacheprovider", "doctest", "unittest", "pastebin", "nose", "stepwise", "setuponly", "setupplan", "debugging",
    "junitxml", "logging", "legacypath", "unraisableexception", "threadexception", "faulthandler",
)  # fmt: skip
_OPTIONS = [
    "-q", "-c", os.devnull, "--rootdir", str(CHECKS), "-p", "validator.plugin",
    *(word for name in _UNUSED for word in ("-p", f"no:{name}")),
]  # fmt: skip


def _session(folder: Path, out: Path) -> None:
    from validator.results import HostResults

    _trace_readings()
    values = transcript_values.load(folder)
    plan, results = out / f"{folder.name}.plan.json", out / f"{folder.name}.checks.json"
    plan.write_text(json.dumps(plan_of(values)))
    host = f"transcript://{urllib.parse.quote(str(folder), safe='')}"
    options = [
        *_OPTIONS, "--no-evidence", "--serial", f"--hosts={host}", f"--plan={plan}", f"--results={results}",
    ]  # fmt: skip
    path = out / f"{folder.name}.nodes.json"
    plugins: list[Any] = [asked := _Asked()]
    if values.jobs or any(name.startswith("several_nodes::") for name in values.only):  # the checks of tier T4 alone
        nodes.write(path, known_of(_NODES, values.machine))
        plugins.append(_Jobs(values, transcript.transcript_of(folder)))
        options.append(f"--nodes={path}")
    if values.metrics or "neuron_monitor" in values.plan:
        plugins.append(_Sent(values) if values.metrics else _Published(values))
        options.append(f"--instance-id={_INSTANCE}")
    if values.cluster or any(
        name.startswith("node_in_") for name in values.only
    ):  # of a node: the checks of tier TN alone
        joined.write(path, _JOINED)
        plugins.append(_Cluster(values, transcript.transcript_of(folder)))
        options += [f"--join={path}", "--aws-region=recorded"]
    options += [str(CHECKS / name.replace("::", ".py::", 1)) for name in values.only] or [str(CHECKS)]
    # A real machine has no packages of the local region.
    transcript.transcript_of(folder).values.commands[remote.text("replica_packages").strip()] = (
        transcript_values.Output(status=1)
    )
    _compute(transcript.transcript_of(folder).values)
    _start_containers(transcript.transcript_of(folder))
    status = pytest.main(options, plugins=plugins)
    if status not in (0, 1):
        raise SystemExit(f"{folder.name}: pytest ended with status {status}")
    rows = {}
    for record in HostResults.load(results).checks:
        name = record.id
        rows[name] = [
            str(record.verdict),
            record.message,
            asked.is_sourced(name, folder),
        ]
    (out / f"{folder.name}.json").write_text(json.dumps(rows))


def _start_containers(machine: transcript.Transcript) -> None:
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


def _compute(values: transcript_values.Values) -> None:
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


class _Asked:
    """A pytest plugin that notes what each check asked of the transcript: itself, or through a fixture it shares."""

    def __init__(self) -> None:
        self.of_fixture: dict[tuple[str, str], set[bool]] = {}
        self.fixtures: dict[str, list[tuple[str, str]]] = {}
        self.by_check: dict[str, set[bool]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        before = len(transcript.trace)
        try:
            return (yield)
        finally:
            key = (fixturedef.baseid, fixturedef.argname)
            self.of_fixture.setdefault(key, set()).update(sourced for *_, sourced in transcript.trace[before:])

    def pytest_runtest_setup(self, item: Any) -> None:
        known = pytest_internals.definitions(item)
        self.fixtures[item.nodeid] = [(known[name][-1].baseid, name) for name in item.fixturenames if name in known]

    def is_sourced(self, check: str, folder: Path) -> bool:
        """Whether the check asked for something, and nothing in the answers was composed."""
        if not self.by_check:
            for test, _, sourced in transcript.trace:
                if "(call)" in test:
                    self.by_check.setdefault(_check(test, folder), set()).add(sourced)
            for test, fixtures in self.fixtures.items():
                answers = (self.of_fixture.get(fixture, ()) for fixture in fixtures)
                self.by_check.setdefault(_check(test, folder), set()).update(*answers)
        return self.by_check.get(check) == {True}


_INSTANCE = "i-0123456789abcdef0"  # as a recorded transcript has it
_publisher = publisher_module("documents")
_NODES = tuple(nodes.Node(f"node {number}", "") for number in range(2))
_JOINED = joined.Joined("recorded", _NODES[:1], cluster="recorded", run="recorded")


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
        _note(command, self.machine.is_sourced(command))
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


def _note(what: str, is_sourced: bool) -> None:
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


class _Jobs(_Made):
    """What nccl-tests printed on two nodes, and what programs of the nodes print."""

    def __init__(self, values: transcript_values.Values, machine: transcript.Transcript) -> None:
        super().__init__(values)
        self.machine = machine

    def several_nodes_together(self) -> _Together:
        return _Together([_Node(self.machine, number) for number in range(len(_NODES))])

    def several_nodes_mpi(self) -> mpi_jobs.OpenMpi | _Unrecorded:
        known = [name.removesuffix(" *") for name in self.values.commands if name.endswith("/mpirun *")]
        return mpi_jobs.OpenMpi(known[0], "not recorded", "libmpi.so.40") if known else _Unrecorded()

    def several_nodes_adapters(self) -> int:
        return int(instance_type(self.values.machine)["efa_interfaces"])

    def several_nodes_collectives(self) -> Any:
        for job in self.values.jobs:
            _note(job, not self.values.origins[f"job {job}"])
        return {job: (mpi_jobs.read(text), "", _Unrecorded()) for job, text in self.values.jobs.items()}


class _Sent(_Made):
    """What the CloudWatch agent sent of the machine's GPUs, in place of CloudWatch: which series follow from its
    configuration and from nvidia-smi is the check's own work."""

    arrival_seconds = 0.0

    def _points(self) -> dict[Series, Point]:
        points = {}
        for row in self.values.metrics:
            _note("metrics", not self.values.origins[f"metrics {row['dimensions']}"])
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
        expected = metrics.agent_config.expected_series(config, machine.gpus, {"instance-id": _INSTANCE}, absent)
        points = self._points()
        return metrics.Arrival(expected, {series: points.get(series) for series in expected}, 0.0)

    def seed_metrics_arrival(self) -> seed_metrics.Arrival:
        host = self.request.getfixturevalue("host")
        expected = seed_metrics.expected_series(host, _INSTANCE, self.values.machine)
        points = self._points()
        return seed_metrics.Arrival(expected, {series: points.get(series) for series in expected}, 0.0)

    def all_cloudwatch(self) -> None:
        return None

    def wait(self, look: Any, *_: Any, **__: Any) -> Any:
        return look()

    def known_series(self, *_: Any) -> set[Series]:
        return set(self._points())


class _Published(_Sent):
    """What the image's publisher makes of the recorded report of neuron-monitor, in place of CloudWatch."""

    points: dict[Series, Point]

    def _points(self) -> dict[Series, Point]:
        return self.points

    def neuron_monitor_arrival(self) -> neuron_monitor.Arrival:
        planned = self.values.plan["neuron_monitor"]
        report = neuron_reports.first_report(self.request.getfixturevalue("host"))
        assert isinstance(report, dict), report
        report["instance_info"]["instance_id"] = _INSTANCE  # which no transcript has
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
        metadata = {"instance-id": _INSTANCE, "instance-type": self.values.machine}
        expected = neuron_reports.expected_series(report, planned, metadata)
        return neuron_monitor.Arrival(expected, {series: self.points.get(series) for series in expected}, 0.0)


class _Cluster(_Made):
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
        return node_in_ecs.Registered(_JOINED, self.known, instance)  # type: ignore[arg-type]

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
        self.names = [row.name for row in rows] if isinstance(rows, tuple) else [node.name for node in _NODES]
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
        _note(name, not self.values.origins[f"cluster {name}"])
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


def _trace_readings() -> None:
    """Makes each use of what nvidia-smi said once for all checks a question of the check that uses it."""
    from validator.probes import MachineUnderTest

    original = MachineUnderTest.__dict__["gpus"]

    def gpus(machine: MachineUnderTest) -> Any:
        command = "nvidia-smi -q -x"
        for known in transcript.opened():
            _note(command, known.is_sourced(command))
        return original.__get__(machine, MachineUnderTest)

    MachineUnderTest.gpus = property(gpus)  # type: ignore[assignment, method-assign]


def _check(test: str, folder: Path) -> str:
    """`…/efa.py::test_x[transcript://FOLDER-a] (call)` → `efa::test_x[a]`."""
    path, _, name = test.partition(" (")[0].partition("::")
    plain, _, parameters = name.partition("[")
    own = f"-{parameters.rstrip(']')}-".replace(f"-transcript://{folder}-", "-", 1).strip("-")
    return f"{Path(path).stem}::{plain}" + (f"[{own}]" if own else "")


def _warm_up(out: Path) -> None:
    """Imports what every session needs, once: also the checks, as pytest does."""
    import importlib

    import testinfra.plugin  # noqa: F401

    import validator.plugin  # noqa: F401

    for path in sorted((ROOT / "validator" / "probes").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
    _instance_types()
    # The digests of the programs that took part: a sixth of a session, and no part of a transcript's table.
    isolation.programs = lambda *_: ()  # type: ignore[assignment]
    log = out / "collected.log"
    with log.open("w") as file, contextlib.redirect_stdout(file):
        status = pytest.main([*_OPTIONS, "--collect-only", "--hosts=local://", str(CHECKS)])
    if status != 0:
        raise SystemExit(f"pytest collects no checks: {log.read_text()[-2000:]}")


def main(arguments: Sequence[str], parallel: int = 2) -> int:
    """Exit status 0: each session ended."""
    out, folders = Path(arguments[0]), [Path(folder).resolve() for folder in arguments[1:]]
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    _warm_up(out)
    gc.freeze()  # a child's collector would copy every page of it
    running: dict[int, Path] = {}
    failed = 0
    for folder in [*folders, None]:
        while running and (len(running) >= parallel or folder is None):
            pid, status = os.wait()
            failed += bool(status)
            running.pop(pid)
        if folder is None:
            break
        pid = os.fork()
        if pid == 0:
            code = 1
            gc.disable()  # a child ends after seconds
            try:
                log = os.open(out / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                _session(folder, out)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                transcript.close_all()  # os._exit ends the process without its finalizers
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        running[pid] = folder
    return 1 if failed else 0


def shown(rows: Mapping[str, Sequence[Any]]) -> str:
    return "\n".join(f"{verdict:9} {name}: {message[:150]}" for name, (verdict, message, _) in rows.items())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
