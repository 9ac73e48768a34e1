"""`gpu-ami key`: what it writes and prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from tests.test_json import valid


def test_new_writes_both_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "release.key"
    assert cli.main(["key", "new", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    valid(data, "key")
    assert (data["private"], data["public"]) == (str(path), f"{path}.pub")
    assert cli.main(["key", "public", str(path)]) == 0
    assert capsys.readouterr().out == (tmp_path / "release.key.pub").read_text()
    assert cli.main(["key", "public", str(path), "--json"]) == 0
    public = json.loads(capsys.readouterr().out)
    valid(public, "key")
    assert public["key_id"] == data["key_id"]


def test_an_existing_key_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "new", str(tmp_path / "k")]) == 0
    before = (tmp_path / "k").read_bytes()
    assert cli.main(["key", "new", str(tmp_path / "k")]) == 2
    assert "keys are not overwritten" in capsys.readouterr().err
    assert (tmp_path / "k").read_bytes() == before
