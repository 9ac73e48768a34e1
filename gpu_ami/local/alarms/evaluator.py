"""Evaluates all alarms: once a minute in the region's daemon, or step by step in a test."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Iterator

from moto.cloudwatch.models import CloudWatchBackend, cloudwatch_backends

from gpu_ami.local.alarms import evaluation, transitions
from gpu_ami.local.alarms.notifications import Change

_MINUTE = 60


def step(now: datetime.datetime | None = None) -> list[tuple[str, Change]]:
    """Evaluates every alarm at the minute of `now` (UTC without a zone); returns names of alarms and their changes."""
    when = now or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return [
        (alarm.name, change)
        for backend in _backends()
        for alarm in list(backend.alarms.values())
        for change in transitions.apply(backend, alarm, evaluation.evaluate(backend, alarm, when), when)
    ]


def _backends() -> Iterator[CloudWatchBackend]:
    for regions in list(cloudwatch_backends.values()):
        yield from list(regions.values())


def run(stop: threading.Event) -> None:
    """Until `stop` is set: `step` at the beginning of each minute. A failure is logged, and the next minute comes."""
    while not stop.wait(_MINUTE - time.time() % _MINUTE):
        try:
            step()
        except Exception:  # the daemon's thread: without it every alarm would stay as it is without a word
            logging.getLogger(__name__).exception("alarms were not evaluated in this minute")
