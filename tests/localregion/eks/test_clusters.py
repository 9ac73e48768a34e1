"""The region's EKS API: clusters, access entries and token reviews, with a control plane that starts nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from localregion.backends import Refused
from localregion.eks import Eks, Identities, Instance, Reach, clusters
from localregion.kubernetes import Build
from tests.localregion.eks.test_credentials import NODE_KEY, SECRETS, a_token, node_token

ROLE = "arn:aws:iam::123456789012:role/gpu-ami-local"
NODE = Instance("i-0123456789abcdef0", "p5.48xlarge", "us-east-1a", "us-east-1", "127.20.0.4", "ip-127-20-0-4.internal")


class Plane:
    """A control plane without processes."""

    port, endpoint, authority, error = 6443, "https://127.0.0.1:6443", b"PEM", ""
    stopped: list[str]

    def __init__(self, _build: Build, folder: Path, addresses: list[str], review_url: str) -> None:
        self.folder, self.addresses, self.review_url = folder, addresses, review_url

    def start(self) -> None:
        if Plane.error:
            raise CloudError(Plane.error)

    def stop(self) -> None:
        Plane.stopped.append(str(self.folder))

    def admin(self) -> None:
        return None


class Controller:
    def __init__(self, *_: object) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def eks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> Eks:
    Plane.stopped, Plane.error = [], ""
    monkeypatch.setattr(clusters, "ControlPlane", Plane)
    monkeypatch.setattr(clusters, "CloudController", Controller)
    builds = {"1.35": Build("1.35.4", tmp_path)}
    monkeypatch.setattr(clusters, "find", lambda _home, version: builds.get(version))

    def instance_of(key: str) -> str | None:
        return NODE.id if key == NODE_KEY else None

    known = Identities("123456789012", SECRETS.get, instance_of, lambda _: ROLE, lambda: {NODE.id: NODE})
    reach = Reach("http://127.0.0.1:5000", "169.254.169.250", tmp_path / "port")
    return Eks(tmp_path, tmp_path / "clusters", "us-east-1", reach, known, note=notes.append)


def call(eks: Eks, method: str, path: str, **body: Any) -> dict[str, Any]:
    answer = eks.answer(method, path, body)
    assert answer is not None
    return answer


def active(eks: Eks, mode: str = "API") -> dict[str, Any]:
    call(eks, "POST", "/clusters", name="c", version="1.35", accessConfig={"authenticationMode": mode})
    for _ in range(200):
        found = call(eks, "GET", "/clusters/c")["cluster"]
        if found["status"] != "CREATING":
            return dict(found)
        time.sleep(0.01)
    raise AssertionError("still CREATING")


def test_a_cluster_from_its_creation_to_its_end(eks: Eks, tmp_path: Path) -> None:
    assert active(eks) | {"createdAt": 0} == {
        "name": "c",
        "arn": "arn:aws:eks:us-east-1:123456789012:cluster/c",
        "createdAt": 0,
        "version": "1.35",
        "roleArn": "",
        "resourcesVpcConfig": {},
        "kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"},
        "accessConfig": {"authenticationMode": "API"},
        "platformVersion": "eks.local",
        "tags": {},
        "health": {"issues": []},
        "endpoint": "https://127.0.0.1:6443",
        "certificateAuthority": {"data": "UEVN"},
        "status": "ACTIVE",
    }
    assert (tmp_path / "port").read_text() == "6443" and call(eks, "GET", "/clusters") == {"clusters": ["c"]}
    assert call(eks, "GET", "/clusters/c/addons") == {"addons": []}
    assert call(eks, "DELETE", "/clusters/c")["cluster"]["status"] == "DELETING"
    assert len(Plane.stopped) == 1 and not (tmp_path / "port").exists()
    assert call(eks, "GET", "/clusters") == {"clusters": []}


def test_the_region_s_end_is_the_clusters_end(eks: Eks) -> None:
    active(eks)
    eks.stop()
    assert len(Plane.stopped) == 1


def test_a_control_plane_that_does_not_start_says_why(eks: Eks, notes: list[str]) -> None:
    Plane.error = "etcd ended with 1: no space"
    found = active(eks)
    assert found["status"] == "FAILED" and "endpoint" not in found
    assert found["health"]["issues"] == [{"code": "InternalFailure", "message": Plane.error}] and notes


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "message"),
    [
        ("GET", "/clusters/x", {}, "ResourceNotFoundException", "No cluster found for name: x."),
        ("POST", "/clusters", {"name": "a b"}, "InvalidParameterException", "'a b' is not valid"),
        ("POST", "/clusters", {"name": "d", "version": "1.34"}, "InvalidParameterException", "make nodes builds it"),
        ("POST", "/clusters", {"name": "d", "version": "1.33"}, "InvalidParameterException", "it has 1.34, 1.35"),
        ("POST", "/clusters", {"name": "c", "version": "1.35"}, "ResourceInUseException", "already exists"),
        ("POST", "/clusters", {"name": "d", "version": "1.35"}, "ResourceLimitExceededException", "one cluster at a"),
        ("GET", "/clusters/c/addons/vpc-cni", {}, "ResourceNotFoundException", "No addon: vpc-cni found"),
        ("GET", f"/clusters/c/access-entries/{ROLE}", {}, "ResourceNotFoundException", "could not be found"),
        ("POST", "/clusters/c/access-entries", {"principalArn": "x"}, "InvalidParameterException", "not valid"),
        (
            "POST", "/clusters/c/access-entries", {"principalArn": ROLE, "type": "FARGATE_LINUX"},
            "InvalidParameterException", "no access entry of type FARGATE_LINUX",
        ),
    ],
)  # fmt: skip
def test_refused_calls(eks: Eks, method: str, path: str, body: Any, code: str, message: str) -> None:
    active(eks)
    with pytest.raises(Refused, match=message) as caught:
        eks.answer(method, path, body)
    assert caught.value.code == code


def test_calls_of_node_groups_are_not_its_own(eks: Eks) -> None:
    assert eks.answer("GET", "/clusters/c/node-groups", {}) is None


def test_access_entries(eks: Eks) -> None:
    active(eks)
    entry = call(eks, "POST", "/clusters/c/access-entries", principalArn=ROLE, type="EC2_LINUX")["accessEntry"]
    assert (entry["username"], entry["kubernetesGroups"]) == ("system:node:{{EC2PrivateDNSName}}", ["system:nodes"])
    path = "/clusters/c/access-entries/" + ROLE.replace("/", "%2F")
    assert call(eks, "GET", path)["accessEntry"] == entry
    assert call(eks, "GET", "/clusters/c/access-entries") == {"accessEntries": [ROLE]}
    with pytest.raises(Refused, match="already in use"):
        eks.answer("POST", "/clusters/c/access-entries", {"principalArn": ROLE, "type": "EC2_LINUX"})
    assert call(eks, "DELETE", path) == {} and call(eks, "GET", "/clusters/c/access-entries") == {"accessEntries": []}


def test_without_access_entries_there_is_no_list_of_them(eks: Eks) -> None:
    active(eks, "CONFIG_MAP")
    with pytest.raises(Refused, match="authentication mode must be set"):
        eks.answer("GET", "/clusters/c/access-entries", {})


def review(eks: Eks, token: str) -> dict[str, Any]:
    return dict(eks.review("c", json.dumps({"spec": {"token": token}}).encode())["status"])


def test_the_caller_is_an_administrator(eks: Eks) -> None:
    active(eks)
    user = review(eks, a_token())["user"]
    assert user["groups"] == ["system:masters"] and user["username"].endswith(":user/gpu-ami-local")


def test_an_instance_is_a_node_once_its_role_has_an_access_entry(eks: Eks, notes: list[str]) -> None:
    active(eks)
    assert review(eks, node_token()) == {"authenticated": False, "error": "Unauthorized"}
    assert f"no access entry for {ROLE}" in notes[-1]
    call(eks, "POST", "/clusters/c/access-entries", principalArn=ROLE, type="EC2_LINUX")
    user = review(eks, node_token())["user"]
    assert user["username"] == f"system:node:{NODE.hostname}"
    assert user["groups"] == ["system:bootstrappers", "system:nodes"]


@pytest.mark.parametrize("body", [b"x", b"{}", b"[]", json.dumps({"spec": {"token": "x"}}).encode()])
def test_what_is_no_token_is_nobody(eks: Eks, body: bytes) -> None:
    active(eks)
    assert eks.review("c", body)["status"]["authenticated"] is False
