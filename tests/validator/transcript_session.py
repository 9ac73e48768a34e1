"""Runs the whole suite over transcripts: one process that has imported everything, a child of it for each transcript.

`python -m tests.validator.transcript_session OUT FOLDER…` writes OUT/<name>.json:
check id → [verdict, message, sourced].
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.validate.machine_group import known_of
from tests.validator import transcript_fixtures
from validator import isolation, remote
from validator.engine import pytest_internals
from validator.probes.cluster import joined, nodes
from validator.transport import transcript, transcript_values

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "validator" / "checks"
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
    plan.write_text(json.dumps(transcript_fixtures.plan_of(values)))
    host = f"transcript://{urllib.parse.quote(str(folder), safe='')}"
    options = [
        *_OPTIONS, "--no-evidence", "--serial", f"--hosts={host}", f"--plan={plan}", f"--results={results}",
    ]  # fmt: skip
    path = out / f"{folder.name}.nodes.json"
    plugins: list[Any] = [asked := _Asked()]
    if values.jobs or any(name.startswith("several_nodes::") for name in values.only):  # the checks of tier T4 alone
        nodes.write(path, known_of(transcript_fixtures.NODES, values.machine))
        plugins.append(transcript_fixtures.Jobs(values, transcript.transcript_of(folder)))
        options.append(f"--nodes={path}")
    if values.metrics or "neuron_monitor" in values.plan:
        plugins.append(transcript_fixtures.Sent(values) if values.metrics else transcript_fixtures.Published(values))
        options.append(f"--instance-id={transcript_fixtures.INSTANCE}")
    if values.cluster or any(
        name.startswith("node_in_") for name in values.only
    ):  # of a node: the checks of tier TN alone
        joined.write(path, transcript_fixtures.JOINED)
        plugins.append(transcript_fixtures.Cluster(values, transcript.transcript_of(folder)))
        options += [f"--join={path}", "--aws-region=recorded"]
    options += [str(CHECKS / name.replace("::", ".py::", 1)) for name in values.only] or [str(CHECKS)]
    # A real machine has no packages of the local region.
    transcript.transcript_of(folder).values.commands[remote.text("replica_packages").strip()] = (
        transcript_values.Output(status=1)
    )
    transcript_fixtures.answer_compute_probe(transcript.transcript_of(folder).values)
    transcript_fixtures.answer_container_probe(transcript.transcript_of(folder))
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


def _trace_readings() -> None:
    """Makes each use of what nvidia-smi said once for all checks a question of the check that uses it."""
    from validator.probes import MachineUnderTest

    original = MachineUnderTest.__dict__["gpus"]

    def gpus(machine: MachineUnderTest) -> Any:
        command = "nvidia-smi -q -x"
        for known in transcript.opened():
            transcript_fixtures.note(command, known.is_sourced(command))
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
    transcript_fixtures.instance_types()
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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
