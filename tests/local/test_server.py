"""What the daemon's main reports. Its process: test_region.py."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

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
