"""Verdicts: a table of what was found against what may be concluded; and the way of a report through its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.report import document, writer
from gpu_ami.report.document import TIER_CORE, HostReport, Report, evidence_folder
from tests.report.examples import (
    ROLES,
    WAIVER,
    a_check,
    a_host,
    a_report,
    core_checks,
    error_host,
    everything,
    offline,
    tiered,
    unavailable_host,
)  # fmt: skip
from validator.results import Verdict, WaiverState

DRILL = {"kind": "xid", "code": 31, "origin": "userland"}
NOT_ASKED = "transport error: root@192.0.2.1:22: `sh` did not start a shell"


def with_xid(origin: str | None, hardware: str = "real") -> HostReport:
    """A machine whose only Xid had this origin; None: the check kept no event."""
    event = None if origin is None else {"kind": "xid", "code": 31, "origin": origin}
    checks = [check for check in core_checks() if check.role != "xid"]
    facts = {"hardware": hardware}
    computed = a_check("compute", id=TIER_CORE["T2"], tier="T2")
    checks = [*checks, computed, a_check("xid", tier="T2", event=event)]
    return HostReport("g5.12xlarge", checks=tuple(checks), facts=facts)


@pytest.mark.parametrize(
    ("report", "verdict", "exit_code"),
    [
        (a_report(a_host()), "PASS", 0),
        (a_report(a_host(xid="FAIL")), "FAIL", 1),
        (a_report(a_host(), a_host("p4d.24xlarge", boot="FAIL")), "FAIL", 1),
        (a_report(a_host(metrics="FLAKY")), "FLAKY", 1),
        (a_report(a_host(metrics="FLAKY", xid="FAIL")), "FAIL", 1),
        (a_report(a_host(xid="UNPROVEN")), "UNPROVEN", 1),
        (a_report(a_host(), unproven=("p4d.24xlarge",)), "UNPROVEN", 0),  # a shard
        (a_report(a_host(xid="UNPROVEN"), unproven=("p4d.24xlarge",)), "UNPROVEN", 1),
        (a_report(a_host(xid="FAIL"), unproven=("p4d.24xlarge",)), "FAIL", 1),
        (a_report(error_host(), unproven=("p4d.24xlarge",)), "UNPROVEN", 4),
        (a_report(), "UNPROVEN", 1),
        (a_report(unavailable_host()), "UNAVAILABLE", 5),
        # Cloud, network or machine: never the image's fault, and never green.
        (a_report(a_host(), error_host()), "UNPROVEN", 4),
        (a_report(a_host(xid="FAIL"), error_host()), "FAIL", 1),
        (a_report(a_host(), incomplete="the run was interrupted"), "UNPROVEN", 4),
        (a_report(a_host(xid="FAIL"), incomplete="the run was interrupted"), "FAIL", 1),
        # A check that could not run, of the user's own for instance.
        (a_report(a_host("g5.12xlarge", a_check("mine", "ERROR"))), "UNPROVEN", 4),
        # The machine could not be asked.
        (a_report(a_host("g5.12xlarge", a_check("xid", "UNPROVEN", message=NOT_ASKED), xid="UNPROVEN")), "UNPROVEN", 4),
        (a_report(a_host("g5.12xlarge", a_check("xid", "UNPROVEN", message=NOT_ASKED), boot="FAIL")), "FAIL", 1),
        (a_report(a_host("g5.12xlarge", a_check("mine", "ERROR", waived=WAIVER))), "PASS", 0),
    ],
)
def test_verdict(report: Report, verdict: str, exit_code: int) -> None:
    assert (report.verdict, report.exit_code) == (verdict, exit_code)
    assert report.to_json()["verdict"] == verdict


NEURON_ROLES = ["kernel", "neuron", "cloudwatch_agent", "event_parser", "neuron_monitor", "hygiene"]


@pytest.mark.parametrize("missing", ["", *document.NEURON_CORE])
def test_core_of_a_machine_with_neuron_devices(missing: str) -> None:
    """It has neither NVIDIA's metrics nor Xids: without this no such image could be certified."""
    checks = tuple(a_check(role) for role in document.NEURON_CORE if role != missing)
    report = a_report(HostReport("inf2.48xlarge", checks=checks, facts={"hardware": "real"}), roles=NEURON_ROLES)
    assert report.verdict == ("UNPROVEN" if missing else "PASS")
    assert report.hosts[0].unproven(NEURON_ROLES) == ([f"{missing}: no check of it passed"] if missing else [])


