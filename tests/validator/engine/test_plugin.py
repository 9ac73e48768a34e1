"""The engine's part in pytest: items that ran together are reported in their own order, each once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    outcome = run(source, "--check-deadline=1")
    assert outcome.verdicts["test_looks"] == "PASS"
    assert outcome.verdicts["test_hangs"] != "PASS"
    assert "the check did not complete within its deadline" in outcome.check("test_hangs")["message"]
