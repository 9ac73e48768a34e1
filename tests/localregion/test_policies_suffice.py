"""Each policy of iam/ allows its stage's calls, and each of its statements is needed for one of them.

The stages run once against the region, each call recorded with what it needs: the product's own code for prove, sweep
and preflight; for a build and for the agent the calls that Packer's plugin and the agent make. Then each statement is
taken away once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.backends import get_backend
from moto.ec2.models import ec2_backends
from moto.ecs.models import ecs_backends
from moto.kms.models import kms_backends

from gpu_ami.cloud import (
    RUN_ATTRIBUTE,
    ApiAccess,
    Cloud,
    Launch,
    Login,
    Network,
    Place,
    RootVolume,
    amis,
    ecs,
    key_name,
    log_groups,
    placement_groups,
    policies,
    preflight,
    resources,
    runs,
)
from gpu_ami.cloud.capacity import Way
from gpu_ami.cloud.place import Credentials
from gpu_ami.cloud.policies import Request, read_policy
from gpu_ami.cloud.sweep import sweep_cloud
from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.plan import resolve_source_ami
from gpu_ami.progress import Progress
from gpu_ami.publish import publication
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from localregion.api import permissions
from localregion.api.permissions import Authorization
from localregion.api.protocol import ErrorAnswer, ServiceCall
from localregion.backends import instance_access_key
from localregion.machines.qemu import Exit
from tests.localregion.api.test_layer import client
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, World, base_image, served
from validator.cloudwatch import CloudWatch, Series

pytestmark = pytest.mark.slow

POLICIES = (
    "caller-build", "caller-prove", "caller-preflight", "caller-sweep", "caller-publish", "instance", "dead-man",
)  # fmt: skip
# Rights that not every caller needs are files of their own (iam/README.md).
OPTIONAL = {
    "caller-build": ("caller-build-untagged", "caller-build-security-group", "caller-session-manager", "caller-spot"),
    "caller-prove": ("caller-session-manager", "caller-instance-connect"),
    "caller-sweep": ("caller-sweep-untagged", "caller-sweep-ecs"),
}
# Statement → the optional file that allows the same, and more.
WIDER = {"TagImage": "caller-build-untagged"}
STATEMENTS = [
    (stage, name, row["Sid"])
    for stage in POLICIES
    for name in (stage, *OPTIONAL.get(stage, ()))
    for row in read_policy(name)
    # A proof logs in by one program alone: that file is judged with caller-build, which needs all of it.
    if (stage, name) != ("caller-prove", "caller-session-manager")
]
GROUP = "/ec2/accelerated/accel-event-log"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1"
ROLE = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"
PLAN: Any = {
    "architecture": "x86_64",
    "roles": ["cloudwatch_agent"],
    "kernel": {"version": "6.1"},
    "source_ami": {"owner": "136693071363", "name": "debian-12-*"},
    "build": {"root_volume_gib": 40, "instance_type": "m5.xlarge"},
    "instance_types": [{"name": "g5.12xlarge", "efa_interfaces": 1}],
    "telemetry": {"namespace": "CWAgent"},
}

Recorded = dict[str, list[Request]]


class Line:
    """The stages of a run at one region. `stage` says whose calls are being recorded."""

    def __init__(self, world: World, endpoint: str, home: Path) -> None:
        self.world, self.endpoint, self.home = world, endpoint, home
        self.place = Place(
            "local", "us-east-1", kms_key_id=KEY, instance_profile=world.ec2.profile, dead_man_role=ROLE,
            api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local"), consistent_seconds=1.0),
            network=Network(subnet_ids=(world.ec2.subnet_id,), security_group_ids=(world.ec2.group_id,)),
            login=Login(ssh_interface="private_ip"),
        )  # fmt: skip
        self.cloud = Cloud(self.place)

    def settle(self) -> None:
        self.world.settle()

    def build(self, run: runs.Run) -> None:
        """The calls of Packer's plugin (builder/ebs, common/) and those of gpu_ami.build."""
        with contextlib.suppress(GpuAmiError):
            resolve_source_ami(self.cloud, {**PLAN, "source_ami": {"ssm": "/aws/service/debian/release/12"}})
        resolve_source_ami(self.cloud, PLAN)
        ec2, tags = client(self.endpoint), [{"Key": key, "Value": value} for key, value in run.tags().items()]
        self.cloud.default_security_group()
        ec2.describe_regions()
        name = f"{key_name(run.id)}-builder"
        ec2.create_key_pair(KeyName=name, TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags}])
        vpc = self.world.ec2.vpc_id
        group = ec2.create_security_group(
            GroupName="packer_1", Description="d", VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
        )["GroupId"]  # fmt: skip
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        root = {"VolumeSize": 40, "Encrypted": True, "KmsKeyId": KEY}
        builder = ec2.run_instances(
            ImageId=BASE_ID, InstanceType="m5.xlarge", MinCount=1, MaxCount=1, KeyName=name, SecurityGroupIds=[group],
            BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": root}],
            IamInstanceProfile={"Name": self.world.ec2.profile},
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        )["Instances"][0]["InstanceId"]  # fmt: skip
        self.settle()
        self.cloud.end_at(builder, run.expiry())
        self.cloud.harden(builder)
        self.sessions(builder)
        ec2.describe_instance_status(InstanceIds=[builder])
        ec2.modify_instance_attribute(InstanceId=builder, EnaSupport={"Value": True})
        ec2.stop_instances(InstanceIds=[builder])
        self.settle()
        self.world.machine.ended = Exit("shutdown")
        self.settle()
        # Packer 1.6.6 makes an image without tags, and tags it when it is complete.
        ami = ec2.create_image(InstanceId=builder, Name="made")["ImageId"]
        self.settle()
        image = self.cloud.wait_for_image(ami)
        assert image is not None
        snapshot = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        ec2.create_tags(Resources=[ami, snapshot], Tags=tags)
        self.cloud.require_imds_v2(ami)
        self.cloud.describe_image(ami, "made")
        volume = ec2.describe_volumes()["Volumes"][0]["VolumeId"]
        ec2.terminate_instances(InstanceIds=[builder])
        for call, arguments in (
            (ec2.delete_volume, {"VolumeId": volume}),
            (ec2.delete_security_group, {"GroupId": group}),
        ):
            with contextlib.suppress(ClientError):  # gone with the instance, or still in use
                call(**arguments)
        ec2.delete_key_pair(KeyName=name)
        self.cloud.forget_end(builder)
        for call, arguments in (
            (ec2.deregister_image, {"ImageId": ami}),
            (ec2.delete_snapshot, {"SnapshotId": snapshot}),
        ):
            call(**arguments)  # a build that is cancelled

        self.spot_build(run)

    def spot_build(self, run: runs.Run) -> None:
        """A builder that gpu-ami launches, and the AMI of it."""
        cloud, name, tags = self.cloud, f"{key_name(run.id)}-builder", run.tags()
        cloud.import_key(name, PUBLIC_KEY, tags)
        volume = RootVolume("/dev/xvda", 40, KEY)
        asked = Launch(BASE_ID, "m5.xlarge", name, tags, "", pending_seconds=60, root_volume=volume)
        for way in ("spot", "reservation:cr-00000001"):
            with contextlib.suppress(CloudError):  # the region has no such reservation; the call was judged before
                builder = cloud.launch_in(asked, Way.parse(way), "")
        self.settle()
        look = cloud.image

        def shut_down(ami: str) -> Any:
            if "power_down" in self.world.machine.told:
                self.world.machine.ended = Exit("shutdown")
                self.settle()
            return look(ami)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cloud, "image", shut_down)
            amis.create(cloud, builder, "made-of-spot", tags, run.expiry(), timeout=60)
        cloud.terminate([builder])
        cloud.delete_key(name)

    def prove(self, run: runs.Run) -> None:
        cloud, name = self.cloud, key_name(run.id)
        cloud.import_key(name, PUBLIC_KEY, run.tags())
        cloud.ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])
        placement_groups.create(cloud, name, run.tags())
        placement_groups.delete(cloud, name)
        image = self.world.ec2.backend.amis[BASE_ID]
        image.record = SimpleNamespace(**{**vars(image.record), "kms_key_id": KEY})  # an AMI of an encrypted build
        instance_id = cloud.launch(Launch(BASE_ID, "g5.12xlarge", name, run.tags(), ""))
        self.settle()
        cloud.wait_for_state(instance_id, "running", 60)
        assert cloud.image(BASE_ID)
        (self.world.layout.instance(instance_id) / "console.log").write_bytes(b"[    0.0] Linux")
        cloud.console(instance_id)
        self.sessions(instance_id)
        telemetry = CloudWatch("us-east-1", endpoint=self.endpoint)
        telemetry.events(GROUP, "i-1")
        telemetry.retention_days(GROUP)
        telemetry.known_series("CWAgent", {})
        telemetry.points([Series("CWAgent", "m", ())], time.time() - 60, 10)
        cloud.stop(instance_id)
        self.settle()
        self.world.machine.ended = Exit("shutdown")
        self.settle()
        cloud.start(instance_id)
        self.settle()
        cloud.terminate([instance_id])
        cloud.delete_key(name)
        self.log_group_of_a_proof(run.id)
        for group in log_groups.of_proofs(cloud, run.id):
            log_groups.delete(cloud, group)

    def sessions(self, instance_id: str) -> None:
        """A login through Session Manager: Packer's or the AWS CLI's."""
        ssm = client(self.endpoint, "ssm")
        for call, arguments in (
            (ssm.start_session, {"Target": instance_id, "DocumentName": "AWS-StartSSHSession"}),
            (ssm.terminate_session, {"SessionId": f"{permissions.USER}-1"}),
        ):
            with contextlib.suppress(ClientError):  # moto has no sessions; the call was judged before
                call(**arguments)

    def log_group_of_a_proof(self, run_id: str) -> None:
        """As the agent of a machine made it."""
        from moto.logs.models import logs_backends

        logs_backends["123456789012"]["us-east-1"].create_log_group(f"{GROUP}-proof/{run_id}", {})

    def agent(self) -> None:
        key = instance_access_key("i-0123456789abcdef0")
        logs = client(self.endpoint, "logs", key)
        stream = {"logGroupName": GROUP, "logStreamName": "i-1"}
        logs.create_log_group(logGroupName=GROUP)
        logs.put_retention_policy(logGroupName=GROUP, retentionInDays=90)
        logs.create_log_stream(**stream)
        logs.describe_log_streams(logGroupName=GROUP)
        logs.put_log_events(**stream, logEvents=[{"timestamp": 1, "message": "NVRM: Xid"}])
        client(self.endpoint, "ec2", key).describe_tags()
        datum = {"MetricName": "m", "Value": 1.0}
        client(self.endpoint, "cloudwatch", key).put_metric_data(Namespace="CWAgent", MetricData=[datum])

    def sweep(self) -> None:
        dead, expired = "20200101-000000-abcdef", "2020-01-01T00:00:00Z"
        tags = {runs.TAG_RUN: dead, runs.TAG_EXPIRES: expired}
        backend = self.world.ec2.backend
        backend.import_key_pair(key_name(dead), PUBLIC_KEY.encode(), tags)
        group = backend.create_security_group("packer_2", "d", vpc_id=self.world.ec2.vpc_id, tags=tags)
        instance = self.world.launch(tags={"instance": tags}, security_group_ids=[group.id], key_name=key_name(dead))
        volume = backend.create_volume(8, "us-east-1a")
        image = backend.create_image(instance.id, "expired", "", [])
        for resource in (volume.id, image.id, image.ebs_snapshot.id):
            backend.create_tags([resource], tags)
        backend.create_tags([instance.id], {"Name": f"gpu-ami r {dead} builder"})
        untagged = backend.create_image(instance.id, "gpu-ami_r-1", "", [])  # by Packer 1.6.6
        used = replace(
            base_image(self.world.layout), id="ami-00000000000000999", name="used", snapshot_id="snap-999",
            owner_id=self.world.ec2.account, public=False, tags=tags, snapshot_tags=tags,
        )  # fmt: skip
        self.world.images.register(used)
        get_backend("ssm")[self.world.ec2.account]["us-east-1"].put_parameter(
            name="/team/golden", description=None, value=used.id, parameter_type="String", allowed_pattern=None,
            keyid=None, overwrite=False, tags=[], data_type="text", tier=None, policies=None,
        )  # fmt: skip
        self.log_group_of_a_proof(dead)
        left = {"GroupName": key_name(dead), "TagSpecification.1.ResourceType": "placement-group"}
        for number, (key, value) in enumerate(tags.items(), start=1):
            left |= {f"TagSpecification.1.Tag.{number}.Key": key, f"TagSpecification.1.Tag.{number}.Value": value}
        self.world.ec2.placement_groups.answer("CreatePlacementGroup", left)
        self.left_in_ecs(dead, tags, self.world.launch().id)
        self.settle()
        sweep_cloud(self.cloud, self.home, Progress("quiet"))
        assert placement_groups.tagged(self.cloud, runs.TAG_RUN) == []
        assert [row for row in ecs.left_of_runs(self.cloud) if row.kind != ecs.CLUSTER] == []
        assert self.cloud.instance(instance.id)["State"]["Name"] == "terminated"
        assert used.id in self.world.ec2.images()
        assert untagged.id not in backend.amis and untagged.ebs_snapshot.id not in backend.snapshots

    def left_in_ecs(self, dead: str, tags: dict[str, str], instance_id: str) -> None:
        """A cluster, a task definition, and a container instance in another cluster."""
        service = self.world.container_service
        moto = ecs_backends[self.world.ec2.account]["us-east-1"]
        moto.create_cluster(key_name(dead), tags=[{"key": key, "value": value} for key, value in tags.items()])
        moto.create_cluster("of-others")
        moto.register_task_definition(key_name(dead), [{"name": "c", "image": "x", "memory": 16}])
        body = {"cluster": "of-others", "attributes": [{"name": RUN_ATTRIBUTE, "value": dead}]}
        service.answer("ecs:RegisterContainerInstance", body, instance_access_key(instance_id))

    def preflight(self) -> None:
        found = preflight.examine(self.cloud, PLAN, resolve_source_ami)
        assert [str(one) for one in found if "AccessDenied" in one.found or "Unauthorized" in one.found] == []

    def publish(self) -> None:
        """Two releases, of which the first is retired, and a rollback to one whose deprecation has passed."""
        account, other = self.world.ec2.account, "eu-central-1"
        key = str(kms_backends[account][other].create_key("", "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "", {}).arn)
        regions = (RegionPolicy("us-east-1"), RegionPolicy(other, key))
        policy = ReleasePolicy(
            regions, prefix="/images/r", deprecate_after=5, deregistration_protection=True, keep=2, retire_after=1
        )
        for number in range(3):
            ami, tags = f"ami-0000000000000010{number}", {runs.TAG_RUN: "r", runs.TAG_RECIPE: "r"}
            self.world.images.register(
                replace(base_image(self.world.layout), id=ami, name=f"r-{number}", snapshot_id=f"snap-{number}",
                        owner_id=account, public=False, tags=tags, snapshot_tags=tags)
            )  # fmt: skip
            self.world.ec2.images()[ami].imds_support = "v2.0"
            request = publication.Request(ami, "r", {"ami": ami}, policy, "", self.home)
            record = publication.publish(self.place, request, Progress("quiet"))
            assert record.is_complete, record.text()
            for region in (row.region for row in regions):
                for image in ec2_backends[account][region].amis.values():
                    image.deprecation_time = "2026-01-01T00:00:00.000Z"
        assert "ami-00000000000000100" not in self.world.ec2.images()
        rolled = publication.roll_back(
            self.place, publication.RollbackRequest("r", "previous", policy, "", self.home), Progress("quiet")
        )
        assert rolled.is_complete, rolled.text()

    def dead_man(self) -> None:
        """EventBridge Scheduler in the role of the place: the call of the schedule's target."""
        instance = self.world.launch(tags={"instance": {"gpu-ami:run": "r"}})
        client(self.endpoint).terminate_instances(InstanceIds=[instance.id])


def statements(stage: str, *, without: tuple[str, str] = ("", "")) -> list[policies.Statement]:
    """What a caller of a stage has attached, without one statement (its file, its Sid)."""
    names = [stage, *OPTIONAL.get(stage, ())] + (["caller-build"] if stage == "caller-preflight" else [])
    rows = [(name, row) for name in names if WIDER.get(without[1]) != name for row in read_policy(name)]
    return [row for name, row in rows if (name, row["Sid"]) != without]


# What no endpoint here is asked: calls that AWS makes for a caller, and those of the AWS CLI.
_IAM = "arn:aws:iam::123456789012"
_SPOT_ROLE = f"{_IAM}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
_TUNNEL = "arn:aws:ec2:us-east-1:123456789012:instance-connect-endpoint/eice-1"
BY_OTHERS = {
    "caller-build": [
        Request("iam:CreateServiceLinkedRole", _SPOT_ROLE, {"iam:AWSServiceName": "spot.amazonaws.com"}),
        Request("iam:GetInstanceProfile", f"{_IAM}:instance-profile/gpu-ami-proof"),  # Packer with session_manager
    ],
    "caller-prove": [
        Request("ec2:DescribeInstanceConnectEndpoints"),
        Request("ec2-instance-connect:OpenTunnel", _TUNNEL, {"ec2-instance-connect:remotePort": "22"}),
    ],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Policy → the requests of its stage, which ran with this policy alone (dry runs of a preflight: and build's)."""
    home = tmp_path_factory.mktemp("line")
    requests: Recorded = {name: [] for name in POLICIES}
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        patch.setenv("AWS_ACCESS_KEY_ID", "local")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        for service in ("ec2", "iam", "kms", "logs", "cloudwatch", "scheduler", "ssm", "autoscaling"):
            get_backend(service).reset()  # type: ignore[arg-type]
        world = World(home / "home", "iam-enforced")
        line = Line(world, stack.enter_context(served(world, conditions=True)), home / "driver")

        pause = time.sleep

        def sleep(seconds: float) -> None:
            world.clock.now += max(seconds, 0.5)
            world.settle()
            pause(0.05)  # loops that wait have deadlines by the real clock, and would fill them with requests

        patch.setattr("time.sleep", sleep)
        patch.setattr(resources, "IN_USE_SECONDS", 1.0)
        refusal = Authorization.refusal
        run = stack.enter_context(runs.begin(home / "driver", "local"))
        stages = {
            "caller-build": lambda: line.build(run),
            "instance": line.agent,  # what it sends is what the proof asks for
            "caller-prove": lambda: line.prove(run),
            "caller-preflight": line.preflight,
            "caller-sweep": line.sweep,
            "caller-publish": line.publish,
            "dead-man": line.dead_man,
        }
        for name, stage in stages.items():
            own = statements(name)

            def judge(auth: Authorization, call: ServiceCall, own: Any = own, name: str = name) -> ErrorAnswer | None:
                requests[name] += permissions.needed(call, auth.ec2)
                return refusal(Authorization(auth.ec2, own, own), call)

            patch.setattr(Authorization, "refusal", judge)
            stage()
        requests["caller-build"] += BY_OTHERS["caller-build"]
        requests["caller-prove"] += BY_OTHERS["caller-prove"]
        yield requests


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_allows_every_call_of_its_stage(name: str, recorded: Recorded) -> None:
    assert recorded[name]
    assert [request for request in recorded[name] if not policies.allows(statements(name), request)] == []


@pytest.mark.parametrize(("stage", "name", "sid"), STATEMENTS, ids=["-".join(row) for row in STATEMENTS])
def test_each_statement_is_needed(stage: str, name: str, sid: str, recorded: Recorded) -> None:
    kept = statements(stage, without=(name, sid))
    assert not all(policies.allows(kept, request) for request in recorded[stage])
