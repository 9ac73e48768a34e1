"""The metadata service: the tree that cloud-init reads, tokens, and the way from the guest's socket to the answer."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from localregion.machines import firewall
from localregion.machines.metadata import Answer, InstanceView, Metadata, MetadataServer, Tokens, build_tree, look_up

VIEW = InstanceView(
    instance_id="i-0123456789abcdef0",
    image_id="ami-0123456789abcdef0",
    instance_type="g5.12xlarge",
    launch_index=0,
    reservation_id="r-1",
    account_id="123456789012",
    region="us-east-1",
    zone="us-east-1a",
    architecture="x86_64",
    launch_time=datetime(2026, 11, 21, 12, 0, tzinfo=UTC),
    address="127.20.0.4",
    hostname="ip-127-20-0-4.ec2.internal",
    mac="02:00:00:00:00:01",
    interface_id="eni-1",
    subnet_id="subnet-1",
    subnet_cidr="127.20.0.0/16",
    vpc_id="vpc-1",
    vpc_cidr="127.20.0.0/16",
    root_device_name="/dev/xvda",
    security_groups=(("sg-1", "one"), ("sg-2", "two")),
    key_name="mine",
    public_key="ssh-ed25519 AAAA mine\n",
    user_data=b"#!/bin/sh\n",
    profile_arn="arn:aws:iam::123456789012:instance-profile/p",
    profile_id="AIPA",
    role="role",
    tags={"Name": "n"},
)
TTL = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "x-aws-ec2-metadata-token"


def ask(metadata: Metadata, path: str, *, token: str | None = None, method: str = "GET") -> Answer:
    return metadata.answer(method, path, {} if token is None else {TOKEN: token})


def token_of(metadata: Metadata, seconds: str = "60") -> str:
    answer = metadata.answer("PUT", "/latest/api/token", {TTL: seconds})
    assert answer.status == 200
    return answer.body.decode()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("meta-data/instance-id", "i-0123456789abcdef0"),
        ("meta-data/placement/availability-zone", "us-east-1a"),
        ("meta-data/placement/region", "us-east-1"),
        ("meta-data/public-keys/", "0=mine"),
        ("meta-data/public-keys/0/", "openssh-key"),
        ("meta-data/public-keys/0/openssh-key", "ssh-ed25519 AAAA mine"),
        ("meta-data/network/interfaces/macs/", "02:00:00:00:00:01/"),
        ("meta-data/network/interfaces/macs/02:00:00:00:00:01/device-number", "0"),
        ("meta-data/network/interfaces/macs/02:00:00:00:00:01/security-group-ids", "sg-1\nsg-2"),
        ("meta-data/iam/security-credentials/", "role"),
        ("meta-data/block-device-mapping", "ami\nroot"),
        ("meta-data/security-groups", "one\ntwo"),
        ("meta-data/tags/instance/Name", None),
        ("meta-data/instance-id/deeper", None),
        ("meta-data/nothing", None),
    ],
)
def test_the_tree(path: str, text: str | None) -> None:
    assert look_up(build_tree(VIEW), path) == text


def test_every_leaf_that_a_listing_names_can_be_read() -> None:
    """As cloud-init crawls it: a name with a slash is a folder, `0=name` is read at 0/openssh-key."""
    tree, read = build_tree(VIEW), []

    def crawl(path: str) -> None:
        listing = look_up(tree, path)
        assert listing is not None, path
        for name in listing.splitlines():
            below = f"{path}{name}"
            if name.endswith("/"):
                crawl(below)
            else:
                if "=" in name:
                    below = f"{path}{name.partition('=')[0]}/openssh-key"
                read.append(below)
                assert look_up(tree, below) is not None, below

    crawl("meta-data/")
    crawl("dynamic/")
    assert "meta-data/public-keys/0/openssh-key" in read
    assert "dynamic/instance-identity/document" in read


def test_what_an_instance_has_not_is_not_listed() -> None:
    bare = replace(VIEW, key_name=None, public_key=None, role=None)
    listing = look_up(build_tree(bare), "meta-data/") or ""
    assert "public-keys" not in listing
    assert "iam" not in listing


def test_tags_show_where_they_are_enabled() -> None:
    assert look_up(build_tree(replace(VIEW, tags_enabled=True)), "meta-data/tags/instance/Name") == "n"


def test_the_identity_document_names_the_instance() -> None:
    document = json.loads(look_up(build_tree(VIEW), "dynamic/instance-identity/document") or "")
    assert (document["instanceId"], document["region"], document["privateIp"]) == (
        VIEW.instance_id,
        "us-east-1",
        VIEW.address,
    )


def test_credentials_have_the_form_that_clients_read() -> None:
    keys = json.loads(look_up(build_tree(VIEW), "meta-data/iam/security-credentials/role") or "")
    assert (keys["Code"], keys["Type"]) == ("Success", "AWS-HMAC")
    assert datetime.fromisoformat(keys["Expiration"]) > datetime.now(UTC)


def test_without_a_token_there_is_nothing() -> None:
    metadata = Metadata(lambda: VIEW)
    assert ask(metadata, "/latest/meta-data/instance-id").status == 401
    assert ask(metadata, "/latest/meta-data/instance-id", token="made up").status == 401
    assert ask(metadata, "/latest/meta-data/instance-id", token=token_of(metadata)).body == b"i-0123456789abcdef0"
    assert ask(Metadata(lambda: VIEW), "/latest/user-data").status == 401


def test_optional_tokens_are_optional() -> None:
    metadata = Metadata(lambda: replace(VIEW, tokens_required=False))
    assert ask(metadata, "/latest/meta-data/mac").body == b"02:00:00:00:00:01"
    assert ask(metadata, "/latest/meta-data/mac", token="made up").status == 401


def test_a_disabled_endpoint_says_nothing() -> None:
    metadata = Metadata(lambda: replace(VIEW, endpoint_enabled=False))
    assert metadata.answer("PUT", "/latest/api/token", {TTL: "60"}).status == 403
    assert ask(metadata, "/latest/meta-data/mac", token="x").status == 403


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "six", "٣"])
def test_a_token_needs_a_lifetime(seconds: str) -> None:
    assert Metadata(lambda: VIEW).answer("PUT", "/latest/api/token", {TTL: seconds}).status == 400


def test_a_proxy_gets_no_token() -> None:
    headers = {TTL: "60", "x-forwarded-for": "10.0.0.1"}
    assert Metadata(lambda: VIEW).answer("PUT", "/latest/api/token", headers).status == 403


def test_a_token_ends() -> None:
    now = [0.0]
    tokens = Tokens(lambda: now[0])
    metadata = Metadata(lambda: VIEW, tokens)
    token = token_of(metadata, "60")
    now[0] = 59.0
    assert ask(metadata, "/latest/meta-data/mac", token=token).status == 200
    now[0] = 61.0
    assert ask(metadata, "/latest/meta-data/mac", token=token).status == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/2021-03-23/meta-data/instance-id", 200),
        ("/2009-04-04/meta-data/instance-id", 200),
        ("/2021-03-23/user-data", 200),
        ("/latest", 200),
        ("/", 200),
        ("/2031-01-01/meta-data/", 404),
        ("/latest/nothing", 404),
    ],
)
def test_versions(path: str, status: int) -> None:
    metadata = Metadata(lambda: VIEW)
    assert ask(metadata, path, token=token_of(metadata)).status == status


def test_other_methods_are_refused() -> None:
    assert ask(Metadata(lambda: VIEW), "/latest/meta-data/", method="POST").status == 405
    assert ask(Metadata(lambda: VIEW), "/latest/meta-data/", method="PUT").status == 404


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / ("long" * 40)  # a socket's path may have 107 bytes; a home's may be longer
    folder.mkdir()
    server = MetadataServer(folder / "metadata.sock", Metadata(lambda: VIEW))
    yield folder
    server.close()


def test_a_request_of_the_guest_comes_through_the_relay(served: Path) -> None:
    """As QEMU does it: one relay per connection, its stdin a socket, its working directory the instance's folder."""
    firewall.write_unix_relay(served / "to-metadata", "metadata.sock")
    request = f"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\n{TTL}: 60\r\nConnection: close\r\n\r\n"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(request.encode())
        subprocess.run(["./to-metadata"], cwd=served, stdin=theirs, check=True, timeout=20)
        response = http.client.HTTPResponse(ours)
        response.begin()
        assert response.status == 200
        assert len(response.read()) > 20


def test_a_relay_whose_service_is_gone_ends(tmp_path: Path) -> None:
    firewall.write_tcp_relay(tmp_path / "to-nowhere", 1)
    done = subprocess.run([tmp_path / "to-nowhere"], stdin=subprocess.DEVNULL, timeout=20, check=False)
    assert done.returncode != 0
