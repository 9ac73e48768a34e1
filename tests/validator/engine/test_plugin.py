"""The engine's part in pytest: items that ran together are reported in their own order, each once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_ami.validate.machines.deadlines import deadlines
from gpu_ami.validate.validator_process import HOST_SECONDS
from tests.validator.conftest import Run, folder_of

MIXED = """
import pytest
ORDER = []
def test_first(host):
    ORDER.append("first")
    assert host.run("true").rc == 0
def test_alone(host, monkeypatch):
    ORDER.append("alone")
    assert host.run("true").rc == 0
def test_last(host):
    ORDER.append("last")
    assert host.run("true").rc == 0
def test_order(host, monkeypatch):
    assert ORDER == {order}
"""
REPORTED = ["test_first", "test_alone", "test_last", "test_order"]


@pytest.mark.parametrize(
    ("options", "order"),
    [((), ["first", "last", "alone"]), (("--serial",), ["first", "alone", "last"])],
)
def test_concurrent_items_are_reported_in_file_order(run: Run, options: tuple[str, ...], order: list[str]) -> None:
    outcome = run(MIXED.format(order=order), *options)
    assert outcome.verdicts == dict.fromkeys(REPORTED, "PASS"), outcome.text
    assert re.findall(r"^PASSED \S+::(\w+)", outcome.text, re.MULTILINE) == REPORTED


TORN_DOWN = """
import pytest
from pathlib import Path
@pytest.fixture(scope="module", autouse=True)
def module(host):
    host.run("true")
    yield
    Path({log!r}).open("a").write("{name} ")
def test_looks(host):
    assert host.run("true").rc == 0
def test_alone(host, monkeypatch):
    Path({log!r}).open("a").write("in-{name} ")
"""


def test_module_is_torn_down_before_the_next_that_runs(run: Run, tmp_path: Path) -> None:
    """`nextitem` is the next item that has not run yet: a module ends when its last item that had to wait has."""
    log = tmp_path / "log"
    files = {f"test_{name}.py": TORN_DOWN.format(log=str(log), name=name) for name in ("a", "b")}
    outcome = run(folder_of(tmp_path, files))
    assert [check["verdict"] for check in outcome.document["checks"]] == ["PASS"] * 4, outcome.text
    words = log.read_text().split()
    assert words.index("in-a") < words.index("in-b") and words[-1] == "b"
    assert words.index("a", words.index("in-a")) < words.index("in-b")


def test_check_past_its_deadline_ends_and_the_others_pass(run: Run) -> None:
    source = (
        "import time\n"
        "def test_hangs(host):\n    host.run('true')\n    time.sleep(300)\n"
        "def test_looks(host):\n    assert host.run('true').rc == 0\n"
    )
    outcome = run(source, "--check-deadline=5")  # a loaded machine takes more than a second for the other check
    assert outcome.verdicts["test_looks"] == "PASS"
    assert outcome.verdicts["test_hangs"] != "PASS"
    assert "the check did not complete within its deadline" in outcome.check("test_hangs")["message"]


OVERRUNS = """
import pytest, time
from pathlib import Path

@pytest.fixture(scope="session")
def whole_run():
    yield
    time.sleep(0.2)
    Path({log!r}).write_text("session ended")

@pytest.fixture
def ends(host):
    yield
    assert host.run("true").rc == 0

def test_overruns(host, whole_run, ends):
    assert host.run({command!r}).rc == 0
    {last}
"""


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
@pytest.mark.parametrize(("command", "last"), [("sleep 4; true", ""), ("true", "time.sleep(30)")])
def test_a_check_past_its_deadline_fails_and_its_teardown_has_time(
    run: Run, tmp_path: Path, command: str, last: str, option: str
) -> None:
    """Also where the deadline comes while its last command runs."""
    log = tmp_path / "log"
    outcome = run(OVERRUNS.format(log=str(log), command=command, last=last), "--check-deadline=3", option)
    assert outcome.verdicts == {"test_overruns": "FAIL"} and "1 failed in" in outcome.text, outcome.text
    assert "the check did not complete within its deadline" in outcome.check("test_overruns")["message"]
    assert log.read_text() == "session ended"


WAITS = """
import time, pytest
from pathlib import Path
@pytest.mark.parametrize("number", range(3))
def test_waits(host, cloudwatch, number):
    assert host.run("true").rc == 0
    began = time.time()
    assert cloudwatch.wait(lambda: None, cloudwatch.arrival_seconds) is None
    Path({log!r}).open("a").write(f"{{began}} {{time.time()}}\\n")
