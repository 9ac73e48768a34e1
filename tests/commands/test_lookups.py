"""Commands that look something up: runbook, xid, checks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpu_ami import cli
from validator import tried_on

# `gpu-ami runbook`: an alarm, a code, the list, and the filter of the alarm's log events.


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
    assert len(lines) == 20 and lines[0].split()[:2] == ["gpu-application-error", "ticket"]


def test_pattern_is_for_the_aws_cli(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "gpu-stop-start", "--pattern"]) == 0
    assert capsys.readouterr().out.startswith('{ ($.origin = "kernel" || $.kind = "recovery") && ($.action = "RESTART')


@pytest.mark.parametrize("words", [["agent-silent", "--pattern"], ["--pattern"], ["nonsense"]])
def test_what_has_no_answer_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", *words]) == 2
    assert "gpu-ami runbook lists the alarms" in capsys.readouterr().err


# `gpu-ami xid`: the explanation of one code or several, and of a driver's branch.


def test_63_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63"]) == 0
    out = capsys.readouterr().out
    for words in ("Xid 63: GPU memory remapping event", "hardware, driver, GPU memory", "warning", "IGNORE", "on EC2",
                  "NVIDIA Xid-Catalog.xlsx", "next GPU reset"):  # fmt: skip
        assert words in out


def test_several_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "79", "Xid 48", "--json"]) == 0
    explanations = json.loads(capsys.readouterr().out)
    assert [(row["code"], row["severity"], row["ec2_action"]) for row in explanations] == [
        (79, "fatal", "stop_start"), (48, "critical", "reboot"),
    ]  # fmt: skip


def test_explanations_are_separated_by_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63", "12028"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("Xid 63: ") and second.startswith("SXid 12028: ")


@pytest.mark.parametrize(("words", "name"), [([], "OFA1 Error"), (["--driver", "535.129.03"], "CUDA Fast Path Error")])
def test_driver_selects_the_meaning(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "139", *words]) == 0
    assert capsys.readouterr().out.startswith(f"Xid 139: {name}\n")


def test_one_invalid_code_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63", "abc"]) == 2
    output = capsys.readouterr()
    assert "'abc' is not an Xid" in output.err and output.out == ""


# `gpu-ami checks`: ids, tiers, roles and promises of our checks and of a user's.


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
    ours = {"id": "test_ours::test_it", "role": "test_ours", "tier": "T1", "promise": "Ours runs.", "needs": "nothing"}
    ours |= {"tried_on": "own", "tried_with": []}
    assert listed["test_ours::test_it"] == ours
    assert all(row["promise"] and row["tier"] in ("T0", "T1", "T2", "T3", "TN", "T4") for row in listed.values())
    assert len(listed) > 100


@pytest.mark.slow
def test_checks_of_gpus_and_nodes_have_a_source_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [row for row in rows(capsys) if row["tier"] in ("T2", "T3", "TN", "T4")]
    alone = [row["id"] for row in listed if row["tried_on"] == "replica"]
    assert alone and [name for name in alone if not tried_on.why_no_source(name)] == []


@pytest.mark.slow
def test_tier_and_role_select(capsys: pytest.CaptureFixture[str]) -> None:
    selected = rows(capsys, "--tier", "T0", "--role", "hygiene")
    assert selected and {(row["tier"], row["role"]) for row in selected} == {("T0", "hygiene")}


@pytest.mark.slow
def test_every_check_of_t2_to_t4_has_a_source_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    alone = [row["id"] for row in rows(capsys) if row["tier"] in ("T2", "T3", "T4") and row["tried_on"] == "replica"]
    assert [name for name in alone if not tried_on.why_no_source(name)] == []
    assert len(alone) == 8


@pytest.mark.slow
def test_text_says_why_there_is_no_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checks", "--role", "xid", "--tier", "T2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tried on replicas alone: no driver of NVIDIA prints an Xid on request" in shown


@pytest.mark.slow
def test_text_has_id_and_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checks", "--role", "kernel"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("T") and "kernel::test_" in lines[0] and lines[1].startswith("      ")
    assert lines[2].startswith("      tried on ")
    assert re.fullmatch(r"\d+ checks: \d+ hardware, \d+ transcripts, \d+ replicas alone", lines[-1])


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


@pytest.mark.parametrize(
    "line",
    [
        "node-17: NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.",
        "Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.",
        '"NVRM: Xid (PCI:0000:53:00): 79, pid=7"',
        "[91.5] NVRM: GPU at PCI:0000:53:00: GPU 0000:53:00.0 has fallen off the bus.",
    ],
)
@pytest.mark.parametrize("command", ["xid", "runbook"])
def test_code_is_found_in_a_pasted_line(command: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, line]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Xid 79: GPU has fallen off the bus")
    assert "copy what you need from its instance store volumes" in shown and "In an Auto Scaling group" in shown


def test_pasted_sxid_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "n7: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32"]) == 0
    assert capsys.readouterr().out.startswith("SXid 12028:")


def test_silent_agent_s_runbook_names_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "agent-silent"]) == 0
    shown = capsys.readouterr().out
    assert [word for word in ("gpu-ami-diagnose", "gpu-ami lint-agent", "iam/instance.json") if word not in shown] == []
