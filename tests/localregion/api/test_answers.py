"""The API's protocol: calls that are read, answers in pages, services beside moto's."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest

from localregion.api.layer import without
from localregion.api.protocol import ErrorAnswer, ServiceCall, read_service_call, unpack
from tests.localregion.api.test_layer import client, refused
from tests.localregion.conftest import World

# What the layer answers itself, and what it leaves to moto.


def test_parameters_are_moto_s_and_nodes_the_region_s(endpoint: str, world: World) -> None:
    ssm = client(endpoint, "ssm")
    ssm.put_parameter(Name="AmazonCloudWatch-x", Value="{}", Type="String")
    assert ssm.get_parameter(Name="AmazonCloudWatch-x")["Parameter"]["Value"] == "{}"
    assert ssm.describe_instance_information()["InstanceInformationList"] == []


def test_a_refusal_has_aws_s_code(endpoint: str) -> None:
    named = {"InstanceIds": ["i-0123456789abcdef0"], "DocumentName": "AWS-RunShellScript"}
    assert refused(client(endpoint, "ssm").send_command, **named) == ("InvalidInstanceId", 400)


# What is missing in a list of EC2 while it is unknown.


ANSWER = b"""<?xml version="1.0"?><DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet>
<item><reservationId>r-1</reservationId><instancesSet>
<item><instanceId>i-1</instanceId><groupSet><item><groupId>sg-1</groupId></item></groupSet></item>
<item><instanceId>i-2</instanceId></item></instancesSet></item>
<item><reservationId>r-2</reservationId><instancesSet><item><instanceId>i-3</instanceId></item></instancesSet></item>
</reservationSet></DescribeInstancesResponse>"""


def test_unknown_instances_and_their_empty_reservations_are_missing() -> None:
    listed = without(ANSWER, "DescribeInstances", lambda name: name in ("i-2", "i-3", "sg-1")).decode()
    assert "i-1" in listed and "sg-1" in listed and "r-1" in listed
    assert "i-2" not in listed and "i-3" not in listed and "r-2" not in listed
    assert 'xmlns="http://ec2.amazonaws.com/' in listed


def test_other_answers_stay_byte_for_byte() -> None:
    assert without(ANSWER, "DescribeInstances", lambda _: False) == ANSWER
    assert without(b"not XML", "RunInstances", lambda _: True) == b"not XML"


# Which call a request is, and errors as botocore reads them.


def request(service: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
    signed = f"AWS4-HMAC-SHA256 Credential=k/20261122/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
    return {
        "REQUEST_METHOD": "POST", "HTTP_AUTHORIZATION": signed, "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body), **headers,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "name", "protocol"),
    [
        (request("ec2", b"Action=RunInstances&ImageId=ami-1"), "ec2:RunInstances", "ec2"),
        (request("sts", b"Action=GetCallerIdentity"), "sts:GetCallerIdentity", "query"),
        (request("monitoring", b"{}", HTTP_X_AMZ_TARGET="Granite.ListMetrics"), "cloudwatch:ListMetrics", "json"),
        (request("logs", b"{}", HTTP_X_AMZ_TARGET="Logs_20140328.GetLogEvents"), "logs:GetLogEvents", "json"),
    ],
)
def test_a_call_is_named_as_iam_names_it(environ: dict[str, Any], name: str, protocol: str) -> None:
    body = environ["wsgi.input"].getvalue()
    call = read_service_call(environ)
    assert call is not None and (call.name, call.protocol) == (name, protocol)
    assert environ["wsgi.input"].read() == body  # whoever comes next reads the whole request


@pytest.mark.parametrize("environ", [{}, request("ec2", b"Version=1")])
def test_what_names_no_action_is_no_call(environ: dict[str, Any]) -> None:
    assert read_service_call(environ) is None


def test_an_error_has_the_form_of_its_protocol() -> None:
    error = ErrorAnswer("Code", "a < b", 403)
    status, _, body = error.encode("ec2")
    assert status == "403 Forbidden" and b"<Response><Errors><Error><Code>Code</Code><Message>a &lt; b" in body
    assert b"<ErrorResponse><Error><Type>Sender</Type><Code>Code</Code>" in error.encode("query")[2]
    assert error.encode("json")[2] == b'{"__type": "Code", "message": "a < b"}'


def test_a_gzipped_body_is_read() -> None:
    packed = gzip.compress(b"Action=PutMetricData")
    environ = request("monitoring", packed, HTTP_CONTENT_ENCODING="gzip")
    unpack(environ)
    assert read_service_call(environ) == ServiceCall(
        "cloudwatch", "PutMetricData", "query", {"Action": "PutMetricData"}
    )
    assert "HTTP_CONTENT_ENCODING" not in environ
