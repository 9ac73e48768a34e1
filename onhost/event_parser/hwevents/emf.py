"""JSON lines that are events and CloudWatch embedded-metric documents at once.

CloudWatch extracts metrics from every log event with an `_aws` member (Embedded Metric Format specification): counts by
Xid and severity, lost records, heartbeat and lag become metrics without another daemon or permission. Lines that a
process wrote to /dev/kmsg count as DrillEvents only, so they cannot trigger an alarm on XidEvents.
"""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List

NAMESPACE = "GpuAmi/Events"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_COUNTED_AS = {"xid": "XidEvents", "sxid": "SxidEvents", "gpu_lost": "GpuLostEvents", "neuron": "NeuronEvents",
               "gpu_init_failed": "GpuInitFailedEvents", "stack_error": "StackErrorEvents"}  # fmt: skip
_NAMED_AS = {"sxid": "SXid", "neuron": "NeuronError", "gpu_init_failed": "GpuInitError", "stack_error": "StackError"}


def rfc3339(wall_us: int) -> str:
    seconds, micros = divmod(wall_us, 1000000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".%06dZ" % micros


def _document(wall_us: int, dimensions: List[List[str]], metrics: Dict[str, str]) -> Dict[str, Any]:
    directive = {
        "Namespace": NAMESPACE,
        "Dimensions": dimensions,
        "Metrics": [{"Name": name, "Unit": unit} for name, unit in metrics.items()],
    }
    return {"Timestamp": wall_us // 1000, "CloudWatchMetrics": [directive]}


def event_document(event: Dict[str, Any], wall_us: int, instance: Dict[str, str], lag_s: float) -> Dict[str, Any]:
    """The event with its metrics: a count by severity and by code, and the lag between the kernel's record and now."""
    name = _COUNTED_AS.get(event["kind"], "")
    if event.get("origin") == "userland":
        name = "DrillEvents"
    instance_id = [key for key in ("InstanceId",) if key in instance]
    code_name = _NAMED_AS.get(event["kind"], "Xid")
    document = dict(event)
    document["time"] = rfc3339(wall_us)
    document.update(instance)
    document["Severity"], document[code_name] = event["severity"], str(event["code"])
    document.update({name: 1, "LagSeconds": round(lag_s, 6)})
    dimensions = [instance_id, instance_id + ["Severity"], instance_id + [code_name]]
    document["_aws"] = _document(wall_us, dimensions, {name: "Count", "LagSeconds": "Seconds"})
    return document


def report_document(kind: str, wall_us: int, instance: Dict[str, str], fields: Dict[str, Any], metrics: Dict[str, str]) -> Dict[str, Any]:
    """A heartbeat, a loss or a recovery snapshot: `metrics` maps names of numeric `fields` to their units."""
    document = {"time": rfc3339(wall_us), "schema": "gpu-ami/event/1", "kind": kind}  # type: Dict[str, Any]
    document.update(fields)
    document.update(instance)
    instance_id = [key for key in ("InstanceId",) if key in instance]
    document["_aws"] = _document(wall_us, [instance_id], metrics)
    return document


def to_line(document: Dict[str, Any]) -> bytes:
    """ASCII only: a line feed is at its end and nowhere else."""
    return _encode(document).encode("ascii") + b"\n"
