"""Checks of an EKS image in a cluster, on a scripted API: green, and red with each message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine, Judge
from tests.validator.checks.test_xid import World
from tests.validator.probes.cluster.test_eks_node import BOOT_ID, Api, a_cluster, a_node, ended
from validator.checks import node_in_eks as checks
from validator.checks.node_in_eks import Found
from validator.plan import as_plan
from validator.probes.agent import injected_lines
from validator.probes.cluster import joined
from validator.probes.cluster import nodes as node_files
from validator.probes.cluster.kubernetes import ApiError

(ROW,) = PLAN["instance_types"]
IMAGE = ("localhost/gpu-ami-probe:r", "/usr/bin/python3")
BOOT = {"cat /proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n"}
JOURNAL = {"journalctl *": "E1125 x509: certificate signed by unknown authority\n"}
LISTED = {
    "nvidia-smi -L": "GPU 0: A (UUID: GPU-1)\nGPU 1: A (UUID: GPU-2)\n",
    "nvidia-container-runtime --version": "NVIDIA Container Runtime version 1.17.8\ncommit: abcdef\n",
    "cat /etc/nvidia-container-runtime/config.toml": "",
}
VERSIONS = {
    "cat /etc/eks/kubelet-version.txt": "Kubernetes v1.35.4-eks-0000000\n",
    "containerd --version": "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1\n",
}
INSUFFICIENT = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def plan(gpus: int = 2, efa: int = 0, version: str = "1.35") -> Any:
    rows = [ROW | {"gpu_count": gpus, "efa_interfaces": efa}]
    return as_plan(PLAN | {"instance_types": rows, "node_eks": {"version": version}})


class RefusesPods(Api):
    def create(self, _path: str, _document: Any) -> None:
        raise ApiError("POST /pods", 403, "Forbidden", "no pods for you")


class Refuses(RefusesPods):
    def get(self, path: str) -> Any:
        raise ApiError(f"GET {path}", 401, "Unauthorized", "Unauthorized")


def units(**states: str) -> dict[str, str]:
    rows = {"nodeadm-config": "inactive success", "nodeadm-run": "inactive success"}
    rows |= {"kubelet": "active success", "containerd": "active success"}
    rows |= {name.replace("_", "-"): state for name, state in states.items()}
    return {
        f"systemctl show * {name}.service": "ActiveState={}\nResult={}\n".format(*state.split())
        for name, state in rows.items()
    }


@pytest.mark.parametrize(
    ("states", "verdict", "message"),
    [
        ({}, "PASS", ""),
        (
            {"nodeadm_config": "failed exit-code"},
            "FAIL",
            "nodeadm-config.service: expected inactive success, got failed",
        ),
        ({"kubelet": "activating exit-code"}, "FAIL", "kubelet.service: expected active success, got activating"),
    ],
)
def test_units(judge: Judge, states: dict[str, str], verdict: str, message: str) -> None:
    judged = judge(checks.test_nodeadm_and_its_units_ended_well, units(**states) | JOURNAL)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
    assert verdict == "PASS" or "unknown authority" in judged.message


@pytest.mark.parametrize(
    ("api", "verdict", "message"),
    [
        (Api(a_node()), "PASS", ""),
        (Api(), "FAIL", "no node has registered with providerID aws:///…/i-1 within 300 s; E1125 x509"),
        (Refuses(), "FAIL", "the cluster's API: GET /api/v1/nodes: Unauthorized"),
        (Api(a_node(Ready="False")), "FAIL", "node n: Ready is False: Ready it is; E1125 x509"),
        (Api(a_node(DiskPressure="True")), "FAIL", "node n: DiskPressure: DiskPressure it is"),
    ],
)
def test_readiness(judge: Judge, api: Any, verdict: str, message: str) -> None:
    found = find(JOURNAL | BOOT, api)
    judged = judge(checks.test_node_is_ready, {}, found=found, others={})
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
    assert verdict == "FAIL" or judged.check.observed == {"Ready": "True", "MemoryPressure": "False"}


def test_a_node_that_was_ready_before_the_reboot_is_not_ready(judge: Judge) -> None:
    """The cluster shows Ready for 50 s without an answer of the node's kubelet."""
    found = find(JOURNAL | {"cat /proc/sys/kernel/random/boot_id": "after\n"}, Api(a_node()), "reboot")
    judged = judge(checks.test_node_is_ready, {}, found=found, others={})
    assert (judged.verdict, "has not reported since the machine's boot after" in judged.message) == ("FAIL", True)
    judged = judge(checks.test_versions_are_the_image_s, VERSIONS, plan=plan(), found=found)
    assert judged.verdict == "PASS", "what the node is made of is the same"


