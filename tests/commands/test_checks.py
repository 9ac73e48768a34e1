"""`gpu-ami checks`: ids, tiers, roles and promises of our checks and of a user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, str]]:
    capsys.readouterr()
    assert cli.main(["checks", "--json", *options]) == 0
    listed: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return listed


@pytest.mark.slow
def test_ids_are_those_of_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "test_ours.py").write_text('def test_it(host):\n    """Ours runs."""\n')
    listed = {row["id"]: row for row in rows(capsys, "--checks", str(tmp_path))}
    assert "xid::test_real_fault_arrives" in listed, "also what only --provoke-xid runs"
    ours = {"id": "test_ours::test_it", "role": "test_ours", "tier": "T1", "promise": "Ours runs."}
    assert listed["test_ours::test_it"] == ours
    assert all(row["promise"] and row["tier"] in ("T0", "T1", "T2", "T3", "T4") for row in listed.values())
    assert len(listed) > 100


@pytest.mark.slow
def test_tier_and_role_select(capsys: pytest.CaptureFixture[str]) -> None:
    selected = rows(capsys, "--tier", "T0", "--role", "hygiene")
    assert selected and {(row["tier"], row["role"]) for row in selected} == {("T0", "hygiene")}


@pytest.mark.slow
def test_text_has_id_and_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checks", "--role", "kernel"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("T") and "kernel::test_" in lines[0] and lines[1].startswith("      ")
    assert lines[-1].endswith(" checks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--role", "hygene"], "did you mean hygiene?"),
        (["--checks", "/nowhere"], "/nowhere: no such file or folder"),
    ],
)
def test_mistakes_are_usage_errors(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert cli.main(["checks", *options]) == 2
    assert message in capsys.readouterr().err
