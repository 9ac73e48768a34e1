"""Builders that gpu-ami launches: Spot, a reservation by its id, a Capacity Block; what is asked, tried, and left."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import image, packer
from gpu_ami.cloud import Capacity, Cloud, Network, amis, aws_errors, login, runs, tags_of
from gpu_ami.errors import BuildError, CapacityError, CloudError
from tests.build.conftest import QUIET, a_plan, an_ami
from tests.cloud.conftest import PUBLIC_KEY

TAGS = {"Name": "gpu-ami_x-20261125000000", "gpu-ami:expires": "never", "nvidia_version": "580.178.04"}
DATA = {"image_name": "gpu-ami_x-20261125000000", "image_tags": json.dumps(TAGS)}
Provision = Callable[..., packer.Made]


@pytest.fixture(autouse=True)
def no_ssh_keygen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "make_key", lambda run: PUBLIC_KEY)


@pytest.fixture
def launched(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The requests of RunInstances that reached EC2."""
    asked: list[dict[str, Any]] = []
    cloud.ec2.meta.events.register(
        "provide-client-params.ec2.RunInstances", lambda params, **_: asked.append(params) or params
    )
    monkeypatch.setattr(amis, "POLL_SECONDS", 0.0)
    yield asked


def provisioned(monkeypatch: pytest.MonkeyPatch, made: Provision | None = None) -> list[dict[str, Any]]:
    """What Packer was called with; it ends as `made` says."""
    calls: list[dict[str, Any]] = []

    def build(packer_run: packer.PackerRun) -> packer.Made:
        given = vars(packer_run)
        calls.append(given)
        return made(given) if made else packer.Made("", "", {"custom_data": DATA})

    monkeypatch.setattr(packer, "build", build)
    return calls


def imaged(monkeypatch: pytest.MonkeyPatch, ami: str) -> list[tuple[Any, ...]]:
    """CreateImage, whose snapshots moto does not tag: tests/cloud/test_images.py has it."""
    calls: list[tuple[Any, ...]] = []

    def create(_cloud: Cloud, *words: Any, timeout: float, on_leftover: Callable[[], object]) -> str:
        calls.append((*words, timeout))
        return ami

    monkeypatch.setattr(amis, "create", create)
    return calls


def left(cloud: Cloud) -> tuple[list[str], list[str]]:
    """Instances that cost money, and key pairs."""
    rows = [row for each in cloud.ec2.describe_instances()["Reservations"] for row in each["Instances"]]
    keys = cloud.ec2.describe_key_pairs()["KeyPairs"]
    return [row["InstanceId"] for row in rows if row["State"]["Name"] != "terminated"], [key["KeyName"] for key in keys]


