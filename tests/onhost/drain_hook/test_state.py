"""What is kept of a notice, and for whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.onhost.drain_hook.programs import hook_module

notices, scripts, state = hook_module("notices"), hook_module("scripts"), hook_module("state")
NOTICE = notices.Notice("spot-interruption", "stop", "t", "spot-interruption stop t")
OK = scripts.Result("ok", 0, 1.0)


def test_a_script_that_ended_does_not_begin_again(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    first = state.State(path, "i-1")
    first.entry(NOTICE, 100)
    assert first.begin(NOTICE, "a")
    first.end(NOTICE, "a", OK)
    second = state.State(path, "i-1")
    assert not second.begin(NOTICE, "a") and second.begin(NOTICE, "b") and not second.is_done(NOTICE)
    second.finish(NOTICE)
    assert state.State(path, "i-1").is_done(NOTICE)


def test_an_interrupted_script_begins_once_more(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    began = []
    for _ in range(3):
        killed = state.State(path, "i-1")
        killed.entry(NOTICE, 100)
        began.append(killed.begin(NOTICE, "a"))
        killed.end(NOTICE, "a", scripts.Result("interrupted", -15, 1.0))
    assert began == [True, True, False]


def test_the_deadline_counts_from_the_first_look_of_a_boot(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    first = state.State(path, "i-1")
    deadline = first.entry(NOTICE, 100)["deadline_monotonic_s"]
    first.save()
    second = state.State(path, "i-1")
    assert second.entry(NOTICE, 500)["deadline_monotonic_s"] == deadline
    second.boot_id = "another"
    assert second.entry(NOTICE, 500)["deadline_monotonic_s"] > deadline + 300


def test_another_instance_inherits_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    first = state.State(path, "i-1")
    first.entry(NOTICE, 100)
    first.finish(NOTICE)
    assert not state.State(path, "i-2").is_done(NOTICE)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"instance_id": "i-1", "notices": {"k": 7}}', '{"instance_id": "i-1"}']
)
def test_a_damaged_file_counts_as_empty_and_is_told(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state.json").write_text(text)
    assert state.State(str(tmp_path / "state.json"), "i-1").notices == {}
    assert "state.json cannot be used, and nothing counts as done: " in capsys.readouterr().out


def test_a_full_disk_does_not_stop_a_drain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = state.State(str(tmp_path / "missing" / "state.json"), "i-1")
    kept.entry(NOTICE, 100)
    assert kept.begin(NOTICE, "a")
    kept.end(NOTICE, "a", OK)
    assert not kept.begin(NOTICE, "a")
    assert "cannot write" in capsys.readouterr().out


def test_only_the_newest_notices_are_kept(tmp_path: Path) -> None:
    kept = state.State(str(tmp_path / "state.json"), "i-1")
    for number in range(60):
        notice = NOTICE._replace(key=str(number))
        kept.entry(notice, 100)
        kept.finish(notice)
    assert list(json.loads((tmp_path / "state.json").read_text())["notices"]) == [str(n) for n in range(10, 60)]
