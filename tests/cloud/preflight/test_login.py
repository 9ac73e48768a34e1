"""What a login needs; each mistake beside the others is in test_examination.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.cloud.preflight.findings import Level
from gpu_ami.cloud.preflight.login import ways_in


def scope(**keys: Any) -> Any:
    return SimpleNamespace(place=Place("aws", "us-east-1", **keys), plan=None)


def test_an_address_needs_nothing() -> None:
    assert list(ways_in(scope())) == []


def test_installed_programs_are_shown_with_their_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    findings = list(ways_in(scope(ssh_interface="session_manager", instance_profile="p")))
    assert [(each.level, each.found) for each in findings] == [
        (Level.OK, "aws: /opt/aws"), (Level.OK, "session-manager-plugin: /opt/session-manager-plugin"),
    ]  # fmt: skip
    key = tmp_path / "key"
    key.touch()
    findings = list(ways_in(scope(jump_host="a@b", jump_key=str(key))))
    assert [each.level for each in findings] == [Level.OK]
