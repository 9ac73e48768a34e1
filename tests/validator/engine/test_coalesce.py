"""Commands of one batch that one process can answer go out as one; the others as they are."""

from __future__ import annotations

from tests.validator.engine.hosts import Host
from validator.engine import coalesce
from validator.transport import Answer, Command

MODE, OWNER, PACKAGE = "stat -Lc %a /etc/passwd", "stat -Lc %U /etc/hosts", "dpkg-query -f '${Status}' -W "


def test_kinds_are_joined_each_by_itself_and_answers_are_in_order() -> None:
    host = Host(joint=Answer(1, b"", b"", 0.1))
    texts = ["first", MODE, f"{PACKAGE}aa", OWNER, f"{PACKAGE}bb", "last"]
    results = coalesce.execute([Command(text) for text in texts], host.ask)
    first, again = host.batches
    assert len(first) == 5 and first[:2] == ["first", "last"]  # one of packages, one of each file
    assert again == [texts[2], texts[4]]  # the joint answer did not tell
    assert [results.answers[place].stdout for place in (0, 2, 4, 5)] == [texts[p].encode() for p in (0, 2, 4, 5)]
    assert results.attempts == 2


def test_nothing_to_join_is_sent_as_it_is() -> None:
    host = Host()
    assert coalesce.execute([], host.ask).answers == []
    results = coalesce.execute([Command("one"), Command("two")], host.ask)
    assert host.batches == [[], ["one", "two"]] and dict(results.beside) == {}