"""


def test_waits_for_cloudwatch_overlap(run: Run, tmp_path: Path) -> None:
    """Where nothing arrives, each wait has 900 s: one after another they would take more than a host's time."""
    log = tmp_path / "log"
    outcome = run(WAITS.format(log=str(log)), "--aws-region=us-east-1", "--arrival-seconds=2")
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    began, ended = zip(*(map(float, line.split()) for line in log.read_text().splitlines()), strict=True)
    assert len(began) == 3 and max(began) < min(ended)
    assert deadlines("").arrival_seconds < HOST_SECONDS


CONCURRENT = """
from validator.checks import logs, metrics, xid
from validator.engine.plugin import MutationAnalysis
def test_it():
    checks = [getattr(module, name) for module in (logs, metrics, xid) for name in dir(module) if name[:5] == "test_"]
    assert len(checks) > 8 and not [check for check in checks if MutationAnalysis()._may(check)]
"""


def test_no_check_of_telemetry_runs_alone(run: Run) -> None:
    """One that did would begin its wait when all others have ended theirs."""
    outcome = run(CONCURRENT)
    assert outcome.verdicts == {"test_it": "PASS"}, outcome.text


AROUND_ITEMS = """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with open({log!r}, "a") as log:
        print(item.name.partition("[")[0], file=log)
    return (yield)
"""


def test_hooks_around_items_see_every_item(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    files = {"conftest.py": AROUND_ITEMS.format(log=str(log)), "test_it.py": MIXED.format(order="ORDER")}
    assert set(run(folder_of(tmp_path, files)).verdicts.values()) == {"PASS"}
    assert log.read_text().split() == REPORTED


@pytest.mark.parametrize("option", ["--tb=line", "--serial"])
def test_run_stops_after_the_most_failures(run: Run, option: str) -> None:
    source = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(host, n):\n    assert n == 0\n"
    outcome = run(source, "--maxfail=2", option)
    assert "stopping after 2 failures" in outcome.text and "2 failed, 1 passed" in outcome.text


NOTES_REPORTS = """
def pytest_runtest_logreport(report):
    if report.when == "call":
        with open({log!r}, "a") as log:
            print("reported", report.nodeid.rpartition("::test_")[2].partition("[")[0], file=log)
"""
SLOW_LAST = """
import pytest

def test_looks(host):
    assert host.run("true").rc == 0

def test_slow(host):
    assert host.run("sleep 1; true").rc == 0
    assert host.run("sleep 1; true #").rc == 0
    with open({log!r}, "a") as log:
        print("slow ended", file=log)

def test_after(host):
    assert host.run("true").rc == 0
"""


def test_what_has_ended_is_reported_while_others_wait(run: Run, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    files = {"conftest.py": NOTES_REPORTS.format(log=log), "test_it.py": SLOW_LAST.format(log=log)}
    assert set(run(folder_of(tmp_path, files)).verdicts.values()) == {"PASS"}
    lines = ["reported looks", "slow ended", "reported slow", "reported after"]
    assert (tmp_path / "log").read_text().splitlines() == lines


def test_nothing_is_reported_after_the_most_failures_while_others_wait(run: Run) -> None:
    source = (
        "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_it(host, n):\n"
        "    assert host.run('true').rc == 0 and n != 1\n    assert n < 3 or host.run('sleep 1; true').rc == 0\n"
    )
    outcome = run(source, "--maxfail=1")
    assert "stopping after 1 failures" in outcome.text and "1 failed, 1 passed" in outcome.text
    assert list(outcome.verdicts.values()) == ["PASS", "FAIL", "PASS", "PASS", "PASS"]  # all ran


SLOW_REPORTS = """
import time

def pytest_runtest_logreport(report):
    if report.when == "call" and "test_looks" in report.nodeid:
        time.sleep(5.5)
"""
ASKS_TWICE = """
import pytest, time

def test_looks(host):
    assert host.run("true").rc == 0

def test_asks(host):
    assert host.run("sleep 0.2; true").rc == 0
    assert host.run("sleep 0.2; true #").rc == 0
    time.sleep(0.3)
"""


@pytest.mark.usefixtures("no_other_plugins")
def test_a_slow_report_is_not_in_the_time_of_checks_that_run(run: Run, tmp_path: Path) -> None:
    outcome = run(folder_of(tmp_path, {"conftest.py": SLOW_REPORTS, "test_it.py": ASKS_TWICE}), "--check-deadline=5")
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
