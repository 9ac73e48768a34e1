"""Rows that a plan relies on, each once, and a note for each that is not established."""

from __future__ import annotations

from gpu_ami.recipes.facts.citations import Sources

ROW = {"source": "release notes", "date": "2026-11-21"}


def test_row_is_cited_once_for_each_fact() -> None:
    sources = Sources()
    for fact in ("driver 580", "driver 580", "CUDA 13.0"):
        sources.add(fact, ROW)
    assert [citation["fact"] for citation in sources.rows] == ["driver 580", "CUDA 13.0"]
    assert sources.rows[0] == {"fact": "driver 580", **ROW, "unverified": False}
    assert sources.notes == []


def test_unverified_row_leaves_its_note() -> None:
    sources = Sources()
    sources.add("driver 580", {**ROW, "unverified": True})
    sources.add("CUDA 13.0", {**ROW, "unverified": True, "note": "CUDA 13.0 was not tried"})
    assert sources.notes == ["not established: driver 580 (release notes)", "CUDA 13.0 was not tried"]
    assert all(citation["unverified"] for citation in sources.rows)


def test_note_is_one_line_and_not_repeated() -> None:
    sources = Sources()
    sources.note("two\n  lines")
    sources.note("two lines")
    assert sources.notes == ["two lines"]
