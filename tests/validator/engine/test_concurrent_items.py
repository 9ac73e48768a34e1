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
