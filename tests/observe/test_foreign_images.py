"""Each foreign image has the right observation: components, versions, agreement, findings and what captures Xids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_ami import observe
from gpu_ami.files import write_json
from gpu_ami.plan import Plan
from gpu_ami.recipes import load_facts
from tests.observe import foreign_images as foreign

# Image → system, components with their versions, ids of findings that it must have, ids that it must not have, and
# whether it captures Xids (None: it is not known, or decided at boot).
CASES: dict[str, tuple[Callable[[Path], Path], dict[str, str], set[str], set[str], bool | None]] = {
    "distribution driver": (
        foreign.distribution_driver,
        {"nvidia_driver": "535.309.01", "cloudwatch_agent": "1.300071.0"},
        {"xid-capture", "not-held"},
        {"nouveau", "module-missing", "sources-differ", "no-package", "no-gpu-metrics"},
        False,
    ),
    "vendor driver without holds": (
        foreign.vendor_without_holds,
        {"nvidia_driver": "580.178.04", "cuda": "12.9", "cloudwatch_agent": "1.300071.0"},
        {"not-held", "nouveau", "agent-layout"},
        {"xid-capture", "module-missing", "sources-differ", "agent-unconfigured"},
        True,
    ),
    "installer without packages": (
        foreign.run_installer,
        {"nvidia_driver": "570.172.08", "cloudwatch_agent": "1.300071.0"},
        {"no-package", "agent-unconfigured", "xid-capture"},
        {"not-held", "module-missing", "sources-differ"},
        False,
    ),
    "snapshot of dmesg": (
        foreign.snapshot_script,
        {"nvidia_driver": "580.178.04", "cloudwatch_agent": "1.300071.0"},
        {"xid-capture"},
        {"not-held", "agent-unconfigured"},
        False,
    ),
    "fabric manager of another version": (
        foreign.other_fabric_manager,
        {"nvidia_driver": "580.178.04", "fabric_manager": "580.159.03"},
        {"fabric_manager-version", "no-agent"},
        {"sources-differ", "module-missing"},
        False,
    ),
    "module of another kernel": (
        foreign.module_of_another_kernel,
        {"nvidia_driver": "580.178.04"},
        {"module-missing"},
        {"sources-differ", "nouveau"},
        False,
    ),
    "configuration fetched at boot": (
        foreign.fetched_by_unit,
        {"nvidia_driver": "580.178.04", "cloudwatch_agent": "1.300072.0"},
        {"agent-fetched", "xid-capture"},
        {"agent-unconfigured", "agent-disabled", "not-held"},
        None,
    ),
    "EKS accelerated": (
        foreign.eks_base,
        {"node_eks": "1.35", "nvidia_driver": "595.91.07", "container_toolkit": "1.19.1"},
        {"no-agent"},
        {"module-missing", "nouveau", "no-package"},
        False,
    ),
    "ECS with a GPU": (
        foreign.ecs_base,
        {"node_ecs": "", "nvidia_driver": "580.178.04", "container_toolkit": "1.18.1"},
        {"no-agent"},
        {"not-held", "module-missing", "nouveau", "runtime", "daemon-reload"},
        False,
    ),
    "parts of two drivers": (
        foreign.mixed_parts,
        {"nvidia_driver": "580.159.03"},
        {"sources-differ"},
        {"module-missing"},
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_image_is_read_rightly(name: str, tmp_path: Path) -> None:
    build, versions, findings, others, captures = CASES[name]
    facts = load_facts()
    observation = observe.read_files(build(tmp_path / "root"))
    assert {one.name: one.version for one in observation.found.values()} == versions
    types = observe.instance_types(observation, facts)
    ids = {one.id for one in observe.findings_of(observation, facts, observe.context_of(observation, facts, types))}
    assert findings <= ids
    assert not others & ids
    ways = [way.captures for way in observe.capture_of(observation)]
    assert any(ways) == bool(captures)
    if captures is None:
        assert "agent-fetched" in ids
    plan = observe.observed_plan(observation, facts, types, "foreign")
    assert plan.document["origin"] == "observed"
    assert observe.text(observation, [], [])
    # Readers refuse other types: what is written here passes them.
    write_json(tmp_path / "observation.json", observation.to_json())
    assert observe.load(tmp_path / "observation.json").found == observation.found
    write_json(tmp_path / "plan.json", plan.document)
    assert Plan.load(tmp_path / "plan.json").image == "foreign"


def test_system_kernel_flavour_and_login_are_read(tmp_path: Path) -> None:
    observation = observe.read_files(foreign.distribution_driver(tmp_path / "root"))
    assert observation.document["os"]["id"] == "debian"
    assert (observation.kernel_series, observation.flavour) == ("6.1", "proprietary")
    assert observation.settings["login_user"] == "admin"
    assert observation.absent_sources == ["dpkg (/var/lib/dpkg/status)", "its files"]
    assert {"cuda", "efa", "neuron"} <= set(observation.absent)


def test_library_files_are_a_source_of_the_driver(tmp_path: Path) -> None:
    driver = observe.read_files(foreign.vendor_without_holds(tmp_path / "root")).found["nvidia_driver"]
    assert driver.by_source["library file"] == ["580.178.04"]
    mixed = observe.read_files(foreign.mixed_parts(tmp_path / "mixed")).found["nvidia_driver"]
    assert "library file 580.178.04" in mixed.disagreement


def test_a_snapshot_script_never_captures_and_says_so(tmp_path: Path) -> None:
    observation = observe.read_files(foreign.snapshot_script(tmp_path / "root"))
    (way,) = observe.capture_of(observation)
    assert (way.source, way.group) == ("/var/log/gpuevent.log", "/ec2/accelerated/accel-event-log")
    assert way.captures is False
    assert "aws-hwaccel-event-parser.py" in way.written_by
    assert "snapshot" in way.reason


def test_kernel_log_of_rsyslog_captures(tmp_path: Path) -> None:
    observation = observe.read_files(foreign.vendor_without_holds(tmp_path / "root"))
    (way,) = observe.capture_of(observation)
    assert (way.source, way.group, way.captures) == ("/var/log/kern.log", "/fleet/kernel", True)


# Every place that the agent reads at its start: https://github.com/aws/amazon-cloudwatch-agent (translator/cmdutil).
@pytest.mark.parametrize(
    ("rsyslog", "captures", "reason"),
    [
        ("enabled", True, "the script follows the kernel log"),
        (
            "not enabled",
            False,
            "the script reads /var/log/kern.log, which is not written: rsyslog.service is not enabled",
        ),
        ("", False, "the script reads /var/log/kern.log, which no rsyslog writes on this image"),
    ],
)
def test_a_script_that_follows_a_file_of_rsyslog_needs_it(
    rsyslog: str, captures: bool, reason: str, tmp_path: Path
) -> None:
    image = foreign.Image(tmp_path, "debian12")
    image.program("opt/xid.sh", "#!/bin/sh\ntail -F /var/log/kern.log | grep Xid >> /var/log/xid.log\n")
    image.unit("xid.service", "ExecStart=/opt/xid.sh")
    if rsyslog:
        image.write("usr/sbin/rsyslogd", "")
        image.write("etc/rsyslog.conf", "kern.*\t\t-/var/log/kern.log\n")
    if rsyslog == "enabled":
        image.enable("rsyslog.service")
    image.agent("amazon-cloudwatch-agent.json", foreign.sends(("/var/log/xid.log", "/team/xid")))
    (way,) = observe.capture_of(observe.read_files(image.done()))
    assert (way.captures, way.reason) == (captures, reason)


@pytest.mark.parametrize(
    "where",
    [
        "amazon-cloudwatch-agent.json",
        "amazon-cloudwatch-agent.d/default",
        "amazon-cloudwatch-agent.d/file_config.json",
        "amazon-cloudwatch-agent.d/ssm_AmazonCloudWatch-gpu",
    ],
)
def test_agent_is_read_at_each_of_its_places(where: str, tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "al2023")
    image.agent(where, foreign.GPU_METRICS)
    observation = observe.read_files(image.done())
    assert [part["path"] for part in observation.agent["parts"]] == [f"/{foreign.AGENT}/etc/{where}"]
    plan = observe.observed_plan(observation, load_facts(), ["g5.12xlarge"], "foreign").document
    assert plan["telemetry"]["measurements"] == ["utilization_gpu", "memory_used"]


def test_parts_that_differ_are_a_finding(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path / "root", "al2023")
    image.agent("amazon-cloudwatch-agent.json", {"metrics": {"namespace": "A"}})
    image.write(f"{foreign.AGENT}/etc/amazon-cloudwatch-agent.d/file_b.json", '{"metrics": {"namespace": "B"}}')
    observation = observe.read_files(image.done())
    found = {one.id: one.text for one in observe.findings_of(observation, load_facts(), None)}
    assert "metrics.namespace: 'A'" in found["agent-parts"]


def test_image_links_stay_within_the_image(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"metrics": {"namespace": "ours"}}')
    image = foreign.Image(tmp_path / "root", "al2023")
    image.agent("", {})
    image.link(f"{foreign.AGENT}/etc/amazon-cloudwatch-agent.json", str(tmp_path / "secret.json"))
    image.link("etc/cloud", "../../../../../../..")
    observation = observe.read_files(image.done())
    assert observation.agent["parts"] == []


def test_damaged_database_is_said(tmp_path: Path) -> None:
    root = foreign.ecs_base(tmp_path / "root")
    (root / "usr/lib/sysimage/rpm/rpmdb.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 500)
    observation = observe.read_files(root)
    ids = {one.id for one in observe.findings_of(observation, load_facts(), None)}
    assert {"no-database", "unread"} <= ids
    assert observation.absent_sources == ["its files"]
    assert observation.found["nvidia_driver"].version == "580.178.04"


def test_a_module_that_cannot_be_read_is_not_said_to_be_missing(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "debian12")
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.178.04")
    image.libraries("580.178.04")
    image.write_bytes("lib/modules/6.1.0-40-cloud-amd64/updates/dkms/nvidia.ko.gz", b"\x1f\x8bno gzip")
    facts, observation = load_facts(), observe.read_files(image.done())
    context = observe.context_of(observation, facts, observe.instance_types(observation, facts))
    found = {one.id: one.text for one in observe.findings_of(observation, facts, context)}
    assert "module-missing" not in found
    assert "updates/dkms/nvidia.ko.gz could not be read: " in found["module-unread"]
