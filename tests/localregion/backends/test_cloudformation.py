"""Alarms and metric filters of a stack: made, changed and deleted with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from localregion import backends


@pytest.fixture
def aws() -> Iterator[Any]:
    backends.install()
    with mock_aws():
        yield lambda service: boto3.client(service, region_name="us-east-1")


def template(threshold: int) -> str:
    transformation = {"MetricName": "m", "MetricNamespace": "n", "MetricValue": "1", "DefaultValue": 0}
    group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "g"}}
    filtering = {"LogGroupName": {"Ref": "Group"}, "FilterPattern": "{ $.a = 1 }", "FilterName": "f",
                 "MetricTransformations": [transformation]}  # fmt: skip
    dimensions = [{"Name": "InstanceId", "Value": "i-1"}]
    stat = {"Metric": {"Namespace": "n", "MetricName": "m", "Dimensions": dimensions}, "Period": 60, "Stat": "Sum"}
    alarm = {
        "AlarmName": "a", "ComparisonOperator": "GreaterThanOrEqualToThreshold", "EvaluationPeriods": 1,
        "Threshold": threshold, "AlarmDescription": "text", "TreatMissingData": "ignore",
        "Metrics": [{"Id": "e", "Expression": "m * 2"}, {"Id": "m", "MetricStat": stat, "ReturnData": False}],
    }  # fmt: skip
    resources = {
        "Group": group,
        "Filter": {"Type": "AWS::Logs::MetricFilter", "Properties": filtering},
        "Alarm": {"Type": "AWS::CloudWatch::Alarm", "Properties": alarm},
    }
    outputs = {"Arn": {"Value": {"Fn::GetAtt": ["Alarm", "Arn"]}}, "Name": {"Value": {"Ref": "Filter"}}}
    return json.dumps({"Resources": resources, "Outputs": outputs})


def test_alarm_and_filter_live_with_their_stack(aws: Any) -> None:
    cloudformation, cloudwatch, logs = aws("cloudformation"), aws("cloudwatch"), aws("logs")
    cloudformation.create_stack(StackName="s", TemplateBody=template(1))
    outputs = cloudformation.describe_stacks(StackName="s")["Stacks"][0]["Outputs"]
    named = {one["OutputKey"]: one["OutputValue"] for one in outputs}
    assert named["Name"] == "f" and named["Arn"].endswith(":alarm:a")
    [alarm] = cloudwatch.describe_alarms()["MetricAlarms"]
    assert (alarm["Threshold"], alarm["TreatMissingData"], alarm["AlarmDescription"]) == (1.0, "ignore", "text")
    assert alarm["Metrics"][1]["MetricStat"]["Metric"]["Dimensions"] == [{"Name": "InstanceId", "Value": "i-1"}]
    [filtered] = logs.describe_metric_filters()["metricFilters"]
    assert filtered["metricTransformations"][0]["metricNamespace"] == "n"
    cloudformation.update_stack(StackName="s", TemplateBody=template(5))
    assert [one["Threshold"] for one in cloudwatch.describe_alarms()["MetricAlarms"]] == [5.0]
    cloudformation.delete_stack(StackName="s")
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
    assert logs.describe_metric_filters()["metricFilters"] == []


@pytest.mark.slow
def test_the_daemon_installs_them_with_the_first_call() -> None:
    """In a fresh process: here, other tests have installed them."""
    signed = "AWS4-HMAC-SHA256 Credential=x/20261123/us-east-1/cloudformation/aws4_request, Signature=x"
    code = f"""
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from werkzeug.test import Client
from localregion import backends
backends.install(stacks=False)
client = Client(DomainDispatcherApplication(backends.service_application))
client.post("/", data={{"Action": "ListStacks"}}, headers={{"Authorization": "{signed}"}})
from moto.cloudformation import parsing
print(parsing.get_model_map()["AWS::CloudWatch::Alarm"].__module__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "localregion.backends.cloudformation\n", done.stderr
