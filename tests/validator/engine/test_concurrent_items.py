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
