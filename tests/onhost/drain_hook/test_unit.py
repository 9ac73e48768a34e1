"""The unit as the role's template renders it: systemd takes it, and its limits are those that scripts can live with.

The program as it runs on an image, against a metadata service on loopback: each notice runs its scripts once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from tests.onhost.drain_hook.programs import ROOT, SPOT, FakeMetadata, Installed, hook_module
from tests.waiting import until

ROLE = ROOT / "roles" / "drain_hook"
HOME = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))["__drain_hook_home"]
# systemd.exec(5): each of them gives the unit a mount namespace of its own.
NAMESPACES = (
    "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules",
    "ProtectKernelLogs", "ProtectControlGroups", "PrivateMounts", "ReadWritePaths", "ReadOnlyPaths", "BindPaths",
    "InaccessiblePaths", "TemporaryFileSystem", "ProtectProc", "ProcSubset", "RootDirectory", "MountFlags",
)  # fmt: skip


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    template = (ROLE / "templates/gpu-ami-drain-hook.service.j2").read_text(encoding="utf-8")
    given = {"notices": ["spot-interruption", "maintenance-event"], "timeout_s": 60, "log": "/var/log/drain.jsonl"}
    named = {f"drain_hook_{name}": value for name, value in given.items()}
    text = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template)
    path = tmp_path / "gpu-ami-drain-hook.service"
    path.write_text(text.render(ansible_managed="test", __drain_hook_home=HOME, **named), encoding="utf-8")
    return path


def test_systemd_takes_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_takes_the_options_of_the_unit(unit: Path) -> None:
    [options] = re.findall(r"(?m)^ExecStart=/usr/bin/python3 -sSE \S+gpu-ami-drain-hook.py (.+)$", unit.read_text())
    with pytest.raises(SystemExit) as ended:
        hook_module("service").main([*options.split(), "--help"])
    assert ended.value.code == 0


def test_a_script_may_unmount_a_file_system(unit: Path) -> None:
    """In a mount namespace of the unit's own `umount` would not reach the machine."""
    options = dict(line.partition("=")[::2] for line in unit.read_text().splitlines() if "=" in line)
    assert not set(options) & set(NAMESPACES)
    assert "@mount" not in options["SystemCallFilter"] and "CAP_SYS_ADMIN" not in options["CapabilityBoundingSet"]


def test_paths_of_unit_program_and_footprint_agree(unit: Path) -> None:
    """The state, the status and the scripts of the program are those that unit and footprint name."""
    service, text = hook_module("service"), unit.read_text()
    declared = (ROLE / "meta/footprint.yml").read_text(encoding="utf-8")
    assert f"StateDirectory={Path(service.STATE).parent.relative_to('/var/lib')}" in text.splitlines()
    assert f"RuntimeDirectory={Path(service.STATUS).parent.name}" in text.splitlines()
    assert f"{HOME}/drill.d" == service.DRILL_SCRIPTS
    for path in (service.SCRIPTS, service.STATE, str(Path(service.STATE).parent), f"{service.DRILL_SCRIPTS}/probe"):
        assert path in declared, path


service = hook_module("service")


