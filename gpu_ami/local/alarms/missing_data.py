"""Decides an alarm's state from its datapoints, where some may be missing.

Source: CloudWatch user guide, "Configuring how CloudWatch alarms treat missing data" with its two tables, and "Avoiding
premature transitions to alarm state"; read 2026-11-23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, ALARM, INSUFFICIENT_DATA = "OK", "ALARM", "INSUFFICIENT_DATA"
BREACHING, NOT_BREACHING, IGNORE, MISSING = "breaching", "notBreaching", "ignore", "missing"
TREATMENTS = (BREACHING, NOT_BREACHING, IGNORE, MISSING)


@dataclass(frozen=True)
class Rule:
    """periods: N; to_alarm: M, datapoints of the N that must breach; missing: how a missing datapoint is treated."""

    periods: int
    to_alarm: int
    missing: str = MISSING


@dataclass(frozen=True)
class Decision:
    """state: None keeps the alarm's; evaluated: positions of the datapoints that were compared; filled: how many
    missing datapoints were compared beside them."""

    state: str | None
    evaluated: Sequence[int]
    filled: int


def decide(breaches: Sequence[bool | None], rule: Rule) -> Decision:
    """breaches: the evaluation range, oldest first; None is a missing datapoint."""
    existing = [position for position, breach in enumerate(breaches) if breach is not None]
    evaluated = existing[-rule.periods :]
    count = sum(bool(breaches[position]) for position in evaluated)
    filled = rule.periods - len(evaluated)
    if not filled:
        return Decision(_compared(count, rule), evaluated, 0)
    if rule.missing in (BREACHING, NOT_BREACHING):
        count += filled if rule.missing == BREACHING else 0
        return Decision(_compared(count, rule), evaluated, filled)
    return Decision(_with_gaps(breaches, count, rule), evaluated, filled)


def _compared(count: int, rule: Rule) -> str:
    return ALARM if count >= rule.to_alarm else OK


def _with_gaps(breaches: Sequence[bool | None], count: int, rule: Rule) -> str | None:
    """Too few datapoints, and the missing ones count neither way.

    A few datapoints that all breach are no alarm until the oldest is as old as M (`- - - - X`): the state stays.
    """
    if count >= rule.to_alarm:
        return ALARM
    if False in breaches:
        return OK
    if rule.missing == IGNORE:
        return None
    if True not in breaches:
        return INSUFFICIENT_DATA
    return ALARM if len(breaches) - breaches.index(True) >= rule.to_alarm else None
