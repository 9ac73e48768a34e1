"""Certificates: never more than was proven, and everything named that was not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import pipeline
from gpu_ami.errors import UsageError
from gpu_ami.report import certificate, document, writer
from gpu_ami.report.certificate import CERTIFIED, NONE, certify, level_of, refusal
from gpu_ami.report.document import HostReport, Report
from tests.report.examples import (
    KERNEL_XID,
    PROGRAMS,
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
from validator.probes import footprints
from validator.results import Hop, Program, Replica, WaiverState

REPLICA = Replica("nvidia-open-dkms", "1", "a replica")


@pytest.mark.parametrize(
    ("report", "level"),
    [
        (a_report(a_host()), "certified"),
        (a_report(a_host(), simulated=True), "rehearsed"),
        (a_report(HostReport("g5.12xlarge", checks=core_checks(), facts={})), "rehearsed"),
        (a_report(replace(a_host(), replicas=(REPLICA,))), "rehearsed"),
        (a_report(offline(hygiene="PASS"), a_host()), "certified"),
        (a_report(offline(hygiene="PASS")), "none"),
        (a_report(a_host(), a_host(event_parser="FAIL")), "none"),
        (a_report(a_host(metrics="FLAKY")), "none"),
        (a_report(a_host(xid="UNPROVEN")), "none"),
        (a_report(a_host(), error_host()), "none"),
        (a_report(a_host(), unavailable_host()), "none"),
        (a_report(a_host(), incomplete="the run was interrupted"), "none"),
        (replace(a_report(a_host()), image=""), "rehearsed"),
    ],
)
def test_level_is_never_more_than_was_proven(report: Report, level: str) -> None:
    assert certificate.certify(report).level == level


def named(report: Report) -> str:
    return "\n".join(certificate.certify(report).not_proven)


@pytest.mark.parametrize(
    ("replicas", "packages", "row"),
    [
        ((REPLICA,), 399, "| replicas | 1, named below; 399 packages are installed |"),
        ((REPLICA,), None, "| replicas | 1, named below |"),
        ((), 399, "| replicas | none; 399 packages are installed |"),
        ((), None, "| replicas | none |"),
    ],
)
def test_certificate_counts_replicas_among_the_packages(
    replicas: tuple[Replica, ...], packages: int | None, row: str
) -> None:
    host = a_host()
    facts = dict(host.facts) if packages is None else {**host.facts, "packages": packages}
    report = a_report(replace(host, replicas=replicas, facts=facts))
    assert row in certificate.markdown(certificate.certify(report)).splitlines()


def test_certificate_names_what_it_did_not_prove() -> None:
    host = a_host("g5.12xlarge", a_check("xid", "UNPROVEN", id="xid::test_real", message="no GPU to provoke"))
    host = replace(host, replicas=(REPLICA,))
    report = a_report(
        host, simulated=True, unproven=("p4d.24xlarge",), incomplete="the run was interrupted",
        cuda={"version": "12.4"}, notes=["a row is unverified"],
    )  # fmt: skip
    for part in (
        "the proof is incomplete: the run was interrupted",
        "p4d.24xlarge: not booted",
        "no GPU to provoke",
        "real GPUs",
        "nvidia-open-dkms 1: a replica was installed instead",
        "cuda 12.4",
        "unverified",
        "T4",
        "endurance",
    ):
        assert part in named(report)


def test_drill_on_real_hardware_says_how_to_prove_more() -> None:
    drill = replace(core_checks()[-1], event={**KERNEL_XID, "origin": "userland"})
    host = replace(a_host(), checks=(*core_checks()[:-1], drill))
    assert "g5.12xlarge: xid: only a drill was seen" in named(a_report(host))
    assert "--provoke-xid" in named(a_report(host))


def test_what_is_open_on_several_machines_is_said_once() -> None:
    messages = ("no GPU to provoke", "no GPU to provoke", "another reason")
    hosts = [
        a_host(name, a_check("xid", "UNPROVEN", id="xid::test_real", message=message))
        for name, message in zip(("g5.12xlarge", "p4d.24xlarge", "p5.48xlarge"), messages, strict=True)
    ]
    lines = certificate.not_proven(a_report(*hosts), [])
    assert [line for line in lines if "xid::" in line] == [
        "g5.12xlarge, p4d.24xlarge: xid::test_real: UNPROVEN: no GPU to provoke",
        "p5.48xlarge: xid::test_real: UNPROVEN: another reason",
    ]


def test_waived_check_stays_in_the_certificate() -> None:
    unused = replace(WAIVER, check="boot::x", state=WaiverState.UNUSED)
    host = replace(a_host("t", a_check("hygiene", "FAIL", waived=WAIVER)), waivers=(WAIVER, unused))
    assert "hygiene::test_it: FAIL, waived by release until 2027-01-01: ticket 7" in named(a_report(host))
    assert "waiver of boot::x is unused" in named(a_report(host))


def test_certificate_names_the_cluster_of_a_node() -> None:
    joined = {"service": "ParallelCluster", "version": "3.16.3", "name": "", "own": True, "nodes": ["i-1", "i-2"]}
    report = a_report(a_host().with_facts(cluster=joined))
    text = certificate.markdown(certificate.certify(report))
    expected = (
        "Node of a cluster: ParallelCluster 3.16.3, a Slurm cluster of the proof's own machines, 2 nodes: i-1, i-2."
    )
    assert expected in text
    assert "Node of a cluster" not in certificate.markdown(certificate.certify(a_report(a_host())))


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("gpu-nodes", False, "cluster gpu-nodes, 1 node"),
        ("gpu-ami-r", True, "cluster gpu-ami-r, made for the proof, 1 node"),
    ],
)
def test_certificate_names_the_cluster_of_a_service(name: str, own: bool, said: str) -> None:
    joined = {"service": "EKS", "version": "1.35", "name": name, "own": own, "nodes": ["i-1"]}
    text = certificate.markdown(certificate.certify(a_report(a_host().with_facts(cluster=joined))))
    assert f"Node of a cluster: EKS 1.35, {said}: i-1." in text


def test_certificate_says_of_every_tier_what_it_does_not_prove() -> None:
    report = replace(a_report(offline(hygiene="PASS", accounted="PASS"), tiered(T2="PASS")), no_files="never shown")
    text = named(report)
    assert "tier T0, offline: a PASS does not prove that the image boots" in text
    assert "tier T3, all GPUs: UNPROVEN: on g5.12xlarge: nothing shows that every GPU" in text
    assert "tier T4, several nodes: UNPROVEN: one machine alone was checked: --nodes 2 launches several" in text
    markdown = certificate.markdown(certificate.certify(report))
    assert all(f"| {tier['name']} {tier['title']} | {tier['verdict']} |" in markdown for tier in report.tiers)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("node_eks", "EKS"),
        ("node_eks_ubuntu", "EKS (Ubuntu)"),
        ("node_ecs", "ECS"),
        ("node_parallelcluster", "ParallelCluster"),
    ],
)
def test_a_node_s_certificate_says_that_it_joined_no_cluster(role: str, name: str) -> None:
    report = replace(a_report(a_host()), plan={"roles": ["kernel", role]})
    assert f"a node in a cluster: no {name} cluster was joined" in named(report)
    assert "a node in a cluster" not in named(a_report(a_host()))


def test_files_that_could_not_be_checked_are_named_and_no_failure() -> None:
    report = replace(a_report(a_host()), no_files="the disk is on AWS")
    assert report.verdict == "PASS"
    assert "tier T0, offline: UNPROVEN: the disk is on AWS" in named(report)


def test_markdown_shows_verdict_checks_hops_and_failures() -> None:
    odd = a_check("boot", id="boot::test_odd", observed="a|b\nc <b>")
    hops = a_check("xid", id="xid::test_hops", hops=(Hop("kernel → file", 0.25),), event={"code": 31})
    text = certificate.markdown(certificate.certify(a_report(a_host("g5.12xlarge", odd, hops, logs="FAIL"))))
    assert "| verdict | **FAIL** |" in text and text.startswith("# No certificate: x\n")
    assert "| kernel → file (test_hops) | 0.25 |" in text and '"code": 31' in text
    assert "**logs::test_it**\n\n    logs: observed 2, planned 1\n" in text
    assert "| ✅ | boot keeps it. `boot` | a\\|b c &lt;b> | 1 |" in text, "a host's text is no live HTML"
    assert "Boot: running 2 s, ssh 20 s, systemd 30 s.\n" in text
    assert "\n## Not proven\n\n- tier" in text and "\n|   boot g5.12xlarge | 30.0 |\n" in text


def test_what_a_site_declares_is_shown() -> None:
    """Declared programs are accepted without a waiver, so the page names them, however many others run."""
    programs = ", ".join(sorted(footprints.LISTENERS))
    observed = footprints.with_declared(programs, {"prometheus-node": "node_exporter"})
    host = a_host("g5.12xlarge", a_check("inventory", observed=observed, planned="known programs"))
    statement = certificate.certify(a_report(host))
    assert statement.is_issued
    assert "prometheus-node: declared by role node_exporter; " in certificate.markdown(statement)


def test_certificate_survives_the_way_through_its_file(tmp_path: Path) -> None:
    statement = certificate.certify(a_report(a_host(), simulated=True, notes=["n"]))
    json_file, markdown_file = statement.write(tmp_path)
    assert certificate.load(json_file) == statement
    assert markdown_file.read_text().startswith("# Rehearsal certificate")


def test_certificate_of_the_previous_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text('{"schema": "gpu-ami/certificate/1"}')
    with pytest.raises(UsageError, match="expected schema 'gpu-ami/certificate/2'") as caught:
        certificate.load(path)
    assert "gpu-ami certify" in caught.value.hint


def test_certificate_of_the_same_report_is_the_same(tmp_path: Path) -> None:
    report = a_report(a_host())
    pipeline.certify_stage(report, tmp_path)
    first = (tmp_path / "certificate.json").read_text()
    pipeline.certify_stage(document.load(writer.write(report, tmp_path)), tmp_path)
    assert (tmp_path / "certificate.json").read_text() == first
    assert json.loads(first)["report_sha256"].startswith("sha256:")


def test_without_a_certificate_no_file_is_called_one(tmp_path: Path) -> None:
    """One of an earlier report would stand beside a report that earned none."""
    pipeline.certify_stage(a_report(a_host()), tmp_path)
    assert (tmp_path / "certificate.json").exists()
    statement = pipeline.certify_stage(everything(), tmp_path)
    assert not statement.is_issued
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.md"]


def test_conditions_of_the_rehearsal_are_stated() -> None:
    report = replace(a_report(a_host(), simulated=True), conditions="aws-like:7")
    statement = certificate.certify(report)
    assert statement.to_json()["conditions"] == "aws-like:7"
    assert "| conditions | aws-like:7 (rehearsed behaviour of AWS, docs/conditions.md) |" in certificate.markdown(
        statement
    )
    plain = certificate.certify(a_report(a_host(), simulated=True))
    assert "| conditions |" not in certificate.markdown(plain)


@pytest.mark.parametrize(
    ("programs", "isolated", "reason"),
    [
        (
            (*PROGRAMS, Program("conftest", "/x/conftest.py", "sha256:0", False)),
            True,
            "conftest /x/conftest.py",
        ),
        (
            (*PROGRAMS, Program("plugin", "evil", "sha256:0", False)),
            True,
            "plugin evil (sha256:0) took part",
        ),
        (PROGRAMS, False, "with the plugins and configuration of the caller"),
        (PROGRAMS, True, ""),
    ],
)
def test_a_proof_in_which_others_took_part_gets_no_certificate(
    programs: tuple[Program, ...], isolated: bool, reason: str
) -> None:
    report = a_report(replace(a_host(), programs=programs, isolated=isolated))
    assert reason in refusal(report) and bool(refusal(report)) == bool(reason)
    assert level_of(report) == (NONE if reason else CERTIFIED)


def test_a_report_that_does_not_list_its_programs_is_named() -> None:
    certificate = certify(a_report(replace(a_host(), programs=(), isolated=False)))
    assert [line for line in certificate.not_proven if "took part in the proof" in line]
