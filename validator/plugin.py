"""The pytest plugin: `pytest -p validator.plugin --hosts=ssh://user@address:port FILES`.

It brings testinfra's `host` over one connection, the fixtures `plan`, `machine`, `cloudwatch` and `observe`, the
verdicts, and the markers `live` (changes or provokes something: runs alone, after all others), `survives` (runs again
after a restart) and `tier("T1")`. A skip is UNPROVEN with its reason; a fault of the transport is UNPROVEN too, because
it says nothing about the image.
"""

from __future__ import annotations

import datetime
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from validator import backend, evidence, gather, identity, order, results, selection, tiers, waivers
from validator.items import Items, can_gather
from validator.observe import Observe, unproven
from validator.plan import Plan
from validator.results import Check, Results
from validator.ssh import TransportFault

if TYPE_CHECKING:
    from validator.cloudwatch import CloudWatch
    from validator.machine import MachineUnderTest

pytest.register_assert_rewrite("validator.checks")
# testinfra registers itself where plugins load by themselves; a second time would be refused.
pytest_plugins = ["testinfra.plugin"] if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") else []

RUN = pytest.StashKey["Run"]()
CHECK = pytest.StashKey[Check]()
_CHECKS = Path(__file__).parent / "checks"
_twins: dict[backend.HostLink, Any] = {}
_BACKEND = "validator.backend.BatchBackend"
_IMAGE_BACKEND = "validator.backend.ImageBackend"


class Run:
    """What this process has found so far."""

    def __init__(self) -> None:
        self.hosts: dict[str, tuple[Any, Results]] = {}  # by testinfra's id of the host: the host, what it gave
        self.machines: dict[Any, MachineUnderTest] = {}
        self.plan: Plan | None = None
        self.waivers: list[waivers.Waiver] = []
        self.reports: dict[pytest.Item, list[pytest.TestReport]] = {}  # of gathered items, until they are told
        self.changing: set[pytest.Item] | None = None  # once gathering begins: who may change a host


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("validator", "the proof of an image")
    group.addoption("--plan", metavar="FILE", type=Path, help="plan.json that the image was built from")
    group.addoption("--results", metavar="FILE", type=Path, help="write checks.json there")
    group.addoption("--evidence", metavar="DIR", type=Path, help="keep logs and states of the host there")
    group.addoption("--no-evidence", action="store_true", help="ask a host for nothing beyond what the checks ask")
    group.addoption("--waivers", metavar="FILE", type=Path, help="checks that may be red, why, and until when")
    group.addoption("--instance-id", metavar="ID", help="the instance's id; default: what its metadata say")
    group.addoption("--instance-type", metavar="TYPE", help="its type; default: what its metadata say")
    group.addoption("--after", metavar="RESTART", help="the host was restarted: run only what must survive that")
    group.addoption("--tier", metavar="TIER", choices=tiers.NAMES, help="run only the checks of this tier")
    group.addoption("--known-hosts", metavar="FILE", type=Path, help="host keys; an unknown host is recorded there")
    group.addoption("--aws-region", metavar="REGION", help="where its metrics and logs arrive")
    group.addoption("--aws-endpoint", metavar="URL", help="CloudWatch's endpoint, if it is not AWS itself")
    group.addoption("--aws-profile", metavar="NAME", help="credentials' profile")
    group.addoption("--arrival-seconds", type=float, default=900.0, help="how long metrics may take [%(default)s]")
    group.addoption("--command-deadline", type=float, default=60.0, help="seconds a command [%(default)s]")
    group.addoption("--check-deadline", type=float, default=1200.0, help="seconds a check [%(default)s]")
    group.addoption("--serial", action="store_true", help="run one check after the other, a round trip a command")
    group.addoption("--connect-timeout", type=float, default=15.0, help="seconds for a host to answer [%(default)s]")


