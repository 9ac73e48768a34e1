"""A publication while EC2 and SSM misbehave: it ends as without it, and never with a defect of gpu-ami."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from botocore import endpoint

from tests.cloud.api_faults import ALWAYS, Fault, Faults, changed, faults_of, lost, refused
from tests.publish.conftest import HOME, LATEST, OTHER, Account

pytestmark = pytest.mark.slow

# EC2 has always sent a zone: a time without one ended with exit code 8.
NO_ZONE = changed(
    lambda body: body.replace(b"</imageId>", b"</imageId><deprecationTime>2026-11-29T00:00:00</deprecationTime>")
)
IMAGES = re.compile(rb"<imagesSet>(.*)</imagesSet>", re.DOTALL)
TWICE = changed(lambda body: IMAGES.sub(rb"<imagesSet>\1\1</imagesSet>", body))
CASES: dict[str, tuple[str, Fault, int, int]] = {
    "a time without a zone": ("DescribeImages", NO_ZONE, 1, 0),
    "an image that two pages list": ("DescribeImages", TWICE, ALWAYS, 0),
    "a lost answer to a pinned parameter": ("PutParameter", lost, 1, 0),
    "a lost copy": ("CopyImage", lost, 1, 0),
    "concurrent changes of a parameter": ("PutParameter", refused("TooManyUpdates"), 1, 0),
    "expired credentials": ("PutParameter", refused("ExpiredTokenException"), ALWAYS, 4),
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(sleep=lambda _seconds: None, time=time.time))  # of retries
    monkeypatch.setattr("gpu_ami.cloud.client.OUTAGE_SECONDS", 20.0)
    return faults_of(monkeypatch)


@pytest.mark.parametrize("case", CASES)
def test_a_publication_under_faults(
    case: str, account: Account, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    operation, fault, times, code = CASES[case]
    out = account.build()
    faults.inject(operation, fault, times)
    ended, printed = account.publish(out), capsys.readouterr()
    assert ended == code, printed.out + printed.err
    faults.clear()
    assert account.publish(out) == 0
    assert [len(account.images(region)) for region in (HOME, OTHER)] == [1, 1]
    assert account.parameters(OTHER)[LATEST] == account.images(OTHER)[0]["ImageId"]
