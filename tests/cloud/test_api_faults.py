"""AWS's API misbehaves for a while, or answers in an unusual way: what is waited out, what ends, and what is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions

from gpu_ami.cloud import (
    Cloud,
    Launch,
    Place,
    amis,
    aws_errors,
    image_parameters,
    placement_groups,
    preflight,
    resources,
    runs,
    sweep,
    systems_manager,
)
from gpu_ami.cloud.preflight import identity, network
from gpu_ami.errors import CloudError, GpuAmiError, Unreachable, UsageError
from gpu_ami.progress import Progress
from gpu_ami.publish import release
from tests.aws_requests import Checked
from validator import aws

Clock = list[float]
MODULES = ("client", "amis", "resources", "image_parameters", "systems_manager")
QUIET = Progress("quiet")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Seconds; it stands still but for what is slept."""
    now = [1000.0]
    fake = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + max(seconds, 0.01)), time=time.time
    )
    for module in MODULES:
        monkeypatch.setattr(f"gpu_ami.cloud.{module}.time", fake)
    return now


def answers(*given: Any) -> Callable[..., Any]:
    """A call that raises or returns these, one after the other, and the last one for ever."""
    left = list(given)

    def call(**_: Any) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def refused(code: str, status: int = 400, *, repeated: bool = False) -> exceptions.ClientError:
    metadata: Any = {"HTTPStatusCode": status, "RetryAttempts": int(repeated), "RequestId": "1"}
    return exceptions.ClientError(
        {"Error": {"Code": code, "Message": f"{code} it is"}, "ResponseMetadata": metadata}, "X"
    )


class Told(Cloud):
    """A Cloud whose clients answer as told."""

    def __init__(self, clients: dict[str, Any]) -> None:
        super().__init__(Place(name="aws", region="us-east-1"))
        self.told = {service: Checked(service, **calls) for service, calls in clients.items()}
        for client in self.told.values():
            client.exceptions = SimpleNamespace(ResourceNotFoundException=KeyError)

    def client(self, service: str) -> Any:
        return self.told[service]


def cloud_of(clients: dict[str, Any] | None = None, **calls: Any) -> Cloud:
    """clients: calls of other services than EC2."""
    return Told({"ec2": calls, **(clients or {})})


def ssm(**calls: Any) -> Cloud:
    return cloud_of({"ssm": calls})


THROTTLED = refused("RequestLimitExceeded", 503)


def instance(state: str, **more: Any) -> dict[str, Any]:
    return {"Reservations": [{"Instances": [{"InstanceId": "i-1", "State": {"Name": state}, **more}]}]}


def failure(call: Callable[[], object]) -> GpuAmiError:
    with pytest.raises(GpuAmiError) as caught:
        call()
    return caught.value


def translated(error: Exception) -> GpuAmiError:
    def call() -> None:
        with aws_errors.translated("looking"):
            raise error

    return failure(call)


@pytest.mark.parametrize(
    "error",
    [
        refused("NewInternalFault", 500),  # in no table: the status says it
        refused("NewThrottle", 429),
        refused("KMSInternalException", 500),
        refused("TooManyUpdates"),
        refused("OperationAbortedException"),
        refused("ConcurrentModificationException"),
        refused("PriorRequestNotComplete"),
        refused("ProvisionedThroughputExceededException"),
    ],
    ids=lambda error: error.response["Error"]["Code"],
)
def test_what_may_succeed_later_is_known_as_such(error: exceptions.ClientError) -> None:
    found = translated(error)
    assert aws_errors.may_pass(found) and found.exit_code == 4 and found.hint
    assert "it is" in str(found)


def test_an_unknown_error_of_the_service_may_have_done_what_it_was_asked_for() -> None:
    assert aws_errors.may_have_happened(translated(refused("NewInternalFault", 500)))
    assert not aws_errors.may_pass(translated(refused("NewRefusal")))


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (exceptions.CredentialRetrievalError(provider="custom-process", error_msg="x"), CloudError, "get-caller-id"),
        (exceptions.MetadataRetrievalError(error_msg="no token"), CloudError, "get-caller-identity"),
        (exceptions.ConfigParseError(path="~/.aws/config"), UsageError, "correct ~/.aws/config"),
        (exceptions.InvalidConfigError(error_msg="no source_profile"), UsageError, "correct ~/.aws/config"),
        (exceptions.ConfigNotFound(path="/nope"), UsageError, "AWS_CONFIG_FILE"),
    ],
)
def test_credentials_that_cannot_be_obtained_are_not_the_endpoints_fault(
    error: Exception, kind: type[GpuAmiError], hint: str
) -> None:
    found = translated(error)
    assert isinstance(found, kind) and not isinstance(found, Unreachable)
    assert hint in found.hint and "reachable" not in found.hint


