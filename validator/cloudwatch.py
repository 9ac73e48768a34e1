"""Reads datapoints and log events from CloudWatch and CloudWatch Logs. The checks call AWS only here.

GetMetricData and GetLogEvents prove arrival. ListMetrics lags by up to 15 minutes and lastEventTimestamp by up to an
hour, so neither is proof. A throttled call is retried; a refused one raises ApiRefused, which says nothing about the
image.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from validator import aws
from validator.aws import NotOfAws
from validator.deadline import limit_requests

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import (
        DimensionFilterTypeDef,
        DimensionTypeDef,
        GetMetricDataOutputTypeDef,
        MetricDataQueryTypeDef,
        MetricStatTypeDef,
    )
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_logs.type_defs import GetLogEventsRequestTypeDef, GetLogEventsResponseTypeDef

T = TypeVar("T")
Page = TypeVar("Page", bound=Mapping[str, Any])
QUERIES_PER_CALL = 500  # limit of GetMetricData
LOCAL_POLL_SECONDS = 0.5
AWS_POLL_SECONDS = 5.0  # GetMetricData and GetLogEvents are throttled per account
# How long a throttled call, or one that met an error of the service, is retried, with exponential backoff.
RETRY_SECONDS = 300.0
_NO_END = "no end of pages after {:.0f} s"
_NOT_AWS_HINT = "did a proxy answer instead?"
# StatusCode of a MetricDataResult: Complete, PartialData, InternalError, Forbidden. AWS advises to repeat the call
# after PartialData and InternalError alone (API reference, MetricDataResult and MessageData, read 2026-11-29).
_COMPLETE, _FORBIDDEN = "Complete", "Forbidden"
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0


class _PartialAnswer(Exception):
    """CloudWatch says that it could not read all that was asked for."""


class _ForbiddenAnswer(Exception):
    """CloudWatch says that the caller may not read the metrics that were asked for: what it says of it."""


class ApiRefused(Exception):
    """A call to CloudWatch or CloudWatch Logs failed: the action, the error of AWS or of the connection, a hint."""

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
    """One datapoint: seconds since 1970 of the period's start, and the statistic of it, by default the average."""

    time: float
    value: float


@dataclass(frozen=True)
class LogEvent:
    """One event of a stream; both times in seconds since 1970. `ingested` is CloudWatch's own clock."""

    time: float
    ingested: float
    message: str


