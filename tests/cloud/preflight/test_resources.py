from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Place
from gpu_ami.cloud.preflight import resources
from gpu_ami.cloud.preflight.findings import Level, Scope


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-06-30T00:00:00.000Z", datetime(2024, 6, 30, tzinfo=UTC)),
        ("2024-06-30", datetime(2024, 6, 30, tzinfo=UTC)),
        ("", None),
        ("never", None),
    ],
)
def test_time_of_an_image(text: str, expected: datetime | None) -> None:
    assert resources._time(text) == expected


def test_place_without_a_key_uses_the_accounts_default_key() -> None:
    (finding,) = resources.kms_key(Scope(Cloud(Place(name="aws", region="us-east-1"))))
    assert finding.level is Level.OK


def test_without_a_plan_there_is_no_source_ami_to_look_up() -> None:
    def unused(_cloud: Cloud, _plan: Any) -> dict[str, str]:
        raise AssertionError

    assert list(resources.source_ami(Scope(Cloud(Place(name="a", region="us-east-1")), None, unused))) == []