def pytest_configure(config: pytest.Config) -> None:
    import testinfra.backend

    config.addinivalue_line("markers", "live: changes or provokes something; runs alone, after all read-only checks")
    config.addinivalue_line("markers", "planned(section): left out where the plan has nothing there")
    config.addinivalue_line("markers", "tier(name): T0 offline, T1 boot, T2 one GPU, T3 all GPUs, T4 several nodes")
    config.addinivalue_line(
        "markers", "survives: must hold after a reboot and after stop and start too; runs again then"
    )
    config.addinivalue_line("markers", "offline: only for an image's files (--hosts=image://PATH)")
    if config.getoption("results") is not None and (config.getoption("numprocesses", None) or _is_worker(config)):
        raise pytest.UsageError(
            "--results: each of xdist's processes would write its own; leave -n out, it gains nothing"
        )
    testinfra.backend.BACKENDS |= {"ssh": _BACKEND, "image": _IMAGE_BACKEND}
    backend.DEFAULTS.command_deadline = config.getoption("command_deadline")
    backend.DEFAULTS.known_hosts = config.getoption("known_hosts")
    backend.DEFAULTS.connect_timeout = config.getoption("connect_timeout")
    backend.DEFAULTS.ahead = not config.getoption("collectonly")
    backend.DEFAULTS.as_root = config.getoption("plan") is not None  # our own checks ask as root
    run = config.stash[RUN] = Run()
    plan_file: Path | None = config.getoption("plan")
    if plan_file is not None:
        try:
            run.plan = Plan.load(plan_file)
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--plan: {error}") from error
    if config.getoption("waivers") is not None:
        try:
            run.waivers = waivers.load(config.getoption("waivers"))
        except (OSError, ValueError) as error:
            raise pytest.UsageError(f"--waivers: {error}") from error


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Our own checks are named after the role that they judge, not test_*.py."""
    if file_path.parent == _CHECKS and file_path.suffix == ".py" and file_path.stem not in ("__init__", "conftest"):
        return pytest.Module.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if not session.testsfailed:  # else pytest says itself which file it could not read
        selection.require_some_of_each(config, items)
    selection.select(config, items, config.stash[RUN].plan)


def pytest_collection_finish(session: pytest.Session) -> None:
    hosts = session.config.stash[RUN].hosts
    named = {item: identity.host_of(item) for item in session.items}
    others = list(dict.fromkeys(name for name, _ in named.values() if name != identity.LOCAL))
    for item, (name, host) in named.items():
        if name == identity.LOCAL and len(others) == 1:
            name, host = others[0], None  # what asks no host belongs to the only one that this run is about
        found_host, found = hosts.setdefault(name, (host, Results(name)))
        if found_host is None and host is not None:
            hosts[name] = (host, found)
        check = item.stash[CHECK] = identity.describe(item)
        identity.make_distinct(check, item, found.checks)
        found.checks[check.id] = check
    gc.freeze()  # what was imported and collected stays: looking through it again would cost more than the checks


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """The first item that can be gathered runs all that can; each then only tells what came of it."""
    run = item.config.stash[RUN]
    if item not in run.reports and _gathers(item.config) and can_gather(item):
        _gather(run, item.session, item)
    reports = run.reports.pop(item, None)
    coming = _next(item, nextitem, run)
    if reports is None and coming is nextitem:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if reports is None:
        runtestprotocol(item, nextitem=coming)
    else:
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _next(item: pytest.Item, nextitem: pytest.Item | None, run: Run) -> pytest.Item | None:
    """The next item that has not run yet: what only those need that have run is taken down."""
    if nextitem not in run.reports:
        return nextitem
    items = item.session.items
    return next((one for one in items[items.index(nextitem) :] if one not in run.reports), None)


def _gathers(config: pytest.Config) -> bool:
    option = config.getoption
    steps = any(option(name, False) for name in ("serial", "usepdb", "trace", "setuponly", "setupshow", "setupplan"))
    return gather.available() and not steps and not _is_worker(config)


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of xdist's processes."""
    return hasattr(config, "workerinput")


def pytest_report_header() -> str:
    if gather.available():
        return "validator: checks are gathered"
    return "validator: greenlet is not installed, so checks run one after the other, a round trip a command"


def _gather(run: Run, session: pytest.Session, first: pytest.Item) -> None:
    rest = session.items[session.items.index(first) :]
    if run.changing is None:
        run.changing = order.Effects().of(item for item in rest if item.path.parent != _CHECKS)
    chosen = order.in_order(rest, run.changing)
    nextitem = next((item for item in rest if item not in set(chosen)), None)
    items = Items(session, chosen, nextitem)
    tasks = items.tasks(run.changing, session.config.getoption("check_deadline"))
    gatherer = gather.Gatherer(limit=lambda task: _arm(task.deadline))
    with items.guard():
        gatherer.run(tasks)
    run.reports.update(items.reports)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A check that hangs on our side ends at its deadline too."""
    if gather.active() is not None:
        return (yield)
    _arm(time.monotonic() + item.config.getoption("check_deadline"))
    try:
        return (yield)
    finally:
        _arm(0.0)


def _arm(deadline: float) -> None:
    """Interrupts whatever runs here at `deadline` (time.monotonic()); 0 takes the alarm back."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - time.monotonic()) if deadline else 0.0)


