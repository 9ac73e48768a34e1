"""Reports for tests: checks, machines and whole reports with the verdicts that a test asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_ami.report.document import (
    CORE,
    EVERY_FILE,
    TIER_CORE,
    UNAVAILABLE,
    UNPROVEN,
    HostReport,
    LaunchAttempt,
    Report,
    ReportLayer,
    Stage,
)
from validator.results import CarriedOver, CheckRecord, Hop, Program, Replica, Verdict, WaiverRecord, WaiverState

ROLES = ["nvidia_driver", "cloudwatch_agent", "event_parser", "hygiene"]
KERNEL_XID = {"kind": "xid", "code": 31, "origin": "kernel"}
WAIVER = WaiverRecord("hygiene::*", "ticket 7", "release", "2027-01-01", {}, WaiverState.USED)
STAGES = (Stage("boot g5.12xlarge", 1, 30.0, "done"), Stage("prove ami-1", 0, 60.0, "failed"))


def a_check(role: str, verdict: str = "PASS", **changes: Any) -> CheckRecord:
    message = "" if verdict == "PASS" else f"{role}: observed 2, planned 1"
    record = CheckRecord(
        f"{role}::test_it", role, "T1", f"{role} keeps it.", Verdict(verdict), "1", "1", message, seconds=0.5
    )
    return replace(record, **changes)


PROGRAMS = (Program("plugin", "validator.plugin", f"sha256:{64 * '0'}", True),)


def core_checks(**verdicts: str) -> tuple[CheckRecord, ...]:
    """A check of each core role; that of xid followed an Xid of the kernel's."""
    events: dict[str, dict[str, Any]] = {"xid": {"event": KERNEL_XID}}
    return tuple(a_check(role, verdicts.get(role, "PASS"), **events.get(role, {})) for role in CORE)


def a_host(instance_type: str = "g5.12xlarge", *further: CheckRecord, **verdicts: str) -> HostReport:
    boot = {"running": 2.0, "ssh": 20.0, "systemd": 30.0}
    facts = {"hardware": "real", "kernel": "6.1.0", "boot_id": "b-1"}
    checks = (*core_checks(**verdicts), *further)
    return HostReport(
        instance_type, "i-1", "ssh://admin@127.0.0.2:2222", boot, checks, facts=facts, programs=PROGRAMS, isolated=True
    )


def error_host() -> HostReport:
    error = "no SSH within 600 s\nlast lines: Kernel"
    return HostReport("p4d.24xlarge", "i-2", error=error, error_verdict=UNPROVEN)


def unavailable_host() -> HostReport:
    return HostReport("p5.48xlarge", error="InsufficientInstanceCapacity", error_verdict=UNAVAILABLE)


def a_report(
    *hosts: HostReport, simulated: bool = False, unproven: tuple[str, ...] = (), incomplete: str = "", **plan: Any
) -> Report:
    content = {"image": "x", "digest": "sha256:1", "roles": ROLES, "instance_types": []} | plan
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")
    where = ("ami-1", "aws", "us-east-1", simulated, "run-1", *times)
    return Report(content, *where, hosts, STAGES, unproven, incomplete=incomplete)


def offline(*, accounted: str = "", **verdicts: str) -> HostReport:
    """An image's files. accounted: verdict of their account; "" where it did not run."""
    checks = tuple(a_check(role, verdict, tier="T0") for role, verdict in verdicts.items())
    if accounted:
        checks = (*checks, a_check("file_account", accounted, id=EVERY_FILE, tier="T0"))
    return HostReport("", host="image-files", checks=checks, offline=True, programs=PROGRAMS, isolated=True)


def tiered(**verdicts: str) -> HostReport:
    """A host whose core checks are of T1, with one check more of each tier that is named."""
    ids = {tier: TIER_CORE.get(tier, f"gpu::test_{tier}") for tier in verdicts}
    further = [a_check("gpu", verdict, id=ids[tier], tier=tier) for tier, verdict in verdicts.items()]
    return a_host("g5.12xlarge", *further)


def everything() -> Report:
    """A report with a value in every field."""
    hops = (Hop("kernel → file", 1.0), Hop("file → agent", 3.0))
    earlier = CarriedOver("2025-12-31T00:00:00Z", "sha256:2", "ami-0", "driver", "sha256:3")
    host = a_host("g5.12xlarge", a_check("hygiene", "FAIL", waived=WAIVER), a_check("xid", "FAIL", hops=hops))
    host = host.with_checks(a_check("cuda", carried=earlier))
    host = replace(
        host, replicas=(Replica("nvidia-smi", "550", "a replica"),), waivers=(WAIVER,), restarts=("reboot",),
        left_behind="terminating i-1: RequestLimitExceeded", deadlines={"boot_seconds": 900.0},
        attempts=(LaunchAttempt("2026-01-01T00:00:00Z", "g5.12xlarge", "subnet-1", "us-east-1a", "spot", "NoCapacity"),
                  LaunchAttempt("2026-01-01T00:01:00Z", "g5.12xlarge", "", "", "on-demand", "launched", "i-1")),
    )  # fmt: skip
    report = a_report(
        host, error_host(), unavailable_host(), simulated=True, unproven=("p5.48xlarge",),
        incomplete="the run was interrupted", cuda={"version": "12.4"}, notes=["not established: the A10G"],
    )  # fmt: skip
    layers = (ReportLayer("driver", "sha256:3", ("nvidia_driver", "cuda")),)
    return replace(report, no_files="the disk is on AWS", layers=layers, suite="sha256:4", certify_carried=True)
