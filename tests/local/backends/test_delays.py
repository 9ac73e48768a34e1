"""Delays reach the backends that show things late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple

import pytest

from gpu_ami.local.backends import NO_DELAYS, Delays, cloudwatch, install, logs


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    install()


def test_nothing_is_late_by_default() -> None:
    assert set(astuple(NO_DELAYS)) == {0.0}
    install()
    assert (cloudwatch._delays, logs._delay_seconds) == (NO_DELAYS, 0.0)


def test_delays_are_installed_in_metrics_and_logs() -> None:
    delays = Delays(metric_data=2.0, list_metrics=3.0, log_events=4.0)
    install(delays)
    assert (cloudwatch._delays, logs._delay_seconds) == (delays, 4.0)
