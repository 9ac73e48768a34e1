"""A driver that is killed by SIGKILL at any stage, then `gpu-ami sweep`: nothing of the run is left.

The driver is a process of its own. EC2, Logs and Scheduler are moto's server, or the local region's API under
`aws-like`: the policies of iam/ are enforced, calls are throttled, what is new is unknown for seconds. No instance runs
anything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from gpu_ami import cli
from gpu_ami.cloud import ApiAccess, Cloud, Place, load_place, log_groups, resources, runs
from tests.cloud.conftest import PUBLIC_KEY
from tests.killed_driver.account import processes_below
from tests.localregion.conftest import BASE_ID, World, served

pytestmark = pytest.mark.slow

KEY = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
ROLE = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"
# Argument 1: the stage at which this driver waits for its end; 2: the home; 3: the place.
DRIVER = '''
import contextlib, os, subprocess, sys, time
from pathlib import Path

import boto3
from botocore.exceptions import ClientError
from types import SimpleNamespace
from gpu_ami.cloud import Cloud, Launch, key_name, load_place, log_groups, runs
from localregion.backends import instance_access_key
from gpu_ami.progress import Progress
from gpu_ami.validate import image_proof
from gpu_ami.validate.machines import launch, machine
from gpu_ami.validate.proof import Proof

stage, home, where = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def reached(name):
    if name == stage:
        os.write(1, b"reached\\n")  # at once, also from two threads
        time.sleep(600)

def child(folder):
    """A process as Packer or a validator: it has the run's folder in its environment and outlives its parent."""
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
    subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)

def until(call):
    """As Packer and the agent do: again until AWS knows what has just been created."""
    for _ in range(60):
        try:
            return call()
        except ClientError as error:
            if not error.response["Error"]["Code"].endswith(".NotFound"):
                raise
            time.sleep(0.5)

cloud = Cloud(load_place(where))
agent = boto3.client(
    "logs", endpoint_url=cloud.place.api.endpoint, region_name="us-east-1", aws_secret_access_key="x",
    aws_access_key_id=instance_access_key("i-0123456789abcdef0"),
)
with runs.begin(home, cloud.place.name, place_file=cloud.place.file) as run:
    tags = run.tags(recipe="r", plan_digest="sha256:0")
    (run.folder / "packer").mkdir()
    reached("registered")
    if stage in ("builder", "untagged", "image"):
        # As Packer by hand does, without security_group_ids: a group and a key of the build, tags of the run on the
        # builder, its volumes and the image.
        child(run.folder / "packer")
        listed = [{"Key": key, "Value": value} for key, value in (tags | {"Name": "gpu-ami r builder"}).items()]
        of_group = [{"ResourceType": "security-group", "Tags": listed}]
        group = cloud.ec2.create_security_group(GroupName="packer_1", Description="d", TagSpecifications=of_group)
        group = group["GroupId"]
        cloud.import_key(f"{key_name(run.id)}-builder", PUBLIC_KEY, {"by": "packer"})
        builder = until(lambda: cloud.ec2.run_instances(
            ImageId=AMI, InstanceType="m6i.2xlarge", MinCount=1, MaxCount=1, SecurityGroupIds=[group],
            KeyName=f"{key_name(run.id)}-builder",
            TagSpecifications=[{"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume")],
        ))["Instances"][0]["InstanceId"]
        run.note_builder(builder)
        cloud.end_at(builder, run.expiry())
        reached("builder")
        cloud.created(builder)
        cloud.wait_for_state(builder, "running", 120)
        # Packer 1.6.6 makes an image without tags, and tags it when it is complete.
        made = until(lambda: cloud.ec2.create_image(InstanceId=builder, Name="gpu-ami_r-1"))["ImageId"]
        reached("untagged")
        (device,) = until(lambda: cloud.ec2.describe_images(ImageIds=[made]))["Images"][0]["BlockDeviceMappings"]
        cloud.ec2.create_tags(Resources=[made, device["Ebs"]["SnapshotId"]], Tags=listed)
        reached("image")

    class Driven(Proof):
        def check(self, target, *_, **__):
            child(run.folder / "validator")
            for group in ("/ec2/accelerated/raw", "/ec2/accelerated/json"):
                with contextlib.suppress(agent.exceptions.ResourceAlreadyExistsException):  # the other machine's agent
                    agent.create_log_group(logGroupName=f"{group}{target.log_group_suffix}")
            reached("proof")
            raise SystemExit

    def follow(self, instance_id, instance_type):
        reached("booting")
        suffix = log_groups.suffix(cloud.place, run)
        return machine.Machine(
            instance_id, instance_type, "192.0.2.1", 22, "u", run.key_file, Path("k"), log_group_suffix=suffix
        )

    machine.Boot.follow = follow
    terminate = Cloud.terminate
    Cloud.terminate = lambda self, ids: (reached("teardown"), terminate(self, ids))[1]
    plan = {"roles": [], "os": {"ssh_user": "u"}, "instance_types": [], "telemetry": {}}
    if stage == "teardown":
        Driven.check = lambda self, target, *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    proof = Driven(plan, None, cloud.place, home / "out", Progress("quiet"))
    image_proof.prove_image(proof, cloud, run, AMI, ["g5.xlarge", "p4d.24xlarge"])
