"""CloudWatch Logs: events that readers see some time after they arrived, as on AWS."""

from __future__ import annotations

import copy
import time
from typing import Any

from moto.logs.models import LogStream

_plain_get = LogStream.get_log_events
_plain_filter = LogStream.filter_log_events
_delay_seconds = 0.0


def install(delay_seconds: float) -> None:
    """Shows each event `delay_seconds` after it arrived."""
    global _delay_seconds  # moto's models are the process's, and so is this
    _delay_seconds = delay_seconds
    LogStream.get_log_events = _get_log_events  # type: ignore[method-assign]
    LogStream.filter_log_events = _filter_log_events  # type: ignore[method-assign]


def _visible(stream: LogStream) -> LogStream:
    """The stream with the events that can be read now."""
    if not _delay_seconds:
        return stream
    latest = (time.time() - _delay_seconds) * 1000
    shown = copy.copy(stream)
    shown.events = [event for event in stream.events if event.ingestion_time <= latest]
    return shown


def _get_log_events(self: LogStream, *arguments: Any, **options: Any) -> Any:
    return _plain_get(_visible(self), *arguments, **options)


def _filter_log_events(self: LogStream, *arguments: Any, **options: Any) -> Any:
    return _plain_filter(_visible(self), *arguments, **options)
