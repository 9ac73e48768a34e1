"""A small fleet in moto's CloudWatch: two instances, idle GPUs, an event, a drill, and a parser that is silent."""

from __future__ import annotations

import json
import time
from typing import Any

from gpu_ami.events.reader import parser_module

BUSY, IDLE = "i-0aaaaaaaaaaaaaaaa", "i-0bbbbbbbbbbbbbbbb"
GROUP, PERIODS = "/ec2/accelerated/accel-event-json", 3
emf = parser_module("emf")


def fill(aws: Any, now: float) -> None:
    """g5.12xlarge with GPUs 0 (busy) and 1 (idle), g4dn.xlarge with an idle GPU and a parser silent for ten minutes."""
    aws("logs").create_log_group(logGroupName=GROUP)
    for instance, kind, loads, age in ((BUSY, "g5.12xlarge", (95, 1), 60), (IDLE, "g4dn.xlarge", (0,), 600)):
        data = [datum for step in range(PERIODS) for datum in _metrics(instance, kind, loads, now - 60 * step)]
        aws("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=data)
        put(aws, instance, [heartbeat(instance, now - age)])
    put(aws, BUSY, [event(BUSY, 48, "critical", "kernel", now), event(BUSY, 79, "fatal", "userland", now)])


def _metrics(instance: str, kind: str, loads: tuple[int, ...], when: float) -> list[dict[str, Any]]:
    return [
        {"MetricName": f"nvidia_smi_{name}", "Value": value, "Timestamp": when, "Dimensions": _dimensions(d)}
        for index, load in enumerate(loads)
        for d in ({"InstanceId": instance, "InstanceType": kind, "index": str(index)}, {"InstanceId": instance})
        for name, value in (("utilization_gpu", load), ("memory_total", 23028))
    ]


def _dimensions(names: dict[str, str]) -> list[dict[str, str]]:
    return [{"Name": name, "Value": value} for name, value in names.items()]


def heartbeat(instance: str, when: float) -> str:
    fields = {"Heartbeat": 1, "RecordsLost": 0, "EventsDropped": 0, "LagSeconds": 0.5}
    units = {name: "Seconds" if name == "LagSeconds" else "Count" for name in fields}
    return str(
        emf.to_line(emf.report_document("heartbeat", int(when * 1e6), {"InstanceId": instance}, fields, units)), "ascii"
    )


def event(instance: str, code: int, severity: str, origin: str, when: float) -> str:
    fields = {"kind": "xid", "code": code, "severity": severity, "origin": origin}
    return json.dumps(emf.event_document(fields, int(when * 1e6), {"InstanceId": instance}, 0.5))


def put(aws: Any, instance: str, lines: list[str]) -> None:
    logs = aws("logs")
    if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=instance)["logStreams"]:
        logs.create_log_stream(logGroupName=GROUP, logStreamName=instance)
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=GROUP, logStreamName=instance, logEvents=events)
