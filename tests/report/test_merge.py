"""Shards of a proof become one report, or are refused with every reason at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.errors import UsageError
from gpu_ami.report import Report, ReportLayer, merge, writer
from gpu_ami.report.document import UNAVAILABLE, HostReport, Stage
from gpu_ami.report.merge import Shard
from tests.report.examples import a_host, a_report, offline

TYPES = ("g5.12xlarge", "p4d.24xlarge")


def report(*hosts: HostReport, **changes: Any) -> Report:
    rows = [{"name": name} for name in TYPES]
    return replace(a_report(*hosts, instance_types=rows), **changes)


def shard(folder: Path, made: Report) -> Shard:
    return Shard(folder, made)


def two(tmp_path: Path, first: Any = None, second: Any = None) -> list[Shard]:
    """Two shards of one proof, with what a test changes in each."""
    times = {"started": "2026-01-01T00:05:00Z", "finished": "2026-01-01T00:20:00Z", "run": "run-2"}
    g5 = report(a_host("g5.12xlarge"), **(first or {}))
    p4d = report(a_host("p4d.24xlarge"), **(times | (second or {})))
    return [shard(tmp_path / "p4d", p4d), shard(tmp_path / "g5", g5)]


def test_two_shards_become_one_report(tmp_path: Path) -> None:
    merged = merge.merge(two(tmp_path))
    assert [host.instance_type for host in merged.hosts] == list(TYPES)  # the plan's order
    assert (str(merged.verdict), merged.exit_code, merged.unproven_instance_types) == ("PASS", 0, ())
    assert (merged.started, merged.finished) == ("2026-01-01T00:00:00Z", "2026-01-01T00:20:00Z")
    assert merged.run == "run-2, run-1"


def test_what_a_shard_did_not_boot_is_not_missing_if_another_did(tmp_path: Path) -> None:
    shards = two(
        tmp_path, {"unproven_instance_types": ("p4d.24xlarge",)}, {"unproven_instance_types": ("g5.12xlarge",)}
    )
    assert str(merge.merge(shards).verdict) == "PASS"


def test_what_all_shards_have_is_that_of_the_whole_proof(tmp_path: Path) -> None:
    """Layers and checks that differ are not known; one place without `certify_carried` decides."""
    known = {"layers": (ReportLayer("driver", "sha256:1", ("cuda",)),), "suite": "sha256:2", "certify_carried": True}
    merged = merge.merge(two(tmp_path, known, known))
    assert (merged.layers, merged.suite, merged.certify_carried) == tuple(known.values())
    merged = merge.merge(two(tmp_path, known))
    assert (merged.layers, merged.suite, merged.certify_carried) == ((), "", False)


def test_stages_count_from_the_first_shard(tmp_path: Path) -> None:
    stages = (Stage("boot", 0, 10.0, "done", 4.0), Stage("old", 0, 1.0, "done"))
    merged = merge.merge(two(tmp_path, {"stages": ()}, {"stages": stages}))
    assert [(stage.stage, stage.start) for stage in merged.stages] == [("boot", 304.0), ("old", None)]


def test_a_shard_that_did_not_end_leaves_the_whole_proof_incomplete(tmp_path: Path) -> None:
    merged = merge.merge(two(tmp_path, {"incomplete": "the run was interrupted"}))
    assert (str(merged.verdict), merged.exit_code, merged.incomplete) == (
        "UNPROVEN",
        4,
        "g5: the run was interrupted",
    )


def test_a_shard_without_capacity_decides_the_verdict(tmp_path: Path) -> None:
    host = HostReport("p4d.24xlarge", error="InsufficientInstanceCapacity", error_verdict=UNAVAILABLE)
    merged = merge.merge(two(tmp_path, second={"hosts": (host,)}))
    assert (str(merged.verdict), merged.exit_code) == ("UNAVAILABLE", 5)


def test_image_files_that_one_shard_found_wrong_stay_wrong(tmp_path: Path) -> None:
    good, bad = offline(hygiene="PASS"), offline(hygiene="FAIL")
    shards = two(tmp_path, {"hosts": (good, a_host("g5.12xlarge"))}, {"hosts": (bad, a_host("p4d.24xlarge"))})
    merged = merge.merge(shards)
    assert [host.offline for host in merged.hosts] == [True, False, False]
    assert str(merged.verdict) == "FAIL"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": "ami-2"}, "AMI ami-1; that of {p4d} is ami-2"),
        ({"plan": {"digest": "sha256:2", "instance_types": [{"name": "p4d.24xlarge"}]}}, "plan sha256:1; that of"),
        ({"region": "eu-central-1"}, "region us-east-1; that of {p4d} is eu-central-1"),
        ({"place": "local"}, "place aws; that of {p4d} is local"),
        ({"simulated": True}, "simulated hardware False; that of {p4d} is True"),
        ({"conditions": "throttling:1"}, "conditions none; that of {p4d} is throttling:1"),
        ({"hosts": (a_host("g5.12xlarge"),)}, "g5.12xlarge: in 2 shards: "),
        ({"hosts": (a_host("p5.48xlarge"),)}, "p5.48xlarge: not in the plan"),
        ({"image": ""}, "its report is not of an AMI that was built from a plan"),
    ],
)
def test_foreign_shards_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        merge.merge(two(tmp_path, second=changes))
    assert reason.format(p4d=tmp_path / "p4d") in "\n".join(refused.value.details)


def test_a_missing_instance_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no shard has a report of p4d\.24xlarge"):
        merge.merge(two(tmp_path)[1:])
    with pytest.raises(UsageError, match="at least one"):
        merge.merge([])


def test_the_command_writes_report_evidence_and_certificate(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in two(tmp_path):
        evidence = made.folder / "evidence" / made.report.hosts[0].instance_type
        evidence.mkdir(parents=True)
        (evidence / "console.log").write_text("boot\n")
        (made.folder / "evidence" / "of-no-machine").mkdir()
        (made.folder / "plan.json").write_text("{}")
        writer.write(made.report, made.folder)
        pipeline.sign_report(made.report, made.folder)
    out = tmp_path / "merged"
    folders = [str(tmp_path / "g5"), str(tmp_path / "p4d"), str(tmp_path / "g5") + "/"]  # one of them twice
    assert cli.main(["merge", *folders, "-o", str(out), "-q"]) == 0
    assert "PASS, certified: ami-1" in capsys.readouterr().out
    assert sorted(path.name for path in (out / "evidence").iterdir()) == sorted(TYPES)
    assert (out / "plan.json").read_text() == "{}"
    assert json.loads((out / "certificate.json").read_text())["level"] == "certified"
    assert "g5.12xlarge | PASS" in (out / "summary.md").read_text()


def test_shards_that_cannot_be_read_are_named_and_nothing_is_written(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    words = ["merge", str(tmp_path / "broken"), str(tmp_path / "absent"), "-o", str(tmp_path / "merged")]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "2 of 2 shards cannot be read" in error and "absent/report.json: no such file" in error
    assert not (tmp_path / "merged").exists()
