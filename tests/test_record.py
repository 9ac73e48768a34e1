"""`gpu-ami record`: what it keeps, what it refuses, and that it never proves anything."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import certificate, cli, golden, line, machine, page, runs
from gpu_ami.commands import stages
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.plan import digest_of
from gpu_ami.report import EXIT_CODES, UNPROVEN
from validator import oracle, ssh
from validator.oracle import Board, Golden, Hardware
from validator.ssh import Finished

PCI = "0000:00:1b.0 {} nvidia\n0000:00:1c.0 {} nvidia\n"
XML = "".join(
    f'<gpu id="00000000:00:{slot}.0"><product_name>NVIDIA A10G</product_name>'
    "<fb_memory_usage><total>23028 MiB</total></fb_memory_usage></gpu>"
    for slot in ("1B", "1C")
)
ANSWERS = {
    "for d in": PCI.format(*["0x10de 0x2237 0x030200"] * 2),
    "nvidia-smi -q -x": f"<nvidia_smi_log>{XML}</nvidia_smi_log>",
    "nvidia-smi topo": "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n",
    "cat /proc/driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Release\n",
    "python3 -c": json.dumps({"instance-type": "g5.12xlarge"}),
}
SIMULATED = {"for d in": PCI.format(*["0x1af4 0x1110 0x050000"] * 2)}
SEEN = Golden(
    "g5.12xlarge",
    Hardware((Board("0000:00:1b.0", "NVIDIA A10G", 23028),), {}, driver="550.163.01"),
    {"when": "2026-11-21T16:00:00Z", "where": "aws, us-east-1", "by": "gpu-ami 0.1.0", "driver": "550.163.01"},
)
PLAN = {
    "schema": "gpu-ami/plan/1", "image": "x", "digest": "sha256:0", "roles": [], "os": {"ssh_user": "admin"},
    "instance_types": [{
        "name": "g5.12xlarge", "gpu_count": 2, "nvswitch": False, "efa_interfaces": 1,
        "gpu": {"name": "NVIDIA A10G", "memory_mib": 23028, "pci": ["0000:00:1b.0", "0000:00:1c.0"]},
    }],
}  # fmt: skip


def write_plan(folder: Path) -> None:
    content = {key: value for key, value in PLAN.items() if key != "digest"}
    (folder / "plan.json").write_text(json.dumps(content | {"digest": digest_of(content)}))


class FakeConnection:
    """A machine that answers from a table, in the way of validator.ssh."""

    def __init__(self, **answers: str) -> None:
        self.answers = ANSWERS | answers
        self.target = ssh.Target("10.0.0.7", user="admin")
        self.closed = False

    def run(self, command: str, timeout: float = 60.0) -> Finished:
        reply = next(reply for start, reply in self.answers.items() if command.startswith(start))
        return Finished(0 if reply else 9, reply.encode(), b"", 0.1)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`reach(**answers)`: from now on that machine answers at every address."""
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home"))

    def answer(**answers: str) -> FakeConnection:
        connection = FakeConnection(**answers)
        monkeypatch.setattr(ssh, "connect", lambda target: connection)
        return connection

    return answer


def run(*words: str) -> int:
    return cli.main(["record", "-q", *words])


def test_a_host_is_recorded_and_proves_nothing(
    reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = reach()
    exit_code = run("--host", "ssh://admin@10.0.0.7", "--golden", str(tmp_path / "golden"), "--json")
    report = json.loads(capsys.readouterr().out)
    assert (exit_code, report["verdict"]) == (EXIT_CODES[UNPROVEN], UNPROVEN) == (1, "UNPROVEN")
    assert connection.closed
    kept = oracle.find_golden("g5.12xlarge", tmp_path / "golden")
    assert kept is not None and not kept.hardware.simulated
    assert kept.hardware.gpus == (
        Board("0000:00:1b.0", "NVIDIA A10G", 23028),
        Board("0000:00:1c.0", "NVIDIA A10G", 23028),
    )
    assert kept.hardware.links == {"0-1": "PHB"}
    assert kept.recorded.keys() == {"when", "where", "by", "driver"}
    assert "10.0.0.7" not in (tmp_path / "golden/g5.12xlarge.json").read_text(), "no address belongs in the project"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("golden", "home")] == []


@pytest.mark.parametrize("plan", [{}, PLAN])
def test_no_certificate_comes_from_a_recording(tmp_path: Path, plan: dict[str, Any]) -> None:
    made = [golden.Recording(SEEN, tmp_path / "g5.12xlarge.json", [])]
    with runs.begin(tmp_path, "record") as one:
        report = golden.report(made, plan, one, "ami-1")
    assert report.verdict == UNPROVEN
    drawn = certificate.certify(report)
    assert drawn.level == "none"
    assert (
        "g5.12xlarge: record::hardware: UNPROVEN: recorded in g5.12xlarge.json, not judged"
        in (drawn.content["not_proven"])
    )
    page.write(report.to_json(), drawn.content, tmp_path)
    assert "recorded in g5.12xlarge.json, not judged" in (tmp_path / "report.html").read_text()


