"""What a batch asks once, and when it is sent again after a lost connection.

One `stat` answers all attributes of a file, each as it would have been answered alone (engine/batches.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.validator.conftest import Breakable, Sshd
from tests.validator.engine.hosts import Host, in_shell, outcome
from validator.engine import batches
from validator.engine.batches import Batch, execute, is_pure
from validator.transport import Answer, Command, Target, backend
from validator.transport.errors import ConnectionDropped


@dataclass
class Check:
    request: backend.Request | None
    live: bool = False


@pytest.fixture(autouse=True)
def links() -> Iterator[None]:
    yield
    backend.close_all()


def batch_of(link: backend.HostLink, *texts: str, live: bool = False) -> Batch[Check]:
    return Batch(link, False, [Check(backend.Request(link, Command(text, 20.0), False), live) for text in texts])


def test_same_question_is_asked_once(sshd: Sshd) -> None:
    batch = batch_of(backend.link_to(sshd.target()), "cat /etc/hosts", "cat /etc/hosts", "echo here", "echo here")
    batch.compose()
    assert [command.text for command in batch.commands] == ["cat /etc/hosts", "echo here", "echo here"]
    execute([batch])
    first, second = (batch.answers[slot] for slot in batch.slots[:2] if slot is not None)
    assert first is second and first.rc == 0 and batch.fault is None


def test_constants_come_with_the_shell(sshd: Sshd) -> None:
    """No command is sent for them, not even where the batch has no other."""
    link = backend.link_to(sshd.target())
    batch = batch_of(link, "uname -s", "uname -m")
    batch.compose()
    assert batch.commands == [] and batch.slots == [None, None] and link.known(root=False) is None
    execute([batch])
    known = link.known(root=False)
    assert batch.fault is None and known is not None and known["uname -s"].stdout == b"Linux\n"


@pytest.mark.parametrize(
    ("text", "pure"),
    [
        ("stat -Lc %a /etc/passwd", True),
        ("/sbin/sysctl -n kernel.ostype", True),
        ("/usr/sbin/sysctl -n kernel.ostype", True),
        ("/sbin/sysctl -w kernel.ostype=x", False),
        ("/opt/bin/stat /", False),
        ("echo 1", False),
    ],
)
def test_what_only_reads_is_asked_once(text: str, pure: bool) -> None:
    assert is_pure(backend.Request(backend.link_to(Target("here")), Command(text), False)) is pure


@pytest.mark.parametrize(("live", "fault"), [(False, type(None)), (True, ConnectionDropped)])
def test_batch_of_a_live_check_is_not_sent_again(sshd: Sshd, breakable: Breakable, live: bool, fault: type) -> None:
    """What a live check writes must not be written twice, whatever its command looks like."""
    link = backend.link_to(sshd.target(port=breakable.port))
    link.execute([Command("true")], root=False)
    breakable.cut()
    batch = batch_of(link, "echo again", live=live)
    batch.compose()
    execute([batch])
    assert isinstance(batch.fault, fault)
    assert batch.attempts == (1 if live else 2)


LETTERS = "UuGgaYsi"


def stat(letter: str, path: str) -> Command:
    return Command(f"stat -Lc %{letter} {path}", 20.0)


@pytest.mark.parametrize("name", ["plain", "with space", "link", "missing", "dangling"])
def test_attributes_are_those_of_single_commands(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").write_text("text")
    (tmp_path / "with space").mkdir()
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "dangling").symlink_to("nowhere")
    path = f"'{tmp_path / name}'" if " " in name else str(tmp_path / name)
    commands = [stat(letter, path) for letter in LETTERS]
    results = batches.execute_joined(commands, in_shell)
    alone, _ = in_shell(commands)
    assert outcome(results.answers) == outcome(alone)
    assert (alone[0].rc == 0) is (name in ("plain", "with space", "link"))  # both kinds were among them


@pytest.mark.parametrize(("letter", "beside"), [("a", "ugaYsi"), ("s", "ugaYsi"), ("U", "ugaYsiUG"), ("G", "ugaYsiUG")])
def test_names_are_looked_up_only_with_a_name(letter: str, beside: str) -> None:
    """Who looks names up may be a directory service that does not answer: not for a mode."""
    results = batches.execute_joined([stat(letter, "/etc/passwd")], in_shell)
    told = results.beside[0]
    assert set(told) == {stat(other, "/etc/passwd").text for other in beside}
    assert all(outcome([told[text]]) == outcome(in_shell([Command(text)])[0]) for text in told)


@pytest.mark.parametrize(
    "joint",
    [
        Answer(0, b"0\n0\n", b"", 0.1),
        Answer(0, b"0\n0\n644\n1\n2\n3\n", b"stat: something\n", 0.1),
        Answer(1, b"0\n", b"stat: invalid option\n", 0.1),
        Answer(127, b"", b"sh: stat: not found\n", 0.1),
        Answer(137, b"", b"", 20.0, expired=True),
    ],
    ids=["too few lines", "a warning", "half", "no stat", "expired"],
)
def test_what_the_joint_command_does_not_tell_is_asked_alone(joint: Answer) -> None:
    host = Host(joint=joint)
    results = batches.execute_joined([stat("a", "/x"), stat("s", "/x")], host.ask)
    assert host.batches[1:] == [["stat -Lc %a /x", "stat -Lc %s /x"]]
    assert [answer.stdout for answer in results.answers] == [b"stat -Lc %a /x", b"stat -Lc %s /x"]
    assert dict(results.beside[0]) == {}


@pytest.mark.parametrize(
    "text", ["stat -c %a /x", "stat -Lc %F /x", "stat -Lc %a /x /y", "stat -Lc %a $HOME", "stat -Lc '%a %s' /x"]
)
def test_other_commands_are_sent_unchanged(text: str) -> None:
    host = Host()
    batches.execute_joined([Command(text)], host.ask)
    assert host.batches == [[text]]


def test_files_and_deadlines_are_not_mixed() -> None:
    host = Host()
    batches.execute_joined([stat("a", "/x"), stat("a", "/y"), Command("stat -Lc %a /x", 5.0)], host.ask)
    assert len(host.batches[0]) == 3
