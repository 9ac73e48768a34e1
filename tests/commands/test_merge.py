"""`gpu-ami merge` is declared as its help says; what it does is tested in tests/report/test_merge.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.report import writer
from tests.release import examples
from tests.report.examples import a_host, a_report
from validator.file_account import merkle_root, read


def test_an_output_folder_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["merge", "somewhere"]) == 2
    assert "-o/--out" in capsys.readouterr().err


def test_an_incomplete_set_of_shards_writes_nothing(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "g5.12xlarge"}, {"name": "p4d.24xlarge"}]
    writer.write(a_report(a_host("g5.12xlarge"), instance_types=rows), tmp_path / "g5")
    assert cli.main(["merge", str(tmp_path / "g5"), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "no shard has a report of p4d.24xlarge" in error
    assert "gpu-ami validate OUT --instance-type TYPE" in error
    assert not (tmp_path / "out").exists()


def shards(folder: Path, **verdicts: str) -> list[str]:
    """The folders of two shards with all that a proof leaves."""
    rows = [{"name": "g5.12xlarge"}, {"name": "p4d.24xlarge"}]
    for row in rows:
        root = merkle_root(read(examples.inventory(examples.SMI)))
        report = examples.certified_report(False, root, instance_types=rows, nvidia_driver={"version": "580.1"})
        hosts = (*(host for host in report.hosts if host.offline), a_host(row["name"], **verdicts))
        examples.write_folder(folder / row["name"], replace(report, hosts=hosts))
    return [str(folder / row["name"]) for row in rows]


def test_the_joined_certificate_is_signed_and_verified(tmp_path: Path, home: Path) -> None:
    examples.signer(tmp_path)
    key, out = tmp_path / "release.key", tmp_path / "out"
    before = examples.write_folder(tmp_path / "old", examples.certified_report(nvidia_driver={"version": "570.9"}))
    assert before.image
    arguments = ["-o", str(out), "--sign", str(key), "--before", str(tmp_path / "old"), "-q"]
    assert cli.main(["merge", *shards(tmp_path), *arguments]) == 0
    assert cli.main(["verify", str(out), "--key", f"{key}.pub", "--offline", "-q"]) == 0
    assert "<td>nvidia_driver.version</td><td>570.9</td>" in (out / "report.html").read_text()


def test_a_report_that_is_not_a_pass_is_not_signed(tmp_path: Path, home: Path) -> None:
    examples.signer(tmp_path)
    arguments = ["-o", str(tmp_path / "out"), "--sign", str(tmp_path / "release.key"), "-q"]
    assert cli.main(["merge", *shards(tmp_path, xid="FAIL"), *arguments]) == 1
    assert not (tmp_path / "out" / examples.ENVELOPE).exists()


def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-o", str(tmp_path / "out"), "--sign", str(tmp_path / "no.key")]
    assert cli.main(["merge", *shards(tmp_path), *arguments]) == 2
    assert "no.key" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
