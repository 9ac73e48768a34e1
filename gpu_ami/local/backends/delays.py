"""Delays of the local region."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Delays:
    """Seconds. boot, stop: before an instance starts its machine, after its guest went down; console: since the
    launch, until there is output; list_metrics, metric_data, log_events: since arrival, until a reader sees it."""

    boot: float = 0.0
    stop: float = 0.0
    console: float = 0.0
    list_metrics: float = 0.0
    metric_data: float = 0.0
    log_events: float = 0.0


NO_DELAYS = Delays()