'''


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    os.environ.update(KEY)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@dataclass
class Account:
    """An API that a driver uses as its place says, and the same state as whoever may see everything finds it."""

    where: Path
    ami: str
    seen: Cloud


@pytest.fixture(params=["", "aws-like:1"], ids=["plain", "aws-like"])
def account(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Account]:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    settled = 12.0 if request.param else 2.0  # aws-like hides what is new for 5 s
    read = load_place

    def load(file: Path) -> Place:
        place = read(file)
        return replace(place, api=replace(place.api, consistent_seconds=settled))

    monkeypatch.setattr("gpu_ami.cloud.load_place", load)
    seen, where = Cloud(Place("seen", "us-east-1", api=ApiAccess(endpoint=endpoint))), tmp_path / "aws.yml"
    reset()
    with contextlib.ExitStack() as stack:
        stack.callback(reset)
        ami, lines = BASE_ID, f"region: us-east-1\nssh_interface: private_ip\ndead_man_role: {ROLE}\n"
        if request.param:
            world = World(tmp_path / "region", request.param)
            allow(world, "caller-build-security-group")  # the driver's Packer runs by hand, and makes its own group
            endpoint = stack.enter_context(served(world, conditions=True))
            stack.enter_context(ticking(world))
            lines += f"subnet_id: {world.ec2.subnet_id}\nsecurity_group_ids: [{world.ec2.group_id}]\n"
        else:
            image = seen.ec2.register_image(Name="source", RootDeviceName="/dev/xvda", Architecture="x86_64")
            ami = image["ImageId"]
        where.write_text(f"{lines}endpoint: {endpoint}\n")
        yield Account(where, ami, seen)


def allow(world: World, policy: str) -> None:
    """Attaches an optional policy of iam/ to the caller, before the region is served."""
    conditions = world.decisions.conditions
    assert conditions.policies
    attached = replace(conditions.policies, caller=(*conditions.policies.caller, policy))
    world.decisions.conditions = replace(conditions, policies=attached)


def reset() -> None:
    """moto's state is the process's."""
    from moto.backends import get_backend

    for service in ("ec2", "logs", "scheduler"):
        get_backend(service).reset()  # type: ignore[arg-type]


@contextlib.contextmanager
def ticking(world: World) -> Iterator[None]:
    """The region's clock is the real one, and its instances change their states as time passes."""
    ended, started = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(0.2):
            world.clock.now = time.monotonic() - started
            world.settle(1)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


def left(cloud: Cloud, home: Path) -> dict[str, list[str]]:
    """What is there of any run, by kind."""
    ec2 = cloud.ec2
    reservations = ec2.describe_instances()["Reservations"]
    instances = [instance for row in reservations for instance in row["Instances"]]
    images = ec2.describe_images(Owners=["self"])["Images"]
    of_images = [{"Name": "description", "Values": ["Created by CreateImage(*"]}]
    made = ec2.describe_snapshots(OwnerIds=["self"], Filters=of_images)["Snapshots"]
    names = {
        "instances": [row["InstanceId"] for row in instances if row["State"]["Name"] != "terminated"],
        "key pairs": [row["KeyName"] for row in ec2.describe_key_pairs()["KeyPairs"]],
        "groups": [row["GroupName"] for row in ec2.describe_security_groups()["SecurityGroups"]],
        "volumes": [resource.id for resource in resources.tagged(cloud, runs.TAG_RUN) if resource.kind == "volume"],
        "images": [row["ImageId"] for row in images if row["Name"] != "source"],
        "snapshots": [row["SnapshotId"] for row in made],
        "log groups": log_groups.of_proofs(cloud),
        "schedules": [row["Name"] for row in cloud.client("scheduler").list_schedules()["Schedules"]],
        "records": [record.id for record in runs.records(home)],
    }
    names["groups"] = [name for name in names["groups"] if name.startswith("packer_")]
    return {kind: found for kind, found in names.items() if found}


MADE = {
    "registered": {"records"},
    "builder": {"records", "instances", "key pairs", "groups", "schedules"},
    "untagged": {"records", "instances", "key pairs", "groups", "schedules", "images", "snapshots"},
    "image": {"records", "instances", "key pairs", "groups", "schedules", "images", "snapshots"},
    "booting": {"records", "instances", "key pairs", "schedules"},
    "proof": {"records", "instances", "key pairs", "schedules", "log groups"},
    "teardown": {"records", "instances", "key pairs", "schedules"},
}


@pytest.mark.parametrize("stage", MADE)
def test_sweep_after_sigkill_leaves_nothing(
    stage: str, account: Account, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = account.seen
    cloud.import_key("somebody-elses", PUBLIC_KEY, {"for": "tests"})
    source = DRIVER.replace("PUBLIC_KEY", repr(PUBLIC_KEY)).replace("AMI", repr(account.ami))
    command = [sys.executable, "-c", source, stage, str(home), str(account.where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stdout and driver.stderr
        line = driver.stdout.readline()
        driver.send_signal(signal.SIGKILL)
        assert line == "reached\n", driver.stderr.read()
    made = left(cloud, home)
    assert made.pop("key pairs", []) != [] and set(made) | {"key pairs"} >= MADE[stage] - {"key pairs"}, made
    code = cli.main(["sweep", "--where", str(account.where), "--json"])
    assert code == 0, capsys.readouterr().out
    assert left(cloud, home) == {"key pairs": ["somebody-elses"]}
    assert not processes_below(home)
