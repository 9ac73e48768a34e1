"""`gpu-ami verify`: from the command line to the exit code; each forgery is in tests/release/test_verification.py."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_ami import cli, observe
from gpu_ami.cloud import Place
from gpu_ami.region import provider
from gpu_ami.release import verification_host
from tests.json_documents import valid
from tests.release import examples
from validator.file_account import read


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A certificate that is a day old, made and signed by the commands."""
    monkeypatch.chdir(tmp_path)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1, hours=1)
    report = replace(examples.write_folder(Path("out/demo")), finished=f"{yesterday:%Y-%m-%dT%H:%M:%SZ}")
    examples.write_folder(Path("out/demo"), report)
    assert cli.main(["key", "new", "release.key"]) == 0
    assert cli.main(["certify", "out/demo", "--sign", "release.key"]) == 0
    return Path("out/demo")


def verify(*words: str) -> int:
    return cli.main(["verify", *words])


def test_folder_file_and_ami_name_the_same_certificate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("out/demo", "out/demo/certificate.json", "out/demo/certificate.dsse.json", examples.AMI):
        capsys.readouterr()
        assert verify(target, "--key", "release.key.pub", "--offline") == 0, target
        out = capsys.readouterr().out
        assert "held           signature: signed by release.key.pub" in out
        assert "not looked at  place: state, snapshots and tags of the AMI (--offline)" in out
        assert out.splitlines()[-1] == "VERIFIED: out/demo"


def test_a_refusal_ends_with_6(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples.flip(folder / "report.json")
    capsys.readouterr()
    assert verify("out/demo", "--key", "release.key.pub", "--offline", "--json") == 6
    data = json.loads(capsys.readouterr().out)
    valid(data, "verify")
    assert data["verified"] is False and "changed-report" in [point["name"] for point in data["points"]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max-age", "30d"], 0),
        (["--max-age", "12h"], 6),
        (["--path", "/usr/bin/nvidia-smi"], 0),
        (["--path", "/usr/bin/nothing"], 6),
        (["--level", "rehearsed"], 0),
    ],
)
def test_what_is_asked_for_is_required(folder: Path, words: list[str], code: int) -> None:
    assert verify("out/demo", "--key", "release.key.pub", "--offline", *words) == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out/demo", "--offline"], "no trusted key given"),
        (["out/demo", "--key", "release.key.pub"], "the local region is down"),
        (["out/none", "--key", "release.key.pub", "--offline"], "no such folder"),
        (["ami-0ffffffffffffffff", "--key", "release.key.pub", "--offline"], "no certificate of ami-0ffffffffffffffff"),
        (["out/demo", "--key", "release.key", "--offline"], "not a public key"),
        (["out/demo", "--key", "release.key.pub", "--offline", "--max-age", "soon"], "such as 30d or 12h"),
    ],
)
def test_a_mistake_of_the_caller_is_no_refusal(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert verify(*words) == 2
    assert message in capsys.readouterr().err


def test_the_certificate_of_another_ami_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--certificate", "out/demo", "--key", "release.key.pub", "--offline"]
    assert verify("ami-0ffffffffffffffff", *words) == 6
    assert "REFUSED: other-ami" in capsys.readouterr().out


def test_the_place_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(provider(), "running", lambda: Place("local", "eu-central-1"))
    assert verify("out/demo", "--key", "release.key.pub") == 6
    assert "REFUSED: other-region" in capsys.readouterr().out


def test_a_host_is_compared(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    running = read(examples.inventory(examples.SMI | {"h": "ef" * 32}))
    monkeypatch.setattr(verification_host, "take", lambda _target: running)
    installed = {"package nvidia-utils 580.1 amd64", "package libc6 2:2.36-9+deb12u10 amd64"}
    installed |= {f"module {examples.MODULE.removeprefix('/usr')}"}
    monkeypatch.setattr(verification_host, "take_materials", lambda _target: installed)
    monkeypatch.setattr(observe, "read_host", lambda _target, **_options: SimpleNamespace(found={}))
    words = ["--key", "release.key.pub", "--offline", "--host", "admin@10.0.0.7"]
    assert verify("out/demo", *words) == 6
    printed = capsys.readouterr().out
    assert "/usr/bin/nvidia-smi (changed: content" in printed
    assert "held           materials: 2 packages and 1 kernel modules, as signed" in printed


def test_certifying_again_keeps_a_signature_that_is_still_right(folder: Path) -> None:
    assert cli.main(["certify", "out/demo"]) == 0
    assert verify("out/demo", "--key", "release.key.pub", "--offline") == 0


def test_another_certificate_loses_the_signature(folder: Path) -> None:
    examples.write_folder(folder)  # another time
    assert cli.main(["certify", "out/demo"]) == 0
    assert not (folder / examples.ENVELOPE).exists()


def test_signing_needs_a_certificate(folder: Path) -> None:
    report = replace(examples.certified_report(), incomplete="the run was interrupted")
    examples.write_folder(folder, report)
    assert cli.main(["certify", "out/demo", "--sign", "release.key"]) == 4
    assert not (folder / examples.ENVELOPE).exists() and not (folder / "certificate.json").exists()


def test_a_key_that_cannot_sign_stops_before_anything_is_written(folder: Path) -> None:
    (folder / "certificate.json").unlink()
    assert cli.main(["certify", "out/demo", "--sign", "release.key.pub"]) == 2
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize(
    "words", [["out/demo"], [examples.AMI], [examples.AMI, "--certificate", "out/demo", "--offline"]]
)
def test_a_copy_needs_its_ami_place_and_certificate(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(*words, "--copy", "--key", "release.key.pub") == 2
    assert "--copy takes an AMI, its place and the certificate" in capsys.readouterr().err
