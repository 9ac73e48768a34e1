"""`gpu-ami validate`: what it checks for which options, and the options that exclude each other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.build import image
from gpu_ami.commands import options
from gpu_ami.errors import UsageError
from gpu_ami.plan import cost
from gpu_ami.validate import REBOOT, RESTARTS, Proof, ProofOptions, Target, host_proof
from tests.observe import foreign_images as foreign
from tests.report.examples import a_host, a_report
from tests.validate.recorded import write_plan


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ProofOptions]]:
    """AMI and options of each proof; the proof's report has one failed check."""
    write_plan(tmp_path)
    made = ("aws", "eu-central-1", "r", "2026-01-01T00:00:00Z")
    image.Build("ami-1", ("snap-1",), "sha256:0", "sha256:1", *made).write(tmp_path)
    proofs: list[tuple[str, ProofOptions]] = []

    @contextlib.contextmanager
    def open_session(*_: Any, **__: Any) -> Iterator[Any]:
        images = {"ami-2": {"State": "available"}, "ami-3": {"State": "available", "Architecture": "arm64"}}
        yield SimpleNamespace(cloud=SimpleNamespace(image=images.get, place=SimpleNamespace(region="us-east-1")))

    def validate_stage(_plan: Any, ami: str, _out: Path, _session: None, decided: Any) -> Any:
        proofs.append((ami, decided.options))
        return a_report(a_host(xid="FAIL"))

    monkeypatch.setattr(pipeline, "open_session", open_session)
    monkeypatch.setattr(pipeline, "decide", lambda _plan, options, *_: SimpleNamespace(options=options))
    monkeypatch.setattr(pipeline, "validate_stage", validate_stage)
    return proofs


