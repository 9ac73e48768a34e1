"""What a batch asks once, and when it is sent again after a lost connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.validator.conftest import Breakable, Sshd
from validator.engine.batches import Batch, execute, is_pure
from validator.transport import Command, Target, backend
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
