"""The certificate: what was proven of an image, on what, and what was not. It never claims more than the report holds.

Levels: `rehearsed` (simulated hardware or a replica package took part) < `certified` (real hardware, vendor packages).
A report that is not a PASS gets no certificate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami import __version__
from gpu_ami.report import COMES_BACK, FLAKY, PASS, UNPROVEN, HostReport, Report, write_text

SCHEMA = "gpu-ami/certificate/1"
# What no check of this suite reaches, whatever the report says. Named in every certificate.
OUT_OF_REACH = (
    "performance: no bandwidth, clock or throughput was measured",
    "endurance: the image ran for minutes",
)
# Planned components that a role would have to install: without one they are versions on paper.
_COMPONENTS = ("cuda", "cudnn", "nccl", "efa", "mkl")


@dataclass(frozen=True)
class Certificate:
    """The statement, as JSON and as Markdown."""

    content: Mapping[str, Any]

    @property
    def level(self) -> str:
        return str(self.content["level"])

    def write(self, folder: Path) -> list[Path]:
        paths = [folder / "certificate.json", folder / "certificate.md"]
        write_text(paths[0], json.dumps(self.content, ensure_ascii=False, indent=1, default=str) + "\n")
        write_text(paths[1], markdown(self.content))
        return paths


def certify(report: Report) -> Certificate:
    """Draws the certificate of a report. The level is `none` where the report is not a PASS."""
    replicas = sorted(
        {f"{one['package']} {one.get('version', '')}".strip() for host in report.hosts for one in host.replicas}
    )
    content = {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "level": _level(report, replicas),
        "image": {
            "ami": report.image,
            "name": report.plan.get("image", ""),
            "region": report.region,
            "place": report.place,
        },
        "plan_digest": report.plan.get("digest", ""),
        "report_sha256": _digest(report),
        "run": report.run,
        "started": report.started,
        "finished": report.finished,
        "issued_by": f"gpu-ami {__version__}",
        "simulated_hardware": report.simulated,
        "replicas": replicas,
        "proven_on": [_host(host, report) for host in report.hosts],
        "tiers": report.tiers,
        "not_proven": not_proven(report, replicas),
        "planned_not_installed": _planned_only(report.plan),
        "stages": report.stages,
    }
    return Certificate(content)


def _digest(report: Report) -> str:
    canonical = json.dumps(report.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return "sha256:" + hashlib.sha256(canonical.encode(errors="backslashreplace")).hexdigest()


def _level(report: Report, replicas: list[str]) -> str:
    if report.verdict != PASS:
        return "none"
    # "certified" is earned: a real board has to have been seen by the checks, on a place that simulates nothing.
    booted = [host for host in report.hosts if not host.offline]
    if not booted:
        return "none"  # files alone: nothing has run
    real = not report.simulated and not replicas and all(host.facts.get("hardware") == "real" for host in booted)
    return "certified" if real and report.image else "rehearsed"


def _host(host: HostReport, report: Report) -> dict[str, Any]:
    kept = (
        "id",
        "role",
        "tier",
        "after",
        "verdict",
        "promise",
        "observed",
        "planned",
        "message",
        "seconds",
        "attempts",
        "hops",
        "waived",
        "event",
    )
    checks = [{key: check[key] for key in kept if key in check} for check in host.checks]
    head = {
        "name": host.name,
        "instance_type": host.instance_type,
        "instance_id": host.instance_id,
        "verdict": host.verdict(report.roles),
    }
    return head | {"boot_seconds": host.boot, "facts": host.facts, "error": host.error, "checks": checks}


def _planned_only(plan: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {plan[name].get('version', '')}".strip()
        for name in _COMPONENTS
        if plan.get(name) and name not in plan.get("roles", [])
    ]


def replicas_told(replicas: list[str]) -> str:
    """How many there are, for the head of a page that names them further down."""
    return f"{len(replicas)} packages, named below" if replicas else "none"


def not_proven(report: Report, replicas: list[str]) -> list[str]:
    """Everything that a reader might take for proven and that is not, in words."""
    found = [f"instance type {name}: not booted" for name in report.unproven_instance_types]
    for tier in report.tiers:
        named = f"tier {tier['name']}, {tier['title']}"
        if tier["verdict"] == PASS:
            found.append(f"{named}: a PASS does not prove {tier['does_not_prove']}")
        else:
            found.append(f"{named}: {tier['verdict']}: {tier['reason']}: nothing shows that {tier['proves']}")
    machines: dict[str, list[str]] = {}  # by what is said: of which machines, so that it is said once
    for host in report.hosts:
        for one in _open(host, report):
            machines.setdefault(one, []).append(host.instance_type or host.host)
    found += [f"{', '.join(dict.fromkeys(where))}: {one}" for one, where in machines.items()]
    if report.simulated:
        found.append(
            "real GPUs: the boards were simulated, so nothing was computed on one and no real board has failed"
        )
    found += [f"the vendor's own package of {one}: a replica stood in for it" for one in replicas]
    found += [f"{one}: planned, installed by no role of this image" for one in _planned_only(report.plan)]
    found += [f"noted in the plan: {note}" for note in report.plan.get("notes", [])]
    return [*found, *OUT_OF_REACH]


def _open(host: HostReport, report: Report) -> list[str]:
    """What the checks of one machine leave open."""
    if host.error:
        found = [host.error.splitlines()[0]]
    else:
        found = [f"{role}: no check of it passed" for role in host.unproven_roles(report.roles)]
        found += host.unproven_restarts(report.roles)
    found += _waivers(host)
    for check in host.checks:
        told = check["id"].startswith(f"{COMES_BACK}@") and check["after"] in host.restarts and not host.error
        if check["verdict"] in (UNPROVEN, FLAKY) and not told:
            reason = (check.get("message") or check["verdict"]).splitlines()[0]
            found.append(f"{check['id']}: {check['verdict']}: {reason}")
    return found


def _waivers(host: HostReport) -> list[str]:
    told = []
    for check in host.checks:
        waived = check.get("waived")
        if waived:
            until = f"waived by {waived['owner']} until {waived['expires']}"
            told.append(f"{check['id']}: {check['verdict']}, {until}: {waived['reason']}")
    return told + [f"waiver of {one['check']} is {one['state']}" for one in host.waivers if one["state"] != "used"]


_MARKS = {"PASS": "✅", "FAIL": "❌", "FLAKY": "⚠️", "UNPROVEN": "◻️", "UNAVAILABLE": "⛔"}


def _cell(value: object, most: int = 120) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= most else text[: most - 1] + "…"


def markdown(content: Mapping[str, Any]) -> str:
    """The certificate for people: verdict first, then each machine, then what was not proven."""
    image = content["image"]
    title = {"none": "No certificate", "rehearsed": "Rehearsal certificate", "certified": "Certificate"}[
        content["level"]
    ]
    lines = [f"# {title}: {image['name'] or image['ami']}", ""]
    lines += ["| | |", "|---|---|", f"| verdict | **{content['verdict']}** |", f"| level | **{content['level']}** |"]
    lines += [
        f"| image | `{image['ami'] or 'a host'}` in {image['region'] or '-'} ({image['place'] or 'by address'}) |"
    ]
    lines += [
        f"| plan | `{content['plan_digest']}` |",
        f"| run | {content['run']}, {content['started']} to {content['finished']} |",
    ]
    lines += [f"| simulated hardware | {'yes' if content['simulated_hardware'] else 'no'} |"]
    lines += [f"| replicas | {replicas_told(content['replicas'])} |", ""]
    lines += ["| tier | | proves | does not prove |", "|---|---|---|---|"]
    for one in content["tiers"]:
        told = [f"{one['name']} {one['title']}", one["verdict"], one["proves"], one["does_not_prove"]]
        lines.append(f"| {' | '.join(_cell(cell, 400) for cell in told)} |")
    lines.append("")
    for host in content["proven_on"]:
        lines += _host_markdown(host)
    lines += ["## Not proven", "", *(f"- {one}" for one in content["not_proven"]), ""]
    if content["stages"]:
        lines += ["## Where the time went", "", "| stage | seconds |", "|---|---|"]
        lines += [
            f"| {'  ' * stage['level']}{stage['stage']} | {stage['seconds']:.1f} |" for stage in content["stages"]
        ]
        lines.append("")
    return "\n".join(lines)


def _host_markdown(host: Mapping[str, Any]) -> list[str]:
    boot = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in host["boot_seconds"].items())
    # A machine has an id; a host of somebody else, and an image's files, only the name they were reached by.
    called = f"{host['instance_type']} `{host['instance_id']}`" if host["instance_type"] else host["name"]
    lines = [f"## {called}: {host['verdict']}", ""]
    lines += [f"Boot: {boot}.", ""] if boot else []
    lines += [f"    {line}" for line in host["error"].splitlines()] + [""] if host["error"] else []
    if host["checks"]:
        lines += ["| | promise | observed | planned |", "|---|---|---|---|"]
    for check in host["checks"]:
        mark = _MARKS.get(check["verdict"], check["verdict"])
        promise = f"{check['promise'] or check['id']} `{check['role']}`"
        lines.append(
            f"| {mark} | {_cell(promise)} | {_cell(check.get('observed', ''))} | {_cell(check.get('planned', ''))} |"
        )
    lines.append("")
    hops = [(check["id"], hop) for check in host["checks"] for hop in check.get("hops") or []]
    if hops:
        lines += ["| hop | seconds |", "|---|---|"]
        lines += [
            f"| {_cell(hop['hop'])} ({identity.rpartition('::')[2]}) | {hop['seconds']:.2f} |" for identity, hop in hops
        ]
        lines.append("")
    for check in host["checks"]:
        if check.get("event"):
            lines += [
                "Captured event:",
                "",
                "```json",
                json.dumps(check["event"], ensure_ascii=False, indent=1),
                "```",
                "",
            ]
    failures = [check for check in host["checks"] if check["verdict"] in ("FAIL", "FLAKY")]
    for check in failures:
        lines += [f"**{check['id']}**", "", *(f"    {line}" for line in str(check["message"]).splitlines()), ""]
    return lines
