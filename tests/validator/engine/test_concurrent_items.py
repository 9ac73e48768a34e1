"""Items that run concurrently come out as if each had run alone: fixtures, output, teardown, hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.validator.conftest import LOOKS, Run, Sshd, folder_of

ANYBODYS = Path(__file__).parents[1] / "data" / "anybodys.py"


def test_user_files_have_the_same_results_with_the_engine(run: Run) -> None:
    gathered, serial = run(ANYBODYS), run(ANYBODYS, "--serial")
    assert gathered.verdicts == serial.verdicts
    assert [name for name, verdict in gathered.verdicts.items() if verdict != "PASS"] == [
        "test_skipped",
        "test_expected_to_fail",
        "test_fails",
        "test_fixture_is_missing",
    ]
    assert gathered.check("test_skipped") | {"seconds": 0} == serial.check("test_skipped") | {"seconds": 0}
    lines = [re.findall(r"^(?:PASSED|FAILED|ERROR|XFAIL|SKIPPED) \S+", one.text, re.M) for one in (gathered, serial)]
    assert lines[0] == lines[1]
    for text in ("printed by one", "told before failing"):
        assert gathered.text.count(text) == serial.text.count(text) == 1


def test_serial_item_uses_its_own_module(run: Run, tmp_path: Path) -> None:
    """It comes between others that have run before it, and the next to run is of another module."""
    alone = "def test_alone(host, monkeypatch):\n    assert host.run('true').rc == 0\n"
    module = "import pytest\n@pytest.fixture(scope='module', autouse=True)\ndef up(host):\n    yield host.run('true')\n"
    files = {"test_a.py": module + LOOKS + alone + LOOKS.replace("looks", "more"), "test_b.py": module + alone}
    assert set(run(folder_of(tmp_path, files)).verdicts.values()) == {"PASS"}


def test_concurrent_teardowns(run: Run) -> None:
    outcome = run(
        "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(host, request, n):\n"
        "    request.addfinalizer(lambda: host.run('true'))\n    assert host.run('true').rc == 0\n"
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text


def test_each_host_has_its_own_fixtures_and_results(run: Run, sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "test_both.py"
    file.write_text(
        "import pytest\n@pytest.fixture(scope='module')\ndef name(host):\n"
        "    yield host.backend.get_pytest_id(), host.check_output('echo up')\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_it(host, name, n):\n"
        "    assert name == (host.backend.get_pytest_id(), 'up'); assert host.run('true').rc == 0\n"
    )
    user = sshd.target().user
    both = f"--hosts=ssh://{user}@127.0.0.1:{sshd.port},ssh://{user}@localhost:{sshd.port}"
    with pytest.raises(AssertionError, match="6 passed"):  # there is no single checks.json then
        run(file, both)
    for host in ("127.0.0.1", "localhost"):
        document = json.loads((tmp_path / f"checks-{host}_{sshd.port}.json").read_text())
        assert [one["verdict"] for one in document["checks"]] == ["PASS"] * 3
        assert document["facts"]["transport"]["connections"] == 1


ARGUMENTS = """
import pytest

@pytest.fixture
def number():
    return "the parameter comes instead"

@pytest.fixture
def doubled(number):
    return 2 * number

@pytest.fixture(params=["a", "b"])
def letter(request):
    return request.param.upper()

@pytest.fixture
def dynamic(request):
    return request.getfixturevalue("number"), request.getfixturevalue("host")

@pytest.fixture(scope="module")
def of_module(host, request):
    yield host, request.module

@pytest.mark.parametrize("number", [1, 2])
def test_arguments(host, request, number, doubled, letter, dynamic, of_module):
    assert host.run("true").rc == 0
    assert (doubled, dynamic, of_module) == (2 * number, (number, host), (host, request.module))
    assert letter in ("A", "B") and request.node.name.startswith("test_arguments[")
    assert request.getfixturevalue("number") == number and request.getfixturevalue("host") is host
    assert request.node.funcargs["number"] == number

@pytest.mark.parametrize(("number", "letter"), [(3, "c")], indirect=["letter"])
def test_indirect(host, number, letter):
    assert host.run("true").rc == 0 and (number, letter) == (3, "C")

class TestOverridden:
    @pytest.fixture
    def host(self, host):
        return "mine", host

    def test_host(self, host):
        assert host[0] == "mine" and host[1].run("true").rc == 0
"""


def test_arguments_have_the_values_of_their_fixtures(run: Run) -> None:
    gathered, serial = run(ARGUMENTS), run(ARGUMENTS, "--serial")
    assert len(gathered.verdicts) == 6 and set(gathered.verdicts.values()) == {"PASS"}, gathered.text
    assert gathered.verdicts == serial.verdicts


def test_no_fixture_is_set_up_for_known_arguments(run: Run) -> None:
    outcome = run(
        "import pytest\n@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(host, request, number):\n    assert host.run('true').rc == 0 and not request._fixture_defs\n"
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text


SEES_FIXTURES = """
def pytest_fixture_setup(fixturedef):
    with open({log!r}, "a") as log:
        print(fixturedef.argname, file=log)