@pytest.mark.parametrize(
    ("host", "verdict", "tier_2"),
    [
        (with_xid("kernel"), "PASS", "PASS"),
        (with_xid("userland"), "UNPROVEN", "UNPROVEN"),
        (with_xid(None), "UNPROVEN", "UNPROVEN"),
        (with_xid("userland", hardware="simulated"), "PASS", "PASS"),
    ],
)
def test_drill_alone_is_no_proof_on_real_hardware(host: HostReport, verdict: str, tier_2: str) -> None:
    report = a_report(host)
    assert (report.verdict, report.tiers[2]["verdict"]) == (verdict, tier_2)
    if verdict == "UNPROVEN":
        assert "--provoke-xid" in host.unproven(ROLES)[0] and "--provoke-xid" in report.tiers[2]["reason"]


def test_image_without_nvidia_driver_needs_no_xid_of_one() -> None:
    roles = [role for role in ROLES if role != "nvidia_driver"]
    assert with_xid("userland").verdict(roles) == "PASS"


def test_xid_after_a_restart_counts_too() -> None:
    host = with_xid("userland").with_checks(a_check("xid", event={"origin": "kernel"}, after="reboot"))
    assert not host.lacks_kernel_xid(ROLES)


def test_report_survives_the_way_through_its_file(tmp_path: Path) -> None:
    report = everything()
    assert document.load(writer.write(report, tmp_path)) == report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"schema": "gpu-ami/plan/1"}', "expected schema 'gpu-ami/report/2', got 'gpu-ami/plan/1'"),
        ('{"schema": "gpu-ami/report/1", "hosts": []}', "expected schema 'gpu-ami/report/2', got 'gpu-ami/report/1'"),
        ('{"schema": "gpu-ami/report/2", "image": "ami-1"}', "missing key 'plan'"),
    ],
)
def test_wrong_report_file(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        document.load(path)
    assert "gpu-ami validate" in caught.value.hint


def test_mistake_in_a_host_names_its_place(tmp_path: Path) -> None:
    data = a_report(a_host()).to_json()
    data["hosts"][0]["checks"][2]["verdict"] = "GREEN"
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"hosts\[0\]: checks\[2\]: verdict: 'GREEN' is not a valid Verdict"):
        document.load(tmp_path / "report.json")


ACCOUNTED = offline(hygiene="PASS", accounted="PASS")