def test_scripts_run_in_order_with_what_they_need_to_know(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("20-second", f"env > {tmp_path}/environment; echo to the journal")
    hook.script("10-first", "exit 3")
    hook.script("30-third", "true", mode=0o644)
    with FakeMetadata(**SPOT) as imds:
        code, output = hook.once(imds.address)
    assert (code, hook.names_run()) == (0, ["10-first", "20-second"])
    assert "\nto the journal\n" in output and "30-third: not executable" in output
    told = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert {key: value for key, value in told.items() if key.startswith("DRAIN_")} == {
        "DRAIN_NOTICE": "spot-interruption", "DRAIN_ACTION": "terminate", "DRAIN_TIME": "2026-11-23T10:02:00Z",
        "DRAIN_INSTANCE_ID": "i-0011223344556677a", "DRAIN_REGION": "us-east-1", "DRAIN_SECONDS": told["DRAIN_SECONDS"],
    }  # fmt: skip
    assert 90 <= int(told["DRAIN_SECONDS"]) <= 100
    assert [row["event"] for row in hook.lines()] == ["start", "notice", "drained"]
    [drained] = hook.lines("drained")
    assert [(row["name"], row["outcome"], row["status"]) for row in drained["scripts"]] == [
        ("10-first", "failed", 3), ("20-second", "ok", 0),
    ]  # fmt: skip
    assert drained["refused"] == [f"{hook.scripts}/30-third: not executable (chmod 0755)"]
    assert (drained["instance_id"], drained["schema"]) == ("i-0011223344556677a", "gpu-ami/drain/1")


def test_a_notice_runs_its_scripts_once_also_after_restarts(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    with FakeMetadata(**SPOT) as imds:
        for _ in range(3):
            assert hook.once(imds.address)[0] == 0
        assert hook.names_run() == ["10-a"]
        imds.categories["spot/instance-action"] = '{"action": "stop", "time": "2026-11-24T10:02:00Z"}'
        hook.once(imds.address)
    assert hook.names_run() == ["10-a", "10-a"]


def test_without_a_notice_nothing_runs(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    with FakeMetadata() as imds:
        assert hook.once(imds.address) == (0, hook.log.read_text())
    assert hook.names_run() == [] and [row["event"] for row in hook.lines()] == ["start"]


def test_a_notice_without_scripts_is_logged(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    with FakeMetadata(**SPOT) as imds:
        assert hook.once(imds.address)[0] == 0
    assert [row["scripts"] for row in hook.lines("drained")] == [[]]


def test_a_kill_in_the_middle_repeats_only_what_was_interrupted(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    hook.script("20-b", f"[ -e {tmp_path}/again ] || {{ echo $$ > {tmp_path}/pid; exec sleep 60; }}")
    hook.script("30-c", "true")
    with FakeMetadata(**SPOT) as imds:
        running = hook.start(imds.address)
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        running.kill()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # systemd kills all of the unit's processes
        running.communicate(timeout=30)
        (tmp_path / "again").touch()
        assert hook.once(imds.address)[0] == 0
    assert hook.names_run() == ["10-a", "20-b", "20-b", "30-c"]
    [drained] = hook.lines("drained")
    assert [row["outcome"] for row in drained["scripts"]] == ["ok", "ok", "ok"]


def test_sigterm_ends_the_script_and_the_next_start_goes_on(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", f"[ -e {tmp_path}/again ] || sleep 60")
    with FakeMetadata(**SPOT) as imds:
        running = hook.start(imds.address)
        until(hook.names_run)
        running.terminate()
        assert running.wait(30) == 0 and hook.lines("drained") == []
        (tmp_path / "again").touch()
        assert hook.once(imds.address)[0] == 0
    assert hook.names_run() == ["10-a", "10-a"] and len(hook.lines("drained")) == 1


def test_the_deadline_is_of_all_scripts_together(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-hangs", "sleep 60")
    hook.script("20-late", "true")
    with FakeMetadata(**SPOT) as imds:
        assert hook.once(imds.address, "--timeout", "1")[0] == 0
    [drained] = hook.lines("drained")
    assert [row["outcome"] for row in drained["scripts"]] == ["timed out", "not started"]


def test_it_goes_on_when_the_metadata_service_comes_back(tmp_path: Path) -> None:
    """Down at first, then with a token that has expired, then with a notice."""
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    with FakeMetadata() as imds:
        imds.status = 503
        running = hook.start(imds.address)
        status = tmp_path / "status.json"
        until(lambda: status.exists() and json.loads(status.read_text())["looks"] > 2)
        assert "expected status 200 or 404, got 503" in json.loads(status.read_text())["problems"][0]
        imds.status = 200
        until(lambda: imds.asked.count("spot/instance-action") > 1)
        imds.issued += 1
        imds.categories.update(SPOT)
        until(lambda: hook.lines("drained"))
        assert json.loads(status.read_text())["problems"] == []
        running.terminate()
        output, _ = running.communicate(timeout=30)
    assert hook.names_run() == ["10-a"]
    assert output.count("got 503") == 1  # once, not at each look


def test_metadata_that_cannot_be_read_is_status_1(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    with FakeMetadata(**SPOT) as imds:
        imds.status = 500
        code, output = hook.once(imds.address)
    assert code == 1 and "expected status 200 or 404, got 500" in output


def test_notices_that_were_not_asked_for_run_nothing(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    with FakeMetadata(**{"events/recommendations/rebalance": '{"noticeTime": "t"}'}) as imds:
        assert hook.once(imds.address, "--notices", "spot-interruption,autoscaling-termination")[0] == 0
    assert hook.names_run() == []


def test_a_drill_runs_the_drills_scripts_alone_and_systemd_is_told(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    address = str(tmp_path / "notify")
    with FakeMetadata() as imds, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(30)
        running = hook.start(imds.address, "--interval", "60", NOTIFY_SOCKET=address)
        sent = [listener.recv(4096).decode().split("\n")[0] for _ in range(2)]
        running.send_signal(signal.SIGUSR1)
        until(lambda: hook.lines("drained"))
        running.terminate()
        assert running.wait(30) == 0
    assert sent == ["READY=1", "WATCHDOG=1"] and hook.names_run() == []
    [drained] = hook.lines("drained")
    assert drained["notice"] == "drill"
    assert [(row["name"], row["outcome"]) for row in drained["scripts"]] == [("probe", "ok")]


def test_service_is_ready_before_it_asks_the_metadata_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A start that waited for it could reach its unit's limit, and the CloudWatch agent starts after it."""
    order: list[str] = []

    def ask(*_: object) -> None:
        order.append("asked")
        os.kill(os.getpid(), signal.SIGTERM)
        raise hook_module("metadata").MetadataError("no answer")

    monkeypatch.setattr(service.Notifier, "send", lambda _, *fields: order.append(fields[0]))
    monkeypatch.setattr(service.Metadata, "ask", ask)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        paths = [f"--{name}={tmp_path / name}" for name in ("log", "scripts", "state", "status")]
        assert service.main(["--notices", "spot-interruption", *paths]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert order == ["READY=1", "asked", "WATCHDOG=1", "STOPPING=1"] and "no answer" in capfd.readouterr().out


def test_a_log_that_cannot_be_written_does_not_stop_a_drain(tmp_path: Path) -> None:
    hook = Installed(tmp_path)
    hook.script("10-a", "true")
    hook.log.mkdir()
    with FakeMetadata(**SPOT) as imds:
        code, output = hook.once(imds.address)
    assert (code, hook.names_run()) == (0, ["10-a"])
    assert f"cannot write {hook.log}: Is a directory" in output


def test_mistakes_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        service.main(["--log", "/tmp/x", "--notices", "spot"])
    assert "expected spot-interruption, autoscaling-termination" in capfd.readouterr().err
