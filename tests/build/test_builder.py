"""Packer run in a place: subnets in turn, throttled calls, a builder that nobody can log in to, one deadline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_ami.build import builder, image, packer
from gpu_ami.cloud import (
    Capacity,
    Cloud,
    Mirror,
    Network,
    aws_errors,
    capacity,
    launches,
    placement_groups,
    preflight,
    runs,
    sweep,
)
from gpu_ami.errors import BuildError, CapacityError, CloudError
from gpu_ami.progress import Progress
from tests.build.conftest import QUIET, a_plan, an_ami


def test_the_builder_is_tried_in_each_subnet(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    subnets = [row["SubnetId"] for row in cloud.ec2.describe_subnets()["Subnets"][:2]]
    cloud.place = replace(cloud.place, network=Network(subnet_ids=tuple(subnets)))
    tried: list[str] = []
    full = {subnets[0]}

    def build(packer_run: packer.PackerRun) -> packer.Made:
        variables = packer_run.variables
        tried.append(variables["subnet_id"])
        if tried[-1] in full:
            raise aws_errors.from_code("Packer", "InsufficientInstanceCapacity", "no capacity in this zone")
        return packer.Made(made, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run:
        assert image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET).ami == made
        assert tried == subnets
        full.add(subnets[1])
        with pytest.raises(CapacityError, match=r"no capacity for c7i\.2xlarge in 2 attempts") as caught:
            image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    assert caught.value.exit_code == 5
    assert [subnet for subnet in subnets if any(subnet in line for line in caught.value.details)] == subnets


@pytest.mark.parametrize("fault", ["ModifyImageAttribute is refused", "the disk is full"])
def test_an_image_that_no_build_json_names_is_kept_for_sweep(
    fault: str, cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete, so it has no expiry: without the run's record nothing would ever remove it."""
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    monkeypatch.setattr(placement_groups, "tagged", lambda *_: [])  # moto has none
    cloud.place = replace(cloud.place, api=replace(cloud.place.api, consistent_seconds=0.0))
    monkeypatch.setattr(packer, "build", lambda *_, **__: packer.Made(made, "us-east-1", {}))

    def fail(*_: object) -> None:
        if fault == "the disk is full":
            raise OSError(28, "No space left on device", "build.json")
        raise aws_errors.from_code("requiring IMDSv2", "UnauthorizedOperation", "not authorized")

    monkeypatch.setattr(cloud, "require_imds_v2", fail if "Modify" in fault else lambda _: None)
    monkeypatch.setattr(image.Build, "write", fail)
    with pytest.raises((CloudError, OSError)), runs.begin(home, "aws") as run:
        cloud.ec2.create_tags(Resources=[made], Tags=launches.tag_list({**run.tags(), runs.TAG_EXPIRES: "never"}))
        image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    monkeypatch.setattr(runs.ProcessIdentity, "alive", lambda _: False)
    swept = sweep.sweep_cloud(cloud, home, QUIET)
    removed = [(one.kind, one.id, one.reason, one.outcome) for one in swept]
    assert ("image", made, "its run died before it recorded the image", "removed") in removed
    assert cloud.image(made) is None


