"""Checks that are gathered come out as if each had run alone, in few round trips; each fault stays with its cause."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Breakable, Sshd

ROOT = Path(__file__).resolve().parents[2]
ANYBODYS = Path(__file__).parent / "data" / "anybodys.py"
ORDERED = Path(__file__).parent / "data" / "ordered.py"


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest printed, and its checks.json."""

    text: str
    document: dict[str, Any]
    seconds: float

    def check(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.document["checks"] if one["id"].endswith(f"::{name}"))
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        return {one["id"].rpartition("::")[2]: one["verdict"] for one in self.document["checks"]}


Run = Callable[..., Outcome]


@pytest.fixture
def run(sshd: Sshd, tmp_path: Path) -> Run:
    """`run(file or source, *options, port=…)`: pytest with our plugin, as a user starts it."""

    def start(source: Path | str, *options: str, port: int = sshd.port, host: str = "127.0.0.1") -> Outcome:
        file = source if isinstance(source, Path) else tmp_path / "test_given.py"
        if isinstance(source, str):
            file.write_text(source)
        results = tmp_path / "checks.json"
        root = file if file.is_dir() else file.parent
        command = [
            sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "-rA",
            "--tb=line", f"--ssh-identity-file={sshd.key}", f"--results={results}",
            f"--rootdir={root}", f"--hosts=ssh://{sshd.target().user}@{host}:{port}", *options, str(file),
        ]  # fmt: skip
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        assert results.exists(), done.stdout + done.stderr
        return Outcome(done.stdout, json.loads(results.read_text()), seconds)

    return start


def test_any_file_comes_out_the_same(run: Run) -> None:
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


@pytest.mark.parametrize("way", [(), ("--serial",)])
def test_what_a_check_changes_is_there_for_the_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    """Nothing is marked: which checks change something is read from what they say."""
    place = tmp_path / "place"
    monkeypatch.setenv("ORDERED_PLACE", str(place))
    outcome = run(ORDERED, *way)
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert len(outcome.verdicts) == 16
    assert not place.exists()


def folder_of(tmp_path: Path, files: dict[str, str]) -> Path:
    """A user's folder of testinfra files; each directory in it is a package, so that names may come twice."""
    folder = tmp_path / "mine"
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(text)
    return folder


LOOKS = "def test_looks(host):\n    assert host.run('true').rc == 0\n"


def test_no_check_hides_another_of_its_name(run: Run, tmp_path: Path) -> None:
    """A red check must not be overwritten by a green one: of another class, another file, or another host."""
    classes = "".join(
        f"class Test{name}:\n    def test_it(self, host):\n        assert host.run('{name}').rc == 0\n"
        for name in ("false", "true")
    )
    twin = "def test_it(host):\n    assert host.run('{}').rc == 0\n"
    local = "import testinfra\n\ndef test_here():\n    assert testinfra.get_host('local://').exists('sh')\n"
    files = {"test_a.py": classes, "x/test_b.py": twin.format("false"), "y/test_b.py": twin.format("true") + local}
    outcome = run(folder_of(tmp_path, files))
    assert {one["id"]: one["verdict"] for one in outcome.document["checks"]} == {
        "a::Testfalse::test_it": "FAIL",
        "a::Testtrue::test_it": "PASS",
        "b::test_it": "FAIL",
        "mine/y/test_b::test_it": "PASS",
        "b::test_here": "PASS",  # it asks no host, and belongs to the only one
    }


def test_what_cannot_be_gathered_finds_its_own_module(run: Run, tmp_path: Path) -> None:
    """It comes between others that have run before it, and the next to run is of another module."""
    alone = "def test_alone(host, monkeypatch):\n    assert host.run('true').rc == 0\n"
    module = "import pytest\n@pytest.fixture(scope='module', autouse=True)\ndef up(host):\n    yield host.run('true')\n"
    files = {"test_a.py": module + LOOKS + alone + LOOKS.replace("looks", "more"), "test_b.py": module + alone}
    assert set(run(folder_of(tmp_path, files)).verdicts.values()) == {"PASS"}


