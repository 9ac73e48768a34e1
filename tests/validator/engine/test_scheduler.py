"""Many checks take few round trips; deadlines, lost connections and interrupts affect only what they must."""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.conftest import ROOT, Breakable, Run, Sshd
from tests.waiting import until
from validator import evidence
from validator.deadline import CheckTimeout
from validator.engine import scheduler
from validator.transport import Answer, Command, backend

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


def test_evidence_has_every_round_trip_with_the_checks_that_asked(run: Run, tmp_path: Path) -> None:
    """Commands that are joined have no check; without --evidence nothing is kept."""
    outcome = run(
        "def test_waits(host):\n    assert host.run('sleep 0.2').rc == 0\n"
        "def test_looks(host):\n    assert host.run('echo password=hunter2').rc == 0\n",
        f"--evidence={tmp_path / 'evidence'}",
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    lines = (tmp_path / "evidence" / evidence.ROUND_TRIPS_FILE).read_text().splitlines()
    trips = [json.loads(line) for line in lines]
    asked = {command["command"]: command for trip in trips for command in trip["commands"]}
    assert asked["sleep 0.2"]["checks"][0].endswith("::test_waits") and asked["sleep 0.2"]["seconds"] >= 0.2
    assert all(trip["began"] > 1e9 and trip["seconds"] >= command["seconds"] - 0.02
               for trip in trips for command in trip["commands"])  # fmt: skip
    assert "hunter2" not in "".join(lines)
    assert any(command["checks"] == [] for command in asked.values())  # the evidence itself


def test_live_checks_come_last_and_alone(run: Run) -> None:
    outcome = run(
        "import pytest, time\nORDER = []\n"
        "@pytest.mark.live\ndef test_changes(host):\n    host.run('true'); assert len(ORDER) == 3; host.run('true')\n"
        "@pytest.mark.parametrize('n', range(3))\ndef test_looks(host, n):\n    host.run('true'); ORDER.append(n)\n"
    )
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert list(outcome.verdicts)[-1] == "test_changes"


def test_hung_command_does_not_affect_other_checks(run: Run) -> None:
    outcome = run(
        "def test_hangs(host):\n    host.run('sleep 8153', timeout=1)\n"
        "def test_other(host):\n    assert host.run('echo fine').stdout == 'fine\\n'\n"
    )
    assert outcome.verdicts == {"test_hangs": "FAIL", "test_other": "PASS"}
    assert "command did not complete within 1 s: sleep 8153" in outcome.check("test_hangs")["message"]
    assert subprocess.run(["pgrep", "-f", "sleep 815[3]"], stdout=subprocess.DEVNULL).returncode == 1
    assert outcome.seconds < 30  # not the 60 of a command without a deadline of its own


def test_silent_host_costs_one_timeout(run: Run, serve: Callable[[Callable[[socket.socket], None]], int]) -> None:
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


def test_reconnect_happens_once_and_is_recorded(run: Run, breakable: Breakable) -> None:
    def cut_when_busy() -> None:
        until(lambda: bool(running("sleep 3.17")))
        breakable.cut()

    threading.Thread(target=cut_when_busy, daemon=True).start()
    outcome = run(
        "def test_slow(host):\n    assert host.run('sleep 3.17; echo done').stdout == 'done\\n'\n", port=breakable.port
    )
    check = outcome.check("test_slow")
    assert (check["verdict"], check["attempts"]) == ("FLAKY", 2), outcome.text
    assert check["message"] == "passed only after the connection was lost and reopened"
    assert breakable.connections == 2


def test_check_that_loops_locally_ends_at_its_deadline(run: Run) -> None:
    outcome = run(
        "def test_loops(host):\n    while True: pass\ndef test_other(host):\n    host.run('true')\n",
        "--check-deadline=2",
    )
    assert outcome.check("test_loops")["verdict"] == "FAIL"
    assert "did not complete within its deadline" in outcome.check("test_loops")["message"]


def test_incomplete_host_constants_are_read_by_single_commands(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "from validator.transport import shell\nshell.read = lambda output: {}\n"
    (tmp_path / "mute.py").write_text(lines)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = ["host.system_info.type == 'linux'", "host.package('dpkg').is_installed"]
    outcome = run("def test_it(host):\n" + "".join(f"    assert {one}\n" for one in asked), "-p", "mute")
    assert outcome.verdicts == {"test_it": "PASS"}
    assert outcome.document["facts"]["transport"]["executions"] == 1


def test_attributes_of_a_file_are_one_round_trip(run: Run) -> None:
    source = """
def test_it(host):
    file = host.file("/etc/passwd")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    assert file.size > 0
"""
    outcome = run(source)
    assert outcome.verdicts == {"test_it": "PASS"}, outcome.text
    cost = outcome.document["facts"]["transport"]
    assert (cost["round_trips"], cost["commands"]) == (2, 1)  # the shell's start and one stat


def test_a_file_that_changes_is_asked_again(run: Run, tmp_path: Path) -> None:
    """What one answer told beside it holds for the questions that follow at once: not after a command or a wait."""
    file, other = tmp_path / "grows", tmp_path / "grows too"
    for path in (other, tmp_path / "again"):
        path.write_text("old")
        path.chmod(0o400)
    source = f"""
import time
def test_after_a_command(host):
    file = host.file("{file}")
    assert host.run("echo > {file}").rc == 0
    assert (file.size, file.mode & 0o400) == (1, 0o400)
    assert host.run("echo >> {file}; chmod 600 {file}").rc == 0
    assert (file.mode, file.size) == (0o600, 2)
    assert host.run("echo >> {file}; chmod 400 {file}").rc == 0
    assert file.size == 3
    assert file.mode == 0o400

def test_after_a_wait(host):
    file = host.file("{other}")
    assert file.size == 3
    with open("{other}", "a") as here:
        here.write("more")
    time.sleep(0.1)
    assert file.mode == 0o400
    assert file.size == 7

def test_same_question_again(host):
    file = host.file("{tmp_path}/again")
    assert file.size == 3
    with open("{tmp_path}/again", "a") as here:
        here.write("more")
    assert file.size == 7
"""
    outcome = run(source)
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text


def test_unused_connection_is_closed(run: Run) -> None:
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


def test_silent_host_holds_up_no_other(
    run: Run, sshd: Sshd, tmp_path: Path, serve: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    """A host that accepts the connection and says nothing, named first: the other's checks do not wait for it."""
    port = serve(lambda _client: time.sleep(30))
    both = f"--hosts=ssh://{sshd.target().user}@127.0.0.1:{port},ssh://{sshd.target().user}@127.0.0.1:{sshd.port}"
    source = f"""
import pathlib, time
def test_it(host):
    try:
        for number in range(3):
            assert host.run(f"echo {{number}}").rc == 0
    finally:
        (pathlib.Path({str(tmp_path)!r}) / str(host.backend.port)).write_text(str(time.monotonic()))
"""
    file = tmp_path / "test_two.py"
    file.write_text(source)
    with pytest.raises(AssertionError):  # two hosts have a file of results each
        run(file, both, "--connect-timeout=6")
    ended = {name: float((tmp_path / str(name)).read_text()) for name in (port, sshd.port)}
    assert ended[sshd.port] < ended[port] - 2


@pytest.mark.parametrize(("ours", "order"), [(True, ["changed", "arrived"]), (False, ["arrived", "changed"])])
def test_only_our_own_live_checks_pass_parked_ones(ours: bool, order: list[str]) -> None:
    """A check that waits for CloudWatch alone holds up a user's check that changes the host, but not our own."""
    ended: list[str] = []
    engine = scheduler.Scheduler()

    def arrive() -> None:
        until = time.monotonic() + (30 if ours else 0.2)
        while "changed" not in ended and time.monotonic() < until:
            engine.sleep(0.01, parked=True)
        ended.append("arrived")

    change = scheduler.Task("change", lambda: ended.append("changed"), mutates=True, live=ours)
    engine.run([scheduler.Task("arrive", arrive), change])
    assert ended == order


def test_live_check_waits_for_checks_that_need_their_host() -> None:
    ended: list[str] = []
    engine = scheduler.Scheduler()

    def read() -> None:
        engine.sleep(0.1)
        ended.append("read")

    change = scheduler.Task("change", lambda: ended.append("changed"), mutates=True, live=True)
    engine.run([scheduler.Task("read", read), change])
    assert ended == ["read", "changed"]


def test_checks_of_files_run_beside_live_ones() -> None:
    """They come after the other read-only checks have begun, do not hold up live ones, and are not held up by them."""
    events: list[str] = []
    engine = scheduler.Scheduler()
    link: Any = Answering()

    def ask(name: str, text: str = "true") -> None:
        backend.runner(backend.Request(link, Command(text), root=False))
        events.append(name)

    def live() -> None:
        events.append("live begins")
        until = time.monotonic() + 30
        while events.count("file") < 3 and time.monotonic() < until:
            engine.sleep(0.01)
        ask("live ends")

    files = [scheduler.Task(f"file {n}", functools.partial(ask, "file", f"cat {n}"), beside=True) for n in range(12)]
    change = scheduler.Task("change", live, mutates=True, live=True)
    engine.run([*files, scheduler.Task("read", lambda: ask("read")), change])
    assert events[:5] == ["read", "live begins", "file", "file", "file"]
    assert sorted(events[5:]) == ["file"] * 9 + ["live ends"]
    assert max(sum(text.startswith("cat") for text in batch) for batch in link.batches) == scheduler.MOST_BESIDE


@pytest.mark.parametrize("live", [True, False])
def test_a_users_change_waits_for_checks_of_files(live: bool) -> None:
    """Only our own live checks are known to write none of these files."""
    ended: list[str] = []
    engine = scheduler.Scheduler()

    def read() -> None:
        engine.sleep(0.2)
        ended.append("file")

    change = scheduler.Task("change", lambda: ended.append("changed"), mutates=True, live=live)
    engine.run([scheduler.Task("file", read, beside=True), change])
    assert ended == (["changed", "file"] if live else ["file", "changed"])


def test_equal_questions_of_files_go_in_one_batch() -> None:
    link: Any = Answering()
    engine = scheduler.Scheduler()

    def ask(text: str) -> None:
        backend.runner(backend.Request(link, Command(text), root=False, pure=True))

    names = [str(n) for n in range(10)] + ["0"] * 5
    tasks = [scheduler.Task(name, functools.partial(ask, f"cat {name}"), beside=True) for name in names]
    change = scheduler.Task("change", lambda: engine.sleep(0.2), mutates=True, live=True)
    engine.run([*tasks, change])
    assert [sorted(batch) for batch in link.batches] == [[f"cat {n}" for n in range(8)], ["cat 8", "cat 9"]]


def test_a_live_check_is_answered_with_few_others() -> None:
    """Its answer comes with theirs: the sooner an Xid is injected, the sooner it is in CloudWatch."""
    link: Any = Answering()
    engine = scheduler.Scheduler()

    def ask(*texts: str) -> None:
        for text in texts:
            backend.runner(backend.Request(link, Command(text), root=False))

    files = [scheduler.Task(f"file {n}", functools.partial(ask, f"cat {n}"), beside=True) for n in range(12)]
    engine.run([*files, scheduler.Task("live", lambda: ask("live", "live", "live"), mutates=True, live=True)])
    with_live = [len(batch) for batch in link.batches if "live" in batch]
    assert with_live == [1, 1 + scheduler.BESIDE_LIVE, 1 + scheduler.BESIDE_LIVE]
    assert len(link.batches) == 4  # once the last live one has ended, all others at once


def test_checks_beside_live_ones_are_told_what_others_were_told() -> None:
    """What no live check affects does not change while checks run: a later batch need not ask it again."""
    link: Any = Answering()
    engine = scheduler.Scheduler()

    def ask(*texts: str, pure: bool = True) -> None:
        for text in texts:
            backend.runner(backend.Request(link, Command(text), root=False, pure=pure))

    checks = [
        scheduler.Task("one", lambda: ask("cat same"), beside=True),
        scheduler.Task("two", lambda: ask("cat other", "cat same", "cat same"), beside=True),
        scheduler.Task("not pure", lambda: ask("count", "count", pure=False), beside=True),
        scheduler.Task("live", lambda: ask("cat fresh", "cat fresh"), mutates=True, live=True),
    ]
    engine.run(checks)
    asked = [text for batch in link.batches for text in batch]
    assert [asked.count(text) for text in ("cat same", "cat fresh", "count")] == [1, 2, 2]


@pytest.mark.parametrize("hosts", [1, 2])
def test_interrupt_kills_running_commands(sshd: Sshd, tmp_path: Path, hosts: int) -> None:
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
    until(lambda: len(running(nap)) == 2 * hosts)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 2 and "KeyboardInterrupt" in said, said
    until(lambda: not running(nap))


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


def test_check_past_its_deadline_is_reported_however_long_that_takes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the report nor the teardown of a check that is late may be interrupted by the deadline it missed."""
    (tmp_path / "slow_report.py").write_text(
        "import pytest, time\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(item, call):\n"
        "    time.sleep(0.3 if call.excinfo else 0)\n"
        "    return (yield)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = (
        "import pytest, time\n"
        "@pytest.fixture\n"
        "def torn_down(host):\n"
        "    yield\n"
        "    time.sleep(0.3); assert host.run('echo torn down').rc == 0\n"
        "def test_waits(host, torn_down):\n    host.run('sleep 12.25')\n"
        "def test_loops(host, torn_down):\n    while True: pass\n"
        "def test_other(host):\n    assert host.run('echo fine').rc == 0\n"
    )
    outcome = run(source, "--check-deadline=5", "-p", "slow_report")
    assert "INTERNALERROR" not in outcome.text
    late = str(CheckTimeout())
    assert (outcome.check("test_loops")["verdict"], outcome.check("test_loops")["message"]) == ("FAIL", late)
    assert outcome.verdicts == {"test_waits": "FAIL", "test_loops": "FAIL", "test_other": "PASS"}


class Answering:
    """A host that answers at once."""

    connecting = None
    fault = None

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def known(self, root: bool) -> dict[str, Answer]:
        return {}

    def note_asker(self, command: str, check: str) -> None:
        """Round trips are not kept."""

    def execute(self, commands: list[Command], *, root: bool, resend: bool) -> tuple[list[Answer], int]:
        self.batches.append([command.text for command in commands])
        return [Answer(0, b"", b"", 0.0) for _ in commands], 1


def test_answers_are_delivered_before_another_host_begins() -> None:
    """Checks that wait take memory: with many hosts, those of the first end while those of the last begin."""
    events: list[str] = []

    def check(name: str, seconds: float) -> Callable[[], None]:
        link: Any = Answering()

        def ask() -> None:
            events.append(f"{name} begins")
            time.sleep(seconds)
            backend.runner(backend.Request(link, Command("true"), root=False))
            events.append(f"{name} ends")

        return ask

    names = {"first": 0.0, "second": 0.5, "third": 0.0}
    tasks = [scheduler.Task(name, check(name, seconds), host=name) for name, seconds in names.items()]
    scheduler.Scheduler().run(tasks)
    assert sorted(events) == sorted(f"{name} {what}" for name in names for what in ("begins", "ends"))
    assert events.index("first ends") < events.index("third begins")
