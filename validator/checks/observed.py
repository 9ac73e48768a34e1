"""What an image as found promises by itself: sources that agree, and an Xid wherever it sends kernel lines.

These checks run where there is no recipe (plan.json with origin `observed`). No value of the image is compared with
itself: each of several sources speaks for itself, and what arrives in CloudWatch is what the kernel printed.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any

import pytest

from validator import remote
from validator.cloudwatch import CloudWatch
from validator.observe import SCAN_SECONDS, Observe, unproven
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest
from validator.probes.agent import config as agent_config
from validator.probes.agent import delivery

pytestmark = [pytest.mark.planned("observed"), pytest.mark.needs("observed")]

_FILES = "ls /proc/driver/nvidia/gpus/*/xid 2>/dev/null"


@pytest.fixture(scope="module")
def readings(host: Any, plan: PlanDocument) -> dict[str, list[dict[str, Any]]]:
    """Component → what each source says of it on this machine."""
    asked = json.dumps(plan["observed"]["request"])
    done = host.run(remote.python("observation", "--running", "--request", asked), timeout=SCAN_SECONDS)
    if done.rc != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        unproven(f"what is in the machine could not be read: {lines[-1]}")
    return dict(json.loads(done.stdout)["readings"])


def _versions(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    by_source: dict[str, list[str]] = {}
    for row in rows:
        if row.get("version") and row["source"] != "driver tree":  # EKS's: a boot takes one of several
            by_source.setdefault(str(row["source"]), []).append(str(row["version"]))
    return {source: sorted(set(versions)) for source, versions in by_source.items()}


def _same(one: str, other: str) -> bool:
    first, second = one.split("."), other.split(".")
    most = min(len(first), len(second))
    return first[:most] == second[:most]


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_sources_agree(readings: dict[str, list[dict[str, Any]]], plan: PlanDocument, observe: Observe) -> None:
    """Package database, files, modules, programs and libraries name one version of each component."""
    judged, differing = {}, []
    for name, rows in readings.items():
        versions = _versions(rows)
        if len(versions) < 2:
            continue
        judged[name] = versions
        named = [version for found in versions.values() for version in found]
        # Several CUDA toolkits may be there side by side: one version that every source has is enough.
        common = [one for one in named if all(any(_same(one, other) for other in v) for v in versions.values())]
        if not (common if name == "cuda" else all(_same(one, named[0]) for one in named)):
            differing.append(f"{name}: " + ", ".join(f"{source} {'/'.join(v)}" for source, v in versions.items()))
    if not judged:
        unproven("no component of the image has two sources that name a version")
    observe(judged)
    if differing:
        observe.fail(f"sources differ: {'; '.join(differing)}")


@pytest.mark.needs("observed")
@pytest.mark.planned("observed.captures")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T2")
@pytest.mark.live
def test_an_xid_arrives_where_kernel_lines_are_sent(
    host: Any,
    plan: PlanDocument,
    machine: MachineUnderTest,
    cloudwatch: CloudWatch,
    log_group_suffix: str,
    observe: Observe,
) -> None:
    """An Xid of the kernel arrives in the log group and stream that the image's own configuration names."""
    ways = plan["observed"]["captures"]
    blind = [f"{way['source']} → {way['group']}: {way['reason']}" for way in ways if way["captures"] is False]
    sent = [way for way in ways if way["captures"]]
    observe([f"{way['source']} → {way['group']} / {way['stream']}" for way in ways])
    if not sent and len(blind) == len(ways):
        observe.fail(f"never captures: {'; '.join(blind)}; `gpu-ami attach` adds a parser that reads /dev/kmsg")
    if not sent:
        unproven(f"it is not known whether kernel lines are sent: {'; '.join(str(way['reason']) for way in ways)}")
    machine.require_clock()
    if log_group_suffix:
        agent_config.require_group_suffix(agent_config.in_use(host), log_group_suffix)
    nonce = f"nonce={secrets.token_hex(8)}"
    started = time.time()
    _inject(host, nonce)
    streams = {f"{way['group']}{log_group_suffix}": _stream(host, str(way["stream"]), machine) for way in sent}

    def arrived() -> list[str] | None:
        found = [
            group
            for group, stream in streams.items()
            if any(nonce in event.message for event in cloudwatch.events(group, stream, started - 120) or [])
        ]
        return found or None

    found = cloudwatch.wait(arrived, cloudwatch.arrival_seconds)
    if found is None:
        delivery.raise_if_refused(host)
        shown = ", ".join(f"{group} / {stream}" for group, stream in streams.items())
        observe.fail(f"an Xid of the kernel ({nonce}) did not reach {shown} within {cloudwatch.arrival_seconds:.0f} s")
    observe({"arrived in": found})
    observe.hop("kernel → CloudWatch Logs", time.time() - started)


def _inject(host: Any, nonce: str) -> None:
    """Has the driver print an Xid where it can; else a process writes the line to /dev/kmsg."""
    files = host.run(_FILES).stdout.split()
    body = f"31, pid=1, name=gpu-ami, Ch 00000010, intr 00000000. MMU Fault: {nonce}"
    if files and host.run("printf '%%s' %s > %s", body, files[0]).rc == 0:
        return
    pci = files[0].split("/")[-2] if files else "0000:00:1e.0"
    done = host.run("printf '<4>%%s\\n' %s > /dev/kmsg", f"NVRM: Xid (PCI:{pci}): {body}")
    if done.rc != 0:
        unproven(f"/dev/kmsg does not accept an Xid: {done.stderr.strip()}")


def _stream(host: Any, name: str, machine: MachineUnderTest) -> str:
    """The stream's name with the placeholders that the agent fills in."""
    hostname = host.run("hostname").stdout.strip()
    values = {"{instance_id}": machine.instance_id, "{hostname}": hostname, "{local_hostname}": hostname}
    return re.sub(r"\{[a-z_]+\}", lambda match: values.get(match[0], match[0]), name)