"""


@pytest.mark.parametrize("option", ["-q", "--serial"])
def test_hooks_see_every_fixture(run: Run, tmp_path: Path, option: str) -> None:
    source = "import pytest\n@pytest.mark.parametrize('number', [1, 2])\ndef test_it(host, number):\n    pass\n"
    log = tmp_path / "log"
    run(folder_of(tmp_path, {"conftest.py": SEES_FIXTURES.format(log=str(log)), "test_it.py": source}), option)
    assert sorted(log.read_text().split()) == ["_testinfra_host", "host", "number", "number"]


PHASES = """
import pytest

def noted(text):
    with open({log!r}, "a") as log:
        print(text, file=log)

def pytest_{hook}({argument}):
    {body}
"""
PLAIN = (
    "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(host, n):\n    assert host.run('true').rc == 0\n"
)


@pytest.mark.parametrize("option", ["-q", "--serial"])
@pytest.mark.parametrize(
    ("hook", "argument", "body", "lines"),
    [
        ("runtest_setup", "item", "noted(item.name[-2])", ["1", "2"]),
        ("runtest_teardown", "item", "noted(item.name[-2])", ["1", "2"]),
        (
            "runtest_logreport",
            "report",
            "noted(report.when)",
            ["call", "call", "setup", "setup", "teardown", "teardown"],
        ),
    ],
)
def test_hooks_see_every_phase(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    hook: str,
    argument: str,
    body: str,
    lines: list[str],
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' plugins may take part in each phase
    (tmp_path / "conftest.py").write_text(PHASES.format(log=str(log), hook=hook, argument=argument, body=body))
    run(PLAIN, option)
    assert sorted(log.read_text().split()) == lines


@pytest.mark.usefixtures("no_other_plugins")
def test_hooks_for_a_report_s_status_see_every_phase(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hook = {"hook": "report_teststatus", "argument": "report", "body": "noted(report.when)"}
    (tmp_path / "conftest.py").write_text(PHASES.format(log=str(log), **hook))
    run(PLAIN)
    assert set(log.read_text().split()) == {"setup", "call", "teardown"}


MARKED = """
import pytest

OF_MODULE = []

def setup_module():
    OF_MODULE.append("set up")

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.skip(reason="this one")), pytest.param(
    3, marks=pytest.mark.xfail(reason="known")), pytest.param(4, marks=pytest.mark.skipif(True, reason="that one"))])
def test_marked(host, n):
    assert host.run("true").rc == 0 and n != 3 and OF_MODULE == ["set up"]

class TestOfAClass:
    def setup_method(self):
        self.number = 1

    @pytest.mark.parametrize("n", [1, 2])
    def test_method(self, host, n):
        assert host.run("true").rc == 0 and self.number == 1
        self.number = n
"""


def test_what_decides_in_the_setup_decides_with_the_engine(run: Run) -> None:
    gathered, serial = run(MARKED), run(MARKED, "--serial")
    assert gathered.verdicts == serial.verdicts
    assert list(gathered.verdicts.values()) == ["PASS", "UNPROVEN", "UNPROVEN", "UNPROVEN", "PASS", "PASS"]
    assert "3 passed, 2 skipped, 1 xfailed" in gathered.text and "3 passed, 2 skipped, 1 xfailed" in serial.text


COUNTS_SETUPS = """
from _pytest import runner
original = runner.SetupState.setup
def setup(self, item):
    with open({log!r}, "a") as log:
        print(item.name.partition("[")[0], file=log)
    original(self, item)
runner.SetupState.setup = setup
"""
SETUPS = """
import pytest

@pytest.fixture
def number(host):
    return 1

def test_plain(host):
    assert host.run("true").rc == 0

def test_fixture(host, number):
    assert host.run("true").rc == number - 1

def test_request(host, request):
    request.addfinalizer(lambda: None)
    assert host.run("true").rc == 0

@pytest.mark.usefixtures("number")
def test_uses(host):
    assert host.run("true").rc == 0
"""


@pytest.mark.parametrize(
    ("options", "set_up"),
    [
        ((), ["test_fixture", "test_request", "test_uses"]),
        (("--durations=0", "-vvv"), ["test_fixture", "test_plain", "test_request", "test_uses"]),
    ],
)
def test_setups_in_which_nothing_happens_are_left_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], set_up: list[str]
) -> None:
    log = tmp_path / "log"
    (tmp_path / "counts_setups.py").write_text(COUNTS_SETUPS.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others' plugins may take part in reports
    outcome = run(SETUPS, "-p", "counts_setups", *options)
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert sorted(log.read_text().split()) == set_up
    assert bool(re.search(r"s setup +\S+::test_plain", outcome.text)) == bool(options)


SESSION_ENDS = """
import pytest
from pathlib import Path
from validator.transport import backend

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
