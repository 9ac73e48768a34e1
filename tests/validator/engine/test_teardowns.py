"""What items share is torn down after the last that needs it, and what a teardown prints or fails with is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.conftest import Run, Sshd

SESSION_ENDS = """
import pytest
from pathlib import Path

@pytest.fixture(scope="session")
def whole_run():
    yield
    Path({log!r}).open("a").write("session ended\\n")
    raise OSError("at the end of the session")

@pytest.fixture
def slow_end(host):
    yield
    host.run("sleep 1; true")
    Path({log!r}).open("a").write("check ended\\n")

@pytest.fixture(scope="module")
def module_end(host):
    yield
    host.run("true")
    Path({log!r}).open("a").write("module ended\\n")

def pytest_collection_modifyitems(items):
    of = {{"test_uses": "127.0.0.1", "test_plain": "localhost"}}
    items[:] = [item for item in items if of[item.originalname] in item.name]
"""
USES_SESSION = "def test_uses(host, whole_run{more}):\n    assert host.run('true').rc == 0\n"
PLAIN_LAST = "def test_plain(host):\n    assert host.run('sleep {seconds}; true').rc == 0\n"


def session_run(run: Run, sshd: Sshd, folder: Path, log: Path, more: str, seconds: float, option: str) -> str:
    """What is printed by checks of two hosts, whose second has nothing set up and ends last."""
    user = sshd.target().user
    hosts = ",".join(f"ssh://{user}@{name}:{sshd.port}" for name in ("127.0.0.1", "localhost"))
    (folder / "conftest.py").write_text(SESSION_ENDS.format(log=str(log)))  # in no package, which has a setup
    (folder / "test_a.py").write_text(USES_SESSION.format(more=more))
    (folder / "test_b.py").write_text(PLAIN_LAST.format(seconds=seconds))
    with pytest.raises(AssertionError) as printed:  # there is no single checks.json
        run(folder, f"--hosts={hosts}", option)
    return str(printed.value)


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
def test_session_ends_with_the_last_check_even_if_nothing_happens_in_its_teardown(
    run: Run, sshd: Sshd, tmp_path: Path, option: str
) -> None:
    printed = session_run(run, sshd, tmp_path, tmp_path / "log", "", 0.5, option)
    assert "ERROR at teardown of test_plain" in printed and "2 passed, 1 error" in printed, printed
    assert (tmp_path / "log").read_text() == "session ended\n"


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
def test_session_ends_after_all_checks(run: Run, sshd: Sshd, tmp_path: Path, option: str) -> None:
    """One host's last check still tears its fixtures down when the other host's has ended."""
    printed = session_run(run, sshd, tmp_path, tmp_path / "log", ", module_end, slow_end", 0.3, option)
    assert "2 passed, 1 error" in printed, printed
    assert (tmp_path / "log").read_text().splitlines() == ["check ended", "module ended", "session ended"]


LATE_TEARDOWN = """
import pytest, time
from pathlib import Path

def note(text):
    with Path({log!r}).open("a") as log:
        print(text, file=log)

@pytest.fixture(scope="module")
def of_module(host):
    yield
    note("module ended")

@pytest.fixture
def slow_end(host):
    yield
    host.run("sleep 0.5; true")
    host.run("sleep 0.5; true #")
    note("check ended")

def test_first(host, of_module, slow_end):
    assert host.run("true").rc == 0

def test_second(host, of_module):
    assert host.run("true").rc == 0
    assert host.run("sleep 0.3; true").rc == 0

def test_elsewhere(host):
    assert host.run("sleep 3; true").rc == 0

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if ("localhost" in item.name) == (item.originalname == "test_elsewhere")]
"""


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
def test_a_module_ends_after_the_teardowns_of_its_checks(run: Run, sshd: Sshd, tmp_path: Path, option: str) -> None:
    """On one host, while another host's checks go on."""
    log = tmp_path / "log"
    source, _, selects = LATE_TEARDOWN.format(log=str(log)).partition("def pytest_collection")
    (tmp_path / "conftest.py").write_text("def pytest_collection" + selects)
    (tmp_path / "test_it.py").write_text(source)
    user = sshd.target().user
    hosts = ",".join(f"ssh://{user}@{name}:{sshd.port}" for name in ("127.0.0.1", "localhost"))
    with pytest.raises(AssertionError, match="3 passed"):  # there is no single checks.json
        run(tmp_path, f"--hosts={hosts}", option)
    assert log.read_text().splitlines() == ["check ended", "module ended"]


ALONE_FIRST = """
import pytest
from pathlib import Path

@pytest.fixture(scope={scope!r})
def noted():
    yield
    with Path({log!r}).open("a") as log:
        print("ended", file=log)

def test_alone(host, capsys, noted):
    assert host.run("true").rc == 0

def test_looks(host):
    assert host.run("true").rc == 0
"""


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
@pytest.mark.parametrize("scope", ["module", "session"])
def test_fixtures_of_a_check_that_runs_alone_before_the_others_end(
    run: Run, tmp_path: Path, scope: str, option: str
) -> None:
    log = tmp_path / "log"
    assert set(run(ALONE_FIRST.format(log=str(log), scope=scope), option).verdicts.values()) == {"PASS"}
    assert log.read_text() == "ended\n"


PRINTS_LATE = """
import pytest

@pytest.fixture
def late(host):
    yield
    print("printed in the teardown")

def test_fails(host, late):
    assert host.run("true").rc == 1
"""


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
def test_output_of_a_teardown_is_shown_with_a_failure(run: Run, option: str) -> None:
    assert "printed in the teardown" in run(PRINTS_LATE, option, "--tb=short").text


COLLECTS = """
import pytest

class Torn(pytest.Module):
    def teardown(self):
        open({log!r}, "a").write("torn down\\n")

def pytest_pycollect_makemodule(module_path, parent):
    return Torn.from_parent(parent, path=module_path)
"""


@pytest.mark.usefixtures("no_other_plugins")
@pytest.mark.parametrize("option", ["-rA", "--serial"])
def test_a_collector_with_a_teardown_of_its_own_is_torn_down(run: Run, tmp_path: Path, option: str) -> None:
    log = tmp_path / "log"
    (tmp_path / "conftest.py").write_text(COLLECTS.format(log=str(log)))  # in no package, which has a setup
    run("def test_it(host):\n    assert host.run('true').rc == 0\n", option)
    assert log.read_text() == "torn down\n"