def _too_late(_signum: int, _frame: object) -> None:
    raise gather.OutOfTime("the check did not end within its deadline")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    check = item.stash.get(CHECK, None)
    if check is not None:
        gatherer = gather.active()
        if gatherer is not None and gatherer.task is not None:
            check.attempts = max(check.attempts, gatherer.task.attempts)
        _judge(check, report, call)
    return report  # type: ignore[return-value]


def _judge(check: Check, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    check.seconds = round(check.seconds + call.duration, 3)
    if report.when == "call" and report.passed:
        check.verdict, check.message = (results.PASS if check.attempts == 1 else results.FLAKY), ""
        if check.attempts > 1:
            check.message = "passed only after the connection had been lost and made again"
    elif report.skipped:
        check.verdict, check.message = results.UNPROVEN, _reason(report)
    elif report.failed:
        fault = call.excinfo.value if call.excinfo else None
        lost = isinstance(fault, TransportFault)
        check.verdict = results.UNPROVEN if lost else results.FAIL
        told = f"{fault}" if fault else report.longreprtext
        check.message = f"the host could not be asked: {told}" if lost else _message(told, call)
        if report.when == "teardown":
            check.message = f"while it was undone: {check.message}"


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def _message(told: str, call: pytest.CallInfo[None]) -> str:
    kind = call.excinfo.type.__name__ if call.excinfo else ""
    told = told.strip()
    return told if kind in ("AssertionError", "Failed", "CommandExpired", "OutOfTime") else f"{kind}: {told}"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    config = session.config
    run = config.stash.get(RUN, None)
    if run is None or config.getoption("collectonly") or exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    for name, (host, found) in run.hosts.items():
        if host is not None:
            folder = _of_host(config.getoption("evidence"), name, run)
            if (run.plan is not None or folder is not None) and not config.getoption("no_evidence"):
                evidence.finish(as_root(host), found, folder, restarted=bool(config.getoption("after")))
            elif isinstance(host.backend, backend.BatchBackend):
                found.facts["transport"] = host.backend.link.cost  # somebody's own checks: nothing more is asked
        found.waivers = waivers.apply(run.waivers, found.checks.values(), _where(run, host), datetime.date.today())
        path = _of_host(config.getoption("results"), name, run)
        if path is not None:
            found.write(path)
    backend.close_all()


def _where(run: Run, host: Any) -> dict[str, str]:
    """What a waiver's scope is compared with; "" where it is not known."""
    machine = run.machines.get(host)
    plan = run.plan.plain() if run.plan is not None else {}
    return {"image": str(plan.get("image", "")), "instance_type": machine.known_type if machine else ""}


def _of_host(path: Path | None, name: str, run: Run) -> Path | None:
    """The path itself, or with several hosts one of its own for each: checks.json → checks-10.0.0.4_22.json."""
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
    """`observe(observed, planned)`: what the report shows beside the verdict."""
    return Observe(request.node.stash[CHECK])


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    """The plan that the image was built from."""
    found = request.config.stash[RUN].plan
    return found if found is not None else unproven("no --plan was given")


@pytest.fixture(scope="module")
def machine(_testinfra_host: Any, request: pytest.FixtureRequest) -> MachineUnderTest:
    """What the machine under test is: instance, boot, clock."""
    from validator.machine import MachineUnderTest

    option, machines = request.config.getoption, request.config.stash[RUN].machines
    if _testinfra_host not in machines:
        found = MachineUnderTest(as_root(_testinfra_host), option("instance_id"), option("instance_type"))
        machines[_testinfra_host] = found
    return machines[_testinfra_host]


@pytest.fixture(scope="session")
def cloudwatch(request: pytest.FixtureRequest) -> CloudWatch:
    """The API where metrics and logs arrive."""
    from validator.cloudwatch import CloudWatch

    config = request.config
    region = config.getoption("aws_region")
    if not region:
        unproven("no --aws-region was given")
    found = CloudWatch(
        region,
        endpoint=config.getoption("aws_endpoint"),
        profile=config.getoption("aws_profile"),
        arrival_seconds=config.getoption("arrival_seconds"),
    )
    found.sleep = gather.sleep
    return found
