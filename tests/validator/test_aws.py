"""The table of AWS's errors, and answers that are checked as they are parsed."""

from __future__ import annotations

import ast
import datetime
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard

from validator import aws
from validator.aws import ERRORS, Kind, NotOfAws, Record, classify

ROOT = Path(__file__).resolve().parents[2]


def test_every_code_has_one_row_for_a_message() -> None:
    """A second row of a code is reached only if the first one has a condition."""
    seen: set[str] = set()
    for row in ERRORS:
        assert row.code not in seen and row.advice
        seen |= {row.code} if row.when is None else set()


def test_document_has_the_rows() -> None:
    """Where this fails on purpose: python -m validator.aws docs/aws.md."""
    text = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
    assert aws.with_reference(text) == text


@pytest.mark.parametrize(
    ("code", "message", "kind", "retry", "exit_code"),
    [
        ("VcpuLimitExceeded", "", Kind.QUOTA, False, 5),
        ("Unsupported", "in your requested Availability Zone (us-east-1e)", Kind.CAPACITY, False, 5),
        ("Unsupported", "configuration", Kind.REQUEST, False, 4),
        ("UnauthorizedOperation", "with an explicit deny in a service control policy", Kind.DENIED, False, 4),
        ("SlowDown", "", Kind.THROTTLED, True, 4),
        ("SomethingNew", "", Kind.REQUEST, False, 4),
    ],
)
def test_row_of_an_error(code: str, message: str, kind: Kind, retry: bool, exit_code: int) -> None:
    row = classify(code, message)
    assert (row.code, row.kind, row.retry, row.exit_code) == (code, kind, retry, exit_code)


def test_advice_names_who_denies() -> None:
    assert (
        "a permissions boundary denies it" in classify("AccessDenied", "explicit deny in a permissions boundary").advice
    )


def test_throttling_codes_of_botocore_are_retried() -> None:
    """As botocore does, so do waits of this program."""
    source = ast.walk(ast.parse(inspect.getsource(standard)))
    texts = {node.value for node in source if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    def is_throttling(code: str) -> bool:
        response = {"Error": {"Code": code}}
        return bool(standard.ThrottledRetryableChecker().is_retryable(standard.RetryContext(1, None, response)))

    codes = {text for text in texts if is_throttling(text)}
    assert codes and {code for code in codes if not classify(code).retry} == set()


def answer_of(operation: str, body: str, service: str = "ec2") -> Any:
    """What a client of a session would return for a body."""
    session = aws.session()
    model = session.get_service_model(service)
    parser = session.get_component("response_parser_factory").create_parser(model.metadata["protocol"])
    response = {"status_code": 200, "headers": {}, "body": body.encode(), "context": {}}
    return parser.parse(response, model.operation_model(operation).output_shape)


IMAGES = (
    "<DescribeImagesResponse><requestId>1</requestId><imagesSet><item>{}</item></imagesSet></DescribeImagesResponse>"
)
TIME = "<item><launchTime>{}</launchTime></item>"
INSTANCES = f"<R><reservationSet><item><instancesSet>{TIME}</instancesSet></item></reservationSet></R>"


def test_a_key_that_is_not_there_did_not_come_from_aws() -> None:
    image = answer_of("DescribeImages", IMAGES.format("<imageId>ami-1</imageId>"))["Images"][0]
    assert image["ImageId"] == "ami-1" and image.get("Name") is None and isinstance(image, Record)
    with pytest.raises(NotOfAws, match="it has no 'State'"):
        image["State"]


def test_a_time_is_one() -> None:
    row = answer_of("DescribeInstances", INSTANCES.format("2026-11-27T10:00:00Z"))["Reservations"][0]["Instances"][0]
    assert isinstance(row["LaunchTime"], datetime.datetime)
    with pytest.raises(NotOfAws, match="soon"):
        answer_of("DescribeInstances", INSTANCES.format("soon"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"events": [{"timestamp": "x"}]}', "timestamp: expected long, got 'x'"),
        ('{"events": [7]}', ""),
        ('{"events": {"timestamp": 1}}', ""),
        ("[]", ""),
        ('{"nextForwardToken": 7}', "nextForwardToken: expected string, got 7"),
    ],
)
def test_values_of_another_kind_did_not_come_from_aws(body: str, message: str) -> None:
    with pytest.raises(NotOfAws, match=re.escape(message) or None):
        answer_of("GetLogEvents", body, "logs")