@pytest.mark.parametrize("code", ["InsufficientVolumeCapacity", "InsufficientCapacityOnHost", "UnfulfillableCapacity"])
def test_every_lack_of_capacity_is_one(code: str, clock: Clock) -> None:
    """They come with HTTP status 500, and are no error of AWS's own."""
    cloud = cloud_of(run_instances=answers(refused(code, 500)), describe_subnets={"Subnets": []})
    assert failure(lambda: cloud.launch(Launch("ami-1", "p5.48xlarge", "", {}, ""))).exit_code == 5
    assert clock[0] < 1001
    assert aws_errors.from_state_reason("i-1 is terminated", f"Server.{code}", "none").exit_code == 5


def test_an_instance_that_ended_without_a_state_reason(clock: Clock) -> None:
    why = "Server.InternalError: Internal error on launch"
    cloud = cloud_of(describe_instances=answers(instance("terminated", StateTransitionReason=why)))
    found = failure(lambda: cloud.wait_for_state("i-1", "running", 60))
    assert "Internal error on launch" in str(found) and "error of AWS's own" in found.hint
    cloud = cloud_of(describe_instances=answers(instance("terminated")))
    assert "EC2 gives no reason" in failure(lambda: cloud.wait_for_state("i-1", "running", 60)).hint


def test_a_wait_that_is_cancelled_during_an_outage_ends(clock: Clock) -> None:
    cloud = cloud_of(describe_instances=answers(THROTTLED))
    found = failure(lambda: cloud.wait_for_state("i-1", "running", 1500, lambda: clock[0] > 1010))
    assert "was cancelled" in str(found) and clock[0] < 1020


def test_network_cards_are_looked_up_again_after_throttling(clock: Clock) -> None:
    cards = {"NetworkInfo": {"NetworkCards": [{"NetworkCardIndex": 0, "MaximumNetworkInterfaces": 15}]}}
    cloud = cloud_of(
        run_instances={"Instances": [{"InstanceId": "i-1"}]},
        describe_instance_types=answers(THROTTLED, THROTTLED, {"InstanceTypes": [cards]}),
    )
    assert cloud.launch(Launch("ami-1", "p5.48xlarge", "", {}, "", efa_interfaces=32)) == "i-1"


LOST = exceptions.ReadTimeoutError(endpoint_url="https://aws")


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        ([LOST, refused("ExpiredToken")], True),
        ([LOST, refused("RequestExpired")], True),
        ([LOST, refused("UnauthorizedOperation")], True),
        ([LOST, refused("InsufficientInstanceCapacity", 500)], False),  # of the same client token: nothing runs
        ([refused("ExpiredToken")], False),
    ],
)
def test_a_launch_whose_answer_was_lost_before_a_refusal_may_run(calls: list[Any], kept: bool, clock: Clock) -> None:
    left: list[GpuAmiError] = []
    cloud = cloud_of(
        run_instances=answers(*calls), describe_subnets={"Subnets": []}, describe_instances={"Reservations": []}
    )
    launch = Launch("ami-1", "g5.xlarge", "", {runs.TAG_RUN: "r"}, "", on_leftover=left.append)
    found = failure(lambda: cloud.launch(launch))
    assert bool(left) == kept and ("gpu-ami sweep" in str(found)) == kept


def test_an_action_without_an_end_may_have_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt's answer hangs until its limit: the instance that RunInstances made was never looked for."""
    monkeypatch.setattr(aws_errors, "ACTION_SECONDS", -1.0)

    def call() -> None:
        with aws_errors.translated("launching g5.xlarge"):
            aws_errors.check_limit()

    assert aws_errors.may_have_happened(failure(call))


