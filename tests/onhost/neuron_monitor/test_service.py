"""The service as it runs on an image: reports in, one file out, and an end where neuron-monitor ends."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from localregion import backends
from tests.onhost.neuron_monitor.programs import FILES, ROOT, publisher_module, report, runtime
from tests.waiting import until

documents, service = publisher_module("documents"), publisher_module("service")
SINKS = publisher_module("service").FileSink


def publisher(tmp_path: Path, cap: int = 1 << 20) -> Any:
    settings = documents.Settings("GpuAmi/Neuron", ("instance_id",), False)
    return service.Publisher(settings, SINKS(str(tmp_path / "metrics.jsonl"), cap), str(tmp_path / "status.json"))


def line(**changed: Any) -> bytes:
    return json.dumps(report(runtime("train", 0, 1)) | changed).encode()


def status(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "status.json").read_text()))


def test_each_document_is_a_line(tmp_path: Path) -> None:
    found = publisher(tmp_path)
    assert found.take(line())
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all(row.startswith('{"time":"') for row in lines)
    assert {key: status(tmp_path)[key] for key in ("reports", "documents", "malformed", "problems")} == {
        "reports": 1, "documents": 6, "malformed": 0, "problems": [],
    }  # fmt: skip


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'"x"', b"{}", b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_report_is_counted(tmp_path: Path, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    found = publisher(tmp_path)
    assert not found.take(text)
    assert found.counts["malformed"] == 1
    assert "not a report: " in capsys.readouterr().err


def test_a_problem_is_in_the_journal_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = publisher(tmp_path)
    for _ in range(3):
        found.take(line(instance_info={"instance_id": "i-1", "error": "no tags"}))
    assert capsys.readouterr().err == "instance_info: no tags\n"
    assert (found.counts["with_errors"], status(tmp_path)["problems"]) == (3, ["instance_info: no tags"])


def test_full_disk_costs_one_report_and_no_line_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, real, room = publisher(tmp_path), service.os.write, [100]

    def write(fd: int, data: bytes) -> int:
        if not room:
            return int(real(fd, data))
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        count, room[0] = room[0], 0
        return int(real(fd, data[:count]))

    monkeypatch.setattr(service.os, "write", write)
    found.take(line())
    assert found.counts["dropped"] == 6
    room.clear()
    found.take(line())
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 7 and all(json.loads(row) for row in rows)


def test_rotation_loses_no_line(tmp_path: Path) -> None:
    found, log = publisher(tmp_path), tmp_path / "metrics.jsonl"
    found.take(line())
    log.rename(tmp_path / "metrics.jsonl.1")
    found.take(line())
    assert [len(path.read_text().splitlines()) for path in (log, tmp_path / "metrics.jsonl.1")] == [6, 6]


def start(tmp_path: Path, monitor: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
    """The installed program with another neuron-monitor; files as the roles lay them."""
    home = tmp_path / "opt"
    shutil.copytree(FILES, home / "neuron")
    shutil.copytree(ROOT / "onhost/event_parser", home / "nvidia")
    program = tmp_path / "neuron-monitor"
    program.write_text(f"#!/bin/sh\n{monitor}\n")
    program.chmod(0o755)
    words = [
        sys.executable, "-sSE", home / "neuron" / "neuron-metrics.py", "--log", tmp_path / "metrics.jsonl",
        "--namespace", "GpuAmi/Neuron", "--monitor", program, "--status-path", tmp_path / "status.json", *options,
    ]  # fmt: skip
    return subprocess.Popen(words, env={"PATH": "/usr/bin:/bin", **environment}, stderr=subprocess.PIPE)


def test_service_notifies_systemd_and_ends_with_its_monitor(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(line() + b"\n")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(30)
        monitor = f'test "$1 $2" = "-c /etc/gpu-ami/neuron-monitor.json" && cat {tmp_path}/report.json; exit 3'
        running = start(tmp_path, monitor, "--dimensions=instance_id", NOTIFY_SOCKET=address)
        sent = [listener.recv(4096).decode().split("\n")[0] for _ in range(3)]
        _, errors = running.communicate(timeout=30)
    assert sent == ["READY=1", "WATCHDOG=1", "STOPPING=1"]
    assert (running.returncode, errors.decode()) == (3, "neuron-monitor ended with status 3\n")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


def test_service_ends_its_monitor_on_sigterm(tmp_path: Path) -> None:
    running = start(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    until((tmp_path / "pid").is_file)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_sigterm_while_the_monitor_starts_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def popen(*words: Any, **settings: Any) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen(*words, **settings))
        signal.raise_signal(signal.SIGTERM)
        return children[0]

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(service, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=-1))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # red without ending the run of the tests
    try:
        assert service.run(["/bin/sleep", "5"], publisher(tmp_path), SimpleNamespace(send=print)) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert children[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--monitor", "/no/such/program"], "cannot start /no/such/program: No such file or directory"),
        (
            ["--dimensions=instance"],
            "--dimensions: expected instance_id, instance_type, ami_id, neuron_runtime_tag, got",
        ),
    ],
)
def test_mistakes_are_told(options: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        code = service.main(["--log", "/tmp/x", "--namespace", "N", *options])
    except SystemExit as ended:
        code = ended.code
    assert code != 0 and said in capfd.readouterr().err


def test_metrics_arrive_in_cloudwatch_as_the_proof_reads_them(tmp_path: Path) -> None:
    """From a report through the log file and CloudWatch's extraction to the series that the checks expect."""
    from validator.cloudwatch import CloudWatch
    from validator.probes import neuron_reports

    told = report(runtime("train", 0, 1), runtime("serve", 2), devices=2, uncorrected=5)
    every = ["instance_id", "instance_type", "ami_id", "neuron_runtime_tag"]
    settings = documents.Settings("GpuAmi/Neuron", tuple(every), False)
    made, _ = documents.documents(told, settings, time.time_ns() // 1000)
    planned: Any = {"namespace": "GpuAmi/Neuron", "dimensions": every, "interval_s": 60, "high_resolution": False}
    metadata = {"instance-id": "i-0011223344556677a", "instance-type": "trn1.32xlarge", "ami-id": "ami-1"}
    expected = neuron_reports.expected_series(told, planned, metadata)
    backends.install()
    with mock_aws():
        session = boto3.session.Session("test", "test", region_name="us-east-1")
        logs = session.client("logs")
        logs.create_log_group(logGroupName="g")
        logs.create_log_stream(logGroupName="g", logStreamName="s")
        events = [{"timestamp": int(time.time() * 1000), "message": json.dumps(document)} for document in made]
        logs.put_log_events(logGroupName="g", logStreamName="s", logEvents=events)
        points = CloudWatch("us-east-1", session=session).points(list(expected), time.time() - 60, 60)
    assert {str(series): limits for series, limits in expected.items() if not points[series]} == {}
    for series, limits in expected.items():
        assert limits.least <= points[series][0].value <= limits.most, series
