"""The pytest plugin: `pytest -p validator.plugin --hosts=ssh://user@address:port FILES`.

It provides testinfra's `host` over one connection, the fixtures `plan`, `machine`, `cloudwatch` and `observe`, the
verdicts, and the markers `live` (changes the host: runs alone, after all other checks), `survives` (runs again after a
restart) and `tier("T1")`. A skip is UNPROVEN with its reason. A transport error is UNPROVEN too, because it says
nothing about the image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from validator import deadline, evidence, isolation, selection, waivers
from validator.observe import Observe, judge, unproven
from validator.plan import load_plan
from validator.results import (
    CheckRecord,
    HostResults,
    JournalWriter,
    RunningCheck,
    RunningMark,
    Verdict,
    WaiverRecord,
    journal_of,
    running_of,
)
from validator.transport import backend

if TYPE_CHECKING:
    from validator.cloudwatch import CloudWatch
    from validator.plan_document import PlanDocument
    from validator.probes import MachineUnderTest

pytest.register_assert_rewrite("validator.checks")
# With plugin autoload testinfra is registered already, and pytest refuses to register it twice.
pytest_plugins = ["testinfra.plugin"] if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") else []

RUN = pytest.StashKey["Run"]()
CHECK = pytest.StashKey[RunningCheck]()
HOST = pytest.StashKey["HostRun"]()
_CHECKS = Path(__file__).parent / "checks"
_twins: dict[backend.HostLink, Any] = {}
_BACKEND = "validator.transport.backend.BatchBackend"
_IMAGE_BACKEND = "validator.transport.backend.ImageBackend"
_TRANSCRIPT_BACKEND = "validator.transport.transcript.TranscriptBackend"


@dataclass
class HostRun:
    """The checks of one host. name: testinfra's id of the host. host: testinfra's host; None if no check uses it."""

    name: str
    host: Any
    checks: dict[str, RunningCheck] = field(default_factory=dict)  # by id
    journal: Path | None = None  # None before its first line
    kept: dict[str, str] = field(default_factory=dict)  # files of the evidence that checks have read

    @property
    def records(self) -> list[CheckRecord]:
        return [check.record for check in self.checks.values()]


class Exit(Exception):
    """In the place of pytest.exit in a check: an error of that check, which does not keep the others from running."""


class Run:
    """The state of this process's run."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostRun] = {}  # by name
        self.machines: dict[Any, MachineUnderTest] = {}
        self.plan: PlanDocument | None = None
        self.journal = JournalWriter()
        self.mark: RunningMark | None = None  # None without --results, and for several hosts
        self.waivers: list[waivers.Waiver] = []
        self.waiver_remarks: list[str] = []
        self.engine: ModuleType | None = None  # validator.engine, if checks run concurrently
        self.mode = ""  # how checks run, for the header
        self.status: int | None = None  # pytest's exit status, when the results are written


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    isolation.admit_named_only(early_config)