def image(state: str, *, snapshot: str = "snap-1") -> dict[str, Any]:
    volume = {"VolumeSize": 8, **({"SnapshotId": snapshot} if snapshot else {})}
    devices = [{"DeviceName": "/dev/xvda", "Ebs": volume}, {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}]
    return {"Images": [{"ImageId": "ami-1", "State": state, "BlockDeviceMappings": devices}]}


def create(looks: list[Any], tagging: list[Any] | None = None) -> tuple[Callable[[], str], list[str]]:
    """Makes an AMI that DescribeImages shows so; what was tagged in the end."""
    tagged: list[str] = []
    tag = answers(*(tagging or []), {})

    def create_tags(**asked: Any) -> Any:
        answer = tag()
        tagged.extend(asked["Resources"])
        return answer

    cloud = cloud_of(
        create_image={"ImageId": "ami-1"}, describe_images=answers(*looks), create_tags=create_tags,
        deregister_image={}, delete_snapshot={},
    )  # fmt: skip
    return lambda: amis.create(cloud, "i-1", "name", {"a": "b"}, "", timeout=7200), tagged


def test_an_image_that_is_gone_ends_the_wait(clock: Clock) -> None:
    """A cleaning job of the account deregistered it: the build waited until its own end."""
    call, _ = create([image("pending"), image("pending"), {"Images": []}])
    found = failure(call)
    assert "image ami-1 is gone" in str(found) and "DeregisterImage" in found.hint and clock[0] < 1400


def test_an_outage_does_not_make_an_image_gone(clock: Clock) -> None:
    call, tagged = create([image("pending"), *[THROTTLED] * 300, image("available")])
    assert call() == "ami-1" and tagged == ["ami-1", "snap-1"]


def test_a_disabled_image_ends_the_wait(clock: Clock) -> None:
    call, _ = create([image("disabled")])
    assert "is disabled" in str(failure(call)) and clock[0] < 1400


def test_an_image_is_complete_with_its_snapshots_alone(clock: Clock) -> None:
    call, tagged = create([image("available", snapshot=""), image("available")])
    assert call() == "ami-1" and tagged == ["ami-1", "snap-1"]


@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "InvalidSnapshot.NotFound"])
def test_an_image_is_not_taken_back_where_one_server_does_not_know_it_yet(code: str, clock: Clock) -> None:
    call, tagged = create([image("available")], [refused(code), refused(code)])
    assert call() == "ami-1" and tagged == ["ami-1", "snap-1"]


def swept(home: Path, **calls: Any) -> list[sweep.Swept]:
    """What is swept of an account in which nothing is listed but what `calls` answer."""
    nothing = {
        "describe_instances": {"Reservations": []}, "describe_key_pairs": {"KeyPairs": []},
        "describe_security_groups": {"SecurityGroups": []}, "describe_volumes": {"Volumes": []},
        "describe_images": {"Images": []}, "describe_snapshots": {"Snapshots": []},
        "describe_placement_groups": {"PlacementGroups": []},
    }  # fmt: skip
    ecs = {"list_clusters": {"clusterArns": []}, "list_task_definition_families": {"families": []}}
    cloud = cloud_of({"logs": {"describe_log_groups": {"logGroups": []}}, "ecs": ecs}, **(nothing | calls))
    return sweep.sweep_cloud(cloud, home, QUIET)


def test_a_deregistered_image_is_gone(clock: Clock, home: Path) -> None:
    tags = [{"Key": runs.TAG_RUN, "Value": "r"}, {"Key": runs.TAG_EXPIRES, "Value": "2026-01-01T00:00:00Z"}]
    row = {"ImageId": "ami-1", "State": "pending", "Tags": tags}
    gone = answers(refused("InvalidAMIID.Unavailable"))
    (one,) = swept(home, describe_images={"Images": [row]}, deregister_image=gone)
    assert (one.id, one.outcome, one.error) == ("ami-1", "removed", "")


def test_the_look_after_a_termination_outlasts_throttling(clock: Clock) -> None:
    looks = answers(THROTTLED, THROTTLED, instance("terminated"))
    resources.remove(
        cloud_of(terminate_instances={}, describe_instances=looks), resources.Resource("instance", "i-1", {})
    )


def test_a_log_group_that_is_being_changed_is_removed_later(clock: Clock) -> None:
    removal = answers(refused("OperationAbortedException"), {})
    group = resources.Resource("log-group", "/a-proof/20261127-120000-abcdef", {})
    resources.remove(cloud_of({"logs": {"delete_log_group": removal}}), group)