class CloudWatch:
    """CloudWatch of one region. `sleep` and `park` can be replaced, so that many checks can wait concurrently."""

    def __init__(
        self,
        region: str,
        *,
        endpoint: str | None = None,
        profile: str | None = None,
        arrival_seconds: float = 900.0,
        session: Any = None,
        retry_seconds: float | None = None,
    ) -> None:
        """session: boto3's, with credentials of its own; None: of the profile or the environment.

        retry_seconds: how long a failed call is retried, where somebody waits for the answer; None: RETRY_SECONDS.
        """
        self.region = region
        self.endpoint = endpoint
        self.profile = profile
        self._session = session
        self.arrival_seconds = arrival_seconds
        self._retry_seconds = retry_seconds
        self.poll_seconds = LOCAL_POLL_SECONDS if endpoint else AWS_POLL_SECONDS
        self.sleep: Callable[[float], None] = time.sleep
        self.park: Callable[[float], None] = time.sleep  # in a check that does not need its host meanwhile

    def _client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        # botocore must not retry: it would wait in the thread that all checks share.
        config = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 1})
        try:
            session: Any = self._session or boto3.session.Session(
                botocore_session=aws.session(), region_name=self.region, profile_name=self.profile
            )
            client = session.client(service, endpoint_url=self.endpoint, config=config)
        except (BotoCoreError, ValueError) as error:  # no such profile, or an endpoint that is no URL
            raise ApiRefused(service, "", str(error), "check profile, region and endpoint of the place") from error
        if not self.endpoint and (url := aws.foreign_endpoint(client)):
            raise ApiRefused(service, "", f"{url} is not AWS's API", aws.ENDPOINT_ADVICE)
        limit_requests(client)
        return client

    def client(self, service: str) -> Any:
        """A boto3 client of another service in this region, whose calls `call` makes."""
        return self._client(service)

    @functools.cached_property
    def metrics(self) -> CloudWatchClient:
        client: CloudWatchClient = self._client("cloudwatch")
        return client

    @functools.cached_property
    def logs(self) -> CloudWatchLogsClient:
        client: CloudWatchLogsClient = self._client("logs")
        return client

    def wait(self, look: Callable[[], T | None], seconds: float, *, parked: bool = False) -> T | None:
        """Calls `look` until it returns a value, for at most `seconds`; None if it returned none.

        parked: `look` does not depend on the host, which other checks may change meanwhile.
        """
        sleep = self.park if parked else self.sleep
        deadline = time.monotonic() + seconds
        while True:
            value = look()
            if value is not None or time.monotonic() >= deadline:
                return value
            sleep(min(self.poll_seconds, max(0.0, deadline - time.monotonic())))

    def call(self, action: str, call: Callable[[], T]) -> T:
        """The result of an API call. It is retried for `retry_seconds` if it is throttled or the service fails.

        action: as in IAM policies, such as `logs:GetLogEvents`. ApiRefused: AWS refused it, or the retries failed.
        """
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError, PaginationError
        from botocore.parsers import ResponseParserError

        seconds = RETRY_SECONDS if self._retry_seconds is None else self._retry_seconds
        deadline, wait = time.monotonic() + seconds, _FIRST_WAIT
        while True:
            try:
                return call()
            except ClientError as error:
                refusal, retryable = _refusal(action, error)
            except (ConnectionError, HTTPClientError) as error:
                refusal, retryable = ApiRefused(action, "", str(error), "is the endpoint reachable from here?"), True
            except (ResponseParserError, PaginationError, NotOfAws) as error:
                message = f"the answer is not one of AWS: {str(error).partition(', invalid XML received')[0]}"
                refusal, retryable = ApiRefused(action, "", message, _NOT_AWS_HINT), True
            except _ForbiddenAnswer as error:
                refusal, retryable = ApiRefused(action, _FORBIDDEN, str(error), _denied_hint(action)), False
            except _PartialAnswer as error:
                refusal, retryable = ApiRefused(action, "", str(error), "CloudWatch failed: try again later"), True
            except BotoCoreError as error:
                refusal, retryable = ApiRefused(action, "", str(error), "check the credentials and the region"), False
            if not retryable or time.monotonic() >= deadline:
                raise refusal
            self.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def points(
        self, series: Sequence[Series], since: float, period: int, statistic: str = "Average"
    ) -> dict[Series, list[Point]]:
        """Datapoints of each series since a time, newest first. `period` in seconds."""
        points: dict[Series, list[Point]] = {metric: [] for metric in series}
        for first in range(0, len(series), QUERIES_PER_CALL):
            part = list(series[first : first + QUERIES_PER_CALL])
            self._read_points(part, since, period, statistic, points)
        return points

    def _read_points(
        self,
        series: Sequence[Series],
        since: float,
        period: int,
        statistic: str,
        points: dict[Series, list[Point]],
    ) -> None:
        queries: list[MetricDataQueryTypeDef] = [
            {"Id": f"q{index}", "MetricStat": _metric_stat(metric, period, statistic)}
            for index, metric in enumerate(series)
        ]
        start = datetime.fromtimestamp(since - since % period, UTC)
        end = datetime.fromtimestamp(time.time() + 2 * period, UTC)
        paginator = self.metrics.get_paginator("get_metric_data")
        read = functools.partial(
            paginator.paginate,
            MetricDataQueries=queries,
            StartTime=start,
            EndTime=end,
            ScanBy="TimestampDescending",
        )
        for index, found in self.call("cloudwatch:GetMetricData", lambda: _datapoints(_bounded(read()), len(series))):
            points[series[index]] += found
        for metric in series:
            points[metric].sort(key=lambda point: point.time, reverse=True)

    def known_series(self, namespace: str, dimensions: dict[str, str]) -> set[Series]:
        """All series with these dimensions in ListMetrics. They show unexpected series, but never prove arrival."""
        filters: list[DimensionFilterTypeDef] = [{"Name": name, "Value": value} for name, value in dimensions.items()]
        paginator = self.metrics.get_paginator("list_metrics")
        read = functools.partial(paginator.paginate, Namespace=namespace, Dimensions=filters)
        pages = self.call("cloudwatch:ListMetrics", lambda: _complete(_bounded(read()), "Metrics"))
        return {
            Series(
                metric["Namespace"],
                metric["MetricName"],
                _sorted((dimension["Name"], dimension["Value"]) for dimension in metric["Dimensions"]),
            )
            for page in pages
            for metric in page["Metrics"]
        }

    def events(self, group: str, stream: str, since: float = 0.0) -> list[LogEvent] | None:
        """All events of a stream, oldest first; None if the group or the stream does not exist (yet)."""
        events: list[LogEvent] = []
        request: GetLogEventsRequestTypeDef = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
        if since:
            request["startTime"] = int(since * 1000)
        token, deadline, before = "", time.monotonic() + RETRY_SECONDS, list[Any]()
        while True:
            try:
                page = self.call("logs:GetLogEvents", functools.partial(self._log_events, request))
            except ApiRefused as error:
                if error.code == "ResourceNotFoundException":
                    return None
                raise
            if page["nextForwardToken"] == token and page["events"] == before:
                return events  # the last page once more
            before = page["events"]
            events += [
                LogEvent(event["timestamp"] / 1000, event["ingestionTime"] / 1000, event["message"]) for event in before
            ]
            if time.monotonic() > deadline:
                raise ApiRefused("logs:GetLogEvents", "", _NO_END.format(RETRY_SECONDS), _NOT_AWS_HINT)
            # Every page has a token. The stream is at its end when the token repeats; pages before may be empty.
            if page["nextForwardToken"] == token:
                return events
            token = request["nextToken"] = page["nextForwardToken"]

    def _log_events(self, request: GetLogEventsRequestTypeDef) -> GetLogEventsResponseTypeDef:
        (page,) = _complete([self.logs.get_log_events(**request)], "events", "nextForwardToken")
        _complete(page["events"], "timestamp", "ingestionTime", "message")
        return page

    def retention_days(self, group: str) -> int | None:
        """Days after which a group's events are deleted; None for never. LookupError if the group does not exist."""
        paginator = self.logs.get_paginator("describe_log_groups")
        read = functools.partial(paginator.paginate, logGroupNamePrefix=group)
        for page in self.call("logs:DescribeLogGroups", lambda: _complete(_bounded(read()), "logGroups")):
            for log_group in page["logGroups"]:
                if log_group["logGroupName"] == group:
                    return log_group.get("retentionInDays")
        raise LookupError(group)


