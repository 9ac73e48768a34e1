"""Attempt 11's rest: an edited report.json, a shard of a stranger, an envelope of one kind used as another."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.report import writer
from tests.release import examples
from tests.report.examples import a_host, a_report
from validator import evidence
from validator.results import Replica

REPLICA = Replica("libnccl2", "2.27.1", "gpu-ami replica")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A rehearsal as `validate` leaves it, on this machine."""
    monkeypatch.chdir(tmp_path)
    host = replace(a_host(), facts={"hardware": "simulated"}, replicas=(REPLICA,))
    out = Path("out/demo")
    writer.write(a_report(host, simulated=True), out)
    kept = out / "evidence" / host.evidence
    kept.mkdir(parents=True)
    (kept / evidence.FACTS_FILE).write_text(json.dumps(evidence.claims(host.facts, host.replicas)))
    pipeline.sign_report(a_report(host, simulated=True), out)
    return out


def edit_report(folder: Path, **host: object) -> None:
    path = folder / "report.json"
    report = json.loads(path.read_text()) | {"simulated": False}
    report["hosts"][0] |= host
    path.write_text(json.dumps(report))


def level(folder: Path) -> str:
    path = folder / "certificate.json"
    return str(json.loads(path.read_text())["level"]) if path.exists() else "none"


CLAIMS: dict[str, dict[str, object]] = {
    "not simulated": {},
    "no replicas": {"replicas": []},
    "real hardware": {"facts": {"hardware": "real"}},
    "everything": {"replicas": [], "facts": {"hardware": "real"}},
}


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("signed", [True, False])
def test_an_edited_report_is_never_certified(
    folder: Path, name: str, signed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_report(folder, **CLAIMS[name])
    if not signed:
        (folder / writer.SIGNATURE_FILE).unlink()
    code = cli.main(["certify", str(folder)])
    printed = capsys.readouterr().out
    assert level(folder) in ("none", "rehearsed")
    if signed or CLAIMS[name]:
        assert code == 6 and "no certificate: " in printed
        assert "report.json" in printed or "is not what the evidence says" in printed


def test_a_report_without_signature_and_evidence_is_rehearsed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_report(folder, **CLAIMS["everything"])
    shutil.rmtree(folder / "evidence")
    (folder / writer.SIGNATURE_FILE).unlink()
    assert cli.main(["certify", str(folder)]) == 0
    assert level(folder) == "rehearsed"
    assert "rehearsed, not certified: report.json is not signed" in capsys.readouterr().out
    assert "who made the report: report.json is not signed" in (folder / "certificate.md").read_text()


def test_the_envelope_of_a_certificate_is_no_signature_of_a_report(tmp_path: Path, home: Path) -> None:
    """`certify --sign` would otherwise launder a report that nobody signed."""
    examples.signer(tmp_path)
    out = tmp_path / "out"
    writer.write(a_report(a_host()), out)
    words = ["certify", str(out), "--sign", str(tmp_path / "release.key")]
    assert cli.main(words) == 0 and level(out) == "rehearsed"
    shutil.copy(out / examples.ENVELOPE, out / writer.SIGNATURE_FILE)
    assert cli.main(words) == 6 and level(out) == "none"


def shards(folder: Path) -> list[str]:
    rows = [{"name": "g5.12xlarge"}, {"name": "p4d.24xlarge"}]
    for row in rows:
        writer.write(a_report(a_host(row["name"]), instance_types=rows), folder / row["name"])
    return [str(folder / row["name"]) for row in rows]


def test_shards_are_of_jobs_that_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each job has a home of its own, as runners of CI have."""
    signer, folders = examples.signer(tmp_path, "job.key"), shards(tmp_path / "shards")
    out = tmp_path / "out"
    words = ["merge", *folders, "-o", str(out), "--key", str(tmp_path / "job.key.pub")]
    assert cli.main(words) == 0 and level(out) == "rehearsed"
    assert "p4d.24xlarge: report.json is not signed" in capsys.readouterr().out
    for name in folders:
        monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home" / Path(name).name))
        rows = json.loads((Path(name) / "report.json").read_text())["plan"]["instance_types"]
        pipeline.sign_report(a_report(a_host(Path(name).name), instance_types=rows), Path(name), [signer])
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home" / "merge"))
    assert cli.main(["merge", *folders, "-o", str(out)]) == 0 and level(out) == "rehearsed"
    assert cli.main(words) == 0 and level(out) == "certified"
    assert cli.main(["certify", str(out)]) == 0 and level(out) == "certified"  # the merged report is of this machine
    (Path(folders[0]) / "report.json").write_bytes((Path(folders[0]) / "report.json").read_bytes() + b"\n")
    capsys.readouterr()
    assert cli.main(words) == 6
    assert "not merged" in (printed := capsys.readouterr().out) and "changed after the proof: report.json" in printed


def test_evidence_that_was_added_or_changed_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "evidence/g5.12xlarge/kernel.log").write_text("NVRM: Xid\n")
    assert cli.main(["certify", str(folder)]) == 6
    assert "evidence/g5.12xlarge/kernel.log (added)" in capsys.readouterr().out
