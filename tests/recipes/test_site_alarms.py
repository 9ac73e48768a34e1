"""A site's own alarms: read with all mistakes at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.recipes.site import LoggedLines, WatchedMetric, read_site_alarms

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "site" / "alarms.yml"


def test_alarms_of_the_example_are_read() -> None:
    lost, queue = read_site_alarms(EXAMPLE)
    assert (lost.name, lost.urgency) == ("company-monitor-lost", "ticket")
    assert lost.logs == LoggedLines("/company/monitor", '"connection lost"') and lost.metric is None
    assert queue.metric == WatchedMetric("Company", "queue_length", "MAX", above=100, minutes=10)
    assert (queue.commands, queue.support, queue.source) == ((), "", "")


def test_no_file_is_no_alarm(tmp_path: Path) -> None:
    assert read_site_alarms(tmp_path / "alarms.yml") == ()


def test_all_mistakes_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "alarms.yml"
    file.write_text(EXAMPLE.read_text().replace("urgency: page", "urgency: now").replace("MAX", "MEAN"))
    with pytest.raises(UsageError, match=r"alarms\.yml: 2 mistakes") as caught:
        read_site_alarms(file)
    assert list(caught.value.details) == [
        f"{file}:16: company-queue-long.urgency: expected one of page, ticket, got 'now'",
        f"{file}:17: company-queue-long.metric.statistic: expected one of AVG, COUNT, MAX, MIN, SUM, got 'MEAN'",
    ]
