"""What `gpu-ami sweep` removes, what it leaves alone, and what it says of both."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import process
from gpu_ami.cloud import amis, resources, runs, sweep
from gpu_ami.cloud.aws_errors import from_code
from gpu_ami.cloud.client import Cloud, Launch
from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from gpu_ami.validate.machines.launch import launch_of, launched
from tests.aws_requests import Checked
from tests.cloud.conftest import PUBLIC_KEY, an_ami


def dead_record(home: Path, identity: str, place: str = "aws") -> None:
    folder = home / "runs" / identity
    folder.mkdir(parents=True)
    process = {"pid": 4194303, "started": "another boot/1"}
    record = {"id": identity, "expires": "2999-01-01T00:00:00Z", "process": process, "place": place}
    (folder / "run.json").write_text(json.dumps(record))


def test_sweep_takes_leftovers_and_nothing_else(cloud: Cloud, home: Path) -> None:
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    dead_record(home, "dead-run")
    dead_record(home, "dead-elsewhere", place="other")
    with runs.begin(home, "aws", timedelta(hours=-1)) as alive_but_late:
        past, future = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

        def start(**tags: str) -> str:
            named = {key.replace("_", ":", 1).replace("gpu:", "gpu-ami:"): value for key, value in tags.items()}
            return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", named, ""))

        leftovers = [start(gpu_run="gone", gpu_expires=past), start(gpu_run="dead-run", gpu_expires=future)]
        kept = [
            start(gpu_run="elsewhere", gpu_expires=future),
            start(gpu_run="dead-elsewhere", gpu_expires=future),
            start(gpu_run=alive_but_late.id, gpu_expires=alive_but_late.expires),
            start(gpu_expires=past),
            start(Name="somebody's"),
        ]
        cloud.import_key("gpu-ami-dead-run-builder", PUBLIC_KEY, {"by": "packer"})  # old Packer: by name only, no tags
        cloud.import_key("gpu-ami-tagged", PUBLIC_KEY, {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: past})
        plan = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
        assert {entry.outcome for entry in plan} == {"would be removed"}
        assert len(resources.tagged(cloud, runs.TAG_RUN)) >= 5
        swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
        assert sorted(entry.id for entry in swept) == sorted([*leftovers, "gpu-ami-dead-run-builder", "gpu-ami-tagged"])
        states = {instance: cloud.instance(instance)["State"]["Name"] for instance in [*leftovers, *kept]}
        assert {states[instance] for instance in leftovers} == {"terminated"}
        assert {states[instance] for instance in kept} == {"running"}
        assert {pair["KeyName"] for pair in cloud.ec2.describe_key_pairs()["KeyPairs"]} == {"k"}
        sweep.forget_dead_runs(home, "aws", Progress("quiet"))
        assert sorted(record.id for record in runs.records(home)) == sorted(["dead-elsewhere", alive_but_late.id])
        assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []


def test_a_living_run_of_another_place_file_keeps_what_has_expired(cloud: Cloud, home: Path) -> None:
    """Two files may be of one account: machines of a run that lives are its own, whatever file it was given."""
    with runs.begin(home, "other", timedelta(hours=-1)) as run:
        cloud.import_key("k", PUBLIC_KEY, run.tags())
        assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []
    assert [entry.id for entry in sweep.sweep_cloud(cloud, home, Progress("quiet"))] == ["k"]


def test_sweep_reports_what_it_could_not_remove(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.import_key("gpu-ami-x", PUBLIC_KEY, {runs.TAG_RUN: "x", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"})

    def refuse(*_: object) -> None:
        raise from_code("removing key-pair gpu-ami-x", "DependencyViolation", "it has a dependent object")

    monkeypatch.setattr(resources, "remove", refuse)
    (leftover,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert leftover.outcome == "not removed"
    said = "not removed: removing key-pair gpu-ami-x: DependencyViolation: it has a dependent object → something else"
    assert leftover.text.startswith(said)


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired"])
@pytest.mark.parametrize("since", ["pending", "running"])
def test_a_machine_that_outlives_the_credentials_is_swept_with_new_ones(
    code: str, since: str, cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's record stays, whatever the machine did when the credentials expired; the error says how to go on."""

    def expired(*_: object) -> Any:
        raise from_code("terminating the machine", code, "The security token included in the request is expired")

    with pytest.raises(CloudError) as caught, runs.begin(home, "aws") as run, monkeypatch.context() as patched:
        patched.setattr(cloud, "terminate", expired)
        if since == "pending":
            patched.setattr(cloud, "wait_for_state", expired)
        tags = run.tags(recipe="r", plan_digest="sha256:0")
        one = launch_of(cloud, run, ami=an_ami(cloud), instance_type="g5.12xlarge", key="", tags=tags)
        with launched(cloud, one, run) as instance:
            assert cloud.instance(instance)["State"]["Name"] == "running"
    error = caught.value
    assert error.exit_code == 4 and code in error.message and "token included in the request is expired" in str(error)
    for words in ("credentials have expired", "log in again", "aws sso login", "run the same command again"):
        assert words in error.hint
    assert f"run {run.id}" in str(error) and "gpu-ami sweep" in str(error)

    assert [record.id for record in runs.records(home)] == [run.id]
    monkeypatch.setattr(process.ProcessIdentity, "alive", lambda _: False)
    monkeypatch.setattr("time.sleep", lambda _: None)
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert [(row.kind, row.run, row.outcome) for row in swept if row.kind == "instance"] == [
        ("instance", run.id, "removed")
    ]
    assert cloud.instances_of(run.id, "pending", "running") == []


