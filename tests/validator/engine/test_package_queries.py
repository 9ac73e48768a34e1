"""Package queries of one batch that go out as one get the answers that each would have had alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from tests.validator.engine.hosts import Host, in_shell, outcome
from validator.engine import coalesce
from validator.transport import Answer, Command

STATUS = "dpkg-query -f '${Status}' -W "
VERSION = "dpkg-query -f '${Status} ${Version}' -W "


def of(commands: Sequence[Command], send: coalesce.Execute) -> tuple[list[Answer], int]:
    results = coalesce.execute(commands, send)
    return results.answers, results.attempts


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg here")
def test_joined_queries_have_the_output_of_single_ones() -> None:
    asked = [STATUS + "bash", VERSION + "sed", "echo between", STATUS + "no-such-package", VERSION + "bash",
             STATUS + "bash", VERSION + "no-such-one", VERSION + "sh", STATUS + "bash:all"]  # fmt: skip
    commands = [Command(text) for text in asked]
    alone, _ = in_shell(commands)
    together = coalesce.execute(commands, in_shell).answers
    assert outcome(together) == outcome(alone)
    assert alone[0].stdout == b"install ok installed" and alone[3].rc == 1  # both kinds were among them


def test_many_packages_are_one_command() -> None:
    lines = b"".join(b"p%d install ok installed 1.%d\n" % (number, number) for number in range(100))
    host = Host(joint=Answer(0, lines, b"", 0.2))
    commands = [Command("first"), *(Command(f"{VERSION}p{number}") for number in range(100)), Command("last")]
    answers, attempts = of(commands, host.ask)
    assert [len(batch) for batch in host.batches] == [3] and attempts == 1
    assert [answer.stdout for answer in answers[1:-1]] == [b"install ok installed 1.%d" % n for n in range(100)]
    assert (answers[0].stdout, answers[-1].stdout) == (b"first", b"last")


def test_single_query_is_sent_unchanged() -> None:
    host = Host()
    coalesce.execute([Command("echo"), Command(STATUS + "bash")], host.ask)
    assert host.batches == [["echo", STATUS + "bash"]]


@pytest.mark.parametrize(
    "joint",
    [
        Answer(2, b"", b"dpkg-query: error: cannot read the database\n", 0.1),
        Answer(0, b"aa install ok installed 1\naa install ok installed 1\nbb install ok installed 2\n", b"", 0.1),
        Answer(1, b"bb install ok installed 2\n", b"dpkg-query: what nobody foresaw\n", 0.1),
    ],
    ids=["no database", "two architectures", "no word of one"],
)
def test_queries_without_a_joint_answer_are_sent_alone(joint: Answer) -> None:
    host = Host(joint=joint)
    answers, attempts = of([Command(STATUS + "aa"), Command(VERSION + "bb")], host.ask)
    assert host.batches[1][0] == STATUS + "aa" and attempts == 2
    assert answers[0].stdout == (STATUS + "aa").encode()
    if joint.rc != 2:
        assert host.batches[1:] == [[STATUS + "aa"]] and answers[1].stdout == b"install ok installed 2"


def test_expired_joint_command_expires_every_query() -> None:
    host = Host(joint=Answer(124, b"", b"", 5.0, expired=True))
    answers, _ = of([Command(STATUS + "aa", 5.0), Command(STATUS + "bb", 5.0)], host.ask)
    assert [answer.expired for answer in answers] == [True, True] and len(host.batches) == 1


def test_other_deadlines_are_not_joined() -> None:
    host = Host()
    coalesce.execute([Command(STATUS + "aa", 5.0), Command(STATUS + "bb", 60.0)], host.ask)
    assert host.batches == [[STATUS + "aa", STATUS + "bb"]]
