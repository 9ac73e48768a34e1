"""Verdicts and certificates: a table of what was found against what may be claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpu_ami import certificate, line, report
from gpu_ami.errors import UsageError
from gpu_ami.report import CORE, HostReport, Report

ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser", "hygiene"]


def a_check(role: str, verdict: str = "PASS", **more: Any) -> dict[str, Any]:
    return {
        "id": f"{role}::test_it", "role": role, "tier": "T1", "verdict": verdict, "promise": f"{role} keeps it.",
        "observed": "1", "planned": "1", "message": "" if verdict == "PASS" else f"{role}: observed 2, planned 1",
        "seconds": 0.5, "attempts": 1, "hops": [],
    } | more  # fmt: skip


def a_host(instance_type: str = "g5.12xlarge", **verdicts: str) -> HostReport:
    checks = [a_check(role, verdicts.get(role, "PASS")) for role in CORE]
    return HostReport(instance_type, "i-1", "ssh://x", {"ssh": 20.0}, checks, [], {"hardware": "real"})


def a_report(*hosts: HostReport, simulated: bool = False, unproven: list[str] | None = None, **plan: Any) -> Report:
    content = {"image": "x", "digest": "sha256:1", "roles": ROLES, "instance_types": []} | plan
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    return Report(content, "ami-1", "aws", "us-east-1", simulated, "run-1", *times, list(hosts), [], unproven or [])


@pytest.mark.parametrize(
    ("found", "verdict", "exit_code"),
    [
        (a_report(a_host()), "PASS", 0),
        (a_report(a_host(xid="FAIL")), "FAIL", 1),
        (a_report(a_host(), a_host("p4d.24xlarge", boot="FAIL")), "FAIL", 1),
        (a_report(a_host(metrics="FLAKY")), "FLAKY", 1),
        (a_report(a_host(metrics="FLAKY", xid="FAIL")), "FAIL", 1),
        (a_report(a_host(xid="UNPROVEN")), "UNPROVEN", 1),
        (a_report(a_host(), unproven=["p4d.24xlarge"]), "UNPROVEN", 1),
        (a_report(), "UNPROVEN", 1),
        (a_report(HostReport("p4d.24xlarge", error="no capacity", error_verdict="UNAVAILABLE")), "UNAVAILABLE", 5),
        (a_report(a_host(), HostReport("p4d.24xlarge", error="no ssh", error_verdict="ERROR")), "ERROR", 4),
        (a_report(a_host(xid="FAIL"), HostReport("p4d.24xlarge", error="no ssh", error_verdict="ERROR")), "FAIL", 1),
    ],
)
def test_verdict(found: Report, verdict: str, exit_code: int) -> None:
    assert found.verdict == verdict
    assert report.EXIT_CODES[found.verdict] == exit_code
    level = certificate.certify(found).level
    assert (level != "none") is (verdict == "PASS")


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (a_report(a_host()), "certified"),
        (a_report(a_host(), simulated=True), "rehearsed"),
        (a_report(HostReport("g5.12xlarge", checks=a_host().checks, facts={})), "rehearsed"),
        (
            a_report(
                HostReport(
                    "g5.12xlarge", checks=a_host().checks, facts={"hardware": "real"}, replicas=[{"package": "p"}]
                )
            ),
            "rehearsed",
        ),
        (a_report(a_host(hygiene="PASS"), a_host(event_parser="FAIL")), "none"),
    ],
)
def test_level_is_never_more_than_was_proven(found: Report, level: str) -> None:
    assert certificate.certify(found).level == level


def test_certificate_names_what_it_did_not_prove() -> None:
    host = a_host(hygiene="PASS")
    host.checks.append(a_check("xid", "UNPROVEN", id="xid::test_real", message="no GPU to provoke"))
    host.replicas.append({"package": "nvidia-open-dkms", "version": "1"})
    found = a_report(
        host, simulated=True, unproven=["p4d.24xlarge"], cuda={"version": "12.4"}, notes=["a row is unverified"]
    )
    named = "\n".join(certificate.certify(found).content["not_proven"])
    for part in (
        "p4d.24xlarge: not booted",
        "no GPU to provoke",
        "real GPUs",
        "nvidia-open-dkms 1",
        "cuda 12.4",
        "unverified",
        "T4",
    ):
        assert part in named


def test_markdown_shows_verdict_checks_hops_and_failures() -> None:
    host = a_host(logs="FAIL")
    host.checks[0]["observed"] = "a|b\nc"
    host.checks[-1] |= {"hops": [{"hop": "kernel → file", "seconds": 0.25}], "event": {"code": 31}}
    text = certificate.markdown(certificate.certify(a_report(host)).content)
    assert "| verdict | **FAIL** |" in text and text.startswith("# No certificate")
    assert "kernel → file" in text and "0.25" in text and '"code": 31' in text
    assert "logs: observed 2, planned 1" in text
    assert "a\\|b c" in text


def test_report_survives_the_way_through_its_file(tmp_path: Path) -> None:
    found = a_report(a_host(xid="FAIL"), HostReport("p4d.24xlarge", error="no ssh", error_verdict="ERROR"))
    assert report.load(found.write(tmp_path)).to_json() == found.to_json()


def test_junit_counts_every_verdict(tmp_path: Path) -> None:
    found = a_report(
        a_host(xid="FAIL", logs="UNPROVEN"), HostReport("p4d.24xlarge", error="no ssh\nmore", error_verdict="ERROR")
    )
    root = ElementTree.fromstring(found.junit().partition("\n")[2])
    assert (
        len(root.findall(".//failure")) == 1
        and len(root.findall(".//skipped")) == 1
        and len(root.findall(".//error")) == 1
    )
    assert root.find(".//error").get("message") == "no ssh"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "schema is None"),
        ('{"schema": "gpu-ami/plan/1"}', "expected 'gpu-ami/report/1'"),
    ],
)
def test_wrong_report_file(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        report.load(path)
    assert "gpu-ami validate" in caught.value.hint


def test_certificate_of_the_same_report_is_the_same(tmp_path: Path) -> None:
    found = a_report(a_host())
    line.certify_stage(found, tmp_path)
    first = (tmp_path / "certificate.json").read_text()
    line.certify_stage(report.load(found.write(tmp_path)), tmp_path)
    assert (tmp_path / "certificate.json").read_text() == first
    assert json.loads(first)["report_sha256"].startswith("sha256:")


def test_last_words_name_failure_and_files(tmp_path: Path) -> None:
    found = a_report(a_host(xid="FAIL"), unproven=["p4d.24xlarge"])
    text = line.verdict_text(found, certificate.certify(found), tmp_path)
    for part in (
        "FAIL g5.12xlarge xid::test_it",
        "xid: observed 2, planned 1",
        "not booted: p4d.24xlarge",
        "no certificate",
        str(tmp_path),
    ):
        assert part in text


WAIVER = {"check": "hygiene::*", "owner": "release", "expires": "2027-01-01", "reason": "ticket 7", "state": "used"}


def test_waived_check_is_no_failure_but_stays_in_the_certificate() -> None:
    host = a_host(hygiene="PASS")
    host.checks.append(a_check("hygiene", "FAIL", waived=WAIVER))
    host.waivers = [WAIVER, WAIVER | {"check": "boot::x", "state": "unused"}]
    found = a_report(host)
    drawn = certificate.certify(found)
    assert found.verdict == "PASS" and found.failures() == []
    named = "\n".join(drawn.content["not_proven"])
    assert "hygiene::test_it: FAIL, waived by release until 2027-01-01: ticket 7" in named
    assert "waiver of boot::x is unused" in named
    assert "waived by release" in found.junit()


def test_odd_bytes_of_a_host_cost_no_report(tmp_path: Path) -> None:
    host = a_host(boot="FAIL")
    host.checks[0]["message"] = "\udcff\x1b[31m"
    found = a_report(host)
    certificate.certify(report.load(found.write(tmp_path))).write(tmp_path)
    assert "udcff" in (tmp_path / "report.json").read_text()
