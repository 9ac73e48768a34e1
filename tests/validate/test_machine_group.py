"""Several machines of one type: refusals before a launch, what is launched and ended, and whose report has what."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Login, Place
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.report import document
from gpu_ami.report.document import ONE_MACHINE, HostReport, Report
from gpu_ami.validate import image_proof, machine_group, recorder
from gpu_ami.validate.machines import console
from gpu_ami.validate.machines.machine import Boot, Machine
from gpu_ami.validate.proof import ProofOptions
from gpu_ami.validate.validator_process import ChecksIncomplete, Target
from tests.aws_requests import Checked
from tests.report.examples import a_check
from tests.validate.conftest import a_machine
from tests.validate.scripted_proof import Ec2, Scripted, a_proof, prove_ami
from validator.probes.cluster import nodes as node_files
from validator.results import HostResults, WaiverRecord, WaiverState

KIND = "g5.12xlarge"
FIRST, SECOND, THIRD = f"i-{KIND}", f"i-{KIND}-1", f"i-{KIND}-2"
NAMES = ("logins", "efa")


class Cluster(Ec2):
    """EC2 that has placement groups: one with an instance in it is not deleted."""

    def __init__(self, **refuses: Any) -> None:
        super().__init__(**refuses)
        self.say = lambda _: None
        self.alive, self.groups = set[str](), set[str]()
        self.ec2 = Checked("ec2", create_placement_group=self._create, delete_placement_group=self._delete)

    def _create(self, GroupName: str, Strategy: str, TagSpecifications: Any) -> None:
        self._call(f"create_group {Strategy}")
        assert TagSpecifications[0]["ResourceType"] == "placement-group"
        self.groups.add(GroupName)

    def _delete(self, GroupName: str) -> None:
        assert not self.alive, "InvalidPlacementGroup.InUse"
        self._call("delete_group")
        self.groups.remove(GroupName)

    def launch_all(self, launch: Any) -> list[str]:
        ids = super().launch_all(launch)
        self.alive |= set(ids)
        return ids

    def terminate(self, ids: list[str]) -> None:
        self.calls.append(f"terminate {', '.join(ids)}")
        self.alive -= set(ids)

    def persistent(self, call: Callable[[], Any]) -> Any:
        return call()

    def instance(self, instance_id: str) -> dict[str, Any]:
        return super().instance(instance_id) | {"PrivateIpAddress": f"10.0.0.{len(instance_id)}"}


class Group(Scripted):
    """A proof of several machines; `found` is what the checks of all of them say."""

    found: Sequence[str] = ("PASS", "PASS")
    seen: node_files.Group

    def run_checks(self, target: Target, folder: Path, options: Sequence[str], *_: Any, **__: Any) -> HostResults:
        (file,) = [option.partition("=")[2] for option in options if option.startswith("--nodes=")]
        self.seen = node_files.read(Path(file))
        checks = [a_check("several_nodes", verdict, id=f"several_nodes::test_{name}", tier="T4", message=f"no {name}")
                  for name, verdict in zip(NAMES, self.found, strict=True)]  # fmt: skip
        return HostResults(target.url, tuple(checks))


def a_group(tmp_path: Path, count: int = 2, found: Sequence[str] = ("PASS", "PASS")) -> Group:
    made = a_proof(tmp_path, ())
    group = Group(made.plan, None, None, tmp_path, made.progress, ProofOptions(nodes=count))
    group.finds, group.found = {}, found
    return group


def tier(report: Report) -> dict[str, Any]:
    return dict(next(row for row in report.tiers if row["name"] == "T4"))


def test_all_machines_come_from_one_call_in_one_group(booted: None, tmp_path: Path) -> None:
    cloud, proof = Cluster(), a_group(tmp_path, 3)
    report = prove_ami(proof, cloud, [KIND])
    (launched,) = cloud.launches
    assert (launched.count, launched.placement_group) == (3, "gpu-ami-run-1")
    assert cloud.calls == [
        "import_key", "create_group cluster", f"launch {KIND}", f"terminate {SECOND}, {THIRD}",
        f"terminate {FIRST}, {SECOND}, {THIRD}", "delete_group", "delete_key",
    ]  # fmt: skip
    (host,) = report.hosts
    assert host.facts["nodes"] == {"count": 3, "instances": [FIRST, SECOND, THIRD]}
    assert [node.name for node in proof.seen.nodes] == [FIRST, SECOND, THIRD]
    assert proof.seen.nodes[0].private_address == f"10.0.0.{len(FIRST)}" and proof.seen.floor is None
    assert tier(report)["verdict"] == "PASS" and host.of_tier("T4")
    assert (tmp_path / "evidence" / f"{KIND}-nodes" / f"console-{SECOND}.log").read_text() == "[    0.0] Linux"


def test_one_machine_alone_needs_no_group_and_proves_no_t4(booted: None, tmp_path: Path) -> None:
    cloud = Cluster()
    report = prove_ami(a_group(tmp_path, 1), cloud, [KIND])
    assert not any("group" in call for call in cloud.calls) and cloud.launches[0].placement_group == ""
    assert (tier(report)["verdict"], tier(report)["reason"]) == ("UNPROVEN", ONE_MACHINE)
    assert "--nodes" in ONE_MACHINE


@pytest.mark.parametrize(
    ("call", "error", "verdict", "code"),
    [
        ("launch", CapacityError("launching: InsufficientInstanceCapacity"), "UNAVAILABLE", 5),
        ("launch", CloudError("launching: UnauthorizedOperation"), "UNPROVEN", 4),
        ("create_group", CloudError("creating placement group: UnauthorizedOperation"), "UNPROVEN", 4),
    ],
)
def test_no_capacity_for_all_of_them_or_a_refusal(
    booted: None, tmp_path: Path, call: str, error: GpuAmiError, verdict: str, code: int
) -> None:
    """None of them is launched then, nothing is left, and the image is not blamed."""
    cloud = Cluster(**{call: error})
    report = prove_ami(a_group(tmp_path, 3), cloud, [KIND])
    assert (report.verdict, report.exit_code) == (verdict, code) and str(error) in report.hosts[0].error
    assert not cloud.launches and not cloud.groups and cloud.calls[-1] == "delete_key"


def test_a_check_that_was_not_judged_keeps_the_tier_open(booted: None, tmp_path: Path) -> None:
    report = prove_ami(a_group(tmp_path, 2, ("PASS", "UNPROVEN")), Cluster(), [KIND])
    assert (tier(report)["verdict"], tier(report)["reason"]) == ("UNPROVEN", f"on {KIND}, not shown: test_efa: no efa")
    assert report.hosts[0].worst_of_its_checks == "PASS", "it keeps no proof from being green"


def test_a_check_that_failed_makes_the_proof_red(booted: None, tmp_path: Path) -> None:
    report = prove_ami(a_group(tmp_path, 2, ("PASS", "FAIL")), Cluster(), [KIND])
    assert tier(report)["verdict"] == "FAIL" and report.verdict == "FAIL" and report.exit_code == 1


def does_not_boot(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def follow(_: Any, instance_id: str, instance_type: str) -> Machine:
        if instance_id != FIRST:
            raise error
        return replace(a_machine(), instance_id=instance_id, instance_type=instance_type)

    monkeypatch.setattr(Boot, "follow", follow)


def test_a_node_that_does_not_boot_is_named(booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    does_not_boot(monkeypatch, MachineError("SSH login failed before the deadline"))
    cloud = Cluster()
    report = prove_ami(a_group(tmp_path), cloud, [KIND])
    assert report.hosts[0].error == f"node {SECOND}: SSH login failed before the deadline"
    assert (report.verdict, report.exit_code) == ("UNPROVEN", 4) and len(report.hosts[0].checks) > 5
    assert not cloud.alive and not cloud.groups


def test_a_node_that_aws_takes_away_is_named(booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, proof = Cluster(), a_group(tmp_path)
    checks = (a_check("several_nodes", "PASS", tier="T4"),)

    def lose(*_: Any, **__: Any) -> HostResults:
        cloud.states[SECOND] = {"InstanceId": SECOND, "State": {"Name": "shutting-down"}}
        deadline = threading.Event()
        for _turn in range(600):
            if deadline.wait(0.02) or watched:
                break
        raise ChecksIncomplete("the validator was ended", HostResults("u", checks))

    watched: list[str] = []
    real = machine_group.Watch
    monkeypatch.setattr("gpu_ami.validate.machines.console.POLL_SECONDS", 0.01)
    monkeypatch.setattr(machine_group, "Watch", lambda cloud, name, _stop: real(cloud, name, watched.append))
    monkeypatch.setattr(proof, "run_checks", lose)
    report = prove_ami(proof, cloud, [KIND])
    assert report.hosts[0].error.startswith(f"{KIND}: instance {SECOND} is shutting-down: no reason given\n")
    assert "EC2 gives no reason: its console" in report.hosts[0].error
    assert report.exit_code == 4 and report.hosts[0].of_tier("T4")


@pytest.mark.parametrize("moment", ["create", "launch", "boot", "first pass", "together", "consoles"])
def test_ctrl_c_leaves_nothing(booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """At whatever moment it comes: machines end, then their group, then the key; the report says why it ends."""
    cloud, proof = Cluster(), a_group(tmp_path)

    def press(real: Callable[..., Any]) -> Callable[..., Any]:
        def pressed(*arguments: Any, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            proof.options.cancelled.wait(60)
            return real(*arguments, **named)

        return pressed

    places: dict[str, tuple[Any, str]] = {
        "create": (cloud, "_call"), "launch": (cloud, "launch_all"), "boot": (Boot, "follow"),
        "first pass": (proof, "check"), "together": (proof, "run_checks"), "consoles": (machine_group, "keep_consoles"),
    }  # fmt: skip
    owner, name = places[moment]
    if moment == "create":
        cloud.ec2 = Checked("ec2", create_placement_group=press(cloud._create), delete_placement_group=cloud._delete)
    else:
        monkeypatch.setattr(owner, name, press(getattr(owner, name)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        prove_ami(proof, cloud, [KIND])
    assert not cloud.alive and not cloud.groups and cloud.calls[-1] == "delete_key"
    report = document.load(tmp_path / "report.json")
    assert report.incomplete == "the run was interrupted" and report.exit_code == 4


def test_a_group_that_cannot_be_removed_is_noted_and_costs_no_report(booted: None, tmp_path: Path) -> None:
    cloud = Cluster(delete_group=CloudError("removing placement group: RequestLimitExceeded"))
    report = prove_ami(a_group(tmp_path), cloud, [KIND])
    assert not report.incomplete and tier(report)["verdict"] == "PASS"
    assert (tmp_path / "left-behind").exists(), "`gpu-ami sweep` finds it"


def test_time_of_all_machines_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 160.0
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: now))
    host = recorder.HostRecord(HostReport(KIND))
    host.launched, host.others = 100.0, 2
    before, now = host.machine_time, 200.0
    host.end_others()
    now = 300.0
    after = host.machine_time
    assert (before and before.seconds, after and after.seconds) == (3 * 60.0, 200.0 + 2 * 100.0)


def test_a_waiver_that_the_nodes_used_counts_as_used() -> None:
    unused = WaiverRecord("several_nodes::test_efa", "r", "o", "2027-01-31", {}, WaiverState.UNUSED)
    host = HostReport(KIND, waivers=(unused,))
    used = replace(unused, state=WaiverState.USED)
    assert host.with_own_pass(HostResults("u", (), waivers=(used,))).waivers == (used,)


EFAS = {KIND: 1, "p5.48xlarge": 32, "g4dn.xlarge": 0}
ROWS = [{"name": name, "efa_interfaces": count} for name, count in EFAS.items()]


@pytest.mark.parametrize(
    ("types", "interface", "efa", "message", "hint"),
    [
        ([KIND, "p5.48xlarge"], "private_ip", True, "expected one instance type, got g5.12xlarge, p5", "-type g5"),
        (["g4dn.xlarge"], "private_ip", True, "the plan has EFA, and g4dn.xlarge has no EFA", "with EFA: g5"),
        (["p5.48xlarge"], "public_ip", True, "no public address to a machine with the 32 EFA interfaces", "private_ip"),
        (["g4dn.xlarge"], "private_ip", False, "", ""),
        (["p5.48xlarge"], "private_ip", True, "", ""),
        ([KIND], "public_ip", True, "", ""),
    ],
)  # fmt: skip
def test_refusals_before_a_launch(types: list[str], interface: str, efa: bool, message: str, hint: str) -> None:
    plan: Any = {"instance_types": ROWS} | ({"efa": {}} if efa else {})
    place = Place("aws", "us-east-1", login=Login(ssh_interface=interface))
    machine_group.require(plan, place, types, 1)
    if not message:
        machine_group.require(plan, place, types, 2)
        return
    with pytest.raises(UsageError) as caught:
        machine_group.require(plan, place, types, 2)
    assert caught.value.message.startswith("--nodes 2: ") and message in caught.value.message
    assert hint in caught.value.hint and caught.value.exit_code == 2


SELF = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}


@pytest.mark.parametrize(
    ("inward", "outward", "message"),
    [
        ([SELF], [SELF], ""),
        ([], [SELF], "security group sg-1 has no inbound rule for all traffic of its own members"),
        ([], [], "security group sg-1 has no inbound and outbound rule for all traffic of its own members"),
    ],
)
def test_groups_that_keep_machines_apart_are_refused(inward: list[Any], outward: list[Any], message: str) -> None:
    group = {"GroupId": "sg-1", "IpPermissions": inward, "IpPermissionsEgress": outward}
    place = Place("aws", "us-east-1")
    cloud: Any = SimpleNamespace(
        place=place, default_security_group=lambda: "sg-1", security_groups=lambda ids: [group] if ids else []
    )
    plan: Any = {"efa": {}}
    if not message:
        machine_group.require_traffic(cloud, plan)
        return
    with pytest.raises(UsageError, match=message) as caught:
        machine_group.require_traffic(cloud, plan)
    assert "sg-1 itself" in caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("kind", "count", "gpu_direct", "gbps"),
    [
        ("p4d.24xlarge", 2, True, 26.0),
        ("p5.48xlarge", 2, True, 250.0),
        ("p5.48xlarge", 4, True, None),
        (KIND, 2, False, None),
    ],
)
def test_facts_of_a_type(kind: str, count: int, gpu_direct: bool, gbps: float | None) -> None:
    group = machine_group.known_of((node_files.Node("i-1", "u"),) * count, kind)
    floor = group.floor
    assert group.gpu_direct is gpu_direct and (floor and floor.gbps) == gbps
    assert floor is None or ("aws-parallelcluster" in floor.source and floor.size == 1 << 30)


@pytest.mark.parametrize("kind", ["p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge"])
def test_types_of_which_the_log_is_not_known(tmp_path: Path, kind: str) -> None:
    group = machine_group.known_of((node_files.Node("i-1", "u"), node_files.Node("i-2", "u")), kind)
    assert not group.gpu_direct and "no public log of NCCL" in group.gpu_direct_unknown
    assert group.floor is None and group.no_floor
    node_files.write(tmp_path / "nodes.json", group)
    assert node_files.read(tmp_path / "nodes.json") == group


def test_console_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    cloud: Any = SimpleNamespace(console=lambda _: (_ for _ in ()).throw(CloudError("UnauthorizedOperation")))
    machine_group.keep_consoles(a_group(tmp_path), recorder.HostRecord(HostReport(KIND)), cloud, [SECOND])
    assert "UnauthorizedOperation" in (tmp_path / "evidence" / f"{KIND}-nodes" / f"console-{SECOND}.log").read_text()
    assert console.CONSOLE_FILE and image_proof.IMAGE_FILES
