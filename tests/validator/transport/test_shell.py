"""The shell that takes batches, without a network: deadlines hold, nothing is left running, any sh will do."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import SSHException

from validator.transport import shell as shell_module
from validator.transport.budget import Budget
from validator.transport.errors import BudgetSpent
from validator.transport.shell import Command, Shell, in_own_shell
from validator.transport.ssh import ConnectionDropped, Target


class Channel:
    """What paramiko's channel is for a shell: a process on a socket."""

    def __init__(self, command: list[str]) -> None:
        ours, theirs = socket.socketpair()
        self.settimeout, self.sendall, self.send = ours.settimeout, ours.sendall, ours.send
        self.recv, self._sock = ours.recv, ours
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (close() closes it)
        with theirs:
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors)

    def recv_stderr(self, _most: int) -> bytes:
        return b""

    def close(self) -> None:
        self._sock.close()
        self.process.wait(20)
        self._errors.close()


Start = Callable[[], Shell]


@pytest.fixture(params=["dash", "bash --posix"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts what `sh` is on Debian and Ubuntu, and what it is on Amazon Linux."""
    words = str(request.param).split()
    shells: list[Shell] = []

    def made() -> Shell:
        gone = SimpleNamespace(get_exception=lambda: None)
        connection: Any = SimpleNamespace(target=Target("here"), alive=True, transport=gone, budget=Budget())
        connection.open = lambda _command: Channel(words)
        shells.append(Shell(connection))
        return shells[-1]

    yield made
    for shell in shells:
        shell.close()


def a_long_time() -> str:
    """Seconds that nothing else on this machine sleeps."""
    return f"9999.{random.randrange(10**9)}"


def alive(marker: str) -> bool:
    """Whether a process with this word in its command line runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def gone(marker: str) -> bool:
    until = time.monotonic() + 20
    while alive(marker) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(marker)


@pytest.mark.parametrize(
    ("text", "rc", "out"),
    [
        ("echo hi", 0, "hi\n"),
        ("test -e /nowhere", 1, ""),
        ("stat -c %F /tmp", 0, "directory\n"),
        ("head -n 1 -- /etc/passwd", 0, "root:x:0:0:root:/root:/bin/bash\n"),
        ("command -v there-is-no-such-program", 127, ""),
        ("there-is-no-such-program", 127, ""),
        ("echo $((20 + 3)); exit 3", 3, "23\n"),
        ("echo 'a  b' \"c\"", 0, "a  b c\n"),
        ("cat <<x\nhere\nx", 0, "here\n"),
        ("echo $m$d$w$b$s$1", 0, "\n"),
        ("d=/; kill -9 $$", 137, ""),
        ("cat", 0, ""),
        ("f() { echo mine; }; f", 0, "mine\n"),
        ("exec 9>&1; cd /; pwd >&9", 0, "/\n"),
        ("(exit 4", 2, ""),
        ("[[ a == a* ]] && echo yes", 0, "yes\n"),
        ("echo {1..3}", 0, "1 2 3\n"),
        ("echo -e 'a\\tb'", 0, "a\tb\n"),
        ("set -o pipefail; false | true", 1, ""),
        ("source /dev/null && cat <(echo sub) <<< x", 0, "sub\n"),
    ],
)
def test_output_equals_that_of_a_separate_shell(start: Start, text: str, rc: int, out: str) -> None:
    (answer,) = start().execute([Command(text)])
    assert (min(answer.rc, 127) if text.startswith("command") else answer.rc, answer.expired) in (
        (rc, False),
        (1, False),
    )
    assert answer.stdout.decode() == out


@pytest.mark.parametrize("error", [EOFError(), OSError(32, "Broken pipe"), SSHException("Key-exchange timed out")])
@pytest.mark.parametrize("at", ["send", "recv"])
def test_connection_that_breaks_is_dropped_whatever_paramiko_raises(start: Start, at: str, error: Exception) -> None:
    """paramiko's packetizer raises a bare EOFError when its socket has gone while it writes."""

    def broken(_data: object) -> bytes:
        raise error

    shell = start()
    assert shell.execute([Command("true")])[0].rc == 0
    setattr(shell.ssh_channel, at, broken)
    with pytest.raises(ConnectionDropped, match="closed the connection"):
        shell.execute([Command("true")])


def test_a_command_may_write_a_large_file(start: Start, tmp_path: Path) -> None:
    """The limit is one of outputs: a check that measures a disk writes more."""
    (answer,) = start().execute(
        [Command(f"truncate -s 200M {tmp_path}/sparse && dd if=/dev/zero of={tmp_path}/x bs=1M count=1 seek=150")]
    )
    assert (answer.rc, (tmp_path / "x").stat().st_size) == (0, 151 << 20), answer.stderr


@pytest.mark.parametrize(
    ("text", "stdout"),
    [
        ("yes", True),  # until it is killed
        ("yes >&2", False),
        ("head -c 3M /dev/zero", True),  # it ends before anybody looks
    ],
)
def test_a_command_that_writes_too_much_output_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch, text: str, stdout: bool
) -> None:
    monkeypatch.setattr(shell_module, "OUTPUT_BYTES", 2 << 20)
    connected = start()
    answer, other = connected.execute([Command(text, deadline=60), Command("echo other")])
    assert (answer.rc, answer.expired) == (137, False)
    assert answer.seconds < 30  # not at its deadline
    assert answer.stderr.endswith(b"validator: killed, it wrote more than 64 MiB of output\n")
    assert len(answer.stdout if stdout else answer.stderr) >= 2 << 20
    assert other.stdout == b"other\n"
    assert connected.execute([Command("echo again")])[0].stdout == b"again\n"


@pytest.mark.slow  # it waits in real time
@pytest.mark.parametrize(("seconds", "most"), [("0", 4), ("0.2", 2)])
def test_slow_host_is_looked_at_less_often(start: Start, tmp_path: Path, seconds: str, most: int) -> None:
    """On an emulated processor a look each second took a tenth of the time of all commands."""
    connected = start()
    slow = f"validator_large() {{ large=' '; echo >>{tmp_path}/looks; sleep {seconds}; }}\n"
    connected.ssh_channel.sendall(slow.encode())
    (answer, late) = connected.execute([Command("sleep 4.5; echo done"), Command("sleep 30", deadline=2)])
    looks = len((tmp_path / "looks").read_text().splitlines())
    assert answer.stdout == b"done\n" and looks <= most + 1 and (seconds != "0" or looks >= 3)
    assert late.expired and late.seconds < 4


def test_commands_run_in_parallel_and_answers_are_in_order(start: Start) -> None:
    shell = start()
    answers = shell.execute([Command(f"echo {number}; echo e{number} >&2; exit {number}") for number in range(50)])
    assert [(one.rc, one.stdout, one.stderr) for one in answers] == [
        (number, b"%d\n" % number, b"e%d\n" % number) for number in range(50)
    ]
    assert [one.stdout for one in shell.execute([Command("echo again")])] == [b"again\n"]


def test_many_short_batches_complete(start: Start) -> None:
    shell = start()
    for number in range(60):
        assert shell.execute([Command(f"echo {number}")])[0].stdout == b"%d\n" % number


def test_each_command_has_its_own_deadline(start: Start) -> None:
    batch = [Command("echo begun; sleep 100", 0.3), Command("sleep 1; echo done", 30), Command("exec sleep 100", 0.6)]
    begun = time.monotonic()
    first, second, third = start().execute(batch)
    assert (first.expired, second.expired, third.expired) == (True, False, True)
    assert (first.stdout, second.stdout) == (b"begun\n", b"done\n")
    assert first.seconds >= 0.3
    assert time.monotonic() - begun < 60


def test_commands_without_a_process_run_together(start: Start) -> None:
    batch = [Command(f"echo {number}") for number in range(20)] + [Command("test -e /nowhere"), Command("true")]
    batch += [Command("command -v no-such-program"), Command("echo $$", 20.0), Command("echo last", 20.0)]
    script = shell_module.batch_script(batch)
    assert script.count("validator_run_together ") == 2  # one for each deadline
    answers = start().execute(batch)
    assert [(answer.rc, answer.stdout) for answer in answers[:20]] == [(0, b"%d\n" % number) for number in range(20)]
    assert [answer.rc for answer in answers[20:22]] == [1, 0]
    assert answers[22].rc in (1, 127)  # bash, dash
    assert answers[-1].stdout == b"last\n"


@pytest.mark.slow  # it waits in real time
def test_a_command_that_hangs_among_others_expires_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test -e` of a file on a server that does not answer."""
    marker = a_long_time()
    monkeypatch.setattr(shell_module, "BUILTIN", re.compile(r"(?:echo|sleep) .*"))
    texts = ["echo before", f"sleep {marker}", "echo after", "echo last"]
    answers = start().execute([Command(text, 1.0) for text in texts])
    assert [(answer.stdout, answer.expired) for answer in answers] == [
        (b"before\n", False),
        (b"", True),
        (b"after\n", False),
        (b"last\n", False),
    ]
    assert gone(marker)


def test_a_shell_that_starts_says_what_does_not_change(start: Start) -> None:
    shell = start()
    assert shell.constants == {}
    assert shell.execute([]) == []
    assert shell.constants["uname -s"].stdout == b"Linux\n"
    assert shell.constants["command -v command"].rc == 0


def test_commands_answer_in_english(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an image whose login shells have another locale: `stat -c %F` and rpm would translate what checks compare."""
    for name, value in {"LANG": "de_DE.UTF-8", "LC_MESSAGES": "de_DE.UTF-8", "LANGUAGE": "de"}.items():
        monkeypatch.setenv(name, value)
    (answer,) = start().execute([Command("printenv LC_ALL; printenv LANGUAGE")])
    assert (answer.stdout, answer.rc) == (b"C.UTF-8\n", 1)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_commands_have_the_umask_of_the_user(start: Start, tmp_path: Path, mask: int) -> None:
    """Benchmarks of hardening ask for it, and a file that a command writes has the mode that it always has."""
    before = os.umask(mask)
    try:
        shell = start()
    finally:
        os.umask(before)
    answers = shell.execute([Command("umask"), Command(f"echo > {tmp_path}/file; stat -c %a {tmp_path}/file")])
    assert [answer.stdout.decode().strip() for answer in answers] == [f"{mask:04o}", f"{0o666 & ~mask:o}"]


@pytest.mark.parametrize(
    "text",
    [
        "sleep N & sleep N",
        "env -i sleep N",
        "env -i sh -c 'sleep N & sleep N; true'",
        "setsid sleep N",
        "trap '' TERM HUP; sleep N; true",
        "(sleep N; true) & wait",
        # Processes without the mark, which start while others are looked for.
        "while :; do (env -i sleep N; true) & sleep .01; done",
    ],
)
def test_an_expired_command_leaves_nothing_running(start: Start, text: str) -> None:
    seconds = a_long_time()
    (answer,) = start().execute([Command(text.replace("N", seconds), 0.5)])
    assert answer.expired
    assert gone(seconds)


def test_killed_command_has_not_expired(start: Start) -> None:
    (answer,) = start().execute([Command("kill -9 $$", 30)])
    assert (answer.rc, answer.expired) == (137, False)


def test_shell_that_exits_during_a_batch_kills_its_commands(start: Start) -> None:
    shell, seconds = start(), a_long_time()
    channel: Any = shell.ssh_channel
    with pytest.raises(ConnectionDropped):
        shell.execute([Command(f"sleep {seconds}"), Command(f"kill {channel.process.pid}; sleep {seconds}")])
    assert gone(seconds)


def test_directory_of_the_shell_is_removed(start: Start) -> None:
    shell = start()
    (answer,) = shell.execute([Command("readlink /proc/self/fd/1")])
    folder = Path(answer.stdout.decode().strip()).parent
    assert folder.is_dir()
    shell.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "evaluated"),
    [
        ("test -e /etc/passwd", "test -e /etc/passwd"),
        ("command -v systemctl", "command -v systemctl"),
        ("stat -c '%a %n' /etc", "exec stat -c '%a %n' /etc"),
        ("cat -- /etc/os-release", "exec cat -- /etc/os-release"),
        ("cat /etc/a*", "exec sh -c 'cat /etc/a*'"),
        ("cat /etc/$x", "exec sh -c 'cat /etc/$x'"),
        ("echo a; echo b", "exec sh -c 'echo a; echo b'"),
        ("test -e ~/x", "exec sh -c 'test -e ~/x'"),
        ("my-program", "exec sh -c my-program"),
        ("cat 'it'\"'\"'s'", "exec sh -c 'cat '\"'\"'it'\"'\"'\"'\"'\"'\"'\"'\"'s'\"'\"''"),
        ("exit 3", "exec sh -c 'exit 3'"),
    ],
)
def test_shell_syntax_runs_in_its_own_shell(text: str, evaluated: str) -> None:
    assert in_own_shell(text) == evaluated


@pytest.mark.parametrize("announced", [None, 1 << 20])
def test_a_host_that_dribbles_is_the_finding(
    start: Start, monkeypatch: pytest.MonkeyPatch, announced: int | None
) -> None:
    """Each dot said that it is alive, and so it was waited for without end: before the header, and in the output."""
    shell = start()
    assert shell.execute([Command("true")])[0].rc == 0
    for name in ("SLACK_SECONDS", "START_SECONDS"):  # from here on, since a loaded machine starts the shell late
        monkeypatch.setattr(shell_module, name, 0.1)
    monkeypatch.setattr(shell_module.budget, "SLOWEST_BYTES_PER_SECOND", 16 << 20)
    header = f"\n{shell.frame_mark} \n".encode()
    sizes = f"0 1 1\n{announced}\n0\n" if announced else ""
    replies = iter([sizes.encode() + header] if announced else [])

    def dribble(_most: int) -> bytes:
        time.sleep(0.01)
        return next(replies, b".")

    shell.ssh_channel.recv = dribble
    started = time.monotonic()
    with pytest.raises(BudgetSpent, match="root@here:22 keeps the connection alive, and does not complete its answer"):
        shell.execute([Command("true", deadline=0.2)])
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("spent", "message"),
    [
        (Budget(bytes=100), "root@here:22 sent more than 1,024 MiB in this run"),
        (Budget(seconds=0.0), "root@here:22 used up the time that all its answers may take in this run"),
    ],
)
def test_a_host_has_a_budget_for_the_run(start: Start, spent: Budget, message: str) -> None:
    shell = start()
    shell.connection.budget = spent
    with pytest.raises(BudgetSpent, match=message):
        shell.execute([Command("head -c 300 /dev/zero")])
