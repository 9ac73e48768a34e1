"""The replica of nodeadm: what it reads, what it refuses at `init`, and what it writes and starts."""

from __future__ import annotations

import base64
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from gpu_ami.cloud import Cluster
from gpu_ami.validate.machines.launch import user_data
from localregion.mirror import table

CLUSTER = Cluster(
    "EKS", "c", "r1", node={"joined_at": "https://169.254.169.250", "authority": "UEVN", "cidr": "10.100.0.0/16"}
)
IDENTITY = {"availabilityZone": "us-east-1a", "instanceId": "i-1", "region": "us-east-1"}
FILES = ("CONTAINERD", "KUBELET_CONFIG", "DROP_IN", "AUTHORITY", "KUBECONFIG", "ENVIRONMENT")


@pytest.fixture
def nodeadm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program on a machine that is a folder; `calls` has what it runs, `user_data_text` is its user data."""
    module: Any = ModuleType("nodeadm")
    SourceFileLoader("nodeadm", str(table.REPLICAS / "eks_ami/rootfs/usr/bin/nodeadm")).exec_module(module)
    for name in FILES:
        setattr(module, name, tmp_path / str(getattr(module, name)).lstrip("/"))
    module.calls, module.text, module.up = [], user_data(240, "none", ["node_eks"], cluster=CLUSTER), True
    answers = {
        "/dynamic/instance-identity/document": json.dumps(IDENTITY),
        "/meta-data/local-hostname": "ip-127-20-0-4.ec2.internal",
    }

    def run(*words: str) -> str:
        module.calls.append(" ".join(words))
        return "Kubernetes v1.35.4-eks-0000000\n" if words[0] == "kubelet" else ""

    module.run = run
    module.metadata = lambda path: (module.text if path == "/user-data" else answers[path]).encode()
    module.answers = lambda _endpoint: module.up
    pause = tmp_path / "pause.tar"
    pause.touch()
    module.Path = lambda path: pause if path == "/etc/eks/pause.tar" else Path(path)
    return module  # type: ignore[no-any-return]


def init(nodeadm: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["nodeadm", "init", *words])
    return int(nodeadm.main())


def test_both_phases(nodeadm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache.json")
    assert (
        init(nodeadm, monkeypatch, "--skip", "run", "--config-source", "imds://user-data", "--config-cache", cache) == 0
    )
    assert nodeadm.calls == ["kubelet --version"]
    kubelet = json.loads(nodeadm.KUBELET_CONFIG.read_text())
    assert (kubelet["providerID"], kubelet["clusterDNS"]) == ("aws:///us-east-1a/i-1", ["10.100.0.10"])
    flags = nodeadm.ENVIRONMENT.read_text()
    assert flags.startswith("NODEADM_KUBELET_ARGS=--cloud-provider=external")
    assert flags.endswith("--node-labels=gpu-ami.run=r1 --register-with-taints=nvidia.com/gpu=r1:NoSchedule")
    assert nodeadm.AUTHORITY.read_text() == "PEM"
    login = yaml.safe_load(nodeadm.KUBECONFIG.read_text())
    assert login["clusters"][0]["cluster"]["server"] == "https://169.254.169.250"
    assert login["users"][0]["user"]["exec"]["args"][:4] == ["eks", "get-token", "--cluster-name", "c"]
    runtime = "nvidia" if Path(nodeadm.NVIDIA).exists() else "runc"
    assert f'default_runtime_name = "{runtime}"' in nodeadm.CONTAINERD.read_text()
    nodeadm.calls.clear()
    drop_ins = tmp_path / "drop-ins"
    drop_ins.mkdir()
    sources = ["imds://user-data", f"file://{drop_ins}"]
    words = [word for source in sources for word in ("-c", source)]
    assert init(nodeadm, monkeypatch, "--skip", "config", *words) == 0
    assert nodeadm.calls == [
        "systemctl restart containerd.service",
        "ctr --namespace k8s.io images import /etc/eks/pause.tar",
        "systemctl restart kubelet.service",
    ]


def test_nothing_is_started_for_a_cluster_that_does_not_answer(nodeadm: Any, monkeypatch: Any, capsys: Any) -> None:
    nodeadm.up = False
    assert init(nodeadm, monkeypatch) == 0 and nodeadm.calls == ["kubelet --version"]
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("name", "Name is missing in cluster configuration"),
        ("apiServerEndpoint", "Apiserver endpoint is missing in cluster configuration"),
        ("certificateAuthority", "Certificate authority is missing in cluster configuration"),
        ("cidr", "CIDR is missing in cluster configuration"),
    ],
)
def test_missing_fields_are_refused_at_init(
    nodeadm: Any, monkeypatch: Any, capsys: Any, field: str, message: str
) -> None:
    lines = [line for line in nodeadm.text.splitlines() if not line.strip().startswith(f"{field}:")]
    nodeadm.text = "\n".join(lines)
    assert init(nodeadm, monkeypatch) == 1 and message in capsys.readouterr().err and nodeadm.calls == []


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("#!/bin/sh\n", (), "no config in chain"),
        ("", ("-c", "http://x"), "unsupported scheme"),
        ("", ("-c", "file:///nowhere"), "No such file"),
        ("MIME-Version: 1.0\nContent-Type: application/node.eks.aws\n\na: [", (), "failed to decode node config"),
        ("MIME-Version: 1.0\nContent-Type: application/node.eks.aws\n\nkind: Pod", (), "it is no NodeConfig"),
    ],
)
def test_what_is_no_configuration(
    nodeadm: Any, monkeypatch: Any, capsys: Any, text: str, words: Any, message: str
) -> None:
    nodeadm.text = text
    assert init(nodeadm, monkeypatch, *words) == 1 and message in capsys.readouterr().err


def test_a_document_without_parts_and_kubelet_settings(nodeadm: Any, monkeypatch: Any) -> None:
    cluster = {"name": "c", "apiServerEndpoint": "https://x", "certificateAuthority": base64.b64encode(b"P").decode()}
    spec = {"cluster": cluster | {"cidr": "10.100.0.0/16"}, "kubelet": {"config": {"maxPods": 20}}}
    nodeadm.text = yaml.safe_dump({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec})
    assert init(nodeadm, monkeypatch, "-s", "run") == 0
    assert (
        json.loads(nodeadm.DROP_IN.read_text())["maxPods"] == 20 and "--config-dir=" in nodeadm.ENVIRONMENT.read_text()
    )


def test_an_image_with_a_replica_of_kubelet_joins_nothing(nodeadm: Any, monkeypatch: Any, capsys: Any) -> None:
    nodeadm.Path = Path
    assert init(nodeadm, monkeypatch) == 0 and nodeadm.calls == []
    assert "kubelet is a replica" in capsys.readouterr().out


def test_other_commands(nodeadm: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["nodeadm", "version"])
    assert nodeadm.main() == 0 and "replica" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["nodeadm", "upgrade"])
    assert nodeadm.main() == 2
