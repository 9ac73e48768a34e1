"""`python -m localregion.mirror`: what it builds and prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localregion.mirror import __main__

from .replica_samples import PLAN

pytestmark = pytest.mark.usefixtures("mirror_table")


def test_a_plan_or_a_lock_is_built_and_listed(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(fresh))
    for document in (PLAN, {"plan": PLAN}):
        (tmp_path / "plan.json").write_text(json.dumps(document))
        assert __main__.main([str(tmp_path / "plan.json"), "tool"]) == 0
        listed = capsys.readouterr().out
        assert " vendor.example/flat/x86_64/tool-1_1.2.3-1+x2_amd64.deb\n" in listed
        assert "agent.deb" not in listed
        assert f" s → {(fresh / 'mirror/current').resolve()}" in listed.splitlines()[-1]


def test_a_component_without_a_replica_is_an_error(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(fresh))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    assert __main__.main([str(tmp_path / "plan.json"), "left_out"]) == 2
    assert "nobody-has-this" in capsys.readouterr().err


def test_without_a_plan_it_prints_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert (__main__.main([]), __main__.main(["--help"])) == (2, 2)
    assert "PLAN: a plan.json or a lock" in capsys.readouterr().err
