"""Notices of an instance's end in its metadata, planted by the instance tag `gpu-ami:notice`.

The tag's value is KIND@TIME (several with commas), for example `spot-interruption@2026-11-23T10:02:00Z`; without @TIME
it is the time of the launch. Nothing follows from a notice: whoever plants it also ends the instance. Formats: EC2 user
guide, "Instance metadata categories"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state".
"""

from __future__ import annotations

import json
from typing import Any

from localregion.backends import InstanceView

NOTICE_TAG = "gpu-ami:notice"


def notice_categories(view: InstanceView) -> dict[str, Any]:
    """Folders of meta-data: scheduled events always, as on EC2; the others where they are planted."""
    planted = _planted(view)
    events: dict[str, Any] = {"maintenance": {"history": "[]", "scheduled": _scheduled(view, planted)}}
    folders: dict[str, Any] = {"events": events}
    if when := planted.get("spot-interruption"):
        action = json.dumps({"action": "terminate", "time": when})
        folders["spot"] = {"instance-action": action, "termination-time": when}
    if when := planted.get("rebalance-recommendation"):
        events["recommendations"] = {"rebalance": json.dumps({"noticeTime": when})}
    if "autoscaling-termination" in planted:
        folders["autoscaling"] = {"target-lifecycle-state": "Terminated"}
    return folders


def _planted(view: InstanceView) -> dict[str, str]:
    """Kind of notice → its time."""
    launch = f"{view.launch_time:%Y-%m-%dT%H:%M:%SZ}"
    items = [item.strip().partition("@") for item in view.tags.get(NOTICE_TAG, "").split(",")]
    return {kind: when or launch for kind, _, when in items}


def _scheduled(view: InstanceView, planted: dict[str, str]) -> str:
    if "maintenance-event" not in planted:
        return "[]"
    event = {
        "NotBefore": planted["maintenance-event"],
        "Code": "system-reboot",
        "Description": "scheduled reboot",
        "EventId": f"instance-event-{view.instance_id.removeprefix('i-')}",
        "NotAfter": planted["maintenance-event"],
        "State": "active",
    }
    return json.dumps([event])
