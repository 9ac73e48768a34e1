"""A node of an EKS cluster, and the pods that prove it: what is asked of the cluster's API, and what is made there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from validator import remote
from validator.probes.cluster.joined import RUN_LABEL
from validator.probes.cluster.kubernetes import Client, conditions

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
READY_SECONDS, POD_SECONDS, PENDING_SECONDS = 300.0, 600.0, 20.0
DEVICE_SECONDS = 120.0  # from Ready until the device plug-in has registered
# Longer than --node-monitor-grace-period, after which a silent node is not Ready: 50 s, 40 s before Kubernetes 1.32.
STEADY_SECONDS = 75.0
_POLL_SECONDS = 1.0
_PODS = "/api/v1/namespaces/default/pods"
_PROBE_MIB = 16
_IMAGE_SECONDS = 240.0


class Unanswered(Exception):
    """The machine gave no answer; the message says what it printed."""


@dataclass
class Cluster:
    """The cluster as a proof uses it. run: its id, in the label of all that is made. sleep, clock: for tests."""

    api: Client
    run: str
    instance_id: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _pods: list[str] = field(default_factory=list)

    def node(self, instance_id: str = "") -> dict[str, Any] | None:
        """The node object of an instance, by its providerID; None where it has not registered. ApiError.

        instance_id: "" for the instance that is checked.
        """
        for node in self.api.get("/api/v1/nodes")["items"]:
            if str(node["spec"].get("providerID", "")).rpartition("/")[2] == (instance_id or self.instance_id):
                return dict(node)
        return None

    def wait_node(
        self, seconds: float, is_it: Callable[[Mapping[str, Any]], bool], instance_id: str = ""
    ) -> dict[str, Any] | None:
        """The node as soon as `is_it`, or as it is after so many seconds. ApiError."""
        deadline = self.clock() + seconds
        while True:
            node = self.node(instance_id)
            if (node is not None and is_it(node)) or self.clock() >= deadline:
                return node
            self.sleep(_POLL_SECONDS)

    def create_pod(self, what: str, node: Mapping[str, Any], image: str, python: str, gpus: int) -> str:
        """A pod of the probe that asks for GPUs of this node. Its name. ApiError."""
        name = f"gpu-ami-{self.run}-{what}".lower()
        words = [python, "-IS", "/probe/pod.py", "--mib", str(_PROBE_MIB), "--seconds", "200"]
        container = {
            "name": "probe",
            "image": image,
            "imagePullPolicy": "Never",
            "command": words,
            "resources": {"limits": {GPU: str(gpus)}},
        }
        specification = {
            "containers": [container],
            "restartPolicy": "Never",
            "nodeSelector": {RUN_LABEL: self.run, "kubernetes.io/hostname": _hostname(node)},
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": name, "labels": {RUN_LABEL: self.run}}
        self._pods.append(name)
        self.api.create(_PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": specification})
        return name

    def wait_pod(self, name: str, seconds: float) -> dict[str, Any]:
        """The pod when it has ended, or as it is after so many seconds. ApiError."""
        deadline = self.clock() + seconds
        while True:
            pod = dict(self.api.get(f"{_PODS}/{name}"))
            if pod["status"].get("phase") in ("Succeeded", "Failed") or self.clock() >= deadline:
                return pod
            self.sleep(_POLL_SECONDS)

    def delete_pod(self, name: str) -> None:
        """Without a grace period; none of that name is no error. ApiError."""
        self.api.delete(f"{_PODS}/{name}", 0)
        self._pods.remove(name)

    def pods(self) -> list[str]:
        """Pods that were created and not deleted."""
        return list(self._pods)


def _hostname(node: Mapping[str, Any]) -> str:
    labels = node["metadata"].get("labels") or {}
    return str(labels.get("kubernetes.io/hostname", node["metadata"]["name"]))


def defects(node: Mapping[str, Any], boot_id: str = "") -> list[str]:
    """Why a node is not Ready, and what its kubelet warns of: `Ready` is True, every other condition is not.

    boot_id: of the machine, "" where it is not known. What kubelet reported before a reboot says nothing of the node.
    """
    rows, reported = conditions(node), str(node["status"].get("nodeInfo", {}).get("bootID", ""))
    if boot_id and reported != boot_id:
        return [
            f"its kubelet has not reported since the machine's boot {boot_id}, the last time from {reported or '?'}"
        ]
    if "Ready" not in rows:
        return ["no condition Ready"]
    wrong = [f"Ready is {rows['Ready'][0]}: {rows['Ready'][1]}"] if rows["Ready"][0] != "True" else []
    return wrong + [f"{name}: {text}" for name, (status, text) in rows.items() if name != "Ready" and status == "True"]


def ready_since(node: Mapping[str, Any]) -> tuple[str, str]:
    """Status of Ready and when it came about ("" where the node has no such condition)."""
    for row in node.get("status", {}).get("conditions") or []:
        if row["type"] == "Ready":
            return str(row["status"]), str(row.get("lastTransitionTime", ""))
    return "", ""


@dataclass(frozen=True)
class KubeletRun:
    """The present run of kubelet. since: RFC 3339, UTC; restarts: how often systemd has started it after it ended.

    systemd counts its own starts alone: one that a person asks for begins at 0 again (systemd 252, src/core/service.c,
    service_enter_dead and service_start).
    """

    since: str
    restarts: int

    def __str__(self) -> str:
        return f"since {self.since or 'never'} ({self.restarts} restarts by systemd)"


KUBELET_RUN = "systemctl show --timestamp=utc -p NRestarts -p ActiveEnterTimestamp kubelet.service"


def kubelet_run(shown: str) -> KubeletRun:
    """What KUBELET_RUN prints: `NRestarts=0`, `ActiveEnterTimestamp=Wed 2026-11-25 10:00:00 UTC`, in any order."""
    values = dict(line.partition("=")[::2] for line in shown.splitlines())
    words = values.get("ActiveEnterTimestamp", "").split()
    since = f"{words[1]}T{words[2]}Z" if len(words) > 2 else ""
    return KubeletRun(since, int(values.get("NRestarts") or 0))


def joined_at(node: Mapping[str, Any]) -> str:
    """When the node registered: RFC 3339, UTC."""
    return str(node["metadata"]["creationTimestamp"])


def allocatable(node: Mapping[str, Any], resource: str) -> int | None:
    """How many of a device pods can have; None where no device plug-in has registered it."""
    value = (node["status"].get("allocatable") or {}).get(resource)
    return None if value is None else int(value)


@dataclass(frozen=True)
class PodResult:
    """A pod of the probe when it ended. exit_code: None where its container never ran; message: why, or its own."""

    phase: str
    exit_code: int | None
    message: str
    uuids: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    replica: str = ""


def read_pod(pod: Mapping[str, Any]) -> PodResult:
    """Of a pod's status: exit code and termination message, which need no route from the API server to kubelet."""
    status = pod["status"]
    states = [row.get("state", {}) for row in status.get("containerStatuses") or []]
    ended = next((state["terminated"] for state in states if "terminated" in state), None)
    if ended is None:
        waiting = [state["waiting"] for state in states if "waiting" in state]
        texts = [f"{row.get('reason')}: {row.get('message', '')}" for row in waiting]
        texts += [text for is_true, text in conditions(pod).values() if is_true != "True" and text]
        return PodResult(str(status.get("phase")), None, "; ".join(texts) or str(status.get("message", "")))
    message = str(ended.get("message", ""))
    phase, code = str(status.get("phase")), int(ended["exitCode"])
    try:
        told = json.loads(message)
        uuids = tuple(f"GPU-{str(uuid).removeprefix('GPU-')}" for uuid in told["uuids"])
        wrong = [f"GPU {index}: {json.dumps(record)[:300]}" for index, record in told["wrong"]]
        wrong += [f"{key}: {json.dumps(told[key])[:300]}" for key in ("error", "unfinished") if told.get(key)]
        wrong += [f"{told['count']} GPUs, {len(uuids)} results"] if told["count"] != len(uuids) else []
        errors = str(told.get("errors", "")).strip()
        wrong += [errors] if errors and not uuids else []
    except (ValueError, LookupError, TypeError):
        text = message or str(ended.get("reason", "")) or "no termination message"
        return PodResult(phase, code, text, defects=(f"expected the probe's result, got {text[:300]}",))
    return PodResult(phase, code, message, uuids, tuple(wrong), str(told.get("replica") or ""))


def import_image(host: Any, name: str) -> str:
    """An image of the probe in the node's containerd; returns the path of Python in it. Unanswered."""
    return str(_images(host, "--import-image", name)["python"])


def remove_image(host: Any, name: str) -> None:
    """Unanswered: it is still there."""
    _images(host, "--remove-image", name)


def _images(host: Any, option: str, name: str) -> dict[str, Any]:
    done = host.run(remote.python("container_probe", option, name), timeout=_IMAGE_SECONDS)
    try:
        answer = dict(json.loads(done.stdout))
    except ValueError as error:
        said = (done.stderr or done.stdout).strip()[-300:] or "no output"
        raise Unanswered(f"image {name}: exit status {done.rc}: {said}") from error
    if answer["error"]:
        raise Unanswered(f"image {name}: {answer['error']}")
    return answer