def test_a_sweep_outlasts_a_wave_of_throttling(clock: Clock, home: Path) -> None:
    """A machine that is left costs money; botocore's own attempts end after seconds."""
    volumes = answers(*[THROTTLED] * 30, {"Volumes": []})
    assert swept(home, describe_volumes=volumes) == [] and clock[0] < 1120


def test_a_launch_template_that_is_deleted_meanwhile_uses_nothing() -> None:
    """In an account with many, one refused the whole publication."""

    def versions(**asked: Any) -> Any:
        if asked["LaunchTemplateId"] == "lt-1":
            raise refused("InvalidLaunchTemplateId.NotFound")
        return {"LaunchTemplateVersions": [{"VersionNumber": 3, "LaunchTemplateData": {"ImageId": "ami-1"}}]}

    templates = [{"LaunchTemplateId": f"lt-{number}", "LaunchTemplateName": f"name-{number}"} for number in (1, 2)]
    scaling = {
        "describe_auto_scaling_groups": {"AutoScalingGroups": []},
        "describe_launch_configurations": {"LaunchConfigurations": []},
    }
    cloud = cloud_of(
        {"autoscaling": scaling, "ssm": {"describe_parameters": {"Parameters": []}}},
        describe_instances={"Reservations": []},
        describe_launch_templates={"LaunchTemplates": templates},
        describe_launch_template_versions=versions,
    )
    assert amis.users(cloud, {"ami-1": ""}, "") == {"ami-1": ["launch template name-2 version 3"]}


@pytest.mark.parametrize(("code", "kept"), [("RequestLimitExceeded", True), ("UnauthorizedOperation", False)])
def test_records_stay_where_a_list_failed_for_the_moment(
    code: str, kept: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*_: Any) -> list[resources.Resource]:
        raise CloudError("listing placement groups", code=code)

    monkeypatch.setattr(placement_groups, "tagged", listed)
    assert [(one.kind, bool(one.error)) for one in swept(home)] == [("placement groups", True)] * kept


COMMAND = {"Command": {"CommandId": "c" * 36}}


def invocation(name: str, output: str = "{}") -> dict[str, Any]:
    plugin = {"Name": "says", "Status": "Success", "ResponseCode": 0, "Output": output}
    return {"InstanceId": name, "Status": "Success", "StatusDetails": "Success", "CommandPlugins": [plugin]}


def machines(number: int) -> list[systems_manager.FleetMachine]:
    return [
        systems_manager.FleetMachine(f"i-{index:03}", "g5.xlarge", "running", ping="Online") for index in range(number)
    ]


def test_a_command_that_one_server_does_not_know_yet_is_looked_for_again(clock: Clock) -> None:
    listed = answers(refused("InvalidCommandId"), {"CommandInvocations": [invocation("i-000")]})
    cloud = ssm(send_command=COMMAND, list_command_invocations=listed)
    assert systems_manager.run(cloud, machines(1), "say", {})["i-000"].status == "Success"


def test_a_result_that_is_throttled_is_read_again(clock: Clock) -> None:
    result = {"ResponseCode": 0, "StandardOutputContent": "all of it", "StandardErrorContent": ""}
    cloud = ssm(
        send_command=COMMAND,
        list_command_invocations={"CommandInvocations": [invocation("i-000", "x" * 2500)]},
        get_command_invocation=answers(refused("ThrottlingException"), result),
    )
    assert systems_manager.run(cloud, machines(1), "say", {})["i-000"].text == "all of it"


def test_a_refusal_says_on_how_many_machines_the_command_ran_before(clock: Clock) -> None:
    fleet = machines(60)
    cloud = ssm(
        send_command=answers(COMMAND, refused("AccessDeniedException")),
        list_command_invocations={"CommandInvocations": [invocation(each.instance_id) for each in fleet]},
    )
    assert "say was carried out on 50 of 60 machines" in str(
        failure(lambda: systems_manager.run(cloud, fleet, "say", {}))
    )


def page(*times: int, token: str) -> dict[str, Any]:
    events = [{"timestamp": each, "ingestionTime": each, "message": "x"} for each in times]
    return {"events": events, "nextBackwardToken": token, "nextForwardToken": "f"}


