"""The cloud controller of the local region: new nodes are described, those of ended instances are removed."""

from __future__ import annotations

import time
from typing import Any

from localregion.eks.control_plane import UNINITIALIZED, CloudController
from tests.localregion.eks.test_clusters import NODE
from validator.probes.cluster.kubernetes import ApiError


class Api:
    """A cluster with some nodes, and the calls that changed it."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes, self.calls = list(nodes), list[tuple[str, str, Any]]()
        self.error: ApiError | None = None

    def get(self, path: str, **_: str) -> Any:
        if self.error:
            raise self.error
        return {"items": self.nodes} if path == "/api/v1/nodes" else {"metadata": {"resourceVersion": "7"}}

    def patch(self, path: str, document: Any) -> None:
        self.calls.append(("patch", path, document))

    def delete(self, path: str) -> None:
        self.calls.append(("delete", path, None))


def a_node(provider_id: str, *taints: str) -> dict[str, Any]:
    rows = [{"key": key, "effect": "NoSchedule"} for key in taints]
    return {"metadata": {"name": "n"}, "spec": {"providerID": provider_id, "taints": rows}}


def controller(api: Any, notes: list[str] | None = None) -> CloudController:
    return CloudController(api, lambda: {NODE.id: NODE}, (notes if notes is not None else []).append)


def test_a_new_node_is_described_and_loses_the_taint_alone() -> None:
    api = Api(a_node(NODE.provider_id, UNINITIALIZED, "nvidia.com/gpu"))
    controller(api).step()
    (_, status_path, status), (_, path, node) = api.calls
    assert (status_path, path) == ("/api/v1/nodes/n/status", "/api/v1/nodes/n")
    assert {row["type"]: row["address"] for row in status["status"]["addresses"]}["InternalIP"] == "127.20.0.4"
    assert [row.get("key") for row in node["spec"]["taints"]] == ["nvidia.com/gpu"]
    assert node["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "p5.48xlarge"
    assert node["metadata"]["resourceVersion"] == "7"


def test_a_node_of_an_instance_that_has_ended_is_removed() -> None:
    api = Api(a_node("aws:///us-east-1a/i-gone"), a_node(NODE.provider_id), a_node(""))
    controller(api).step()
    assert api.calls == [("delete", "/api/v1/nodes/n", None)]


def test_an_error_of_the_api_is_noted_and_it_goes_on() -> None:
    api, notes = Api(), list[str]()
    api.error = ApiError("GET /api/v1/nodes", 0, "", "refused")
    running = controller(api, notes)
    running.start()
    deadline = time.monotonic() + 20
    while not notes and time.monotonic() < deadline:
        time.sleep(0.02)
    running.stop()
    assert notes[0] == "cloud controller: GET /api/v1/nodes: refused"
