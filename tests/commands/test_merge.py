"""`gpu-ami merge` is declared as its help says; what it does is tested in tests/report/test_merge.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.report import writer
from tests.report.examples import a_host, a_report


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