@pytest.mark.parametrize(
    ("way", "request_"),
    [
        (
            "spot",
            {"InstanceMarketOptions": {
                "MarketType": "spot",
                "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
            }},
        ),
        (
            "reservation:cr-00000001",
            {
                "CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationId": "cr-00000001"}
                }
            },
        ),
        (
            "capacity-block:cr-00000002",
            {
                "InstanceMarketOptions": {"MarketType": "capacity-block"},
                "CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationId": "cr-00000002"}
                },
            },
        ),
    ],
)  # fmt: skip
def test_the_builder_is_launched_in_the_way_of_the_place(
    way: str, request_: dict[str, Any], cloud: Cloud, root: Path, tmp_path: Path, home: Path,
    launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    cloud.place = replace(
        cloud.place,
        kms_key_id="alias/images",
        tags={"team": "ml"},
        capacity=replace(cloud.place.capacity, ways={"*": (way,)}),
    )
    monkeypatch.setattr(cloud, "zone_of_reservation", lambda _reservation: "")
    monkeypatch.setattr(cloud, "is_open", lambda _reservation: False)
    calls, created = provisioned(monkeypatch), imaged(monkeypatch, made)
    with runs.begin(home, "aws") as run:
        build = image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
        expires = run.expires
    (request,) = launched
    assert {key: request[key] for key in request_} == request_
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert b"gpu-ami-dead-man" in base64.b64decode(request["UserData"])
    assert request["BlockDeviceMappings"] == [
        {"DeviceName": "/dev/sda1", "Ebs": {
            "VolumeType": "gp3", "VolumeSize": 40, "Encrypted": True, "DeleteOnTermination": True,
            "KmsKeyId": "alias/images",
        }}
    ]  # fmt: skip
    tags = {
        row["ResourceType"]: {tag["Key"]: tag["Value"] for tag in row["Tags"]} for row in request["TagSpecifications"]
    }
    assert set(tags) == {"instance", "volume", "network-interface"}
    assert {key: tags["volume"][key] for key in ("team", "gpu-ami:run", "gpu-ami:plan")} == {
        "team": "ml", "gpu-ami:run": run.id, "gpu-ami:plan": "sha256:1",
    }  # fmt: skip
    assert tags["instance"]["gpu-ami:expires"] >= expires and tags["instance"]["Name"].endswith("builder")
    (call,) = calls
    assert call["template"] == packer.LAUNCHED and call["before_launch"] is None
    assert call["variables"]["ssh_host"] and call["variables"]["ssh_private_key_file"] == str(run.key_file)
    ((instance, name, image_tags, until, _),) = created
    assert (name, image_tags) == (DATA["image_name"], TAGS) and until >= expires
    assert build.ami == made and [(row["way"], row["answer"]) for row in build.attempts] == [(way, "launched")]
    assert build.cost_usd is None  # the facts have no price of this type, and an unknown cost is never 0
    assert left(cloud) == ([], [])
    assert instance.startswith("i-")


def test_the_next_way_zone_and_type_follow_in_the_order_of_the_place(
    cloud: Cloud,
    root: Path,
    tmp_path: Path,
    home: Path,
    launched: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No Spot capacity in two zones, then one that EC2 takes back in the middle of the roles, then On-Demand."""
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    subnets = tuple(row["SubnetId"] for row in cloud.ec2.describe_subnets()["Subnets"][:2])
    cloud.place = replace(
        cloud.place,
        network=Network(subnet_ids=subnets),
        capacity=Capacity(ways={"*": ("spot", "on-demand")}, builder_types={"x86_64": ("m6i.2xlarge",)}),
    )  # fmt: skip
    full = {("c7i.2xlarge", "spot"), ("c7i.2xlarge", "on-demand")}

    def run_instances(params: dict[str, Any], **_: Any) -> None:
        if (params["InstanceType"], "spot" if "InstanceMarketOptions" in params else "on-demand") in full:
            raise cloud.ec2.exceptions.ClientError(
                {"Error": {"Code": "InsufficientInstanceCapacity", "Message": "none"}}, "RunInstances"
            )

    cloud.ec2.meta.events.register_last("before-parameter-build.ec2.RunInstances", run_instances)

    def made_by(given: dict[str, Any]) -> packer.Made:
        if given.get("template") == packer.LAUNCHED:  # EC2 takes the Spot Instance back
            instance = given["variables"]["ssh_host"]
            rows = [row for each in cloud.ec2.describe_instances()["Reservations"] for row in each["Instances"]]
            (name,) = [
                row["InstanceId"]
                for row in rows
                if row["PrivateIpAddress"] == instance and row["State"]["Name"] == "running"
            ]
            interrupted.add(name)
            raise BuildError("Packer failed (exit code 1): unreachable")
        if "instance_type" not in given["variables"]:
            raise CapacityError("no capacity", code="InsufficientInstanceCapacity")
        return packer.Made(made, "us-east-1", {})

    interrupted: set[str] = set()
    described = cloud.instance

    throttled: set[str] = set()

    def instance_of(instance_id: str) -> Any:
        found = dict(described(instance_id))
        if instance_id in interrupted - throttled:  # at first: the interruption is still the error, not Packer's
            throttled.add(instance_id)
            raise aws_errors.from_code("describing the builder", "RequestLimitExceeded", "")
        if instance_id in interrupted:
            reason = {"Code": "Server.SpotInstanceTermination", "Message": "Server.SpotInstanceTermination: taken back"}
            found |= {"State": {"Name": "shutting-down"}, "StateReason": reason}
        return found

    monkeypatch.setattr(cloud, "instance", instance_of)
    provisioned(monkeypatch, made_by)
    with runs.begin(home, "aws") as run:
        build = image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    tried = [(row["instance_type"], row["way"], str(row["answer"]).partition(":")[0]) for row in build.attempts]
    assert tried == [
        ("c7i.2xlarge", "spot", "InsufficientInstanceCapacity"),
        ("c7i.2xlarge", "spot", "InsufficientInstanceCapacity"),
        ("c7i.2xlarge", "on-demand", "InsufficientInstanceCapacity"),
        ("c7i.2xlarge", "on-demand", "InsufficientInstanceCapacity"),
        ("m6i.2xlarge", "spot", "Server.SpotInstanceTermination"),
        ("m6i.2xlarge", "spot", "Server.SpotInstanceTermination"),
        ("m6i.2xlarge", "on-demand", "launched"),
    ]
    assert len(interrupted) == 2 and build.cost_usd is not None and build.cost_usd > 0
    assert left(cloud) == ([], [])


@pytest.mark.parametrize("error", [BuildError("a role failed"), CloudError("denied"), KeyboardInterrupt()])
def test_a_builder_whose_build_failed_is_terminated(
    error: BaseException, cloud: Cloud, root: Path, tmp_path: Path, home: Path, launched: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cloud.place = replace(cloud.place, capacity=replace(cloud.place.capacity, ways={"*": ("spot",)}))

    def fails(_given: dict[str, Any]) -> packer.Made:
        raise error

    provisioned(monkeypatch, fails)
    with runs.begin(home, "aws") as run, pytest.raises(type(error)):
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, progress=QUIET)
    assert len(launched) == 1 and left(cloud) == ([], [])


@pytest.mark.parametrize(
    "data", [None, {}, {"image_name": "x", "image_tags": "["}, {"image_name": "x", "image_tags": "[]"}]
)
def test_a_manifest_without_the_image_s_name_is_an_error(
    data: Any, cloud: Cloud, root: Path, tmp_path: Path, home: Path, launched: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cloud.place = replace(cloud.place, capacity=replace(cloud.place.capacity, ways={"*": ("spot",)}))
    provisioned(monkeypatch, lambda _given: packer.Made("", "", {"custom_data": data}))
    with runs.begin(home, "aws") as run, pytest.raises(BuildError, match="does not name the image"):
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, progress=QUIET)
    assert left(cloud) == ([], [])


def test_a_layer_s_builder_has_the_tags_of_the_layer(
    cloud: Cloud,
    root: Path,
    tmp_path: Path,
    home: Path,
    launched: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpu_ami.build.builder import Builder

    base = an_ami(cloud, "base")
    cloud.place = replace(cloud.place, capacity=replace(cloud.place.capacity, ways={"*": ("spot",)}))
    provisioned(monkeypatch)
    imaged(monkeypatch, an_ami(cloud, "made"))
    variables = {"source_ami": base, "layer": "driver", "layer_digest": "sha256:2", "root_device_name": "/dev/xvda"}
    with runs.begin(home, "aws") as run:
        Builder(a_plan(base), tmp_path, cloud, run, root, QUIET).make(variables, "a layer")
    (request,) = launched
    tags = tags_of({"Tags": request["TagSpecifications"][0]["Tags"]})
    assert (tags["gpu-ami:layer"], tags["gpu-ami:layer-digest"]) == ("driver", "sha256:2")
    assert "gpu-ami:plan" not in tags and request["BlockDeviceMappings"][0]["DeviceName"] == "/dev/xvda"
