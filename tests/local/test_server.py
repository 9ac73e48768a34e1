"""What the daemon's main reports (its process: test_region.py); each file of botocore's is read once."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from gpu_ami.errors import CloudError
from gpu_ami.local import server
from gpu_ami.local.state import Layout


def run_main(home: Path) -> tuple[int, str]:
    """The exit status, and what was reported to the caller."""
    read, write = os.pipe()
    settings = {"home": str(home), "persistent": True, "lifeline": None, "status": write}
    code = server.main(["server", json.dumps(settings)])
    with os.fdopen(read) as stream:
        return code, stream.read()


def test_a_second_daemon_is_told_that_one_runs(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    with layout.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_main(tmp_path) == (0, "busy\n")


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (CloudError("no free network", hint="down"), 4, {"message": "no free network", "hint": "down", "details": []}),
        (ValueError("odd"), None, {"message": "ValueError: odd", "hint": "see {log}"}),
    ],
)
def test_a_daemon_that_does_not_start_reports_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int | None, reported: dict[str, Any]
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(server, "Daemon", fail)
    read, write = os.pipe()
    settings = {"home": str(tmp_path), "persistent": True, "lifeline": None, "status": write}
    if code is None:
        with pytest.raises(ValueError, match="odd"):
            server.main(["server", json.dumps(settings)])
    else:
        assert server.main(["server", json.dumps(settings)]) == code
    with os.fdopen(read) as stream:
        found = json.loads(stream.read())
    assert found == {**reported, "hint": reported["hint"].format(log=Layout(tmp_path).log)}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed for the whole process is set back."""
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    monkeypatch.setattr(server, "_kept", {})


def test_a_file_is_read_once_a_process(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text('{"version": 3}')
    server.read_once()
    first = JSONFileLoader().load_file(str(tmp_path / "endpoints"))
    (tmp_path / "endpoints.json").unlink()
    assert first == {"version": 3}
    assert JSONFileLoader().load_file(str(tmp_path / "endpoints")) is first


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    server.read_once()
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) is None
    (tmp_path / "absent.json").write_text("{}")
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) == {}