def test_ami_of_the_build_is_checked_unless_another_is_named(
    validated: list[tuple[str, ProofOptions]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith(f"FAIL: ami-1 → {tmp_path}/\n")
    assert cli.main(["validate", str(tmp_path), "--ami", "ami-2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "FAIL"
    assert [ami for ami, _ in validated] == ["ami-1", "ami-2"]


@pytest.mark.parametrize(
    ("ami", "message"),
    [
        ("hello", "argument --ami: expected an AMI id such as ami-0123456789abcdef0, got 'hello'"),
        ("i-0123456789abcdef0", "got 'i-0123456789abcdef0' (an instance: --host ssh://USER@ADDRESS"),
        ("ami-0000000a", "ami-0000000a is not in us-east-1"),
    ],
)
def test_a_wrong_ami_is_refused_before_anything_is_made(
    validated: list[Any], tmp_path: Path, ami: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(tmp_path), "--ami", ami, "-q"]) == 2
    assert message in capsys.readouterr().err and validated == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ({"State": "pending"}, "expected state available, got pending"),
        ({"Architecture": "arm64"}, "the plan is for x86_64, the AMI is arm64"),
        ({"RootDeviceType": "instance-store"}, "expected an EBS-backed AMI, got instance-store"),
    ],
)
def test_an_ami_that_cannot_be_launched_is_refused(image: dict[str, str], message: str) -> None:
    cloud: Any = SimpleNamespace(image=lambda _: image, place=SimpleNamespace(region="us-east-1"))
    with pytest.raises(UsageError, match=message):
        options.require_image(cloud, "ami-1", "x86_64")


def test_options_reach_the_proof(validated: list[tuple[str, ProofOptions]], tmp_path: Path) -> None:
    assert cli.main(["validate", str(tmp_path), "-q"]) == 1
    words = ["--instance-type", "g5.12xlarge", "-k", "efa", "--golden", str(tmp_path)]
    assert cli.main(["validate", str(tmp_path), "-q", *words]) == 1
    default, selected = (asked for _, asked in validated)
    assert default == ProofOptions([], [], [], RESTARTS)
    assert selected == ProofOptions(["g5.12xlarge"], [], [f"--golden={tmp_path}", "-k", "efa"], ())


def test_host_is_proven_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch()
    proofs: list[tuple[Proof, Target]] = []

    def prove_host(proof: Proof, _run: Any, target: Target) -> Any:
        proofs.append((proof, target))
        return a_report(a_host())

    monkeypatch.setattr(host_proof, "prove_host", prove_host)
    words = ["--host", "admin@10.0.0.7", "-i", "key", "--reboot", "--instance-id", "i-1", "--deadline", "boot=900"]
    assert cli.main(["validate", *words, "--instance-type", "g5.xlarge"]) == 0
    ((proof, target),) = proofs
    assert target == Target("ssh://admin@10.0.0.7", "g5.xlarge", "i-1", Path("key"))
    assert (proof.out, proof.plan, proof.options.restarts) == (Path("out/host"), None, (REBOOT,))
    assert proof.options.boot_seconds == 900
    assert capsys.readouterr().out.endswith("PASS: ami-1 → out/host/\n")


def test_files_without_a_plan_are_judged_as_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No recipe promises our event parser of an image of others; what it has is what the checks are about."""
    monkeypatch.chdir(tmp_path)
    root = foreign.vendor_without_holds(tmp_path / "root")
    proofs: list[Proof] = []

    def prove_files(proof: Proof, *_: Any) -> Any:
        proofs.append(proof)
        return a_report()

    monkeypatch.setattr(host_proof, "unusable", lambda _path: "")
    monkeypatch.setattr(host_proof, "prove_files", prove_files)
    cli.main(["validate", "--root", str(root)])
    (proof,) = proofs
    assert proof.plan is not None and (proof.plan["origin"], proof.plan["image"]) == ("observed", "root")
    assert proof.plan_file == Path("out/files/plan.json") and proof.plan_file.is_file()
    assert {"nvidia_driver", "observed"} <= set(proof.plan["roles"]) and "event_parser" not in proof.plan["roles"]


@pytest.mark.parametrize("words", [["--root", "root"], ["--host", "admin@192.0.2.1"]])
def test_mistakes_are_reported_before_anything_is_read_or_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files of an image were read, and OUT was written, before a file of waivers was found to be missing."""
    monkeypatch.chdir(tmp_path)
    foreign.vendor_without_holds(tmp_path / "root")
    monkeypatch.setattr(host_proof, "unusable", lambda _path: "")
    assert cli.main(["validate", *words, "--waivers", "absent.yml", "-q"]) == 2
    assert "absent.yml: no such file or folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_dry_run_of_an_ami_says_what_would_be_proven(
    validated: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decided = pipeline.ProofPlan("x", ProofOptions(nodes=2), ("g5.xlarge",), cost.Estimate(1.0, {}), False)
    monkeypatch.setattr(pipeline, "decide", lambda *_: decided)
    assert cli.main(["validate", str(tmp_path), "--dry-run"]) == 0
    assert "machines        2 of each: g5.xlarge\n" in capsys.readouterr().out
    assert validated == []


def test_missing_plan_names_the_command_that_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(tmp_path / "absent")]) == 2
    assert "gpu-ami plan RECIPE" in capsys.readouterr().err
    assert cli.main(["validate", str(tmp_path), "--root", "/"]) == 2
    assert f"{tmp_path}: no plan.json there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "/none/such"], "--root /none/such: no such file or directory"),
        (["--root", "/", "--ami", "ami-1"], "--ami, --host and --root exclude each other"),
        (["--root", "/", "--restarts", "none"], "--root has nothing to restart"),
        (["--host", "ssh://a@b", "--restarts", "none"], "--restarts is for machines that gpu-ami launches"),
        (["--reboot"], "--reboot is for --host"),
        (["--host", "a@192.0.2.1", "--nodes", "2"], "--nodes is for machines that gpu-ami launches"),
        (["--root", "/", "--nodes", "2"], "--nodes is for machines that gpu-ami launches"),
        (["--restarts", "sometimes"], "expected reboot,stop-start, one of them, or none"),
    ],
)
def test_what_validate_refuses(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["validate", *words]) == 2
    assert said in capsys.readouterr().err


def test_deadlines_are_for_machines_that_are_launched(
    validated: list[tuple[str, ProofOptions]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(tmp_path), "-q", "--deadline", "boot=900"]) == 1
    assert cli.main(["validate", str(tmp_path), "--deadline", "bot=900"]) == 2
    assert "did you mean boot?" in capsys.readouterr().err
    assert cli.main(["validate", str(tmp_path), "--host", "a@192.0.2.1", "--deadline", "boot=900"]) == 2
    assert "--deadline is for machines that gpu-ami launches" in capsys.readouterr().err
    assert len(validated) == 1


@pytest.mark.parametrize("words", [["--host", "admin@10.0.0.7"], ["--root", "."]])
def test_a_dry_run_is_of_machines_that_are_launched(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--dry-run", *words]) == 2
    assert "--dry-run is for machines that gpu-ami launches" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{out} -k neuron_monitor", "-k 'neuron_monitor' selects no check of x"),
        ("{out} -k neuron_monitor --dry-run", "-k 'neuron_monitor' selects no check of x"),
        ("--host ssh://a@127.0.0.1:1 -k sgemm", "-k 'sgemm' selects no check\n"),
        ("--root {out} -k metrics.py", "-k 'metrics.py' selects no check\n"),  # of machines that run
    ],
)
def test_a_selection_of_no_check_is_refused_before_anything_starts(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module, name in ((pipeline, "open_session"), (host_proof, "prove_host"), (host_proof, "prove_files")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(host_proof, "unusable", lambda _: "")
    assert cli.main(["validate", "-q", *words.format(out=tmp_path).split()]) == 2
    assert message in capsys.readouterr().err
