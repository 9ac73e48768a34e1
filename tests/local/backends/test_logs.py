"""Log events that readers see late."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config

from gpu_ami.local.backends import logs
from tests.local.conftest import Region


def client(endpoint: str, service: str = "ec2") -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_log_events_are_seen_late(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = region("late-telemetry")
    ago = 0.0
    monkeypatch.setattr(logs, "time", SimpleNamespace(time=lambda: time.time() + ago))
    client_ = client(endpoint, "logs")
    stream = {"logGroupName": "g", "logStreamName": "s"}
    client_.create_log_group(logGroupName="g")
    client_.create_log_stream(**stream)
    client_.put_log_events(logEvents=[{"timestamp": int(time.time() * 1000), "message": "m"}], **stream)

    def messages() -> list[str]:
        return [event["message"] for event in client_.get_log_events(startFromHead=True, **stream)["events"]]

    assert (messages(), client_.filter_log_events(logGroupName="g")["events"]) == ([], [])
    ago = 11.0
    assert messages() == ["m"]
    assert len(client_.filter_log_events(logGroupName="g")["events"]) == 1
