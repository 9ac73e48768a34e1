"""The notices of the metadata service.

Sources: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "View
scheduled events that affect your Amazon EC2 instances"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle
state through instance metadata". AWS advises to look every 5 seconds for the first two.
"""

from __future__ import annotations

import json
import time
from email.utils import mktime_tz, parsedate_tz
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from .metadata import Metadata, MetadataError

_ENDING = ("Terminated", "Warmed:Terminated")


class Notice(NamedTuple):
    """`time`: RFC 3339, when the action will be (rebalance recommendation: when it was given), or empty. `key`: equal
    for the same notice at each look."""

    kind: str
    action: str
    time: str
    key: str


def spot(metadata: Metadata) -> List[Notice]:
    """The instance will be terminated, stopped or hibernated in two minutes."""
    document = _json(metadata, "spot/instance-action")
    if document is None:
        return []
    action, when = _text(document, "action"), _text(document, "time")
    return [Notice("spot-interruption", action, when, "spot-interruption %s %s" % (action, when))]


def rebalance(metadata: Metadata) -> List[Notice]:
    """The instance has an elevated risk of interruption; it may never come."""
    document = _json(metadata, "events/recommendations/rebalance")
    if document is None:
        return []
    when = _text(document, "noticeTime")
    return [Notice("rebalance-recommendation", "rebalance", when, "rebalance-recommendation %s" % when)]


def autoscaling(metadata: Metadata) -> List[Notice]:
    """Auto Scaling will terminate the instance; with a lifecycle hook it waits for CompleteLifecycleAction."""
    state = (metadata.get("autoscaling/target-lifecycle-state") or "").strip()
    return [Notice("autoscaling-termination", "terminate", "", "autoscaling-termination")] if state in _ENDING else []


def maintenance(metadata: Metadata) -> List[Notice]:
    """AWS will reboot, stop or retire the instance, often in days."""
    events = _json(metadata, "events/maintenance/scheduled", list) or []
    return [
        Notice(
            "maintenance-event",
            str(event.get("Code", "unknown")),
            _rfc3339(str(event.get("NotBefore", ""))),
            "maintenance-event %s %s" % (event.get("EventId", ""), event.get("NotBefore", "")),
        )
        for event in events
        if isinstance(event, dict) and event.get("State") == "active"
    ]


READERS: Dict[str, Callable[[Metadata], List[Notice]]] = {
    "spot-interruption": spot,
    "autoscaling-termination": autoscaling,
    "rebalance-recommendation": rebalance,
    "maintenance-event": maintenance,
}


def read(metadata: Metadata, kinds: Sequence[str]) -> Tuple[List[Notice], List[str]]:
    """The notices of these kinds, and why others could not be read, each reason once."""
    found: List[Notice] = []
    problems: List[str] = []
    for kind in kinds:
        try:
            found += READERS[kind](metadata)
        except MetadataError as error:
            if str(error) not in problems:
                problems.append(str(error))
    return found, problems


def _rfc3339(text: str) -> str:
    """Scheduled events alone have times of another form, `21 Jan 2026 09:00:43 GMT`; what cannot be read stays."""
    try:
        parsed = parsedate_tz(text)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(mktime_tz(parsed))) if parsed else text
    except (ValueError, IndexError, TypeError, OverflowError):
        return text


def _json(metadata: Metadata, category: str, kind: type = dict) -> Any:
    """The document of a category; None where there is none."""
    text = metadata.get(category)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, kind):
        shape = "a JSON object" if kind is dict else "a JSON list"
        raise MetadataError("%s: expected %s, got %r" % (category, shape, text[:200]))
    return document


def _text(document: Dict[str, Any], key: str) -> str:
    return str(document.get(key, "unknown"))