def test_an_ami_is_booted_recorded_and_ended(
    reach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reach()
    write_plan(tmp_path)
    told: list[str] = []

    @contextlib.contextmanager
    def block(name: str, gives: Any) -> Iterator[Any]:
        told.append(name)
        yield gives
        told.append(f"{name} ended")

    class FakeRun:
        def tags(self, **_: str) -> dict[str, str]:
            return {}

    class FakeBoot:
        def __init__(self, *_: Any) -> None:
            pass

        def follow(self, instance: str, kind: str) -> Any:
            told.append(f"boot {instance} {kind}")
            return argparse.Namespace(url="ssh://admin@10.0.0.7")

        def target(self, booted: Any) -> ssh.Target:
            return ssh.parse_url(booted.url)

    place = argparse.Namespace(name="local", region="us-east-1")
    standing = argparse.Namespace(cloud=None, run=FakeRun(), place=place)
    monkeypatch.setattr(line, "standing", lambda *_: block("place", standing))
    monkeypatch.setattr(machine, "temporary_key", lambda *_: block("key", "key"))
    monkeypatch.setattr(machine, "launched", lambda cloud, ami, *_: block(ami, "i-1"))
    monkeypatch.setattr(machine, "Boot", FakeBoot)
    assert run(str(tmp_path), "--ami", "ami-1", "--golden", str(tmp_path / "golden")) == 1
    assert told == ["place", "key", "ami-1", "boot i-1 g5.12xlarge", "ami-1 ended", "key ended", "place ended"]
    kept = oracle.find_golden("g5.12xlarge", tmp_path / "golden")
    assert kept is not None and kept.recorded["where"] == "local, us-east-1"
    said = capsys.readouterr().out
    assert "g5.12xlarge: 2 GPUs, 0 NVSwitches, 0 EFA interfaces, real hardware → " in said
    assert "differs" not in said and "changed" not in said
    assert said.endswith("UNPROVEN: recorded, not judged; a recording never makes a certificate\n")


def test_changes_and_contradictions_are_told(reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path)
    folder = tmp_path / "golden"
    golden.keep(replace(SEEN, hardware=replace(SEEN.hardware, links={"0-1": "SYS"})), folder)
    one = ANSWERS["nvidia-smi -q -x"].replace("1C", "1D").replace("23028", "22000", 1)
    reach(**{"nvidia-smi -q -x": one})
    assert run(str(tmp_path), "--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == 1
    said = capsys.readouterr().out
    assert "changed: links: {'0-1': 'SYS'} → {'0-1': 'PHB'}" in said
    assert "differs from the facts: GPU 0000:00:1b.0 has 22000 MiB, expected 23028 MiB within 2 %" in said
    assert "differs from the facts: no GPU at 0000:00:1c.0 (facts)" in said


def test_simulated_hardware_never_replaces_real(reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "golden"
    golden.keep(SEEN, folder)
    before = (folder / "g5.12xlarge.json").read_bytes()
    reach(**SIMULATED)
    assert run("--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == UsageError.exit_code
    assert "was recorded on real hardware; this machine's is simulated" in capsys.readouterr().err
    assert (folder / "g5.12xlarge.json").read_bytes() == before
    (folder / "g5.12xlarge.json").unlink()
    assert run("--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == 1
    kept = oracle.find_golden("g5.12xlarge", folder)
    assert kept is not None and kept.hardware.simulated
    assert "simulated hardware → " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "words", "exit_code", "message"),
    [
        ({"nvidia-smi -q -x": ""}, [], MachineError.exit_code, "does not say what hardware it has: `nvidia-smi -q -x`"),
        ({"python3 -c": ""}, [], 2, "the host's metadata do not say its instance type"),
        ({"python3 -c": "{}"}, [], 2, "the host's metadata do not say its instance type"),
        ({}, ["--ami", "ami-1"], 2, "--host goes to a machine that runs; --ami and --where boot one"),
        ({}, ["--instance-type", "a", "--instance-type", "b"], 2, "--host is one machine, of one type"),
        ({}, ["-i", "/nonexistent"], 2, "/nonexistent: no such file"),
    ],
)
def test_what_cannot_be_recorded(
    reach: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, str],
    words: list[str],
    exit_code: int,
    message: str,
) -> None:
    reach(**answers)
    found = run("--host", "ssh://admin@10.0.0.7", "--golden", str(tmp_path / "golden"), *words)
    assert (found, message in capsys.readouterr().err) == (exit_code, True)
    assert not (tmp_path / "golden").exists()


def test_a_host_that_is_not_there(
    reach: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(target: ssh.Target) -> None:
        raise ssh.HostRefused("10.0.0.7:22 refused the connection")

    reach()
    monkeypatch.setattr(ssh, "connect", refuse)
    assert run("--host", "ssh://admin@10.0.0.7") == MachineError.exit_code
    assert "admin@10.0.0.7:22 cannot be reached: 10.0.0.7:22 refused the connection" in capsys.readouterr().err
    assert run("--host", "http://10.0.0.7") == UsageError.exit_code


def test_a_broken_golden_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "g5.12xlarge.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        golden.keep(SEEN, tmp_path)
    assert (tmp_path / "g5.12xlarge.json").read_text() == "{"


def test_options_reach_the_validator(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    stages.add_checks(parser)
    assert stages.validator_options(parser.parse_args([])) == []
    given = parser.parse_args(["--provoke-xid", "--golden", str(tmp_path)])
    assert stages.validator_options(given) == [f"--golden={tmp_path}", "--provoke-xid"]
    with pytest.raises(UsageError, match="/nonexistent: no such file or folder"):
        stages.validator_options(parser.parse_args(["--golden", "/nonexistent"]))
