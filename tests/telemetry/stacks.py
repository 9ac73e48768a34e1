"""Stacks of `gpu-ami telemetry` in an account, and the queue that their topics lead to."""

from __future__ import annotations

from collections.abc import Mapping

from tests.localregion.alarms.conftest import Account


def make_stack(aws: Account, name: str, body: str, given: Mapping[str, str]) -> dict[str, str]:
    """Makes it with these parameters; its outputs."""
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    aws("cloudformation").create_stack(
        StackName=name, TemplateBody=body, Parameters=parameters, Capabilities=["CAPABILITY_NAMED_IAM"]
    )
    [stack] = aws("cloudformation").describe_stacks(StackName=name)["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    return {one["OutputKey"]: one["OutputValue"] for one in stack.get("Outputs", [])}


def make_telemetry(aws: Account, body: str) -> dict[str, str]:
    """Stack `t` of telemetry.yml, whose topics lead to the account's queue; its outputs."""
    outputs = make_stack(aws, "t", body, {})
    queue = "arn:aws:sqs:us-east-1:123456789012:q"
    for topic in ("PageTopic", "TicketTopic"):
        aws("sns").subscribe(TopicArn=outputs[topic], Protocol="sqs", Endpoint=queue)
    return outputs
