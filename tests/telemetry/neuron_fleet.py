"""Two instances with Neuron devices in moto's CloudWatch, by the publisher's documents and the event parser's lines."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.onhost.neuron_monitor.programs import publisher_module, report, runtime
from tests.telemetry import fleet

WORKS, IDLE = "i-0cccccccccccccccc", "i-0dddddddddddddddd"
GROUP = "/ec2/accelerated/neuron-metrics"
module = publisher_module("documents")


def fill(aws: Any, now: float) -> None:
    """trn1.32xlarge with a job on two cores (40 and 41 %) and an error of its memory, inf2.48xlarge without a job."""
    for group in (GROUP, fleet.GROUP):
        aws("logs").create_log_group(logGroupName=group)
    for instance, kind, told in (
        (WORKS, "trn1.32xlarge", report(runtime("job", 0, 1), devices=16, uncorrected=1)),
        (IDLE, "inf2.48xlarge", report(devices=12)),
    ):
        told["instance_info"] |= {"instance_id": instance, "instance_type": kind}
        settings = module.Settings("GpuAmi/Neuron", ("instance_id", "instance_type"), False)
        for minute in range(3):
            documents, problems = module.documents(told, settings, int((now - 60 * minute) * 1e6))
            assert problems == []
            put(aws, GROUP, instance, [json.dumps(document) for document in documents])
        put(aws, fleet.GROUP, instance, [fleet.heartbeat(instance, now - 60)])
    put(aws, fleet.GROUP, WORKS, [error("HBM_UNCORRECTABLE_ERROR", "fatal", "kernel", now),
                                  error("NEW_ERROR", "warning", "kernel", now),
                                  error("GPU_AMI_DRILL", "warning", "userland", now)])  # fmt: skip


def error(code: str, severity: str, origin: str, when: float) -> str:
    fields = {"kind": "neuron", "code": code, "severity": severity, "origin": origin}
    return json.dumps(fleet.emf.event_document(fields, int(when * 1e6), {"InstanceId": WORKS}, 0.5))


def put(aws: Any, group: str, instance: str, lines: list[str]) -> None:
    logs = aws("logs")
    if not logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=instance)["logStreams"]:
        logs.create_log_stream(logGroupName=group, logStreamName=instance)
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=instance, logEvents=events)
