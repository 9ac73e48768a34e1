"""The control plane of one cluster: etcd, API server, controller manager and scheduler, on loopback, in one folder.

All four are the originals. They are children of a thread of their own: the kernel ends a process with the thread that
started it, so nothing outlives the region.

What AWS's cloud controller does in the control plane of EKS: describes a new node, and forgets one that has ended.

A kubelet registers with the taint `uninitialized` and without addresses. The controller finds the instance by the
node's providerID, adds addresses, instance type and zone, and removes the taint; pods are scheduled from then on.
Source: github.com/kubernetes/cloud-provider-aws and k8s.io/cloud-provider (node controller, node lifecycle controller).
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.process import ChildProcess, spawn, stop
from localregion.eks.credentials import Authority
from localregion.kubernetes import Build
from validator.probes.cluster import kubernetes

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
_NODE_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Instance:
    """An instance that exists, also while it is stopped."""

    id: str
    instance_type: str
    zone: str
    region: str
    address: str
    hostname: str

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.zone}/{self.id}"


class CloudController:
    """One cluster's. instances: those that exist now. note: gets the text of a call that failed."""

    def __init__(
        self, client: kubernetes.Client, instances: Callable[[], dict[str, Instance]], note: Callable[[str], object]
    ) -> None:
        self._client, self._instances, self._note = client, instances, note
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cloud controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_NODE_POLL_SECONDS):
            try:
                self.step()
            except kubernetes.ApiError as error:
                self._note(f"cloud controller: {error}")

    def step(self) -> None:
        """Looks at every node once. ApiError."""
        instances = {instance.provider_id: instance for instance in self._instances().values()}
        for node in self._client.get("/api/v1/nodes")["items"]:
            provider_id = node["spec"].get("providerID", "")
            instance = instances.get(provider_id)
            if instance is None:
                if provider_id:
                    self._client.delete(f"/api/v1/nodes/{node['metadata']['name']}")
            elif any(taint["key"] == UNINITIALIZED for taint in node["spec"].get("taints") or []):
                self._initialize(node, instance)

    def _initialize(self, node: dict[str, Any], instance: Instance) -> None:
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        addresses = [
            {"type": "InternalIP", "address": instance.address},
            {"type": "InternalDNS", "address": instance.hostname},
            {"type": "Hostname", "address": instance.hostname},
        ]
        self._client.patch(f"{path}/status", {"status": {"addresses": addresses}})
        labels = {
            "node.kubernetes.io/instance-type": instance.instance_type,
            "topology.kubernetes.io/zone": instance.zone,
            "topology.kubernetes.io/region": instance.region,
        }
        kept = [taint for taint in node["spec"]["taints"] if taint["key"] != UNINITIALIZED]
        version = {"resourceVersion": self._client.get(path)["metadata"]["resourceVersion"]}
        self._client.patch(path, {"metadata": {"labels": labels, **version}, "spec": {"taints": kept}})


SERVICE_CIDR = "10.100.0.0/16"  # EKS's default where the VPC has no 10.0.0.0/8 address (EKS user guide)
_LOOPBACK = "127.0.0.1"
_READY_SECONDS = 180.0  # 2.5 s alone; emulated machines of other runs may have the processors
_DELETED = "the cluster was deleted while it started"
_POLL_SECONDS = 0.25
_GRACE_SECONDS = 3.0
_ADMIN, _ETCD = "admin", "etcd"
_SYSTEM = {"kube-controller-manager": "system:kube-controller-manager", "kube-scheduler": "system:kube-scheduler"}