def pytest_configure(config: pytest.Config) -> None:
    import testinfra.backend

    gc.disable()  # until the checks are collected, which stay: nothing of it is garbage in cycles
    config.addinivalue_line("markers", "live: changes the host; runs alone, after all read-only checks")
    config.addinivalue_line("markers", "without(section): deselected if the plan has the section")
    config.addinivalue_line("markers", "after_live(section): runs after the live checks if the plan has the section")
    config.addinivalue_line("markers", "planned(section): deselected if the plan does not have the section")
    config.addinivalue_line(
        "markers", "needs(what): nothing (default), an observed value, or a promise of a recipe (docs/checks.md)"
    )
    config.addinivalue_line("markers", "tier(name): T0 offline, T1 boot, T2 one GPU, T3 all GPUs, TN node, T4 nodes")
    config.addinivalue_line(
        "markers", "survives: must also hold after a reboot and after stop and start; runs again then"
    )
    config.addinivalue_line("filterwarnings", "error::pytest.PytestReturnNotNoneWarning")  # it asserts nothing
    config.addinivalue_line("markers", "offline: only for an image's files (--hosts=image://PATH)")
    if config.getoption("results") is not None and (config.getoption("numprocesses", None) or _is_worker(config)):
        raise pytest.UsageError(
            "--results: every xdist process would write its own file; omit -n, checks run concurrently without it"
        )
    testinfra.backend.BACKENDS |= {"ssh": _BACKEND, "image": _IMAGE_BACKEND, "transcript": _TRANSCRIPT_BACKEND}
    backend.DEFAULTS.command_deadline = config.getoption("command_deadline")
    backend.DEFAULTS.host_seconds = config.getoption("host_deadline")
    backend.DEFAULTS.proxy_command = config.getoption("proxy_command")
    backend.DEFAULTS.known_hosts = config.getoption("known_hosts")
    backend.DEFAULTS.connect_timeout = config.getoption("connect_timeout")
    backend.DEFAULTS.connect_early = not config.getoption("collectonly")
    backend.DEFAULTS.keep_round_trips = config.getoption("evidence") is not None
    backend.DEFAULTS.as_root = config.getoption("plan") is not None  # the built-in checks run as root
    run = config.stash[RUN] = Run()
    _use_engine(config, run)
    plan_file: Path | None = config.getoption("plan")
    if plan_file is not None:
        try:
            run.plan = load_plan(plan_file, config.getoption("log_group_suffix"))
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--plan: {error}") from error
    if config.getoption("waivers") is not None:
        try:
            run.waivers = waivers.load(config.getoption("waivers"))
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--waivers: {error}") from error


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The files of the built-in checks have the name of their role, not test_*.py.

    One that the command line names is left to pytest, which collects it whatever its name is.
    """
    if parent.session.isinitpath(file_path):
        return None
    if file_path.parent == _CHECKS and file_path.suffix == ".py" and file_path.stem not in ("__init__", "conftest"):
        return pytest.Module.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    if not session.testsfailed:  # otherwise pytest reports the file that it could not read
        selection.require_some_of_each(config, items)
    selection.require_known_marks(config, items)
    selection.require_the_examined_host(config, items)
    selection.select(config, items, config.stash[RUN].plan)
    yield
    selection.order(items, config.stash[RUN].plan)  # last: pytest brings the checks of a file together again


def pytest_collection_finish(session: pytest.Session) -> None:
    hosts = session.config.stash[RUN].hosts
    named = {item: selection.host_of(item) for item in session.items}
    others = list(dict.fromkeys(name for name, _ in named.values() if name != selection.LOCAL))
    for item, (name, host) in named.items():
        if name == selection.LOCAL and len(others) == 1:
            name, host = others[0], None  # a check without a host belongs to the only host of this run
        host_run = hosts.setdefault(name, HostRun(name, host))
        if host_run.host is None:
            host_run.host = host
        record = selection.make_distinct(selection.describe(item), item, host_run.checks)
        item.stash[CHECK] = host_run.checks[record.id] = RunningCheck(record)
        item.stash[HOST] = host_run
    results = session.config.getoption("results")
    if results is not None and len(hosts) == 1 and not session.config.getoption("collectonly"):
        with contextlib.suppress(OSError):
            session.config.stash[RUN].mark = RunningMark(running_of(results))
    gc.freeze()  # modules and items stay; garbage collection in them would take longer than the checks
    gc.enable()
    gc.set_threshold(100_000, 1000, 1000)  # little of what checks make is garbage in cycles, and reports stay


def _use_engine(config: pytest.Config, run: Run) -> None:
    """Registers the engine if it can be used. Without it checks run one after the other."""
    option = config.getoption
    steps = ("serial", "usepdb", "trace", "setuponly", "setupshow", "setupplan")
    if any(option(name, False) for name in steps) or _is_worker(config):
        run.mode = "checks run one after the other"
        return
    reason = "validator.engine is not installed"
    with contextlib.suppress(ImportError):
        from validator import engine

        reason = engine.unavailable()
        if not reason:
            run.engine, run.mode = engine, "checks run concurrently"
            config.pluginmanager.register(engine.ConcurrentChecks(_note_running), "validator-engine")
            return
    run.mode = f"checks run one after the other, with one round trip for each command: {reason}"


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's processes."""
    return hasattr(config, "workerinput")


def pytest_report_header(config: pytest.Config) -> str:
    return f"validator: {config.stash[RUN].mode}"


def _note_running(item: pytest.Item, *, runs: bool) -> None:
    """Notes that an item goes on, or is suspended."""
    mark = item.config.stash[RUN].mark
    if mark is None:
        return
    if runs and (check := item.stash.get(CHECK, None)) is not None:
        mark.set(check.record.json_text.encode("utf-8", errors="backslashreplace"))
    else:
        mark.clear()


