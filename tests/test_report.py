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
    host = a_host(xid="FAIL")
    host.restarts = ["reboot"]
    found = a_report(host, unproven=["p4d.24xlarge"])
    text = line.verdict_text(found, certificate.certify(found), tmp_path)
    for part in (
        "FAIL g5.12xlarge xid::test_it",
        "xid: observed 2, planned 1",
        "not booted: p4d.24xlarge",
        "not proven: g5.12xlarge: reboot: not tried",
        "tiers: T0 UNPROVEN, T1 FAIL, T2 UNPROVEN, T3 UNPROVEN, T4 UNPROVEN",
        "no certificate",
        str(tmp_path),
    ):
        assert part in text


def test_what_is_open_on_several_machines_is_said_once() -> None:
    hosts = [a_host("g5.12xlarge"), a_host("p4d.24xlarge"), a_host("p5.48xlarge")]
    for host, message in zip(hosts, ("no GPU to provoke", "no GPU to provoke", "another reason"), strict=True):
        host.checks.append(a_check("xid", "UNPROVEN", id="xid::test_real", message=message))
    lines = certificate.not_proven(a_report(*hosts), [])
    assert [line for line in lines if "xid::" in line] == [
        "g5.12xlarge, p4d.24xlarge: xid::test_real: UNPROVEN: no GPU to provoke",
        "p5.48xlarge: xid::test_real: UNPROVEN: another reason",
    ]


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


def offline(**verdicts: str) -> HostReport:
    checks = [a_check(role, verdict, tier="T0") for role, verdict in verdicts.items()]
    return HostReport("", host="image-files", checks=checks, offline=True)


def tiered(**verdicts: str) -> HostReport:
    """A host whose core checks lie in T1, with one check more in each tier that is named."""
    host = a_host()
    host.checks += [a_check("gpu", verdict, id=f"gpu::test_{tier}", tier=tier) for tier, verdict in verdicts.items()]
    return host


@pytest.mark.parametrize(
    ("found", "verdicts"),
    [
        (a_report(tiered()), "UNPROVEN PASS UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(offline(hygiene="PASS"), tiered(T2="PASS", T3="PASS")), "PASS PASS PASS PASS UNPROVEN"),
        (a_report(offline(hygiene="FAIL"), tiered(T2="PASS", T3="PASS")), "FAIL PASS PASS PASS UNPROVEN"),
        (a_report(tiered(T2="UNPROVEN", T3="FAIL")), "UNPROVEN PASS UNPROVEN FAIL UNPROVEN"),
        # What files decide, asked of a booted machine, says of T0 nothing, but of T1 what any check of it says.
        (a_report(tiered(T0="FAIL")), "UNPROVEN FAIL UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(tiered(T2="PASS", T3="PASS"), tiered(T2="FLAKY", T3="PASS")), "UNPROVEN PASS FLAKY PASS UNPROVEN"),
        (a_report(tiered(T3="PASS"), unproven=["p4d.24xlarge"]), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (
            a_report(HostReport("t", error="no ssh", error_verdict="ERROR")),
            "UNPROVEN ERROR ERROR ERROR ERROR",
        ),
        (a_report(offline(hygiene="PASS")), "PASS UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
    ],
)
def test_every_tier_has_its_own_verdict(found: Report, verdicts: str) -> None:
    assert " ".join(tier["verdict"] for tier in found.tiers) == verdicts
    assert [tier["verdict"] for tier in found.to_json()["tiers"]] == verdicts.split()
    assert all(tier["reason"] for tier in found.tiers if tier["verdict"] != "PASS")


def test_tier_says_where_it_fell_short() -> None:
    found = a_report(tiered(T3="PASS"), a_host("p4d.24xlarge", boot="FAIL"), unproven=["p5.48xlarge"])
    reasons = {tier["name"]: tier["reason"] for tier in found.tiers}
    assert reasons["T1"] == "on p4d.24xlarge"
    assert reasons["T3"] == "on p4d.24xlarge, p5.48xlarge"


def test_restart_that_is_not_proven_is_missing_in_its_tier() -> None:
    host = tiered()
    host.restarts = ["reboot"]
    assert [tier["verdict"] for tier in a_report(host).tiers][1] == "UNPROVEN"


def test_certificate_says_of_every_tier_what_it_does_not_prove() -> None:
    found = a_report(offline(hygiene="PASS"), tiered(T2="PASS"))
    found.no_files = "never shown"
    drawn = certificate.certify(found)
    named = "\n".join(drawn.content["not_proven"])
    assert "tier T0, offline: a PASS does not prove that the image boots" in named
    assert "tier T3, all GPUs: UNPROVEN: on g5.12xlarge: nothing shows that every GPU" in named
    assert "tier T4, several nodes: UNPROVEN: no check of this suite reaches it yet" in named
    text = certificate.markdown(drawn.content)
    assert all(f"| {tier['name']} {tier['title']} | {tier['verdict']} |" in text for tier in found.tiers)


def test_files_that_were_not_at_hand_are_named_and_no_failure() -> None:
    found = a_report(a_host())
    found.no_files = "the disk lies on AWS"
    assert found.verdict == "PASS"
    assert "tier T0, offline: UNPROVEN: the disk lies on AWS" in "\n".join(certificate.not_proven(found, []))


@pytest.mark.parametrize(("verdict", "whole"), [("PASS", "PASS"), ("FAIL", "FAIL"), ("UNPROVEN", "UNPROVEN")])
def test_files_alone_are_no_certificate(verdict: str, whole: str) -> None:
    found = a_report(offline(hygiene=verdict))
    assert found.verdict == whole and certificate.certify(found).level == "none"


def test_broken_files_fail_a_proof_whose_machines_pass() -> None:
    assert a_report(offline(hygiene="FAIL"), a_host()).verdict == "FAIL"


def test_files_simulate_no_hardware() -> None:
    assert certificate.certify(a_report(offline(hygiene="PASS"), a_host())).level == "certified"
