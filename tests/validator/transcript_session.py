"""Runs the whole suite over transcripts: one process that has imported everything, a child of it for each transcript.

`python -m tests.validator.transcript_session OUT FOLDER…` writes OUT/<name>.json:
check id → [verdict, message, sourced].
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.recipes import load_facts
from gpu_ami.validate.machine_group import known_of
from validator.engine import pytest_internals
from validator.probes.cluster import mpi_jobs, nodes
from validator.transport import transcript, transcript_values

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "validator" / "checks"
_GPU = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz", "pcie_gen",
    "pcie_width", "pci",
)  # fmt: skip


def instance_type(name: str) -> dict[str, Any]:
    """The row that a plan has of an instance type of the facts."""
    table = load_facts().instance_types
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


def _session(folder: Path, out: Path) -> None:
    from validator.results import HostResults

    _trace_readings()
    values = transcript_values.load(folder)
    plan, results = out / f"{folder.name}.plan.json", out / f"{folder.name}.checks.json"
    plan.write_text(json.dumps(plan_of(values)))
    host = f"transcript://{urllib.parse.quote(str(folder), safe='')}"
    options = [
        "-q", "-c", os.devnull, "--rootdir", str(CHECKS), "-p", "validator.plugin", "-p", "no:cacheprovider",
        "--no-evidence", "--serial", f"--hosts={host}", f"--plan={plan}", f"--results={results}", str(CHECKS),
    ]  # fmt: skip
    if values.jobs:  # of several nodes: the checks of tier T4 alone
        nodes.write(out / f"{folder.name}.nodes.json", known_of(_NODES, values.machine))
        options.insert(-1, f"--nodes={out / f'{folder.name}.nodes.json'}")
    asked = _Asked()
    status = pytest.main(options, plugins=[asked, *([_Jobs(values)] if values.jobs else [])])
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


_NODES = tuple(nodes.Node(f"node {number}", "") for number in range(2))


class _Unrecorded:
    """What a transcript does not have: to ask for it ends the check."""

    def __iter__(self) -> Any:
        pytest.skip(f"{transcript.NOT_IN}: the counters of the network")

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"{transcript.NOT_IN}: what a node does ({name})")


class _Together(_Unrecorded):
    def __init__(self, members: list[_Unrecorded]) -> None:
        self.members = members


class _Jobs:
    """A pytest plugin with what nccl-tests printed on two nodes, in place of machines that would run it.

    What the log does not have ends a check as with any transcript: the counters of the network, what a node answers.
    """

    def __init__(self, values: transcript_values.Values) -> None:
        self.made: dict[str, Any] = {
            "together": _Together([_Unrecorded() for _ in _NODES]),
            "mpi": None,
            "adapters": instance_type(values.machine)["efa_interfaces"],
        }
        self.values = values

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if Path(fixturedef.baseid).name != "several_nodes.py":
            return None
        name = fixturedef.argname
        if name == "collectives":
            test = os.environ.get("PYTEST_CURRENT_TEST", "")
            transcript.trace.extend((test, job, not self.values.origins[f"job {job}"]) for job in self.values.jobs)
            found: Any = {job: (mpi_jobs.read(text), "", _Unrecorded()) for job, text in self.values.jobs.items()}
        elif name in self.made:
            found = self.made[name]
        else:
            return None
        fixturedef.cached_result = (found, fixturedef.cache_key(request), None)
        return found if found is not None else self


def _trace_readings() -> None:
    """Makes each use of what nvidia-smi said once for all checks a question of the check that uses it."""
    from validator.probes import MachineUnderTest

    original = MachineUnderTest.__dict__["gpus"]

    def gpus(machine: MachineUnderTest) -> Any:
        command = "nvidia-smi -q -x"
        for known in transcript.opened():
            transcript.trace.append((os.environ.get("PYTEST_CURRENT_TEST", ""), command, known.is_sourced(command)))
        return original.__get__(machine, MachineUnderTest)

    MachineUnderTest.gpus = property(gpus)  # type: ignore[assignment, method-assign]


def _check(test: str, folder: Path) -> str:
    """`…/efa.py::test_x[transcript://FOLDER-a] (call)` → `efa::test_x[a]`."""
    path, _, name = test.partition(" (")[0].partition("::")
    plain, _, parameters = name.partition("[")
    own = f"-{parameters.rstrip(']')}-".replace(f"-transcript://{folder}-", "-", 1).strip("-")
    return f"{Path(path).stem}::{plain}" + (f"[{own}]" if own else "")


def _warm_up() -> None:
    """Imports what every session needs, once."""
    import importlib

    import testinfra.plugin  # noqa: F401

    import validator.plugin  # noqa: F401

    for path in sorted((ROOT / "validator" / "probes").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)


def main(arguments: Sequence[str], parallel: int = 2) -> int:
    """Exit status 0: each session ended."""
    out, folders = Path(arguments[0]), [Path(folder).resolve() for folder in arguments[1:]]
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    _warm_up()
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
            try:
                log = os.open(out / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                _session(folder, out)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        running[pid] = folder
    return 1 if failed else 0


def shown(rows: Mapping[str, Sequence[Any]]) -> str:
    return "\n".join(f"{verdict:9} {name}: {message[:150]}" for name, (verdict, message, _) in rows.items())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