def test_an_empty_page_does_not_make_a_stream_silent() -> None:
    """GetLogEvents sends empty pages before older events."""
    read = answers(page(token="a"), page(token="b"), page(2000, 5000, token="c"))
    assert systems_manager.newest_event(cloud_of({"logs": {"get_log_events": read}}), "group", "stream") == 5.0
    empty = cloud_of({"logs": {"get_log_events": page(token="a")}})
    assert systems_manager.newest_event(empty, "group", "stream") is None


def test_a_machine_that_two_pages_list_is_one() -> None:
    rows = instance("running", InstanceType="g5.xlarge")
    cloud = cloud_of(
        {"ssm": {"describe_instance_information": {"InstanceInformationList": []}}},
        describe_instances={"Reservations": rows["Reservations"] * 2},
    )
    assert len(systems_manager.find(cloud, systems_manager.Selection(tags={"fleet": "train"}))) == 1


def test_a_document_that_one_server_does_not_know_yet_is_waited_for(clock: Clock) -> None:
    described = answers(refused("InvalidDocument"), {"Document": {"Status": "Active"}})
    systems_manager.ensure_document(ssm(create_document={}, describe_document=described), "say", {})
    systems_manager.ensure_parameter(ssm(put_parameter=answers(refused("TooManyUpdates"), {})), "name", "value")


@pytest.mark.parametrize("repeated", [True, False])
def test_an_association_that_a_lost_call_made_is_found(repeated: bool) -> None:
    row = {"AssociationId": "0" * 36, "AssociationName": "telemetry"}
    cloud = ssm(
        list_associations=answers({"Associations": []}, {"Associations": [row]}),
        create_association=answers(refused("AssociationAlreadyExists", repeated=repeated)),
    )

    def ensure() -> str:
        targets = [{"Key": "tag:fleet", "Values": ["train"]}]
        return systems_manager.ensure_association(cloud, "telemetry", "say", targets, systems_manager.Limits())

    assert (ensure() if repeated else failure(ensure).code) == ("0" * 36 if repeated else "AssociationAlreadyExists")


def test_a_parameter_that_a_lost_call_wrote_is_no_duplicate(clock: Clock) -> None:
    refusal = answers(refused("ParameterAlreadyExists", repeated=True))

    def cloud(value: str) -> Cloud:
        return ssm(put_parameter=refusal, get_parameters={"Parameters": [{"Name": "name", "Value": value}]})

    image_parameters.write(cloud("ami-1"), "name", "ami-1", overwrite=False)
    found = failure(lambda: image_parameters.write(cloud("ami-2"), "name", "ami-1", overwrite=False))
    assert found.code == "ParameterAlreadyExists"


@pytest.mark.parametrize("text", ["2026-11-29T00:00:00", "2026-11-29"])
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    moment = release.as_time(text)
    assert moment is not None and moment.isoformat() == "2026-11-29T00:00:00+00:00"


def test_an_image_that_two_pages_list_is_one() -> None:
    row = {"ImageId": "ami-1", "Name": "one", "State": "available"}
    assert len(release.images(cloud_of(describe_images={"Images": [row, row]}), "image-id", ["ami-1"])) == 1


def test_a_token_that_repeats_ends_a_listing() -> None:
    asked: list[Any] = []

    def exclusions(**request: Any) -> Any:
        asked.append(request)
        return {"VpcBlockPublicAccessExclusions": [], "NextToken": "t"}

    blocked = {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "block-bidirectional"}}
    scope: Any = SimpleNamespace(
        ec2=Checked(
            "ec2",
            describe_vpc_block_public_access_options=blocked,
            describe_vpc_block_public_access_exclusions=exclusions,
        )
    )
    (finding,) = preflight.findings.examined("x", lambda: list(network.public_access(scope)))
    assert "the same next token" in finding.found and len(asked) == 2


def test_a_simulation_without_a_result_is_no_crash() -> None:
    scope: Any = SimpleNamespace(
        cloud=cloud_of(
            {
                "iam": {"simulate_principal_policy": {"EvaluationResults": []}},
                "sts": {"get_caller_identity": {"Arn": "arn:aws:iam::123456789012:user/x"}},
            }
        )
    )
    with pytest.raises(aws.NotOfAws, match="it has no EvaluationResults"):
        identity.may_create_service_role(scope, "spot.amazonaws.com", "arn:aws:iam::1:role/x")
