"""The only door of the checks to AWS: what has arrived in CloudWatch and CloudWatch Logs.

Arrival is asked for with GetMetricData and GetLogEvents: ListMetrics and lastEventTimestamp lag by up to 15 minutes
and an hour, and are never proof. A call that AWS throttles is repeated; one that it refuses raises ApiRefused, which
says nothing about the image.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_logs import CloudWatchLogsClient

T = TypeVar("T")
QUERIES_A_CALL = 500  # GetMetricData's own limit
LOCAL_POLL_SECONDS = 0.5
AWS_POLL_SECONDS = 5.0  # GetMetricData and GetLogEvents are throttled per account
# Calls that are throttled, or meet an error of the service, are repeated for so long, with growing waits.
RETRY_SECONDS = 300.0
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0
_THROTTLED = {
    "Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded", "TooManyRequestsException",
    "LimitExceededException", "LimitExceeded",
}  # fmt: skip
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_CREDENTIALS = {"UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch"}


class ApiRefused(Exception):
    """A call to CloudWatch or Logs that AWS refused or that never reached it: action, what AWS said, what to do."""

    def __init__(self, action: str, code: str, message: str, hint: str) -> None:
        super().__init__(f"{action}: {code}: {message}" if code else f"{action}: {message}")
        self.action, self.code, self.hint = action, code, hint

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, order=True)
class Series:
    """One metric: namespace, name, and its exact dimensions."""

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.dimensions)
        return f"{self.namespace}/{self.name}{{{inside}}}"


@dataclass(frozen=True)
class Point:
    """One datapoint: seconds since 1970 of the period's start, and the average in it."""

    time: float
    value: float


@dataclass(frozen=True)
class LogEvent:
    """One event of a stream; both times in seconds since 1970. `ingested` is CloudWatch's own clock."""

    time: float
    ingested: float
    message: str


