"""CloudWatch, SNS and SQS of an empty account with the local region's models, and time that a test steps."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from localregion import alarms, backends


class Account:
    """Clients by service; `now` is the minute that was evaluated last (UTC without a zone).

    endpoint: of a server, None for moto in this process.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint
        self.clients: dict[str, Any] = {}
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, second=0, microsecond=0)
        self.now = now - datetime.timedelta(minutes=60)
        self.topic = self("sns").create_topic(Name="t")["TopicArn"]
        self.queue = self("sqs").create_queue(QueueName="q")["QueueUrl"]
        queue_arn = "arn:aws:sqs:us-east-1:123456789012:q"
        self("sns").subscribe(TopicArn=self.topic, Protocol="sqs", Endpoint=queue_arn)

    def __call__(self, service: str) -> Any:
        if service not in self.clients:
            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            client: Any = boto3.client
            self.clients[service] = client(service, region_name="us-east-1", endpoint_url=self.endpoint, **keys)
        return self.clients[service]

    def put(self, value: float, name: str = "m", namespace: str = "n", age_s: int = 30, **dimensions: str) -> None:
        """A datapoint in the minute that is evaluated next."""
        time = self.now + datetime.timedelta(seconds=60 - age_s)
        named = [{"Name": key, "Value": text} for key, text in dimensions.items()]
        datum = {"MetricName": name, "Value": value, "Timestamp": time, "Dimensions": named}
        self("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[datum])

    def step(self, minutes: int = 1) -> list[tuple[str, str]]:
        """Evaluates the next minutes; returns alarm and new state of each change."""
        changes = []
        for _ in range(minutes):
            self.now += datetime.timedelta(minutes=1)
            changes += [(name, change.new) for name, change in alarms.step(self.now)]
        return changes

    def states(self) -> dict[str, str]:
        described = self("cloudwatch").describe_alarms()["MetricAlarms"]
        return {alarm["AlarmName"]: alarm["StateValue"] for alarm in described}

    def messages(self) -> list[dict[str, Any]]:
        """What SNS delivered since the last call; `Subject` and `Sent` (Unix seconds) beside the alarm's own fields."""
        found = []
        query = {"QueueUrl": self.queue, "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["SentTimestamp"]}
        while received := self("sqs").receive_message(**query).get("Messages"):
            for one in received:
                sent = int(one["Attributes"]["SentTimestamp"]) / 1000
                self("sqs").delete_message(QueueUrl=self.queue, ReceiptHandle=one["ReceiptHandle"])
                body = json.loads(one["Body"])
                found.append({"Subject": body["Subject"], "Sent": sent, **json.loads(body["Message"])})
        return found

    def alarm(self, **given: Any) -> None:
        """Puts alarm `a` on metric `m`: Sum >= 1 in one minute, unless `given` says otherwise."""
        plain = {"Namespace": "n", "MetricName": "m", "Statistic": "Sum", "Period": 60}
        usual = {
            "AlarmName": "a", "EvaluationPeriods": 1, "Threshold": 1.0, "AlarmActions": [self.topic],
            "OKActions": [self.topic], "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        }  # fmt: skip
        metric = {} if "Metrics" in given else plain
        merged = {**usual, **metric, **given}
        wanted = {key: value for key, value in merged.items() if value is not None}
        self("cloudwatch").put_metric_alarm(**wanted)


@pytest.fixture
def aws() -> Iterator[Account]:
    backends.install()
    alarms.install()
    with mock_aws():
        yield Account()