class Two(Api):
    """A cluster of two nodes."""

    def __init__(self, second: Any) -> None:
        super().__init__()
        self.nodes = [a_node(), *([second] if second else [])]

    def get(self, path: str) -> Any:
        return {"items": self.nodes}


def second(gpus: int = 2, **conditions: str) -> Any:
    return a_node(gpus, **conditions) | {"spec": {"providerID": "aws:///us-east-1a/i-2"}}


@pytest.mark.parametrize(
    ("node", "check", "verdict", "message"),
    [
        (second(), checks.test_node_is_ready, "PASS", ""),
        (None, checks.test_node_is_ready, "FAIL", "node of i-2: no node has registered"),
        (second(Ready="False"), checks.test_node_is_ready, "FAIL", "node of i-2: Ready is False: Ready it is"),
        (second(), checks.test_every_gpu_is_allocatable, "PASS", ""),
        (second(1), checks.test_every_gpu_is_allocatable, "FAIL", "expected 2 of each machine; i-2 has 1"),
    ],
)
def test_all_machines_are_nodes(judge: Judge, node: Any, check: Any, verdict: str, message: str) -> None:
    api = a_cluster(Two(node))
    file = joined.Joined("eks", tuple(node_files.Node(name, "ssh://x") for name in ("i-1", "i-2")))
    values: dict[str, Any] = {"plan": plan(), "cluster": api, "found": Found(a_node())}
    values["others"] = checks.others.__wrapped__(file, api)  # type: ignore[attr-defined]
    judged = judge(check, {}, **values)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def find(table: Any, api: Any, after: str = "") -> Found:
    """What the fixture `found` gives to the checks."""
    request = SimpleNamespace(config=SimpleNamespace(getoption=lambda _name: after))
    found = checks.found.__wrapped__(request, table_host(table), a_cluster(api))  # type: ignore[attr-defined]
    assert isinstance(found, Found)
    return found


class Flaps(Api):
    """Ready, and from the third answer on another way."""

    def __init__(self, *then: Any) -> None:
        super().__init__(STEADY)
        self.then, self.asked = then, 0

    def get(self, path: str) -> Any:
        self.asked += 1
        return {"items": list(self.then)} if self.asked > 2 else super().get(path)


KUBELET = "systemctl show --timestamp=utc -p NRestarts*"


def run(restarts: int, time: str) -> str:
    """What systemd says of kubelet, in its own order of properties."""
    return f"NRestarts={restarts}\nActiveEnterTimestamp=Wed 2026-11-25 {time} UTC\n"


RUNS = run(0, "10:00:00")


def in_turn(*texts: str) -> Any:
    """A reply for each time that it is asked."""
    left = iter(texts)
    return lambda _command: next(left)


def since(status: str, time: str) -> Any:
    node = a_node()
    node["metadata"]["creationTimestamp"] = "2026-11-25T10:00:05Z"
    for row in node["status"]["conditions"]:
        if row["type"] == "Ready":
            row.update(status=status, lastTransitionTime=time)
    return node


STEADY = since("True", "2026-11-25T10:00:20Z")