@pytest.mark.parametrize(
    ("report", "verdicts"),
    [
        (a_report(tiered()), "UNPROVEN PASS UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(ACCOUNTED, tiered(T2="PASS", T3="PASS")), "PASS PASS PASS PASS UNPROVEN"),
        (a_report(offline(hygiene="PASS"), tiered(T2="PASS", T3="PASS")), "UNPROVEN PASS PASS PASS UNPROVEN"),
        (a_report(offline(hygiene="FAIL"), tiered(T2="PASS", T3="PASS")), "FAIL PASS PASS PASS UNPROVEN"),
        (a_report(tiered(T2="UNPROVEN", T3="FAIL")), "UNPROVEN PASS UNPROVEN FAIL UNPROVEN"),
        # A check of T0 on a booted machine proves nothing of the files, but counts for T1 as any check of T1.
        (a_report(tiered(T0="FAIL")), "UNPROVEN FAIL UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(tiered(T2="PASS", T3="PASS"), tiered(T2="FLAKY", T3="PASS")), "UNPROVEN PASS FLAKY PASS UNPROVEN"),
        (a_report(tiered(T3="PASS"), unproven=("p4d.24xlarge",)), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(error_host()), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(unavailable_host()), "UNPROVEN UNAVAILABLE UNAVAILABLE UNAVAILABLE UNAVAILABLE"),
        (a_report(ACCOUNTED), "PASS UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(tiered(T2="PASS"), incomplete="cut"), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
        (a_report(), "UNPROVEN UNPROVEN UNPROVEN UNPROVEN UNPROVEN"),
    ],
)
def test_every_tier_has_its_own_verdict(report: Report, verdicts: str) -> None:
    assert " ".join(tier["verdict"] for tier in report.tiers) == verdicts
    assert [tier["verdict"] for tier in report.to_json()["tiers"]] == verdicts.split()
    assert all(tier["reason"] for tier in report.tiers if tier["verdict"] != "PASS")


@pytest.mark.parametrize(
    ("accounted", "verdict", "reason"),
    [
        ("PASS", "PASS", ""),
        ("FAIL", "FAIL", "on image-files"),
        ("UNPROVEN", "UNPROVEN", "not accounted: file_account: observed 2, planned 1"),
        ("", "UNPROVEN", "not accounted: the checks of the file account did not run"),
    ],
)
def test_files_without_an_account_are_not_proven(accounted: str, verdict: str, reason: str) -> None:
    """No build traces is what T0 claims: it says so where every file was judged."""
    tier = a_report(offline(hygiene="PASS", accounted=accounted)).tiers[0]
    assert (tier["verdict"], tier["reason"]) == (verdict, reason)


def test_tier_names_the_machines_that_lack_it() -> None:
    report = a_report(tiered(T3="PASS"), a_host("p4d.24xlarge", boot="FAIL"), unproven=("p5.48xlarge",))
    reasons = {tier["name"]: tier["reason"] for tier in report.tiers}
    assert reasons["T1"] == "on p4d.24xlarge"
    assert reasons["T3"] == "on p4d.24xlarge, p5.48xlarge"


def test_restart_that_is_not_proven_is_missing_in_its_tier() -> None:
    host = replace(tiered(), restarts=("reboot",))
    assert [tier["verdict"] for tier in a_report(host).tiers][1] == "UNPROVEN"


@pytest.mark.parametrize(("verdict", "whole"), [("PASS", "PASS"), ("FAIL", "FAIL"), ("UNPROVEN", "UNPROVEN")])
def test_files_alone_have_a_verdict(verdict: str, whole: str) -> None:
    assert a_report(offline(hygiene=verdict)).verdict == whole


def test_broken_files_fail_a_proof_whose_machines_pass() -> None:
    assert a_report(offline(hygiene="FAIL"), a_host()).verdict == "FAIL"


def test_waived_check_is_no_failure() -> None:
    report = a_report(a_host("g5.12xlarge", a_check("hygiene", "FAIL", waived=WAIVER)))
    assert report.verdict == "PASS" and report.failures() == []


@pytest.mark.parametrize("role", ["xid", "event_parser", "boot"])
def test_waivers_of_all_checks_of_a_core_role_prove_nothing(role: str) -> None:
    """`xid::*` in a waivers file made a PASS of an image that captures no Xid."""
    host = a_host("g5.12xlarge")
    waived = tuple(
        replace(check, verdict=Verdict.FAIL, waived=WAIVER) if check.role == role else check for check in host.checks
    )
    report = a_report(replace(host, checks=waived))
    assert report.verdict == "UNPROVEN"
    assert f"{role}: no check of it passed" in report.hosts[0].unproven(report.roles)


def test_waiver_that_one_pass_used_is_used() -> None:
    from validator.results import HostResults

    unused = replace(WAIVER, state=WaiverState.UNUSED)
    other = replace(unused, check="boot::x")
    host = HostReport("t", waivers=(unused, other))
    host = host.with_results_after(HostResults("t", (a_check("logs"),), waivers=(WAIVER,)), "reboot")
    assert [(waiver.check, waiver.state) for waiver in host.waivers] == [("boot::x", "unused"), ("hygiene::*", "used")]


@pytest.mark.parametrize(
    ("instance_type", "host", "folder"),
    [
        ("g5.12xlarge", "ssh://admin@10.0.0.7:22", "g5.12xlarge"),
        ("", "ssh://admin@10.0.0.7:22", "10.0.0.7_22"),
        ("", "ssh://10.0.0.7", "10.0.0.7"),
        ("", "image-files", "image-files"),
        ("", "ssh://a@../../etc", "etc"),
    ],
)
def test_evidence_folder_is_one_name(instance_type: str, host: str, folder: str) -> None:
    assert evidence_folder(instance_type, host) == folder


def test_verdict_of_a_host_that_was_not_checked_is_its_error() -> None:
    assert error_host().verdict(ROLES) == Verdict.UNPROVEN
    assert replace(error_host(), error_verdict=Verdict.FAIL).verdict(ROLES) == Verdict.FAIL


@pytest.mark.parametrize("tier", ["T2", "T3"])
@pytest.mark.parametrize("roles", [ROLES, [], ["nvidia_driver", "observed"]])
def test_no_tier_of_gpus_passes_without_a_computation(tier: str, roles: list[str]) -> None:
    """Also without a plan: checks of the tier passed, and nothing computed."""
    other = a_check("gdrcopy", id="gdrcopy::test_sanity_passes", tier=tier)
    host = a_host("g5.12xlarge", other)
    assert host.tier_verdict(tier, roles) == "UNPROVEN"
    skipped = a_check("compute", "UNPROVEN", id=TIER_CORE[tier], tier=tier)
    assert a_host("g5.12xlarge", other, skipped).tier_verdict(tier, roles) == "UNPROVEN"
    computed = a_check("compute", id=TIER_CORE[tier], tier=tier)
    assert a_host("g5.12xlarge", other, computed).tier_verdict(tier, roles) == "PASS"


def test_an_image_as_found_needs_no_parser_and_no_agent_of_ours() -> None:
    roles = ["nvidia_driver", "observed"]
    checks = (a_check("boot"), a_check("nvidia_driver"), a_check("compute", id=TIER_CORE["T2"], tier="T2"))
    host = HostReport("g5.12xlarge", checks=checks, facts={"hardware": "real"})
    assert host.unproven(roles) == []
    assert host.verdict(roles) == "PASS"
    assert HostReport("g5.12xlarge", checks=checks[:2]).verdict(roles) == "UNPROVEN"
