"""When the newest log event of a machine was written, by GetLogEvents: DescribeLogStreams lags by up to an hour."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors
from gpu_ami.errors import GpuAmiError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud

_LOOK_BACK_SECONDS = 24 * 3600.0


def newest_event(cloud: Cloud, group: str, stream: str) -> float | None:
    """Seconds since 1970; None where the stream has no event of the last day, or is not there. CloudError."""
    since = int((time.time() - _LOOK_BACK_SECONDS) * 1000)
    try:
        with aws_errors.translated(f"reading log group {group}, stream {stream}"):
            answer = cloud.client("logs").get_log_events(
                logGroupName=group, logStreamName=stream, startTime=since, startFromHead=False, limit=10
            )
            return max((event["timestamp"] / 1000 for event in answer["events"]), default=None)
    except GpuAmiError as error:
        if error.code != "ResourceNotFoundException":
            raise
        return None