@pytest.mark.parametrize(
    ("api", "table", "verdict", "message"),
    [
        (Api(STEADY), {KUBELET: RUNS}, "PASS", ""),
        (
            Flaps(since("False", "2026-11-25T10:03:00Z")), {KUBELET: RUNS}, "FAIL",
            "within 75 s: Ready was True since 2026-11-25T10:00:20Z, and then False since 2026-11-25T10:03:00Z",
        ),
        # NotReady and Ready again between two looks.
        (Flaps(since("True", "2026-11-25T10:03:00Z")), {KUBELET: RUNS}, "FAIL", "then True since 2026-11-25T10:03:00Z"),
        (Flaps(), {KUBELET: RUNS}, "FAIL", "and then no node since"),
        (
            Api(STEADY), {KUBELET: in_turn(RUNS, run(3, "10:03:00"))}, "FAIL",
            "kubelet ran since 2026-11-25T10:00:00Z, and then since 2026-11-25T10:03:00Z (3 restarts by systemd)",
        ),
        # A person who starts it again resets systemd's count.
        (Api(STEADY), {KUBELET: in_turn(RUNS, run(0, "10:03:00"))}, "FAIL", "and then since 2026-11-25T10:03:00Z"),
        # It flapped before it was watched, and no more since.
        (
            Api(STEADY), {KUBELET: run(2, "10:02:00")}, "FAIL",
            "before that, systemd had started kubelet again, the last time (of 2) at 2026-11-25T10:02:00Z, "
            "after the node had joined at 2026-11-25T10:00:05Z",
        ),
        # Before it joined, or after a reboot or a restart by hand: part of its normal start.
        (Api(STEADY), {KUBELET: run(2, "10:00:01")}, "PASS", ""),
        (Api(STEADY), {KUBELET: run(0, "10:02:00")}, "PASS", ""),
        (Refuses(STEADY), {KUBELET: RUNS}, "UNPROVEN", "not watched to the end: the cluster's API: "),
    ],
)  # fmt: skip
def test_steadiness(judge: Judge, api: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    judged = judge(checks.test_node_stays_ready, JOURNAL | table, cluster=a_cluster(api), found=Found(STEADY))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("time", "verdict", "message"),
    [
        ("10:00:19", "PASS", ""),  # before it was Ready again
        ("10:00:40", "FAIL", "after the node had joined at 2026-11-25T10:00:20Z"),
    ],
)
def test_after_a_reboot_kubelet_starts_once_more(judge: Judge, time: str, verdict: str, message: str) -> None:
    table = JOURNAL | {KUBELET: run(2, time)}
    found = Found(STEADY, after="reboot")
    judged = judge(checks.test_node_stays_ready, table, cluster=a_cluster(Api(STEADY)), found=found)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_node_that_is_not_ready_is_not_watched(judge: Judge) -> None:
    found = Found(since("False", "2026-11-25T10:00:20Z"))
    judged = judge(checks.test_node_stays_ready, {}, cluster=a_cluster(Api(STEADY)), found=found)
    assert (judged.verdict, "the node is not Ready" in judged.message) == ("UNPROVEN", True)


