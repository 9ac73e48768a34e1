"""Checks that an earlier release of gpu-ami carried over from an earlier proof: they did not run on the image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpu_ami.report import HostReport, Report, ReportLayer, certificate, writer
from tests.report.examples import a_check, a_host, a_report
from validator.results import CarriedOver

DATE = "2026-11-20T10:00:00Z"
LAYERS = (ReportLayer("driver", "sha256:d", ("cuda",)),)


def carried_host() -> HostReport:
    earlier_proof = CarriedOver(DATE, "sha256:r", "ami-0", "driver", "sha256:d")
    return a_host("g5.12xlarge", a_check("cuda", carried=earlier_proof))


def test_the_level_is_rehearsed_unless_the_place_allows_more() -> None:
    report = replace(a_report(carried_host()), layers=LAYERS)
    assert certificate.level_of(report) == "rehearsed"
    assert certificate.level_of(replace(report, certify_carried=True)) == "certified"
    assert certificate.level_of(a_report(a_host())) == "certified"


def test_certificate_and_report_name_them(tmp_path: Path) -> None:
    report = replace(a_report(carried_host()), layers=LAYERS)
    statement = certificate.certify(report)
    lines = [line for line in statement.not_proven if "did not run on this image" in line]
    assert lines == [
        f"g5.12xlarge: 1 check of layer driver did not run on this image: proven on {DATE[:10]} on ami-0"
        " by report sha256:r, layer digest sha256:d"
    ]
    assert f"carried over from {DATE[:10]}" in certificate.markdown(statement)
    writer.write(report, tmp_path)
    again = certificate.report_digest(Report.from_json(json.loads((tmp_path / "report.json").read_text())).to_json())
    assert again == statement.report_sha256