class ControlPlane:
    """Starts in `start`, which returns when the API server answers; `stop` ends all and removes the folder.

    addresses: at which the API server is reached, beside loopback. review_url: where it asks who a token is of.
    """

    def __init__(self, build: Build, folder: Path, addresses: Sequence[str], review_url: str) -> None:
        self._build, self._folder, self._addresses, self._review_url = build, folder, addresses, review_url
        self.port = 0
        self._ended = threading.Event()
        self._started = threading.Event()
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="control plane", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"https://{_LOOPBACK}:{self.port}"

    @property
    def authority(self) -> bytes:
        """The certificate of its authority, in PEM."""
        return (self._folder / "ca.crt").read_bytes()

    def admin(self) -> kubernetes.Client:
        """The API, with the certificate of an administrator."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        context.load_cert_chain(self._folder / f"{_ADMIN}.crt", self._folder / f"{_ADMIN}.key")
        return kubernetes.Client(self.endpoint, context)

    def start(self) -> None:
        """CloudError: a part of it ended or does not answer, with the last lines of its log."""
        self._thread.start()
        self._started.wait()
        if self._error:
            raise CloudError(self._error)

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        processes: dict[str, ChildProcess] = {}
        try:
            if self._ended.is_set():  # before this thread began, so stop() had nothing to wait for
                raise CloudError(_DELETED)
            self._prepare()
            for name, words in self._commands().items():
                processes[name] = self._spawn(name, words)
                if name == "kube-apiserver":
                    self._wait_ready(processes)
            self._started.set()
            self._ended.wait()
        except (OSError, GpuAmiError) as error:
            self._error = str(error)
        finally:
            for process in reversed(processes.values()):
                stop(process, grace=_GRACE_SECONDS)
            self._started.set()

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, mode=0o700)
        authority = Authority(self._folder, "gpu-ami-local-cluster")
        authority.issue("server", "kube-apiserver", addresses=[_LOOPBACK, *self._addresses])
        authority.issue(_ETCD, _ETCD, addresses=[_LOOPBACK])
        authority.issue(_ADMIN, "gpu-ami-local-admin", ["system:masters"])
        for name, user in _SYSTEM.items():
            authority.issue(name, user)
        authority.issue_signing_key("accounts")
        self.port, self._etcd_port, self._peer_port = _free_ports(3)
        for name in _SYSTEM:
            self._write_kubeconfig(name, self.endpoint, name)
        self._write_kubeconfig("tokens", self._review_url, "")

    def _write_kubeconfig(self, name: str, url: str, client: str) -> None:
        """JSON is YAML. client: the certificate to log in with; "": none, for the webhook of tokens."""
        cluster = {"server": url} | ({"certificate-authority": str(self._folder / "ca.crt")} if client else {})
        user = {f"client-{kind}": str(self._folder / f"{client}.{end}") for kind, end in _FILES} if client else {}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self._folder / f"{name}.kubeconfig").write_text(json.dumps(document), encoding="utf-8")

    def _commands(self) -> dict[str, list[str]]:
        """Program → its options, in the order of their start."""

        def file(name: str) -> str:
            return str(self._folder / name)

        etcd, peer = f"https://{_LOOPBACK}:{self._etcd_port}", f"https://{_LOOPBACK}:{self._peer_port}"
        tls = [f"--cert-file={file('etcd.crt')}", f"--key-file={file('etcd.key')}"]
        return {
            "etcd": [
                f"--data-dir={file('data')}", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}", *tls, "--client-cert-auth", f"--trusted-ca-file={file('ca.crt')}",
                f"--peer-cert-file={file('etcd.crt')}", f"--peer-key-file={file('etcd.key')}",
                f"--peer-trusted-ca-file={file('ca.crt')}", "--peer-client-cert-auth", "--logger=zap",
            ],
            "kube-apiserver": [
                f"--bind-address={_LOOPBACK}", f"--secure-port={self.port}", "--endpoint-reconciler-type=none",
                f"--advertise-address={self._addresses[0]}", f"--service-cluster-ip-range={SERVICE_CIDR}",
                f"--etcd-servers={etcd}", f"--etcd-cafile={file('ca.crt')}", f"--etcd-certfile={file('etcd.crt')}",
                f"--etcd-keyfile={file('etcd.key')}", f"--client-ca-file={file('ca.crt')}",
                f"--tls-cert-file={file('server.crt')}", f"--tls-private-key-file={file('server.key')}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={file('accounts.pub')}",
                f"--service-account-signing-key-file={file('accounts.key')}",
                "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                f"--authentication-token-webhook-config-file={file('tokens.kubeconfig')}",
                "--authentication-token-webhook-version=v1", "--authentication-token-webhook-cache-ttl=30s",
                "--profiling=false",
            ],
            "kube-controller-manager": [
                f"--kubeconfig={file('kube-controller-manager.kubeconfig')}", "--leader-elect=false",
                "--secure-port=0", "--use-service-account-credentials=true", f"--root-ca-file={file('ca.crt')}",
                f"--service-account-private-key-file={file('accounts.key')}",
                f"--cluster-signing-cert-file={file('ca.crt')}", f"--cluster-signing-key-file={file('ca.key')}",
            ],
            "kube-scheduler": [
                f"--kubeconfig={file('kube-scheduler.kubeconfig')}", "--leader-elect=false", "--secure-port=0",
            ],
        }  # fmt: skip

    def _spawn(self, name: str, words: Sequence[str]) -> ChildProcess:
        with (self._folder / f"{name}.log").open("wb") as log:
            command: list[str | Path] = [self._build.program(name), *words]
            return spawn(command, cwd=self._folder, stdout=log.fileno(), death_signal=signal.SIGKILL)

    def _wait_ready(self, processes: dict[str, ChildProcess]) -> None:
        admin, deadline = self.admin(), time.monotonic() + _READY_SECONDS
        while True:
            for name, process in processes.items():
                if process.poll() is not None:
                    raise CloudError(f"{name} ended with {process.returncode}: {self.tail(name)}")
            try:
                admin.get("/readyz")
                return
            except kubernetes.ApiError as error:
                if time.monotonic() > deadline:
                    message = f"kube-apiserver was not ready within {_READY_SECONDS:.0f} s: {error}"
                    raise CloudError(f"{message}; {self.tail('kube-apiserver')}") from error
            if self._ended.wait(_POLL_SECONDS):
                raise CloudError(_DELETED)

    def tail(self, name: str, lines: int = 3) -> str:
        """The last lines of a part's log."""
        path = self._folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return " | ".join(text.strip().splitlines()[-lines:])[-900:] or "no output"


_FILES = (("certificate", "crt"), ("key", "key"))


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


Start = Callable[[str, str], ControlPlane]  # cluster's name, version
