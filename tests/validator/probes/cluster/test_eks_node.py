"""A node of an EKS cluster and its pods, as the API describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.probes.cluster import kubernetes
from validator.probes.cluster.kubernetes import Cluster, PodResult, Unanswered

UUIDS = ["GPU-1", "GPU-2"]
BOOT_ID = "0d5a0a2e-1111-4222-8333-444455556666"
TOLD = {
    "count": 2,
    "error": None,
    "unfinished": None,
    "replica": "r",
    "uuids": ["1", "GPU-2"],
    "wrong": [],
    "errors": "",
}


def a_node(gpus: int | None = 2, **conditions: str) -> dict[str, Any]:
    rows = {"Ready": "True", "MemoryPressure": "False"} | conditions
    shown = [{"type": name, "status": status, "message": f"{name} it is"} for name, status in rows.items()]
    devices = {} if gpus is None else {kubernetes.GPU: str(gpus)}
    info = {
        "kubeletVersion": "v1.35.4-eks-0000000",
        "containerRuntimeVersion": "containerd://1.6.20",
        "bootID": BOOT_ID,
    }
    return {
        "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
        "spec": {"providerID": "aws:///us-east-1a/i-1"},
        "status": {"conditions": shown, "allocatable": devices, "nodeInfo": info},
    }


def ended(code: int = 0, **told: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": json.dumps(TOLD | told)}}
    return {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}}


class Api:
    """A cluster that shows its nodes, and each pod in turn as it is listed here."""

    def __init__(self, *nodes: Any, pods: tuple[Any, ...] = ()) -> None:
        self.nodes, self.pods = list(nodes), list(pods)
        self.made: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    def get(self, path: str) -> Any:
        if path == "/api/v1/nodes":
            return {"items": [self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]] if self.nodes else []}
        return self.pods.pop(0) if len(self.pods) > 1 else self.pods[0]

    def create(self, _path: str, document: Any) -> None:
        self.made.append(document)

    def delete(self, path: str, grace_seconds: int | None = None) -> bool:
        self.deleted.append(f"{path.rpartition('/')[2]} {grace_seconds}")
        return True


def a_cluster(api: Any, instance_id: str = "i-1") -> Cluster:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Cluster(api, "20261125-a", instance_id, sleep, lambda: now[0])


def test_the_node_is_found_by_its_instance() -> None:
    assert a_cluster(Api(a_node())).node() is not None
    assert a_cluster(Api(a_node()), "i-2").node() is None and a_cluster(Api()).node() is None


def test_each_machine_has_its_own_node() -> None:
    second = a_node()
    second["spec"]["providerID"] = "aws:///us-east-1a/i-2"

    class Both(Api):
        def get(self, path: str) -> Any:
            return {"items": [a_node(), second]}

    cluster = a_cluster(Both())
    assert cluster.node() == a_node() and cluster.node("i-2") == second and cluster.node("i-3") is None
    assert cluster.wait_node(60, lambda _: True, "i-2") == second


def test_what_was_reported_before_a_reboot_says_nothing_of_the_node() -> None:
    assert not kubernetes.defects(a_node(), BOOT_ID) and not kubernetes.defects(a_node())
    (wrong,) = kubernetes.defects(a_node(), "another")
    assert wrong == f"its kubelet has not reported since the machine's boot another, the last time from {BOOT_ID}"


def test_it_waits_until_the_node_is_as_asked_or_the_time_is_over() -> None:
    api = Api(a_node(Ready="False"), a_node(Ready="False"), a_node())
    node = a_cluster(api).wait_node(60, lambda node: not kubernetes.defects(node))
    assert node and not kubernetes.defects(node)
    assert a_cluster(Api()).wait_node(60, lambda _: True) is None


@pytest.mark.parametrize(
    ("shown", "run"),
    [
        ("NRestarts=2\nActiveEnterTimestamp=Wed 2026-11-25 10:00:00 UTC\n", ("2026-11-25T10:00:00Z", 2)),
        ("ActiveEnterTimestamp=Wed 2026-11-25 10:00:00 UTC\nNRestarts=0\n", ("2026-11-25T10:00:00Z", 0)),
        ("NRestarts=0\nActiveEnterTimestamp=\n", ("", 0)),  # it never ran
    ],
)
def test_the_present_run_of_kubelet(shown: str, run: tuple[str, int]) -> None:
    assert kubernetes.kubelet_run(shown) == kubernetes.KubeletRun(*run)


def test_a_pod_asks_for_gpus_of_this_node_alone_and_is_deleted() -> None:
    api = Api(a_node(), pods=({"status": {"phase": "Pending"}}, ended()))
    cluster = a_cluster(api)
    name = cluster.create_pod("all", a_node(), "image", "/usr/bin/python3", 2)
    (pod,) = api.made
    assert pod["metadata"] == {"name": "gpu-ami-20261125-a-all", "labels": {"gpu-ami.run": "20261125-a"}}
    assert pod["spec"]["nodeSelector"] == {"gpu-ami.run": "20261125-a", "kubernetes.io/hostname": "n"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert cluster.wait_pod(name, 60)["status"]["phase"] == "Succeeded" and cluster.pods() == [name]
    cluster.delete_pod(name)
    assert api.deleted == ["gpu-ami-20261125-a-all 0"] and cluster.pods() == []


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({}, []),
        ({"Ready": "False"}, ["Ready is False: Ready it is"]),
        (
            {"Ready": "Unknown", "DiskPressure": "True"},
            ["Ready is Unknown: Ready it is", "DiskPressure: DiskPressure it is"],
        ),
    ],
)
def test_what_is_wrong_with_a_node(conditions: dict[str, str], found: list[str]) -> None:
    assert kubernetes.defects(a_node(**conditions)) == found


def test_a_node_without_conditions_is_not_ready() -> None:
    assert kubernetes.defects({"status": {}}) == ["no condition Ready"]


def test_devices() -> None:
    assert kubernetes.allocatable(a_node(3), kubernetes.GPU) == 3
    assert (
        kubernetes.allocatable(a_node(), kubernetes.EFA) is None and kubernetes.allocatable({"status": {}}, "x") is None
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (ended(), ([], UUIDS)),
        (ended(1, wrong=[[0, {"byte": 4}]]), (['GPU 0: {"byte": 4}'], UUIDS)),
        (ended(1, error={"call": "cuInit"}), (['error: {"call": "cuInit"}'], UUIDS)),
        (ended(1, count=8), (["8 GPUs, 2 results"], UUIDS)),
        (ended(1, count=0, uuids=[], errors="no libcuda"), (["no libcuda"], [])),
    ],
)
def test_what_a_pod_has_computed(pod: dict[str, Any], expected: tuple[list[str], list[str]]) -> None:
    result = kubernetes.read_pod(pod)
    assert (list(result.defects), list(result.uuids)) == expected


def test_a_pod_without_the_probe_s_result_is_a_defect() -> None:
    state = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}
    result = kubernetes.read_pod({"status": {"phase": "Failed", "containerStatuses": [{"state": state}]}})
    assert result.exit_code == 128 and result.defects == ("expected the probe's result, got no such file",)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no image"}}}]},
            "ErrImageNeverPull: no image",
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}, "0/1 nodes"),
        ({"message": "evicted"}, "evicted"),
    ],
)
def test_a_pod_that_never_ran(status: dict[str, Any], message: str) -> None:
    assert kubernetes.read_pod({"status": {"phase": "Pending", **status}}) == PodResult("Pending", None, message)


def test_the_image_of_the_probe_is_imported_and_removed() -> None:
    host = table_host({"*": '{"error": "", "python": "/usr/bin/python3.11"}'})
    assert kubernetes.import_image(host, "localhost/x:1") == "/usr/bin/python3.11"
    assert "--import-image localhost/x:1" in host.backend.asked[-1]
    kubernetes.remove_image(host, "localhost/x:1")
    assert "--remove-image localhost/x:1" in host.backend.asked[-1]


@pytest.mark.parametrize(
    ("stdout", "message"),
    [("", "exit status 1: boom"), ('{"error": "ctr: no socket", "python": ""}', "ctr: no socket")],
)
def test_an_image_that_cannot_be_imported(stdout: str, message: str) -> None:
    with pytest.raises(Unanswered, match=message):
        kubernetes.import_image(table_host({"*": (1, stdout, "boom")}), "x")
