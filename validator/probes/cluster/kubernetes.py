"""A node of an EKS cluster: the calls of Kubernetes' API that a proof makes, the caller's token, the pods of the proof.

No client library: five verbs of the stable group v1 and JSON. Source: Kubernetes API reference, v1 (Node, Pod, Status).
The bearer token is a signed GetCallerIdentity call of STS, which the API server sends. Source: EKS user guide, `aws eks
get-token`; github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token/token.go (read 2026-11-25): valid for 15 minutes
from its signature.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from validator import remote
from validator.probes.cluster.joined import RUN_LABEL

_SECONDS = 30.0
_CONTENT = {"PATCH": "application/strategic-merge-patch+json"}


class ApiError(Exception):
    """A call that failed. status: HTTP's; 0 where nothing answered. reason: of the API's Status, such as NotFound."""

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {reason or status}: {message}" if status else f"{call}: {message}")
        self.status, self.reason = status, reason


class Client:
    """One cluster. context: trusts its authority, and may log in with a certificate. token: a bearer token, asked for
    at each call; None: the certificate is enough."""

    def __init__(self, endpoint: str, context: ssl.SSLContext, token: Callable[[], str] | None = None) -> None:
        self.endpoint, self._token = endpoint.rstrip("/"), token
        # No proxy of the environment: a cluster's endpoint is an address of its own.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: str) -> Any:
        """An object, a list, or the text of a path that has no JSON. ApiError."""
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    def create(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("POST", path, document)

    def patch(self, path: str, document: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, document)

    def delete(self, path: str, grace_seconds: int | None = None) -> bool:
        """False: there was none."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def find(self, path: str) -> dict[str, Any] | None:
        """The object; None where there is none."""
        try:
            return dict(self.get(path))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _call(self, verb: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.endpoint}{path}", data, method=verb)
        request.add_header("Content-Type", _CONTENT.get(verb, "application/json"))
        request.add_header("Accept", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token()}")
        call = f"{verb} {path.partition('?')[0]}"
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return _parsed(answer.read())
        except urllib.error.HTTPError as error:
            status = _parsed(error.read())
            told = status if isinstance(status, dict) else {}
            raise ApiError(call, error.code, str(told.get("reason", "")), _message(told, status)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(call, 0, "", f"{self.endpoint}: {reason}") from error


def _parsed(raw: bytes) -> Any:
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _message(told: Mapping[str, Any], status: Any) -> str:
    return str(told.get("message", "")) or str(status)[:300] or "no message"


def trusting(authority: str) -> ssl.SSLContext:
    """A context that trusts one authority (PEM) alone. ssl.SSLError: it is none."""
    return ssl.create_default_context(cadata=authority)


def conditions(node: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Type → status and message of a node's or pod's conditions."""
    rows = node.get("status", {}).get("conditions") or []
    return {str(row["type"]): (str(row["status"]), str(row.get("message", ""))) for row in rows}


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


PREFIX = "k8s-aws-v1."
_RENEW_SECONDS = 600.0
_EXPIRES = 60  # of the signed call; the API server accepts 900 at most


def make_token(cluster: str, region: str, session: Any) -> str:
    """session: botocore's, with credentials. ValueError: it has none."""
    from botocore.model import ServiceId
    from botocore.signers import RequestSigner

    credentials = session.get_credentials()
    if credentials is None:
        raise ValueError("no AWS credentials for a token")
    host = f"sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    signer = RequestSigner(ServiceId("STS"), region, "sts", "v4", credentials, session.get_component("event_emitter"))
    call = {
        "method": "GET",
        "url": f"https://{host}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(call, region_name=region, expires_in=_EXPIRES, operation_name="")
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def renewed_token(cluster: str, region: str, session: Callable[[], Any]) -> Callable[[], str]:
    """A token at each call, which is made anew before it ends. session: makes one at the first call."""
    made: dict[str, Any] = {}

    def token() -> str:
        if "session" not in made:
            made["session"] = session()
        if time.monotonic() - made.get("at", float("-inf")) > _RENEW_SECONDS:
            made["token"], made["at"] = make_token(cluster, region, made["session"]), time.monotonic()
        return str(made["token"])

    return token
