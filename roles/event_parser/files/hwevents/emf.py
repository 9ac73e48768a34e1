"""One JSON line that is two things: an event, and a CloudWatch embedded-metric document.

CloudWatch extracts metrics from any log event with an `_aws` member (Embedded Metric Format specification); so counts
by Xid and severity, lost records, the heartbeat and the lag become metrics without another daemon or permission.
Userland drills count as DrillEvents only: no alarm on XidEvents can be rung with `echo > /dev/kmsg`.
"""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Optional

NAMESPACE = "GpuAmi/Events"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_COUNTED_AS = {"xid": "XidEvents", "sxid": "SxidEvents", "gpu_lost": "GpuLostEvents"}


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
    """The event with its metrics: one count with and without severity and code, and the lag from kernel to here."""
    name = _COUNTED_AS.get(event["kind"], "")
    if event.get("origin") == "userland":
        name = "DrillEvents"
    own = [key for key in ("InstanceId",) if key in instance]
    code_name = "SXid" if event["kind"] == "sxid" else "Xid"
    document = dict(event)
    document["time"] = rfc3339(wall_us)
    document.update(instance)
    document["Severity"], document[code_name] = event["severity"], str(event["code"])
    document.update({name: 1, "LagSeconds": round(lag_s, 6)})
    dimensions = [own, own + ["Severity"], own + [code_name]]
    document["_aws"] = _document(wall_us, dimensions, {name: "Count", "LagSeconds": "Seconds"})
    return document


def report_document(kind: str, wall_us: int, instance: Dict[str, str], fields: Dict[str, Any], metrics: Dict[str, str]) -> Dict[str, Any]:
    """A heartbeat, a loss or a recovery snapshot: `metrics` maps names of numeric `fields` to their units."""
    document = {"time": rfc3339(wall_us), "schema": "gpu-ami/event/1", "kind": kind}  # type: Dict[str, Any]
    document.update(fields)
    document.update(instance)
    own = [key for key in ("InstanceId",) if key in instance]
    document["_aws"] = _document(wall_us, [own], metrics)
    return document


def to_line(document: Dict[str, Any]) -> bytes:
    """Pure ASCII, so no reader can split it elsewhere than at its end."""
    return _encode(document).encode("ascii") + b"\n"


def read_instance(dmi: str = "/sys/class/dmi/id", cloud: str = "/var/lib/cloud/data") -> Dict[str, str]:
    """Instance id and type without a network: the board's asset tag (Nitro), else what cloud-init noted. Empty elsewhere."""
    found = {}  # type: Dict[str, str]
    nitro = (_first_line(dmi + "/sys_vendor") or "").startswith("Amazon EC2")
    for path in ([dmi + "/board_asset_tag"] if nitro else []) + [cloud + "/instance-id"]:
        value = _first_line(path)
        if value and value.startswith("i-"):
            found.setdefault("InstanceId", value[:64])
    instance_type = _first_line(dmi + "/product_name")
    if nitro and instance_type and "." in instance_type:
        found["InstanceType"] = instance_type[:64]
    return found


def _first_line(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None