@pytest.mark.parametrize(("state", "kept"), [("running", True), ("unknown", True), ("terminated", False)])
@pytest.mark.parametrize("error", [BuildError("Packer failed (exit code 2): panic"), KeyboardInterrupt()])
def test_a_builder_that_packer_left_is_kept_for_sweep(
    error: BaseException,
    state: str,
    kept: bool,
    cloud: Cloud,
    root: Path,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Packer that crashed has removed nothing, and does not say so."""
    base = an_ami(cloud, "base")
    instance = cloud.ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]

    def build(packer_run: packer.PackerRun) -> packer.Made:
        assert packer_run.on_builder
        packer_run.on_builder(instance)
        if state == "terminated":
            cloud.ec2.terminate_instances(InstanceIds=[instance])
        if state == "unknown":
            monkeypatch.setattr(cloud, "instance", expired)
        raise error

    def expired(_: str) -> Any:
        raise aws_errors.from_code("describing the builder", "ExpiredToken", "The security token is expired")

    monkeypatch.setattr(packer, "build", build)
    with pytest.raises(type(error)), runs.begin(home, "aws") as run:
        image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    assert bool(runs.records(home)) is kept


def test_a_builder_that_cannot_be_terminated_is_kept_for_sweep(
    cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the credentials expire while it starts."""

    def expired(*_: object) -> Any:
        raise aws_errors.from_code("describing the builder", "ExpiredToken", "The security token is expired")

    def provision(_: object) -> Any:
        raise AssertionError("the builder does not run")

    base = an_ami(cloud, "base")
    monkeypatch.setattr(cloud, "wait_for_state", expired)
    monkeypatch.setattr(cloud, "terminate", expired)
    with pytest.raises(CloudError, match="ExpiredToken"), runs.begin(home, "aws") as run:
        one = builder.LaunchedBuilder(a_plan(base), cloud, run, base, provision, run.note_builder, lambda: 60.0)
        one.make("c7i.2xlarge", capacity.Way(), "", {})
    assert [record.id for record in runs.records(home)] == [run.id]
    assert len(cloud.instances_of(run.id, "pending", "running")) == 1


@pytest.mark.parametrize(("variables", "told"), [({"source_ami": "ami-1"}, ["ami-1"]), ({}, [])])
def test_the_place_is_told_which_image_is_launched(
    variables: dict[str, str],
    told: list[str],
    cloud: Cloud,
    root: Path,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The local region copies that image's disk while Packer starts; on AWS nothing happens."""
    heard: list[str] = []
    cloud.place = replace(cloud.place, expect_launch=heard.append)
    made = an_ami(cloud, "made")
    monkeypatch.setattr(packer, "build", lambda *_, **__: packer.Made(made, "us-east-1", {}))
    with runs.begin(home, "aws") as run:
        builder.Builder(a_plan("ami-0"), tmp_path, cloud, run, root, QUIET).make(variables, "an image")
    assert heard == told


def test_the_next_type_builds_and_the_record_says_what_was_tried_and_its_cost(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    instance = cloud.ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    ways = {"c7i*": ("reservation:cr-00000001",), "*": ("on-demand",)}
    cloud.place = replace(cloud.place, capacity=Capacity(ways, builder_types={"x86_64": ("m6i.2xlarge",)}))
    monkeypatch.setattr(cloud, "is_open", lambda _reservation: True)
    monkeypatch.setattr(cloud, "zone_of_reservation", lambda _reservation: "")

    def build(packer_run: packer.PackerRun) -> packer.Made:
        variables, on_builder = packer_run.variables, packer_run.on_builder
        assert on_builder
        if "instance_type" not in variables:  # the plan's
            raise aws_errors.from_code("Packer", "InsufficientInstanceCapacity", "no capacity in this zone")
        assert variables["instance_type"] == "m6i.2xlarge"
        on_builder(instance)
        return packer.Made(made, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run:
        result = image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    tried = [(row["instance_type"], row["way"], str(row["answer"]).partition(":")[0]) for row in result.attempts]
    assert tried == [
        ("c7i.2xlarge", "reservation:cr-00000001", "InsufficientInstanceCapacity"),
        ("m6i.2xlarge", "on-demand", "launched"),
    ]
    assert result.cost_usd == pytest.approx(0.384 / 60)  # EC2 bills a minute at least
    assert image.load(tmp_path) == result


def test_a_builder_that_is_not_in_its_reservation_is_noted(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody targets it: EC2 takes an open reservation that fits, which may be another one, or none."""
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    instance = cloud.ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    cloud.place = replace(cloud.place, capacity=replace(cloud.place.capacity, ways={"*": ("reservation:cr-00000001",)}))
    monkeypatch.setattr(cloud, "is_open", lambda _reservation: True)
    monkeypatch.setattr(cloud, "zone_of_reservation", lambda _reservation: "")

    def build(packer_run: packer.PackerRun) -> packer.Made:
        on_builder = packer_run.on_builder
        assert on_builder
        on_builder(instance)
        return packer.Made(made, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    notes: list[str] = []
    progress = Progress("quiet")
    monkeypatch.setattr(progress, "note", notes.append)
    with runs.begin(home, "aws") as run:
        image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=progress)
    assert any(f"{instance} does not run in reservation:cr-00000001" in note for note in notes)


@pytest.mark.parametrize(("has_builder", "calls"), [(False, 2), (True, 1)])
def test_a_throttled_packer_is_started_again_if_it_has_no_builder(
    has_builder: bool, calls: int, cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packer 1.6.6 does not retry its first call, the look for an AMI of the same name."""
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    instance = cloud.ec2.run_instances(ImageId=base, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    started, noted = list[str](), list[str]()

    def build(packer_run: packer.PackerRun) -> packer.Made:
        on_builder = packer_run.on_builder
        assert on_builder
        started.append("packer")
        if len(started) > 1:
            return packer.Made(made, "us-east-1", {})
        if has_builder:
            on_builder(instance)
        raise aws_errors.from_code("Packer", "RequestLimitExceeded", "Request limit exceeded.")

    monkeypatch.setattr(packer, "build", build)
    monkeypatch.setattr(builder, "THROTTLED_SECONDS", (0.0,))
    with runs.begin(home, "aws") as run, contextlib.ExitStack() as expected:
        if has_builder:
            expected.enter_context(pytest.raises(CloudError, match="RequestLimitExceeded"))
            expected.callback(lambda: noted.extend(runs.records(home)[0].builders))
        assert image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET).ami == made
    assert len(started) == calls
    assert noted == ([instance] if has_builder else [])  # for `sweep`, should this process be killed


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
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, progress=QUIET)
    said = "TCP 22 is allowed from 192.0.2.0/24" if opened else "no rule lets TCP 22 in"
    assert f"security group {group}: {said}" in str(caught.value) and "the last lines" in str(caught.value)
    assert caught.value.exit_code == (3 if opened else 4)


def test_all_images_of_a_build_share_one_deadline(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def build(packer_run: packer.PackerRun) -> packer.Made:
        given.append(packer_run.timeout)
        return packer.Made(an_ami(cloud, f"made-{len(given)}"), "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run:
        made = builder.Builder(a_plan("ami-0"), tmp_path, cloud, run, root, QUIET, seconds=1000.0)
        made.make({}, "the first")
        made.started -= 600.0
        made.make({}, "the second")
    assert 900.0 < given[0] <= 1000.0 and 300.0 < given[1] <= 400.0


@pytest.mark.parametrize(("version", "sets_imds_v2"), [((1, 6, 6), False), ((1, 11, 2), True)])
def test_builder_is_tried_as_a_dry_run_before_packer_starts(
    version: tuple[int, int, int], sets_imds_v2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account that demands IMDSv2 refused the builder after minutes, with Packer's words alone."""
    asked: list[bool] = []

    def examine(cloud: Any, plan: Any, source: Any, *, sets_imds_v2: Callable[[], bool]) -> list[Any]:
        assert source(cloud, plan) == {"id": "ami-1"}
        asked.append(sets_imds_v2())
        return [preflight.Finding(preflight.Level.ERROR, "dry run of RunInstances m5.large", "refused", refused=True)]

    monkeypatch.setattr(preflight, "examine_builder", examine)
    aws, local = (SimpleNamespace(place=SimpleNamespace(answers_preflight=answers)) for answers in (True, False))
    one = cast("Any", SimpleNamespace(cloud=aws, plan=SimpleNamespace(document={}), progress=QUIET))
    with pytest.raises(CloudError, match="nothing was launched"):
        builder.Builder.require_launch(one, "ami-1", packer.Packer("packer", version))
    one.cloud = local
    builder.Builder.require_launch(one, "ami-1", packer.Packer("packer", version))
    assert asked == [sets_imds_v2]


@pytest.mark.parametrize(
    ("message", "hinted"), [("No package matching 'nvtop' is available", True), ("No space left on device", False)]
)
def test_a_package_that_a_place_lacks_is_explained(
    message: str, hinted: bool, cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = an_ami(cloud, "base")
    mirror = Mirror("http://mirror.example", "A" * 40, distributions=("Debian 12",))
    cloud.place = replace(cloud.place, mirror=mirror)
    plan = a_plan(base)
    system = {**plan.document["os"], "id": "amzn", "version": "2023", "family": "redhat"}
    document: Any = {**plan.document, "os": system, "site": {"digest": "x"}, "roles": ["monitor"]}

    def build(_: packer.PackerRun) -> packer.Made:
        raise BuildError(f"Packer failed (exit code 2): monitor : Install: {message}", hint="see build.log")

    monkeypatch.setattr(packer, "build", build)
    with runs.begin(home, "aws") as run, pytest.raises(BuildError) as caught:
        image.build_image(replace(plan, document=document), tmp_path, cloud, run, root, progress=QUIET)
    explained = "packages of amzn 2023 that 1 role of the site (monitor) may install"
    assert (explained in caught.value.message) is hinted and "see build.log" in str(caught.value.hint)
    assert ("update_cache: true" in caught.value.message) is hinted