def test_many_are_undone_at_the_same_time(run: Run) -> None:
    outcome = run(
        "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(host, request, n):\n"
        "    request.addfinalizer(lambda: host.run('true'))\n    assert host.run('true').rc == 0\n"
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text


def test_processes_that_would_overwrite_each_other_are_refused(run: Run) -> None:
    with pytest.raises(AssertionError, match="leave -n out"):  # there is no checks.json then
        run(LOOKS, "-n2")


def test_a_folder_without_checks_is_an_error(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(AssertionError, match=f"no check was found in {empty}"):  # there is no checks.json then
        run(LOOKS, str(empty))


def test_without_a_plan_nobody_knows_what_only_some_images_have(run: Run) -> None:
    outcome = run(
        "import pytest\n@pytest.mark.planned('node_ecs')\ndef test_some(host):\n    assert False\n"
        "@pytest.mark.planned('nvidia_driver')\ndef test_every(host):\n    assert host.run('true').rc == 0\n"
    )
    assert outcome.verdicts == {"test_some": "UNPROVEN", "test_every": "PASS"}
    assert "no plan was given" in outcome.check("test_some")["message"]


MANY = """
import pytest
@pytest.mark.parametrize("number", range(100))
def test_look(host, number):
    assert host.file(f"/etc/none{number}").exists is False
    assert host.file("/etc/passwd").is_file
    assert host.package("coreutils").is_installed
    assert host.run("echo %s", str(number)).stdout == f"{number}\\n"
"""


def test_one_execution_and_few_round_trips(run: Run) -> None:
    outcome = run(MANY)
    assert set(outcome.verdicts.values()) == {"PASS"}
    cost = outcome.document["facts"]["transport"]
    assert (cost["connections"], cost["executions"]) == (1, 1)
    assert cost["round_trips"] <= 6  # detection, and four steps of each check


def test_live_checks_come_last_and_alone(run: Run) -> None:
    outcome = run(
        "import pytest, time\nORDER = []\n"
        "@pytest.mark.live\ndef test_changes(host):\n    host.run('true'); assert len(ORDER) == 3; host.run('true')\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_looks(host, n):\n    host.run('true'); ORDER.append(n)\n"
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert list(outcome.verdicts)[-1] == "test_changes"


def test_hung_command_ends_at_its_deadline_and_others_do_not_care(run: Run) -> None:
    outcome = run(
        "def test_hangs(host):\n    host.run('sleep 8153', timeout=1)\n"
        "def test_other(host):\n    assert host.run('echo fine').stdout == 'fine\\n'\n"
    )
    assert outcome.verdicts == {"test_hangs": "FAIL", "test_other": "PASS"}
    assert "command did not end within 1 s: sleep 8153" in outcome.check("test_hangs")["message"]
    assert subprocess.run(["pgrep", "-f", "sleep 815[3]"], stdout=subprocess.DEVNULL).returncode == 1
    assert outcome.seconds < 30  # not the 60 of a command without a deadline of its own


def test_silent_host_costs_one_deadline(run: Run, serve: Callable[[Callable[[socket.socket], None]], int]) -> None:
    came: list[socket.socket] = []

    def say_nothing(client: socket.socket) -> None:
        came.append(client)
        time.sleep(30)

    port = serve(say_nothing)
    source = "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_it(host, n):\n    host.run('true')\n"
    outcome = run(source, "--connect-timeout=4", port=port)
    assert len(came) == 1  # nobody asks it again
    assert set(outcome.verdicts.values()) == {"UNPROVEN"}
    messages = {one["message"] for one in outcome.document["checks"]}
    assert len(messages) == 1
    assert "sent no SSH banner within 4 s" in messages.pop()


def test_lost_connection_is_made_again_once_and_shows(run: Run, breakable: Breakable) -> None:
    def cut_when_busy() -> None:
        while not breakable.connections:
            time.sleep(0.05)
        time.sleep(1.5)
        breakable.cut()

    threading.Thread(target=cut_when_busy, daemon=True).start()
    outcome = run(
        "def test_slow(host):\n    assert host.run('sleep 3; echo done').stdout == 'done\\n'\n", port=breakable.port
    )
    check = outcome.check("test_slow")
    assert (check["verdict"], check["attempts"]) == ("FLAKY", 2), outcome.text
    assert check["message"] == "passed only after the connection had been lost and made again"
    assert breakable.connections == 2


def test_check_that_hangs_here_ends_too(run: Run) -> None:
    outcome = run(
        "def test_loops(host):\n    while True: pass\ndef test_other(host):\n    host.run('true')\n",
        "--check-deadline=2",
    )
    assert outcome.check("test_loops")["verdict"] == "FAIL"
    assert "did not end within its deadline" in outcome.check("test_loops")["message"]


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


def test_a_host_that_does_not_tell_what_is_always_asked_is_asked_for_each(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mute.py").write_text("from validator import known\nknown.read = lambda answer: {}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = ["host.system_info.type == 'linux'", "host.package('dpkg').is_installed"]
    outcome = run("def test_it(host):\n" + "".join(f"    assert {one}\n" for one in asked), "-p", "mute")
    assert outcome.verdicts == {"test_it": "PASS"}
    assert outcome.document["facts"]["transport"]["executions"] == 1


def test_a_connection_that_nobody_used_is_ended(run: Run) -> None:
    outcome = run("def test_it(host):\n    pass\n")
    assert outcome.verdicts == {"test_it": "PASS"}


def test_hosts_do_not_wait_for_each_other(run: Run, sshd: Sshd, tmp_path: Path) -> None:
    """One host's slow command holds up its own checks alone: the other's go on, round trip by round trip."""
    both = f"--hosts=ssh://{sshd.target().user}@127.0.0.1:{sshd.port},ssh://{sshd.target().user}@localhost:{sshd.port}"
    source = f"""
import pathlib, time
def test_it(host):
    slow = host.backend.get_pytest_id().startswith("ssh://127")
    for number in range(3):
        assert host.run("sleep 3" if slow and number == 0 else f"echo {{number}}").rc == 0
    (pathlib.Path({str(tmp_path)!r}) / ("slow" if slow else "quick")).write_text(str(time.monotonic()))
"""
    file = tmp_path / "test_two.py"
    file.write_text(source)
    with pytest.raises(AssertionError):  # two hosts have a file of results each
        run(file, both)
    ended = {name: float((tmp_path / name).read_text()) for name in ("slow", "quick")}
    assert ended["quick"] < ended["slow"] - 2


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_interrupt_ends_it_at_once_and_leaves_nothing_running(sshd: Sshd, tmp_path: Path, hosts: int) -> None:
    file = tmp_path / "test_long.py"
    nap = f"sleep 9{hosts}.25"
    file.write_text(f"def test_it(host):\n    host.run({nap!r})\ndef test_other(host):\n    host.run('{nap} ; true')\n")
    names = [f"ssh://{sshd.target().user}@{name}:{sshd.port}" for name in ("127.0.0.1", "localhost")[:hosts]]
    options = ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", f"--ssh-identity-file={sshd.key}", str(file)]
    # Whoever runs the tests in the background has a shell that ignores Ctrl-C for them.
    start = (
        "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(pytest.main())"
    )
    command = [sys.executable, "-c", start, "-p", "validator.plugin", f"--hosts={','.join(names)}", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: len(running(nap)) == 2 * hosts)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 2 and "KeyboardInterrupt" in said, said
    wait_until(lambda: not running(nap))


def running(command: str) -> list[str]:
    """The processes whose command line is exactly this."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if path.read_bytes() == wanted else []
        except OSError:
            continue  # it has just ended
    return found


def wait_until(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.05)
