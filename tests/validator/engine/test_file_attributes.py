"""One `stat` answers all attributes of a file, each as it would have been answered alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.engine.hosts import Host, in_shell, outcome
from validator.engine import coalesce
from validator.transport import Answer, Command

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
    results = coalesce.execute(commands, in_shell)
    alone, _ = in_shell(commands)
    assert outcome(results.answers) == outcome(alone)
    assert (alone[0].rc == 0) is (name in ("plain", "with space", "link"))  # both kinds were among them


@pytest.mark.parametrize(("letter", "beside"), [("a", "ugaYsi"), ("s", "ugaYsi"), ("U", "ugaYsiUG"), ("G", "ugaYsiUG")])
def test_names_are_looked_up_only_with_a_name(letter: str, beside: str) -> None:
    """Who looks names up may be a directory service that does not answer: not for a mode."""
    results = coalesce.execute([stat(letter, "/etc/passwd")], in_shell)
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
    results = coalesce.execute([stat("a", "/x"), stat("s", "/x")], host.ask)
    assert host.batches[1:] == [["stat -Lc %a /x", "stat -Lc %s /x"]]
    assert [answer.stdout for answer in results.answers] == [b"stat -Lc %a /x", b"stat -Lc %s /x"]
    assert dict(results.beside[0]) == {}


@pytest.mark.parametrize(
    "text", ["stat -c %a /x", "stat -Lc %F /x", "stat -Lc %a /x /y", "stat -Lc %a $HOME", "stat -Lc '%a %s' /x"]
)
def test_other_commands_are_sent_unchanged(text: str) -> None:
    host = Host()
    coalesce.execute([Command(text)], host.ask)
    assert host.batches == [[text]]


def test_files_and_deadlines_are_not_mixed() -> None:
    host = Host()
    coalesce.execute([stat("a", "/x"), stat("a", "/y"), Command("stat -Lc %a /x", 5.0)], host.ask)
    assert len(host.batches[0]) == 3
