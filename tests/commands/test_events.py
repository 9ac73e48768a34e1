"""`gpu-ami events`: its options, its output and the errors of its input."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from gpu_ami import cli

LOG = """\
Jul 20 16:33:31 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 63, pid=7, name=train, Row Remapper: New row marked
Jul 20 16:33:32 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.
Jul 20 16:33:33 gpu NVRM: Xid (PCI:0000:00:1d): 79, GPU has fallen off the bus.
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_policy_file_changes_the_severity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "policy.json").write_text('{"xid": {"63": {"severity": "fatal"}}}')
    words = ("events", str(tmp_path / "log"))
    _, without, _ = run(capsys, *words)
    _, with_policy, _ = run(capsys, *words, "--policy", str(tmp_path / "policy.json"))
    assert "warning" in without.splitlines()[1] and "fatal" in with_policy.splitlines()[1]


def test_missing_policy_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    code, _, err = run(capsys, "events", str(tmp_path / "log"), "--policy", str(tmp_path / "absent.json"))
    assert code == 2 and "absent.json" in err


def test_output_to_a_pipe_has_no_colour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "Xid 79" in out and "\x1b[" not in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "name a log FILE (or -), or a host"),
        (["x", "--host", "ssh://a@b"], "one of them"),
        (["x", "--follow"], "--follow needs --host"),
        (["/nonexistent/log"], "/nonexistent/log: No such file or directory"),
        (["/"], "/: Is a directory"),
        (["--host", "http://x"], "expected ssh://user@address:port"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], words: list[str], complaint: str) -> None:
    code, _, err = run(capsys, "events", *words)
    assert code == 2 and complaint in err


def test_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    assert [(event["line"], event["code"], event["origin"]) for event in map(json.loads, out.splitlines())] == [
        (1, 63, "kernel"), (2, 79, "kernel"), (3, 79, "userland"),
    ]  # fmt: skip


def test_log_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("nothing\n")
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0 and "No Xid, SXid, lost GPU or error of Neuron in this log." in out


def test_help_shows_a_pipe_into_jq(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        cli.main(["events", "--help"])
    assert "jq .code" in capsys.readouterr().out
