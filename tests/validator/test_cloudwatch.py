"""The door to CloudWatch against moto: pages, exact dimensions, and what is not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from moto import mock_aws

from tests.aws_requests import Checked
from validator.cloudwatch import ApiRefused, CloudWatch, Series

GROUP, STREAM = "/ec2/accelerated/accel-event-log", "i-0123456789abcdef0"


@pytest.fixture
def cloudwatch() -> Iterator[CloudWatch]:
    with mock_aws():
        yield CloudWatch("us-east-1")


def dimensions(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def put(name: str, value: float, **given: str) -> None:
    client = boto3.client("cloudwatch", "us-east-1")
    listed: Any = [{"Name": key, "Value": text} for key, text in given.items()]
    client.put_metric_data(Namespace="CWAgent", MetricData=[{"MetricName": name, "Value": value, "Dimensions": listed}])


def test_points_have_exact_dimensions(cloudwatch: CloudWatch) -> None:
    put("m", 5, index="0", InstanceId="i-1")
    put("m", 7, index="0", InstanceId="i-2")
    mine = Series("CWAgent", "m", dimensions(index="0", InstanceId="i-1"))
    other = Series("CWAgent", "m", dimensions(index="1", InstanceId="i-1"))
    found = cloudwatch.points([mine, other], time.time() - 60, 10)
    assert [point.value for point in found[mine]] == [5]
    assert found[other] == []
    assert cloudwatch.known_series("CWAgent", {"InstanceId": "i-1"}) == {mine}


def test_queries_are_split_at_the_limit_of_a_call(cloudwatch: CloudWatch) -> None:
    put("m", 5, index="700")
    series = [Series("CWAgent", "m", dimensions(index=str(number))) for number in range(701)]
    found = cloudwatch.points(series, time.time() - 60, 60)
    assert [len(points) for points in found.values()] == [0] * 700 + [1]


def test_events_of_all_pages(cloudwatch: CloudWatch) -> None:
    assert cloudwatch.events(GROUP, STREAM) is None
    with pytest.raises(LookupError):
        cloudwatch.retention_days(GROUP)
    logs = boto3.client("logs", "us-east-1")
    logs.create_log_group(logGroupName=GROUP)
    logs.create_log_stream(logGroupName=GROUP, logStreamName=STREAM)
    assert cloudwatch.events(GROUP, STREAM) == []
    now = int(time.time() * 1000)
    for first in range(0, 12_000, 6_000):
        batch: Any = [{"timestamp": now + at, "message": f"line {at}"} for at in range(first, first + 6_000)]
        logs.put_log_events(logGroupName=GROUP, logStreamName=STREAM, logEvents=batch)
    found = cloudwatch.events(GROUP, STREAM) or []
    assert [event.message for event in found] == [f"line {at}" for at in range(12_000)]
    assert found[0].time == pytest.approx(now / 1000)
    assert cloudwatch.retention_days(GROUP) is None
    logs.put_retention_policy(logGroupName=GROUP, retentionInDays=90)
    assert cloudwatch.retention_days(GROUP) == 90


def test_wait_polls_until_its_deadline(cloudwatch: CloudWatch) -> None:
    slept: list[float] = []
    cloudwatch.sleep = slept.append
    cloudwatch.poll_seconds = 0.01
    answers = iter([None, None, "there"])
    assert cloudwatch.wait(lambda: next(answers), 10) == "there"
    assert slept == [0.01, 0.01]
    cloudwatch.sleep = time.sleep
    assert cloudwatch.wait(lambda: None, 0.03) is None


def answer_logs(cloudwatch: CloudWatch, **answers: Any) -> None:
    """Puts a stub in the place of the client of CloudWatch Logs."""
    cloudwatch.__dict__["logs"] = Checked("logs", **answers)


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "said AWS"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "x"
    )  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("code", "status"), [("ThrottlingException", 400), ("Throttling", 400), ("InternalFailure", 500)]
)
def test_throttled_call_is_retried_with_backoff(cloudwatch: CloudWatch, code: str, status: int) -> None:
    slept: list[float] = []
    cloudwatch.sleep = slept.append
    answers: list[Any] = [refused(code, status)] * 3 + [{"events": [], "nextForwardToken": "f"}] * 2

    def get_log_events(**_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    answer_logs(cloudwatch, get_log_events=get_log_events)
    assert cloudwatch.events(GROUP, STREAM) == []
    assert slept == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDeniedException", "allow logs:GetLogEvents in the policy"),
        ("ExpiredTokenException", "log in again"),
        ("UnrecognizedClientException", "credentials"),
        ("ThrottlingException", "AWS limits the rate"),
    ],
)
def test_refusal_has_a_hint(cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)

    def get_log_events(**_: Any) -> Any:
        raise refused(code)

    answer_logs(cloudwatch, get_log_events=get_log_events)
    with pytest.raises(ApiRefused, match=f"logs:GetLogEvents: {code}: said AWS") as caught:
        cloudwatch.events(GROUP, STREAM)
    assert words in str(caught.value)


def test_unreachable_endpoint_is_an_error_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(ApiRefused, match="cloudwatch:ListMetrics"):
        CloudWatch("us-east-1", endpoint="http://127.0.0.1:9").known_series("CWAgent", {})


@pytest.mark.parametrize("page", [{}, {"ResponseMetadata": {"HTTPStatusCode": 200}}])
def test_an_answer_of_a_login_page_is_not_the_images_fault(
    cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]
) -> None:
    """botocore reads an HTML page as an answer without content; that is retried, and then no verdict of the image."""
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    cloudwatch.sleep = lambda _seconds: None
    answer_logs(cloudwatch, get_log_events=page, describe_log_groups=page)
    with pytest.raises(ApiRefused, match="logs:GetLogEvents: the answer is not one of AWS: it has no 'events'"):
        cloudwatch.events("group", "stream")

    cloudwatch.__dict__["metrics"] = Checked("cloudwatch", list_metrics=page, get_metric_data=page)
    with pytest.raises(ApiRefused, match="it has no 'logGroups'"):
        cloudwatch.retention_days("group")
    with pytest.raises(ApiRefused, match="it has no 'MetricDataResults'"):
        cloudwatch.points([Series("n", "m", ())], 0.0, 60)
    with pytest.raises(ApiRefused, match="it has no 'Metrics'"):
        cloudwatch.known_series("n", {})


def test_an_answer_that_cannot_be_parsed_is_retried(cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    cloudwatch.sleep = lambda _seconds: None
    answers: list[Any] = [ResponseParserError("Unable to parse response"), {"events": [], "nextForwardToken": "t"}]

    def answer(**_: Any) -> Any:
        first = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(first, Exception):
            raise first
        return first

    answer_logs(cloudwatch, get_log_events=answer)
    assert cloudwatch.events("group", "stream") == []


def metric_data(*results: dict[str, Any]) -> Any:
    """A stand-in of the client of CloudWatch, whose one page has these results."""
    return Checked("cloudwatch", get_metric_data={"MetricDataResults": list(results)})


@pytest.mark.parametrize("status", ["PartialData", "InternalError"])
def test_datapoints_that_cloudwatch_could_not_read_are_not_missing(
    cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    result = {"Id": "q0", "Timestamps": [], "Values": [], "StatusCode": status}
    cloudwatch.__dict__["metrics"] = metric_data(result | {"Messages": [{"Code": "x", "Value": "said AWS"}]})
    with pytest.raises(ApiRefused, match=f"not all datapoints were read: {status}: said AWS"):
        cloudwatch.points([Series("CWAgent", "m", ())], 0, 10)


def test_forbidden_datapoints_are_asked_for_once(cloudwatch: CloudWatch) -> None:
    """AWS advises to repeat PartialData and InternalError alone (API reference, MetricDataResult, MessageData)."""
    cloudwatch.sleep = lambda _seconds: pytest.fail("it was asked for again")
    result = {"Id": "q0", "Timestamps": [], "Values": [], "StatusCode": "Forbidden"}
    said = {"Code": "Forbidden", "Value": "Authentication too complex to retrieve cross region data"}
    cloudwatch.__dict__["metrics"] = metric_data(
        result | {"Id": "q1", "StatusCode": "InternalError"}, result | {"Messages": [said]}
    )
    with pytest.raises(ApiRefused) as refused:
        cloudwatch.points([Series("CWAgent", "m", ()), Series("CWAgent", "n", ())], 0, 10)
    assert refused.value.code == "Forbidden" and str(refused.value) == (
        "cloudwatch:GetMetricData: Forbidden: Authentication too complex to retrieve cross region data"
        " (allow cloudwatch:GetMetricData in the policy of the caller: iam/caller-prove.json)"
    )


def test_a_denied_call_is_made_once(cloudwatch: CloudWatch) -> None:
    cloudwatch.sleep = lambda _seconds: pytest.fail("it was asked for again")

    def denied(**_: Any) -> Any:
        raise refused("AccessDenied")

    cloudwatch.__dict__["metrics"] = Checked("cloudwatch", get_metric_data=denied)
    with pytest.raises(ApiRefused, match="cloudwatch:GetMetricData: AccessDenied"):
        cloudwatch.points([Series("CWAgent", "m", ())], 0, 10)


def test_a_partial_page_before_a_complete_one_is_complete(cloudwatch: CloudWatch) -> None:
    now = datetime.now(UTC)
    first = {"Id": "q0", "Timestamps": [now], "Values": [1.0], "StatusCode": "PartialData"}
    cloudwatch.__dict__["metrics"] = metric_data(first, first | {"StatusCode": "Complete", "Values": [2.0]})
    series = Series("CWAgent", "m", ())
    assert [point.value for point in cloudwatch.points([series], 0, 10)[series]] == [1.0, 2.0]


@pytest.mark.parametrize(
    "result", [{}, {"Id": "q0"}, {"Id": "other", "Timestamps": [], "Values": []}], ids=["empty", "no values", "id"]
)
def test_metric_data_that_lacks_something_is_refused(
    cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]
) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    cloudwatch.__dict__["metrics"] = metric_data(result)
    with pytest.raises(ApiRefused, match="the answer is not one of AWS"):
        cloudwatch.points([Series("CWAgent", "m", ())], 0, 10)


def test_log_pages_without_an_end_are_given_up(cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.1)
    numbers = count()
    page = lambda **_: {"events": [], "nextForwardToken": f"t{next(numbers)}"}  # noqa: E731
    answer_logs(cloudwatch, get_log_events=page)
    with pytest.raises(ApiRefused, match="no end of pages after 0 s"):
        cloudwatch.events(GROUP, STREAM)


def test_empty_pages_before_events_are_read_on(cloudwatch: CloudWatch) -> None:
    """CloudWatch Logs sends pages without events and with another token, as a stream is searched."""
    event = {"timestamp": 1000, "ingestionTime": 2000, "message": "NVRM: Xid"}
    pages: list[Any] = [
        {"events": [], "nextForwardToken": "a"},
        {"events": [], "nextForwardToken": "b"},
        {"events": [event], "nextForwardToken": "c"},
        {"events": [], "nextForwardToken": "c"},
    ]
    answer_logs(cloudwatch, get_log_events=lambda **_: pages.pop(0))
    assert [one.message for one in cloudwatch.events(GROUP, STREAM) or []] == ["NVRM: Xid"]


def test_a_log_event_without_its_times_is_refused(cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    page = {"events": [{"message": "x"}], "nextForwardToken": "a"}
    answer_logs(cloudwatch, get_log_events=page)
    with pytest.raises(ApiRefused, match="the answer is not one of AWS: it has no 'timestamp'"):
        cloudwatch.events(GROUP, STREAM)


def result(*points: tuple[int, float], number: int = 0, **more: Any) -> dict[str, Any]:
    times = [datetime.fromtimestamp(moment, UTC) for moment, _ in points]
    values = [value for _, value in points]
    return {"Id": f"q{number}", "Timestamps": times, "Values": values, "StatusCode": "Complete", **more}


def test_points_are_the_newest_first_in_whatever_order_they_come(cloudwatch: CloudWatch) -> None:
    cloudwatch.__dict__["metrics"] = metric_data(result((100, 1.0), (300, 3.0)), result((200, 2.0)))
    series = Series("CWAgent", "m", ())
    assert [point.value for point in cloudwatch.points([series], 0, 10)[series]] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "2 of 2 queries: no result"),
        ([result((100, 1.0), number=1)], "1 of 2 queries: no result"),
        ([result((100, 1.0), Values=[])], "1 timestamps and 0 values"),
        ([result((100, 1.0), number=7)], "no query had the id 'q7'"),
    ],
)
def test_a_query_without_a_result_is_not_a_series_without_datapoints(
    cloudwatch: CloudWatch, monkeypatch: pytest.MonkeyPatch, answer: list[dict[str, Any]], said: str
) -> None:
    monkeypatch.setattr("validator.cloudwatch.RETRY_SECONDS", 0.0)
    cloudwatch.__dict__["metrics"] = metric_data(*answer)
    with pytest.raises(ApiRefused, match=said):
        cloudwatch.points([Series("CWAgent", "m", ()), Series("CWAgent", "n", ())], 0, 10)


def test_a_last_page_that_is_sent_twice_has_its_events_once(cloudwatch: CloudWatch) -> None:
    event = {"timestamp": 1000, "ingestionTime": 2000, "message": "NVRM: Xid"}
    answer_logs(cloudwatch, get_log_events={"events": [event], "nextForwardToken": "t"})
    assert [one.message for one in cloudwatch.events(GROUP, STREAM) or []] == ["NVRM: Xid"]


def test_events_under_a_token_that_repeats_are_read(cloudwatch: CloudWatch) -> None:
    pages: list[Any] = [
        {"events": [{"timestamp": number, "ingestionTime": number, "message": text}], "nextForwardToken": "t"}
        for number, text in enumerate(("first", "second"))
    ]
    answer_logs(cloudwatch, get_log_events=lambda **_: pages.pop(0))
    assert [one.message for one in cloudwatch.events(GROUP, STREAM) or []] == ["first", "second"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"profile": "nope"}, r"profile \(nope\) could not be found"),
        ({"endpoint": "no url"}, "Invalid endpoint: no url"),
    ],
)
def test_a_client_that_cannot_be_made_is_a_refusal(made: dict[str, str], said: str) -> None:
    cloudwatch = CloudWatch("us-east-1", **made)  # type: ignore[arg-type]
    with pytest.raises(ApiRefused, match=said):
        cloudwatch.events(GROUP, STREAM)