class CloudWatch:
    """CloudWatch of one region. `sleep` is where waiting happens, so that many checks can wait side by side."""

    def __init__(
        self, region: str, *, endpoint: str | None = None, profile: str | None = None, arrival_seconds: float = 900.0
    ) -> None:
        self.region = region
        self.endpoint = endpoint
        self.profile = profile
        self.arrival_seconds = arrival_seconds
        self.poll_seconds = LOCAL_POLL_SECONDS if endpoint else AWS_POLL_SECONDS
        self.sleep: Callable[[float], None] = time.sleep
        self._clients: dict[str, Any] = {}

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            import boto3
            from botocore.config import Config

            session: Any = boto3.session.Session(region_name=self.region, profile_name=self.profile)
            # No attempts of botocore's: it would wait in the thread that all checks share.
            patience = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1})
            self._clients[service] = session.client(service, endpoint_url=self.endpoint, config=patience)
        return self._clients[service]

    @property
    def _metrics(self) -> CloudWatchClient:
        client: CloudWatchClient = self._client("cloudwatch")
        return client

    @property
    def _logs(self) -> CloudWatchLogsClient:
        client: CloudWatchLogsClient = self._client("logs")
        return client

    def wait(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Calls `look` until it gives something, at most for `seconds`; None when it never did."""
        until = time.monotonic() + seconds
        while True:
            found = look()
            if found is not None or time.monotonic() >= until:
                return found
            self.sleep(min(self.poll_seconds, max(0.0, until - time.monotonic())))

    def _ask(self, action: str, call: Callable[[], T]) -> T:
        """The answer to a call, which is repeated while AWS throttles it or its service fails.

        action: as IAM writes it, such as `logs:GetLogEvents`. ApiRefused: AWS refused it, or the time is over.
        """
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        until, wait = time.monotonic() + RETRY_SECONDS, _FIRST_WAIT
        while True:
            try:
                return call()
            except ClientError as error:
                refusal, again = _refusal(action, error)
            except (ConnectionError, HTTPClientError) as error:
                refusal, again = ApiRefused(action, "", str(error), "is the endpoint reachable from here?"), True
            except BotoCoreError as error:
                refusal, again = ApiRefused(action, "", str(error), "check the credentials and the region"), False
            if not again or time.monotonic() >= until:
                raise refusal
            self.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def points(self, series: Sequence[Series], since: float, period: int) -> dict[Series, list[Point]]:
        """Datapoints of each series since a time, newest first. `period` in seconds."""
        found: dict[Series, list[Point]] = {one: [] for one in series}
        for first in range(0, len(series), QUERIES_A_CALL):
            self._read_points(list(series[first : first + QUERIES_A_CALL]), since, period, found)
        return found

    def _read_points(
        self, series: Sequence[Series], since: float, period: int, found: dict[Series, list[Point]]
    ) -> None:
        queries: Any = [{"Id": f"q{at}", "MetricStat": _metric_stat(one, period)} for at, one in enumerate(series)]
        start = datetime.fromtimestamp(since - since % period, UTC)
        end = datetime.fromtimestamp(time.time() + 2 * period, UTC)
        paginator = self._metrics.get_paginator("get_metric_data")
        times: Any = {"StartTime": start, "EndTime": end, "ScanBy": "TimestampDescending"}
        read = functools.partial(paginator.paginate, MetricDataQueries=queries, **times)
        for page in self._ask("cloudwatch:GetMetricData", lambda: list(read())):
            for result in page["MetricDataResults"]:
                one = series[int(result["Id"][1:])]
                pairs = zip(result["Timestamps"], result["Values"], strict=True)
                found[one] += [Point(at.timestamp(), value) for at, value in pairs]

    def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[Series]:
        """All series that ListMetrics knows with these dimensions. Good for finding one too many, never for arrival."""
        filters: Any = [{"Name": name, "Value": value} for name, value in dimensions.items()]
        paginator = self._metrics.get_paginator("list_metrics")
        read = functools.partial(paginator.paginate, Namespace=namespace, Dimensions=filters)
        pages = self._ask("cloudwatch:ListMetrics", lambda: list(read()))
        return {
            Series(one["Namespace"], one["MetricName"], _sorted((d["Name"], d["Value"]) for d in one["Dimensions"]))
            for page in pages
            for one in page["Metrics"]
        }

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
        """All events of a stream, oldest first; None where the group or the stream is not there (yet)."""
        found: list[LogEvent] = []
        options: dict[str, Any] = {"startTime": int(since * 1000)} if since else {}
        token = ""
        while True:
            read = functools.partial(
                self._logs.get_log_events, logGroupName=group, logStreamName=stream, startFromHead=True, **options
            )
            try:
                page = self._ask("logs:GetLogEvents", read)
            except ApiRefused as error:
                if error.code == "ResourceNotFoundException":
                    return None
                raise
            found += [
                LogEvent(event["timestamp"] / 1000, event["ingestionTime"] / 1000, event["message"])
                for event in page["events"]
            ]
            # The token is never absent; the stream is at its end when it repeats. A page may be empty before that.
            if page["nextForwardToken"] == token:
                return found
            token = options["nextToken"] = page["nextForwardToken"]

    def retention_days(self, group: str) -> int | None:
        """Days after which a group's events are dropped; None for never. LookupError where there is no such group."""
        paginator = self._logs.get_paginator("describe_log_groups")
        read = functools.partial(paginator.paginate, logGroupNamePrefix=group)
        for page in self._ask("logs:DescribeLogGroups", lambda: list(read())):
            for one in page["logGroups"]:
                if one["logGroupName"] == group:
                    return one.get("retentionInDays")
        raise LookupError(group)


def _refusal(action: str, error: ClientError) -> tuple[ApiRefused, bool]:
    """The error, and whether the same call may succeed in a moment."""
    answer = error.response.get("Error", {})
    code, message = answer.get("Code", ""), answer.get("Message", str(error))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    hint = ""
    if code in _DENIED:
        hint = f"allow {action} in the policy of whoever runs the proof: iam/caller-prove.json"
    elif code in _EXPIRED:
        hint = "the credentials have expired: log in again; the session must be as long as the proof"
    elif code in _CREDENTIALS:
        hint = "AWS does not accept these credentials"
    elif code in _THROTTLED:
        hint = f"AWS limits the rate of this call for the account, for {RETRY_SECONDS:.0f} s on end"
    return ApiRefused(action, code, message, hint), code in _THROTTLED or status >= 500


def _metric_stat(series: Series, period: int) -> dict[str, Any]:
    dimensions = [{"Name": name, "Value": value} for name, value in series.dimensions]
    metric = {"Namespace": series.namespace, "MetricName": series.name, "Dimensions": dimensions}
    return {"Metric": metric, "Period": period, "Stat": "Average"}


def _sorted(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs))