@contextlib.contextmanager
def _noted(item: pytest.Item) -> Iterator[None]:
    _note_running(item, runs=True)
    try:
        yield
    finally:
        _note_running(item, runs=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _noted(item), _exit_of_a_check():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Ends a check at its deadline, even if it hangs in this process."""
    engine = item.config.stash[RUN].engine
    if engine is not None and engine.running():
        return (yield)
    deadline.arm(time.monotonic() + item.config.getoption("check_deadline"))
    try:
        with _noted(item), _exit_of_a_check():
            return (yield)
    finally:
        deadline.arm(0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _noted(item), _exit_of_a_check():
        return (yield)


@contextlib.contextmanager
def _exit_of_a_check() -> Iterator[None]:
    """pytest.exit as an exception that pytest reports. In the engine's phases it is one already."""
    try:
        yield
    except pytest.exit.Exception as fault:
        raise Exit(fault.msg).with_traceback(fault.__traceback__) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    check = item.stash.get(CHECK, None)
    if check is not None:
        engine = item.config.stash[RUN].engine
        if engine is not None and engine.attempts() > check.latest("attempts"):
            check.update(attempts=engine.attempts())
        judge(check, report, call, is_ours=item.path.parent == _CHECKS)
        if report.when == "teardown" and item.config.getoption("results") is not None:
            _append_to_journal(check, item.stash[HOST], item.config)
    return report  # type: ignore[return-value]


def _append_to_journal(check: RunningCheck, host_run: HostRun, config: pytest.Config) -> None:
    """Appends the check to the journal, so that an interrupted run keeps the results of finished checks."""
    run: Run = config.stash[RUN]
    if host_run.journal is None:
        host_run.journal = journal_of(_of_host(config.getoption("results"), host_run.name, run) or Path())
        host_run.journal.unlink(missing_ok=True)
    record = check.record
    if run.waivers:
        (record,), _ = waivers.apply(run.waivers, [record], _where(run, host_run.host), datetime.date.today())
    run.journal.append(host_run.journal, record)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    config = session.config
    run = config.stash.get(RUN, None)
    if run is None or exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    if config.getoption("collectonly"):
        _write_list(run, config.getoption("results"))
        return
    run.journal.close()
    if run.mark is not None:
        run.mark.close()
    if not _is_worker(config):  # xdist's run a part of the checks each
        _note_unreached(run, str(session.shouldfail or session.shouldstop or ""))
    waiver_records: list[WaiverRecord] = []
    programs, isolated = isolation.programs(config, session.items), isolation.is_isolated(config)
    for host_run in run.hosts.values():
        results = dataclasses.replace(_results(host_run, run, config), programs=programs, isolated=isolated)
        waiver_records += results.waivers
        path = _of_host(config.getoption("results"), host_run.name, run)
        if path is not None:
            results.write(path)
    ids = [record.id for host_run in run.hosts.values() for record in host_run.records]
    run.waiver_remarks = waivers.remarks(waiver_records, ids)
    backend.close_all()
    run.status = int(exitstatus)
    gc.freeze()  # pytest collects twice more, and Python once: on many hosts, a look at all reports takes 0.3 s


def _note_unreached(run: Run, why: str) -> None:
    """A check that was collected and never began is an error: "all that was asked for passed" would not be true."""
    for host_run in run.hosts.values():
        for check in host_run.checks.values():
            if not check.judged:
                message = f"{check.latest('message')}: the run ended before it{f' ({why})' if why else ''}"
                check.update(verdict=Verdict.ERROR, message=message)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the process although a check left a thread, for which Python would wait. The results are written."""
    run = config.stash.get(RUN, None)
    if run is None or run.status is None or config.getoption("results") is None:
        return
    left = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    if left:
        print(f"validator: threads that a check left: {', '.join(left)}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(run.status)


def _write_list(run: Run, path: Path | None) -> None:
    """Writes the checks that would run, without verdicts (`--collect-only --results=FILE`)."""
    if path is not None:
        for host_run in run.hosts.values():
            HostResults(host_run.name, tuple(host_run.records)).write(_of_host(path, host_run.name, run) or path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    for line in run.waiver_remarks if run is not None else ():
        terminalreporter.write_line(f"waivers: {line}")


def _results(host_run: HostRun, run: Run, config: pytest.Config) -> HostResults:
    """Collects the evidence of one host, applies waivers, and returns its results."""
    collected = evidence.Evidence()
    if host_run.host is not None:
        folder = _of_host(config.getoption("evidence"), host_run.name, run)
        if (run.plan is not None or folder is not None) and not config.getoption("no_evidence"):
            failed = any(record.verdict == Verdict.FAIL for record in host_run.records)
            restarted = bool(config.getoption("after"))
            kept = {} if failed else host_run.kept
            collected = evidence.collect(
                as_root(host_run.host),
                folder,
                failed=failed,
                restarted=restarted,
                kept=kept,
                image_files=config.getoption("image_files", None),
            )
        elif isinstance(host_run.host.backend, backend.BatchBackend):
            collected.facts["transport"] = (
                host_run.host.backend.link.cost
            )  # with a user's own checks no other command is run
    waiver_records = _apply_waivers(host_run, run)
    return HostResults(
        host_run.name, tuple(host_run.records), tuple(collected.replicas), collected.facts, tuple(waiver_records)
    )


def _apply_waivers(host_run: HostRun, run: Run) -> list[WaiverRecord]:
    where = _where(run, host_run.host)
    records, waiver_records = waivers.apply(run.waivers, host_run.records, where, datetime.date.today())
    for record in records:
        host_run.checks[record.id].record = record
    return waiver_records


def _where(run: Run, host: Any) -> dict[str, str]:
    """Image and instance type, with which the scope of a waiver is compared; "" if unknown."""
    machine = run.machines.get(host)
    image = run.plan.get("image", "") if run.plan is not None else ""
    return {"image": image, "instance_type": machine.known_type if machine else ""}


def _of_host(path: Path | None, name: str, run: Run) -> Path | None:
    """The path itself; with several hosts, one path for each: checks.json → checks-10.0.0.4_22.json."""
    if path is None or len(run.hosts) == 1:
        return path
    return path.with_name(f"{path.stem}-{re.sub('[^A-Za-z0-9.-]+', '_', name.partition('://')[2])}{path.suffix}")


def as_root(host: Any) -> Any:
    """The same host through its root shell, whatever `--sudo` says."""
    import testinfra.host

    if not isinstance(host.backend, backend.BatchBackend) or host.backend.sudo:
        return host
    if host.backend.link not in _twins:
        twin = _twins[host.backend.link] = testinfra.host.Host(host.backend.as_root())
        twin.backend.set_host(twin)
    return _twins[host.backend.link]


@pytest.fixture
def observe(request: pytest.FixtureRequest) -> Observe:
    """`observe(observed, planned)`: the values that the report shows beside the verdict."""
    return Observe(request.node.stash[CHECK], request.node.stash[HOST].kept)


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> PlanDocument:
    """The plan that the image was built from."""
    document = request.config.stash[RUN].plan
    return document if document is not None else unproven("no --plan was given")


@pytest.fixture(scope="module")
def machine(_testinfra_host: Any, request: pytest.FixtureRequest) -> MachineUnderTest:
    """The machine under test: instance, boot and clock."""
    from validator.probes import MachineUnderTest

    option, machines = request.config.getoption, request.config.stash[RUN].machines
    if _testinfra_host not in machines:
        known_type = option("instance_type") or getattr(
            _testinfra_host.backend, "instance_type", None
        )  # a transcript's
        under_test = MachineUnderTest(as_root(_testinfra_host), option("instance_id"), known_type)
        machines[_testinfra_host] = under_test
    return machines[_testinfra_host]


@pytest.fixture(scope="session")
def cloudwatch(request: pytest.FixtureRequest) -> CloudWatch:
    """CloudWatch and CloudWatch Logs in the region of the machine."""
    from validator.cloudwatch import CloudWatch

    config = request.config
    region = config.getoption("aws_region")
    if not region:
        unproven("no --aws-region was given")
    client = CloudWatch(
        region,
        endpoint=config.getoption("aws_endpoint"),
        profile=config.getoption("aws_profile"),
        arrival_seconds=config.getoption("arrival_seconds"),
    )
    run = config.stash[RUN]
    if run.engine is not None:
        client.sleep, client.park = run.engine.sleep, run.engine.park
    return client