@pytest.mark.parametrize(
    ("made", "node", "table", "verdict", "message"),
    [
        (plan(), a_node(), {}, "PASS", ""),
        (plan(version="1.34"), a_node(), {}, "FAIL", "kubelet: planned 1.34, the node reports v1.35.4-eks-0000000"),
        (
            plan(), a_node(), {"cat /etc/eks/kubelet-version.txt": "Kubernetes v1.35.1-eks-1\n"}, "FAIL",
            "kubelet: expected v1.35.1-eks-1, the node reports v1.35.4-eks-0000000",
        ),
        (
            plan(), a_node(), {"containerd --version": "containerd x v2.1.4 y\n"}, "FAIL",
            "runtime: expected containerd://2.1.4, the node reports containerd://1.6.20",
        ),
        (plan(), None, {}, "UNPROVEN", "no node: it is gone"),
    ],
)  # fmt: skip
def test_versions(judge: Judge, made: Any, node: Any, table: dict[str, str], verdict: str, message: str) -> None:
    found = Found(node, "it is gone")
    judged = judge(checks.test_versions_are_the_image_s, VERSIONS | table, plan=made, found=found)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("broken", "verdict", "message"),
    [
        ({"fields": {"NodeName": "n"}}, "PASS", ""),
        ({}, "FAIL", "NodeName of the event in the JSON stream: expected 'n', got None"),
        ({"fields": {"NodeName": "of-the-builder"}}, "FAIL", "expected 'n', got 'of-the-builder'"),
        ({"silent_group": "json"}, "FAIL", "did not reach group json"),
        ({"state": "dead"}, "UNPROVEN", "the parser is not running"),
    ],
)
def test_xid_with_the_node_s_name(judge: Judge, broken: dict[str, Any], verdict: str, message: str) -> None:
    world = World(**broken)
    machine = FakeMachine(METADATA, first_boot_time=90.0)
    xids = injected_lines.Xids(world.host, as_plan(PLAN), machine, world)  # type: ignore[arg-type]
    judged = judge(checks.test_an_xid_names_the_node, {}, xids=xids, machine=machine, found=Found(a_node()))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_xid_of_a_machine_that_is_no_node_shows_nothing(judge: Judge) -> None:
    judged = judge(checks.test_an_xid_names_the_node, {}, xids=None, machine=None, found=Found(None, "none came"))
    assert (judged.verdict, judged.message) == ("UNPROVEN", "no node: none came")


@pytest.mark.parametrize(
    ("node", "gpus", "verdict", "message"),
    [
        (a_node(2), 2, "PASS", ""),
        (a_node(1), 2, "FAIL", "allocatable nvidia.com/gpu: expected 2, got 1"),
        (a_node(None), 2, "FAIL", "no nvidia.com/gpu on the node: does a device plug-in of the cluster run on it?"),
        (a_node(Ready="False"), 2, "UNPROVEN", "the node is not Ready: Ready is False"),
        (a_node(None), 0, "UNPROVEN", "has no NVIDIA GPU"),
    ],
)
def test_gpus(judge: Judge, node: Any, gpus: int, verdict: str, message: str) -> None:
    judged = judge(
        checks.test_every_gpu_is_allocatable, {}, plan=plan(gpus), cluster=a_cluster(Api(node)), found=Found(node),
        others={},
    )  # fmt: skip
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_gpus_of_a_cluster_that_answers_no_more(judge: Judge) -> None:
    values = {"plan": plan(), "cluster": a_cluster(Refuses()), "found": Found(a_node()), "others": {}}
    judged = judge(checks.test_every_gpu_is_allocatable, {}, **values)
    assert judged.verdict == "UNPROVEN" and "Unauthorized" in judged.message


