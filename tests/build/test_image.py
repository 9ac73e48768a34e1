"""One build: what Packer is given, what build.json keeps, and when an AMI is used again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.build import image, packer
from gpu_ami.cloud import Cloud, Place, aws_errors, runs
from gpu_ami.errors import BuildError, CapacityError, CloudError, UsageError
from gpu_ami.plan import Plan
from gpu_ami.progress import Progress

QUIET = Progress("quiet")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", ssh_interface="private_ip"))


def an_ami(cloud: Cloud, name: str, root_device: str = "/dev/sda1") -> str:
    return str(cloud.ec2.register_image(Name=name, RootDeviceName=root_device, Architecture="x86_64")["ImageId"])


def a_plan(source_ami: str, gib: int = 40) -> Plan:
    document = {
        "image": "x", "digest": "sha256:1", "architecture": "x86_64", "source_ami": {"id": source_ami},
        "build": {"instance_type": "c7i.2xlarge", "root_volume_gib": gib},
    }  # fmt: skip
    return Plan(document)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("packer", "playbooks", "roles/x/tasks"):
        (tmp_path / "checkout" / folder).mkdir(parents=True)
    (tmp_path / "checkout/roles/x/tasks/main.yml").write_text("[]")
    return tmp_path / "checkout"


def test_build_looks_up_the_source_ami_and_keeps_what_it_made(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    given: dict[str, Any] = {}

    def build(*_: object, **options: Any) -> packer.Made:
        given.update(options)
        return packer.Made(made, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run:
        result = image.build_image(a_plan(base), tmp_path, cloud, run, root, QUIET)
    # Without groups, Packer would make one that is open to the world.
    group = json.loads(given["source"].pop("security_group_ids"))
    assert group == [cloud.default_security_group()]
    assert given["source"] == {"source_ami": base, "root_device_name": "/dev/sda1"}
    assert (result.ami, result.source_ami) == (made, base)
    assert [(one["instance_type"], one["answer"]) for one in result.attempts] == [("c7i.2xlarge", "launched")]
    assert image.load(tmp_path) == result
    assert image.reusable(tmp_path, a_plan(base), cloud, root) == result
    (root / "roles/x/tasks/main.yml").write_text("[{}]")  # other roles make another image
    assert image.reusable(tmp_path, a_plan(base), cloud, root) is None


def test_the_builder_is_tried_in_each_subnet(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    subnets = [row["SubnetId"] for row in cloud.ec2.describe_subnets()["Subnets"][:2]]
    cloud.place = replace(cloud.place, subnet_id=subnets[0], subnet_ids=tuple(subnets))
    tried: list[str] = []
    full = {subnets[0]}

    def build(*_: object, source: dict[str, str], **__: object) -> packer.Made:
        tried.append(source["subnet_id"])
        if tried[-1] in full:
            raise aws_errors.from_code("Packer", "InsufficientInstanceCapacity", "no capacity in this zone")
        return packer.Made(made, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run:
        assert image.build_image(a_plan(base), tmp_path, cloud, run, root, QUIET).ami == made
        assert tried == subnets
        full.add(subnets[1])
        with pytest.raises(CapacityError, match=r"no capacity for c7i\.2xlarge in 2 attempts") as caught:
            image.build_image(a_plan(base), tmp_path, cloud, run, root, QUIET)
    assert caught.value.exit_code == 5
    assert [subnet for subnet in subnets if any(subnet in line for line in caught.value.details)] == subnets


@pytest.mark.parametrize(("has_builder", "calls"), [(False, 2), (True, 1)])
def test_a_throttled_packer_is_started_again_if_it_has_no_builder(
    has_builder: bool, calls: int, cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packer 1.6.6 does not retry its first call, the look for an AMI of the same name."""
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    builder = cloud.ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    started, noted = list[str](), list[str]()

    def build(*_: object, on_builder: Callable[[str], None], **__: object) -> packer.Made:
        started.append("packer")
        if len(started) > 1:
            return packer.Made(made, "us-east-1", {})
        if has_builder:
            on_builder(builder)
        raise aws_errors.from_code("Packer", "RequestLimitExceeded", "Request limit exceeded.")

    monkeypatch.setattr(packer, "build", build)
    monkeypatch.setattr(image, "_THROTTLED_SECONDS", (0.0,))
    with runs.begin(home, "aws") as run, contextlib.ExitStack() as expected:
        if has_builder:
            expected.enter_context(pytest.raises(CloudError, match="RequestLimitExceeded"))
            expected.callback(lambda: noted.extend(runs.records(home)[0].builders))
        assert image.build_image(a_plan(base), tmp_path, cloud, run, root, QUIET).ami == made
    assert len(started) == calls
    assert noted == ([builder] if has_builder else [])  # for `sweep`, should this process be killed


def test_a_failed_build_leaves_no_build_file(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / image.BUILD_FILE).write_text("{}")

    def fail(*_: object, **__: object) -> None:
        raise UsageError("no")

    monkeypatch.setattr(packer, "build", fail)
    with runs.begin(home, "aws") as run, pytest.raises(UsageError):
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, QUIET)
    assert not (tmp_path / image.BUILD_FILE).exists()


def test_no_source_ami_is_said_before_packer_starts(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "build", lambda *_, **__: pytest.fail("Packer was started"))
    with runs.begin(home, "aws") as run, pytest.raises(UsageError, match=r"source AMI ami-0 .* is not in us-east-1"):
        image.build_image(a_plan("ami-0"), tmp_path, cloud, run, root, QUIET)


@pytest.mark.parametrize("opened", [False, True])
def test_a_builder_that_no_security_group_lets_in_is_not_a_failed_build(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    group = cloud.default_security_group()
    if opened:
        ssh: Any = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
        cloud.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh])

    def build(*_: object, **__: Any) -> packer.Made:
        raise BuildError("Packer failed (exit code 1): Timeout waiting for SSH.", details=["the last lines"])

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run, pytest.raises(BuildError if opened else CloudError) as caught:
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, QUIET)
    said = "TCP 22 is allowed from 192.0.2.0/24" if opened else "no rule lets TCP 22 in"
    assert f"security group {group}: {said}" in str(caught.value) and "the last lines" in str(caught.value)
    assert caught.value.exit_code == (3 if opened else 4)
