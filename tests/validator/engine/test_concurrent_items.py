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
    lines = [
        re.findall(r"^(?:PASSED|FAILED|ERROR|XFAIL|SKIPPED) \S+", one.text, re.MULTILINE) for one in (gathered, serial)
    ]
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