@pytest.mark.parametrize(
    ("efa", "registered", "verdict", "message"),
    [
        (2, "2", "PASS", ""),
        (2, "1", "FAIL", "allocatable vpc.amazonaws.com/efa: expected 2, which are attached, got 1"),
        (2, None, "UNPROVEN", "the cluster has no EFA device plug-in; attached: 2"),
        (0, None, "UNPROVEN", "has no EFA interface"),
    ],
)
def test_efa(judge: Judge, efa: int, registered: str | None, verdict: str, message: str) -> None:
    node = a_node()
    if registered:
        node["status"]["allocatable"]["vpc.amazonaws.com/efa"] = registered
    table = {
        "for d in /sys/class/infiniband*": "device|rdmap0s6|x/efa|\ndevice|rdmap16s27|x/efa|\ndevice|ibp5|x/mlx5|\n"
    }
    judged = judge(checks.test_every_efa_interface_is_allocatable, table, plan=plan(efa=efa), found=Found(node))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("pod", "verdict", "message"),
    [
        (ended(), "PASS", ""),
        (ended(uuids=["GPU-1"], count=1), "FAIL", "nvidia-smi -L lists 2 GPUs; the pod lacks ['GPU-2']"),
        (ended(uuids=["GPU-1", "GPU-9"]), "FAIL", "has beside them ['GPU-9']"),
        (ended(1, wrong=[[1, {"byte": 4}]]), "FAIL", 'the pod ended with 1: GPU 1: {"byte": 4}'),
        (
            {"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "CreateError"}}}]}},
            "FAIL", "the pod is Pending after 600 s: CreateError",
        ),
    ],
)  # fmt: skip
def test_pod_on_all_gpus(judge: Judge, pod: Any, verdict: str, message: str) -> None:
    api = Api(a_node(), pods=(pod,))
    judged = judge(
        checks.test_a_pod_on_all_gpus_computes, LISTED, plan=plan(), cluster=a_cluster(api), found=Found(a_node()),
        image=IMAGE,
    )  # fmt: skip
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
    assert api.deleted == ["gpu-ami-20261125-a-all 0"]


def test_no_pod_is_judged_by_a_replica_without_the_runtime_s_mode(judge: Judge) -> None:
    api = Api(a_node(), pods=(ended(1),))
    legacy = {"nvidia-container-runtime --version": "NVIDIA Container Runtime version 1.17.8\ncommit: replica\n"}
    values = {"plan": plan(), "cluster": a_cluster(api), "found": Found(a_node()), "image": IMAGE}
    judged = judge(checks.test_a_pod_on_all_gpus_computes, LISTED | legacy, **values)
    assert judged.verdict == "UNPROVEN"
    assert "GPUs in mode legacy (mode auto of release 1.17)" in judged.message
    assert api.made == []


def test_no_pod_waits_for_a_gpu_that_no_plug_in_has_registered(judge: Judge) -> None:
    api = Api(a_node(1), pods=(ended(),))
    values = {"plan": plan(), "cluster": a_cluster(api), "found": Found(a_node()), "image": IMAGE}
    judged = judge(checks.test_a_pod_on_all_gpus_computes, LISTED, **values)
    assert (judged.verdict, judged.message) == (
        "UNPROVEN", "no node could run the pod: allocatable nvidia.com/gpu: 1 of 2",
    )  # fmt: skip
    assert api.made == []


@pytest.mark.parametrize(
    ("phase", "scheduled", "verdict", "message"),
    [
        ("Pending", INSUFFICIENT, "PASS", ""),
        ("Pending", "0/1 nodes are available: 1 node(s) had untolerated taint(s).", "FAIL", "untolerated"),
        ("Succeeded", "", "FAIL", "expected Insufficient nvidia.com/gpu, got Succeeded: no word of the scheduler"),
    ],
)
def test_pod_for_one_gpu_more(judge: Judge, phase: str, scheduled: str, verdict: str, message: str) -> None:
    row = {"type": "PodScheduled", "status": "False", "message": scheduled}
    api = Api(a_node(), pods=({"status": {"phase": phase, "conditions": [row]}},))
    judged = judge(
        checks.test_a_pod_for_one_gpu_more_stays_pending, {}, plan=plan(), cluster=a_cluster(api),
        found=Found(a_node()), image=IMAGE,
    )  # fmt: skip
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
    assert api.made[0]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "3"}


def test_pods_that_the_cluster_refuses_show_nothing(judge: Judge) -> None:
    values = {"plan": plan(), "cluster": a_cluster(RefusesPods(a_node())), "found": Found(a_node()), "image": IMAGE}
    for check in (checks.test_a_pod_on_all_gpus_computes, checks.test_a_pod_for_one_gpu_more_stays_pending):
        judged = judge(check, LISTED, **values)
        assert judged.verdict == "UNPROVEN" and "no pods for you" in judged.message