def test_sweep_deletes_the_schedule_of_an_instance_that_has_ended(cloud: Cloud, home: Path) -> None:
    """A driver that is killed between TerminateInstances and DeleteSchedule."""
    cloud.place = replace(cloud.place, dead_man_role="arn:aws:iam::123456789012:role/gpu-ami-dead-man")
    dead_record(home, "dead-run")
    tags = {runs.TAG_RUN: "dead-run", runs.TAG_EXPIRES: "2999-01-01T00:00:00Z"}
    instance = cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "", tags, ""))
    cloud.ec2.terminate_instances(InstanceIds=[instance])
    assert sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True) == []
    (row,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert (row.kind, row.id, row.outcome) == ("schedule", f"gpu-ami-{instance}", "removed")
    assert cloud.client("scheduler").list_schedules()["Schedules"] == []
    assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []


def test_a_second_look_follows_a_run_that_died_a_moment_ago(
    cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_record(home, "dead-run")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds > 60:  # a shorter one is a retry's
            slept.append(seconds)
            cloud.import_key("gpu-ami-dead-run", PUBLIC_KEY, {"by": "driver"})

    monkeypatch.setattr("time.sleep", sleep)
    assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == [] and slept == []  # it died long ago
    runs.touch(runs.records(home)[0])
    assert sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True) == [] and slept == []
    (row,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert (row.kind, row.outcome) == ("key-pair", "removed") and 100 < slept[0] <= 120


def test_what_is_gone_or_in_use_for_a_moment_is_no_error(
    cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    tags = {runs.TAG_RUN: "x", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"}
    cloud.import_key("gpu-ami-x", PUBLIC_KEY, tags)
    refusals = [from_code("removing", code, "") for code in ("DependencyViolation", "InvalidGroup.NotFound")]
    stub = Checked("ec2", delete_key_pair=lambda **_: (_ for _ in ()).throw(refusals.pop(0)))
    monkeypatch.setattr(cloud.ec2, "delete_key_pair", stub.delete_key_pair)
    said: list[str] = []
    cloud.say = said.append
    (row,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert (row.outcome, row.error) == ("removed", "") and not refusals
    assert said == ["removing: DependencyViolation; trying again for up to 60 s"]


def test_a_volume_that_ebs_has_lost_is_removed(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State `error`: its hardware failed; it is deleted as any other, and costs until then."""
    tags: Any = [{"Key": runs.TAG_RUN, "Value": "gone"}, {"Key": runs.TAG_EXPIRES, "Value": "2020-01-01T00:00:00Z"}]
    specification: Any = [{"ResourceType": "volume", "Tags": tags}]
    volume = cloud.ec2.create_volume(Size=8, AvailabilityZone="us-east-1a", TagSpecifications=specification)["VolumeId"]
    monkeypatch.setattr("moto.ec2.models.elastic_block_store.Volume.status", property(lambda _: "error"))
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert [(entry.kind, entry.id, entry.outcome) for entry in swept] == [("volume", volume, "removed")]


def an_image(cloud: Cloud, name: str, **tags: str) -> str:
    """An AMI of an instance, with the tags on it and its snapshot."""
    instance = cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", {"Name": "builder of it"}, ""))
    image = str(cloud.ec2.create_image(InstanceId=instance, Name=name)["ImageId"])
    listed: Any = [{"Key": key, "Value": value} for key, value in tags.items()]
    devices = cloud.ec2.describe_images(ImageIds=[image])["Images"][0]["BlockDeviceMappings"]
    snapshots = [device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})]
    assert snapshots
    cloud.ec2.create_tags(Resources=[image, *snapshots], Tags=listed)
    return image


def test_images_go_when_they_are_half_made_or_past_their_time(cloud: Cloud, home: Path) -> None:
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    dead_record(home, "dead-run")
    past, future = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
    run, expires = runs.TAG_RUN, runs.TAG_EXPIRES
    leftovers = {
        # Packer 1.7 and later gives the image the builder's tags first, and its own when it is complete.
        an_image(cloud, "half-made", **{run: "dead-run", expires: future, "Name": "gpu-ami x dead-run builder"}),
        an_image(cloud, "half-made elsewhere", **{run: "gone", expires: past, "Name": "gpu-ami x gone builder"}),
        an_image(cloud, "past its time", **{run: "gone", expires: past, "Name": "gpu-ami_x-1"}),
    }
    kept = {
        an_image(cloud, "product", **{run: "dead-run", expires: "never", "Name": "gpu-ami_x-2"}),
        an_image(cloud, "in its time", **{run: "dead-run", expires: future, "Name": "gpu-ami_x-3"}),
        an_image(cloud, "somebody's", Name="theirs"),
    }
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert {entry.id for entry in swept if entry.kind == "image"} == leftovers
    assert {entry.outcome for entry in swept} == {"removed"}
    left = cloud.ec2.describe_images(Owners=["self"])["Images"]
    assert {image["ImageId"] for image in left} - {an_ami(cloud)} == kept
    of_kept = {device["Ebs"]["SnapshotId"] for image in left for device in image["BlockDeviceMappings"]}
    swept_snapshots = {entry.id for entry in swept if entry.kind == "snapshot"}
    assert len(swept_snapshots) == 3 and not swept_snapshots & of_kept
    assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that fails with an error of AWS's own is not tried for a minute."""
    monkeypatch.setattr(resources, "IN_USE_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_an_image_in_use_is_never_removed(cloud: Cloud, home: Path) -> None:
    """On day 31 an expired AMI may be all that an Auto Scaling group has to scale out with."""
    tags = {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"}
    used, shared, free = (an_image(cloud, name, **tags, Name=f"gpu-ami_{name}") for name in ("used", "shared", "free"))
    cloud.ec2.create_launch_template(LaunchTemplateName="training", LaunchTemplateData={"ImageId": used})
    cloud.ec2.modify_image_attribute(ImageId=shared, LaunchPermission={"Add": [{"UserId": "999999999999"}]})
    swept = {each.id: each for each in sweep.sweep_cloud(cloud, home, Progress("quiet")) if each.kind == "image"}
    assert {name: each.text for name, each in swept.items()} == {
        used: "not removed: in use: launch template training version 1",
        shared: "not removed: in use: shared with 999999999999",
        free: "removed",
    }
    snapshots = {row["SnapshotId"] for row in cloud.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]}
    for ami in (used, shared):
        devices = cloud.ec2.describe_images(ImageIds=[ami])["Images"][0]["BlockDeviceMappings"]
        assert {device["Ebs"]["SnapshotId"] for device in devices if "Ebs" in device} <= snapshots


@pytest.mark.usefixtures("impatient")
def test_an_image_stays_where_aws_does_not_tell_who_uses_it(
    cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z", "Name": "gpu-ami_x"}
    image = an_image(cloud, "expired", **tags)

    def refuse(_cloud: Cloud, ami: str) -> list[str]:
        raise CloudError(f"listing launch templates for {ami}: UnauthorizedOperation")

    monkeypatch.setattr(amis, "in_use", refuse)
    (entry,) = [each for each in sweep.sweep_cloud(cloud, home, Progress("quiet")) if each.id == image]
    assert (entry.outcome, entry.error) == (
        "not removed", f"not examined whether it is in use: listing launch templates for {image}: UnauthorizedOperation"
    )  # fmt: skip


def test_a_complete_image_that_no_build_json_names_goes_with_its_run(cloud: Cloud, home: Path) -> None:
    """Killed between the tags of the image and the record of the build: it would cost money, and nobody knew of it."""
    dead_record(home, "dead-run")
    never = {runs.TAG_EXPIRES: "never"}
    lost = an_image(cloud, "lost", **{runs.TAG_RUN: "dead-run", "Name": "gpu-ami_x-1"} | never)
    kept = an_image(cloud, "recorded", **{runs.TAG_RUN: "dead-run", "Name": "gpu-ami_x-2"} | never)
    layer = an_image(cloud, "layer", **{runs.TAG_RUN: "dead-run", "gpu-ami:layer": "driver"} | never)
    other = an_image(cloud, "elsewhere", **{runs.TAG_RUN: "another-machine", "Name": "gpu-ami_x-3"} | never)
    assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []  # a run of a version that noted no images
    (home / "runs" / "dead-run" / "images").write_text(f"{kept}\n")
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert [(one.kind, one.reason) for one in swept if one.kind == "image"] == [
        ("image", "its run died before it recorded the image")
    ]
    left = {image["ImageId"] for image in cloud.ec2.describe_images(Owners=["self"])["Images"]}
    assert lost not in left and {kept, layer, other} <= left


def test_the_snapshot_of_a_lost_image_goes_where_the_last_sweep_was_cut_off(cloud: Cloud, home: Path) -> None:
    dead_record(home, "dead-run")
    tags = {runs.TAG_RUN: "dead-run", "Name": "gpu-ami_x-1", runs.TAG_EXPIRES: "never"}
    image = an_image(cloud, "lost", **tags)
    (home / "runs" / "dead-run" / "images").touch()
    cloud.ec2.deregister_image(ImageId=image)
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert [(one.kind, one.outcome) for one in swept] == [("snapshot", "removed")]


def an_untagged_image(cloud: Cloud, builder: str, name: str) -> tuple[str, str]:
    """What Packer 1.6.6 has made of a builder before it tags anything: image and snapshot."""
    image = str(cloud.ec2.create_image(InstanceId=builder, Name=name)["ImageId"])
    (device,) = cloud.ec2.describe_images(ImageIds=[image])["Images"][0]["BlockDeviceMappings"]
    return image, str(device["Ebs"]["SnapshotId"])


def test_an_image_that_was_not_tagged_yet_goes_with_its_builder(cloud: Cloud, home: Path) -> None:
    """By its source instance: the builder that a dead run's record names, or that is a leftover itself."""
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    dead_record(home, "dead-run")
    future, past = "2999-01-01T00:00:00Z", "2020-01-01T00:00:00Z"

    def builder(run: str, expires: str) -> str:
        tags = {runs.TAG_RUN: run, runs.TAG_EXPIRES: expires, "Name": f"gpu-ami r {run} builder"}
        return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", tags, ""))

    with runs.begin(home, "aws") as living:
        noted, expired, alive = builder("unlisted", future), builder("gone", past), builder(living.id, future)
        living.note_builder(alive)
        (home / "runs" / "dead-run" / "builders").write_text(f"{noted}\n")  # EC2 lists it with no tag of the run
        cloud.ec2.terminate_instances(InstanceIds=[noted])
        of_noted, of_expired = (
            an_untagged_image(cloud, noted, "gpu-ami_r-1"),
            an_untagged_image(cloud, expired, "gpu-ami_r-2"),
        )
        without_image = an_untagged_image(cloud, noted, "gpu-ami_r-3")
        cloud.ec2.deregister_image(ImageId=without_image[0])
        kept = [an_untagged_image(cloud, alive, "gpu-ami_r-4"), an_untagged_image(cloud, noted, "by hand")]
        tagged = an_untagged_image(cloud, noted, "gpu-ami_r-5")  # complete; its snapshot is tagged after it
        product: Any = [{"Key": runs.TAG_RUN, "Value": "dead-run"}, {"Key": runs.TAG_EXPIRES, "Value": "never"}]
        cloud.ec2.create_tags(Resources=[tagged[0]], Tags=product)
        plan = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
        swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    gone = {*of_noted, *of_expired, without_image[1]}
    for entries, outcome in ((plan, "would be removed"), (swept, "removed")):
        images = [entry for entry in entries if entry.kind in ("image", "snapshot")]
        assert {entry.id for entry in images} == gone and {entry.outcome for entry in images} == {outcome}
    (reason,) = {entry.reason for entry in swept if entry.id == of_noted[0]}
    assert reason == f"its run has died; not tagged, made of builder {noted}"
    assert {entry.run for entry in swept if entry.id == of_expired[1]} == {"gone"}
    left = {image["ImageId"] for image in cloud.ec2.describe_images(Owners=["self"])["Images"]}
    assert left - {an_ami(cloud)} == {kept[0][0], kept[1][0], tagged[0]}


def test_processes_of_a_dead_run_are_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill -9 of the driver Packer's plugins go on for minutes; the stand-in even ignores SIGTERM."""
    monkeypatch.setattr(process, "end", functools.partial(process.end, grace=0.3))
    dead_record(home, "dead-run")
    dead_record(home, "dead-elsewhere", place="other")
    private = home / "runs" / "dead-run" / "packer-1"
    private.mkdir()
    script = "trap '' TERM; sleep 600 & wait"
    start = "import os, subprocess, sys; subprocess.Popen(['sh', '-c', sys.argv[1]], start_new_session=True)"
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(private)}
    subprocess.run([sys.executable, "-c", start, script], env=environment, check=True)  # survives its parent
    with subprocess.Popen(["sleep", "600"], env={"TMPDIR": str(home / "runs" / "dead-elsewhere" / "x")}) as other:
        deadline = time.monotonic() + 20.0  # until the shell has started its own
        while len(left := process.below(home / "runs")["dead-run"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(left) == 2
        plan = sweep.end_processes(home, "aws", Progress("quiet"), dry_run=True)
        assert {entry.outcome for entry in plan} == {"would be removed"} and all(child.alive() for child in left)
        swept = sweep.end_processes(home, "aws", Progress("quiet"))
        assert [(entry.kind, entry.run, entry.outcome) for entry in swept] == [("process", "dead-run", "removed")] * 2
        assert not any(child.alive() for child in left)
        assert other.poll() is None, "a process of another place"
        other.kill()
    assert sweep.end_processes(home, "aws", Progress("quiet")) == []


def test_processes_of_a_run_without_a_record_are_ended(home: Path) -> None:
    """A driver that was interrupted twice had forgotten its run while Packer went on."""
    with runs.begin(home, "local") as living:
        forgotten = {"TMPDIR": str(home / "runs" / "20260101-000000-abcdef" / "packer-1")}
        with (
            subprocess.Popen(["sleep", "600"], env=forgotten) as left,
            subprocess.Popen(["sleep", "600"], env={"TMPDIR": str(living.folder / "packer-1")}) as own,
        ):
            found = process.below(home / "runs")
            assert [[child.pid for child in found[name]] for name in sorted(found)] == [[left.pid], [own.pid]]
            swept = sweep.end_processes(home, "aws", Progress("quiet"))
            assert [(entry.id, entry.reason, entry.outcome) for entry in swept] == [
                (str(left.pid), "its run has ended", "removed")
            ]
            assert own.poll() is None, "a process of a run that lives"
            own.kill()
