"""The scripts of a folder: which run, in which order, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.onhost.drain_hook.programs import hook_module
from tests.waiting import until

scripts = hook_module("scripts")
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def script(folder: Path, name: str, body: str = "true", mode: int = 0o755) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return str(path)


def always() -> bool:
    return True


def test_order_and_what_is_no_script(tmp_path: Path) -> None:
    for name in ("20-b", "10-a.sh", ".hidden", "10-a.sh~", "x.rpmsave", "x.dpkg-old"):
        script(tmp_path, name)
    assert scripts.listed(str(tmp_path)) == (["10-a.sh", "20-b"], [])
    assert scripts.listed(str(tmp_path / "missing")) == ([], [])


def test_what_would_not_run_is_told(tmp_path: Path) -> None:
    script(tmp_path, "a", mode=0o644)
    script(tmp_path, "b", mode=0o777)
    (tmp_path / "c").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "nowhere")
    assert scripts.listed(str(tmp_path)) == ([], [
        f"{tmp_path}/a: not executable (chmod 0755)",
        f"{tmp_path}/b: others than root can write it (chown root, chmod 0755)",
        f"{tmp_path}/c: not a regular file",
        f"{tmp_path}/d: No such file or directory",
    ])  # fmt: skip
    assert scripts.listed(f"{tmp_path}/a")[1] == [f"{tmp_path}/a: Not a directory"]


@pytest.mark.parametrize(
    ("body", "outcome", "status"), [("true", "ok", 0), ("exit 3", "failed", 3), ("kill -9 $$", "failed", -9)]
)
def test_outcome(tmp_path: Path, body: str, outcome: str, status: int) -> None:
    assert scripts.run(script(tmp_path, "a", body), ENVIRONMENT, 20, always)[:2] == (outcome, status)


def test_a_script_without_an_interpreter_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("#!/no/such/shell\n")
    (tmp_path / "a").chmod(0o755)
    assert scripts.run(str(tmp_path / "a"), ENVIRONMENT, 20, always) == ("failed", None, 0.0)
    assert capsys.readouterr().out == f"{tmp_path}/a: No such file or directory\n"


def test_a_script_ends_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    body = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    began = time.monotonic()
    result = scripts.run(script(tmp_path, "a", body), ENVIRONMENT, 0.3, always)
    assert result.outcome == "timed out" and time.monotonic() - began < 10
    child = int((tmp_path / "pid").read_text())
    until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended, before or while it was read
        return False


def test_a_script_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "GRACE", 0.3)
    result = scripts.run(script(tmp_path, "a", "trap '' TERM; while :; do sleep 0.1; done"), ENVIRONMENT, 0.3, always)
    assert result[:2] == ("timed out", -9)


def test_a_stop_of_the_service_interrupts(tmp_path: Path) -> None:
    assert scripts.run(script(tmp_path, "a", "sleep 60"), ENVIRONMENT, 50, lambda: False).outcome == "interrupted"


def test_nothing_starts_after_the_deadline(tmp_path: Path) -> None:
    assert scripts.run(script(tmp_path, "a", f"touch {tmp_path}/ran"), ENVIRONMENT, 0, always).outcome == "not started"
    assert not (tmp_path / "ran").exists()
