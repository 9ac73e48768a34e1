"""A call without permission, as boto3 sees it and as the product reports it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import ApiAccess, Cloud, Launch, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError
from localregion.backends import instance_access_key
from tests.localregion.api.test_layer import LAUNCH, client
from tests.localregion.conftest import BASE_ID, Region

INSTANCE_KEY = instance_access_key("i-0123456789abcdef0")
USER = "arn:aws:iam::123456789012:user/gpu-ami-local"
ROLE = "arn:aws:sts::123456789012:assumed-role/gpu-ami-local/i-0123456789abcdef0"


@pytest.mark.parametrize(
    ("service", "key", "call", "arguments", "code", "status", "text"),
    [
        (
            "ec2", "local", "run_instances", LAUNCH, "UnauthorizedOperation", 403,
            f"User: {USER} is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:"
            "123456789012:instance/*",
        ),
        ("iam", "local", "list_users", {}, "AccessDenied", 403, f"User: {USER} is not authorized to perform: iam:List"),
        (
            "logs", "local", "get_log_events", {"logGroupName": "/other", "logStreamName": "s"},
            "AccessDeniedException", 400,
            "logs:GetLogEvents on resource: arn:aws:logs:us-east-1:123456789012:log-group:/other",
        ),
        (
            "scheduler", "local", "delete_schedule", {"Name": "of-somebody"}, "AccessDeniedException", 403,
            "schedule/default/of-somebody",
        ),
        (
            "cloudwatch", INSTANCE_KEY, "put_metric_data",
            {"Namespace": "Other", "MetricData": [{"MetricName": "m", "Value": 1.0}]}, "AccessDeniedException", 400,
            f"User: {ROLE} is not authorized to perform: cloudwatch:PutMetricData",
        ),
        ("ec2", INSTANCE_KEY, "describe_instances", {}, "UnauthorizedOperation", 403, f"User: {ROLE} is not"),
        ("cloudwatch", "local", "put_metric_data", {"Namespace": "CWAgent", "MetricData": []},
         "AccessDeniedException", 400, "cloudwatch:PutMetricData"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_code_status_and_message_of_aws(
    region: Region, service: str, key: str, call: str, arguments: Any, code: str, status: int, text: str
) -> None:
    _, endpoint = region("iam-enforced")
    with pytest.raises(ClientError) as caught:
        getattr(client(endpoint, service, key), call)(**arguments)
    response = caught.value.response
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert text in response["Error"]["Message"]


def test_what_the_policies_allow_is_carried_out(region: Region) -> None:
    _, endpoint = region("iam-enforced")
    assert client(endpoint).describe_instances()["Reservations"] == []
    assert client(endpoint, "sts", INSTANCE_KEY).get_caller_identity()["Account"] == "123456789012"
    agent = client(endpoint, "cloudwatch", INSTANCE_KEY)
    agent.put_metric_data(Namespace="CWAgent", MetricData=[{"MetricName": "m", "Value": 1.0}])


def test_only_what_carries_the_tag_of_a_run_is_terminated(region: Region) -> None:
    world, endpoint = region("iam-enforced")
    foreign = world.launch(tags={"instance": {"Name": "of somebody"}})
    own = world.launch(tags={"instance": {"gpu-ami:run": "r"}})
    ec2 = client(endpoint)
    ec2.terminate_instances(InstanceIds=[own.id])
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.terminate_instances(InstanceIds=[foreign.id])


def test_a_launch_without_tags_is_refused_with_the_action_named(region: Region) -> None:
    _, endpoint = region("iam-enforced")
    cloud = Cloud(
        Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    )
    with pytest.raises(CloudError, match="UnauthorizedOperation") as caught:
        cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", {}, ""))
    assert "ec2:RunInstances" in caught.value.details[0] and "the action that the message names" in caught.value.hint


def test_a_call_that_cannot_be_judged_is_refused(region: Region) -> None:
    import urllib.error
    import urllib.request

    _, endpoint = region("iam-enforced")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{endpoint}/")
    assert caught.value.code == 403
