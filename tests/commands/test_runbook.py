"""`gpu-ami runbook`: an alarm, a code, the list, and the filter of the alarm's log events."""

from __future__ import annotations

import pytest

from gpu_ami import cli


def test_alarm_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "gpu-telemetry-gpu-stop-start", "--log-group", "/my/group"]) == 0
    out = capsys.readouterr().out
    for words in ("What to do first", "aws ec2 stop-instances", "When to call AWS Support", "Sources", "/my/group"):
        assert words in out


def test_xid_is_explained_by_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "139", "--driver", "535.129.03"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Xid 139: CUDA Fast Path Error\n") and "raises no alarm" in out


def test_alarms_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 19 and lines[0].split()[:2] == ["gpu-application-error", "ticket"]


def test_pattern_is_for_the_aws_cli(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "gpu-stop-start", "--pattern"]) == 0
    assert capsys.readouterr().out.startswith('{ ($.origin = "kernel" || $.kind = "recovery") && ($.action = "RESTART')


@pytest.mark.parametrize("words", [["agent-silent", "--pattern"], ["--pattern"], ["nonsense"]])
def test_what_has_no_answer_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", *words]) == 2
    assert "gpu-ami runbook lists the alarms" in capsys.readouterr().err