def arrivals(
    cloudwatch: CloudWatch, series: Collection[Series], after: float, period: int, never: Collection[Series] = ()
) -> tuple[dict[Series, Point | None], float]:
    """The newest datapoint of each series (None: none came in time), and the seconds from the first counted period.

    Counted are periods (of `period` seconds) that begin after now and after `after` (Unix time): the current one has
    datapoints from before the proof, possibly of the previous boot. never: series that are looked at, not waited for.
    """
    since = -(-max(time.time(), after) // period) * period
    newest: dict[Series, Point | None] = dict.fromkeys(series)

    def look() -> bool | None:
        missing = [one for one, point in newest.items() if point is None]
        arrived = cloudwatch.points(missing, since, period)
        newest.update({one: points[0] if points else None for one, points in arrived.items()})
        return True if all(point for one, point in newest.items() if one not in never) else None

    cloudwatch.wait(look, cloudwatch.arrival_seconds, parked=True)
    return newest, max(0.0, time.time() - since)


def _complete(pages: Iterable[Page], *keys: str) -> list[Page]:
    """The pages of an answer. NotOfAws: one lacks a key."""
    complete = []
    for page in pages:
        for key in keys:
            if key not in page:
                raise NotOfAws(f"it has no {key!r}")
        complete.append(page)
    return complete


def _bounded(pages: Iterable[Page]) -> Iterator[Page]:
    """The pages, for as long as an action may take. NotOfAws: they have no end."""
    deadline = time.monotonic() + RETRY_SECONDS
    for number, page in enumerate(pages):
        if number and time.monotonic() > deadline:
            raise NotOfAws(_NO_END.format(RETRY_SECONDS))
        yield page


def _datapoints(pages: Iterable[GetMetricDataOutputTypeDef], queries: int) -> list[tuple[int, list[Point]]]:
    """Number of each query, and points of it.

    _ForbiddenAnswer: of one of them. _PartialAnswer: CloudWatch's last word on a query is not `Complete`, or it has
    none: a query without datapoints has a result, too.
    """
    status: dict[str, str] = {}
    points: list[tuple[int, list[Point]]] = []
    for page in _complete(pages, "MetricDataResults"):
        for result in _complete(page["MetricDataResults"], "Id", "Timestamps", "Values"):
            reasons = [f": {message.get('Value', '')}" for message in result.get("Messages", [])]
            if result.get("StatusCode") == _FORBIDDEN:
                raise _ForbiddenAnswer("".join(reasons).removeprefix(": ") or "it gives no reason")
            status[result["Id"]] = f"{result.get('StatusCode', _COMPLETE)}{''.join(reasons)}"
            if len(result["Timestamps"]) != len(result["Values"]):
                raise NotOfAws(f"{len(result['Timestamps'])} timestamps and {len(result['Values'])} values")
            pairs = list(zip(result["Timestamps"], result["Values"], strict=True))
            points.append((_number(result["Id"], queries), [Point(start.timestamp(), value) for start, value in pairs]))
    partial = sorted({text for text in status.values() if text.partition(":")[0] != _COMPLETE})
    if partial:
        raise _PartialAnswer(f"not all datapoints were read: {', '.join(partial)}")
    if len(status) < queries:
        raise _PartialAnswer(f"not all datapoints were read: {queries - len(status)} of {queries} queries: no result")
    return points


def _number(query: str, queries: int) -> int:
    if not query[1:].isdigit() or int(query[1:]) >= queries:
        raise NotOfAws(f"no query had the id {query!r}")
    return int(query[1:])


def _refusal(action: str, error: ClientError) -> tuple[ApiRefused, bool]:
    """The error, and whether a retry may succeed."""
    answer = error.response.get("Error", {})
    code, message = answer.get("Code", ""), answer.get("Message", str(error))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    row = aws.classify(code, message)
    hint = row.advice
    if row.kind is aws.Kind.DENIED:
        hint = _denied_hint(action)
    return ApiRefused(action, code, message, hint), row.retry or status >= 500


def _denied_hint(action: str) -> str:
    return f"allow {action} in the policy of the caller: iam/caller-prove.json"


def _metric_stat(series: Series, period: int, statistic: str) -> MetricStatTypeDef:
    dimensions: list[DimensionTypeDef] = [{"Name": name, "Value": value} for name, value in series.dimensions]
    return {
        "Metric": {"Namespace": series.namespace, "MetricName": series.name, "Dimensions": dimensions},
        "Period": period,
        "Stat": statistic,
    }


def _sorted(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs))
