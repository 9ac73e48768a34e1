"""`gpu-ami lint-agent`: exit codes, lines, and one bad file beside good ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.commands import Outcome, lint_agent
from gpu_ami.progress import Progress

GOOD = {"agent": {"metrics_collection_interval": 60}}
BAD = '{\n  "agent": {\n    "regon": "x"\n  }\n}'


MESSAGE = "unknown key; did you mean region?"


def run(*files: Path) -> Outcome:
    return lint_agent.execute(argparse.Namespace(files=list(files), writes=None, schema=None), Progress("quiet"))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(GOOD))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.json"
    path.write_text(BAD)
    return path


def test_a_correct_file_has_no_findings(good: Path) -> None:
    assert (run(good).text, run(good).exit_code, run(good).data) == ("1 file: no findings", 0, [])


def test_an_error_has_its_line_and_exit_code_1(good: Path, bad: Path) -> None:
    outcome = run(good, bad)
    assert (outcome.text, outcome.exit_code) == (
        f"{bad}: error: line 3: agent.regon: {MESSAGE}",
        1,
    )
    assert outcome.data == [
        {
            "file": str(bad),
            "severity": "error",
            "path": "agent.regon",
            "message": MESSAGE,
            "line": 3,
        }
    ]


def test_an_unreadable_file_hides_no_other_finding(tmp_path: Path, bad: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe")
    outcome = run(tmp_path / "missing.json", binary, bad)
    assert outcome.exit_code == 2
    lines = str(outcome.text).splitlines()
    assert lines[0] == f"{tmp_path / 'missing.json'}: error: the file: cannot be read: No such file or directory"
    assert lines[1].startswith(f"{binary}: error: the file: expected UTF-8 text")
    assert lines[2].startswith(f"{bad}: error: line 3: agent.regon")


def test_text_that_is_not_json_is_an_error_of_that_file_alone(tmp_path: Path, good: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"agent": {')
    outcome = run(path, good)
    assert (outcome.exit_code, str(outcome.text)) == (
        1,
        f"{path}: error: line 1: the file: not JSON: Expecting property name enclosed in double quotes",
    )


def test_own_schema_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"agent": {"region": "eu-west-1"}}')
    (tmp_path / "schema.json").write_text('{"properties": {"agent": {"properties": {"region": {"type": "integer"}}}}}')
    (tmp_path / "no-schema.json").write_text('{"type": 5}')
    words = ["lint-agent", str(tmp_path / "config.json"), "--schema"]
    assert cli.main([*words, str(tmp_path / "schema.json")]) == 1
    assert "agent.region: 'eu-west-1' is not of type 'integer' (--schema)" in capsys.readouterr().out
    assert cli.main([*words, str(tmp_path / "no-schema.json")]) == 2
    assert "no JSON schema" in capsys.readouterr().err
