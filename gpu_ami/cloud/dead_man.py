"""Ends an instance from outside at its expiry, even if its guest and the driver of its run are dead.

A one-time schedule of EventBridge Scheduler calls TerminateInstances in a role of the account (`dead_man_role` of the
--where file; without one there is no schedule). The schedule deletes itself when it has run; a run that ends the
instance itself deletes it. Source: https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
and schedule-types.html, read 2026-11-22.
"""

from __future__ import annotations

import json
from typing import Any

from gpu_ami.cloud import aws_errors


def schedule_name(instance_id: str) -> str:
    return f"gpu-ami-{instance_id}"


def arm(scheduler: Any, role: str, instance_id: str, expires: str) -> None:
    """Makes the schedule. role: its ARN; expires: RFC 3339, UTC. CloudError: it cannot be made."""
    partition = role.split(":")[1]
    target = {
        "Arn": f"arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances",
        "RoleArn": role,
        "Input": json.dumps({"InstanceIds": [instance_id]}),
    }
    with aws_errors.translated(f"scheduling the end of {instance_id} (dead_man_role {role})"):
        scheduler.create_schedule(
            Name=schedule_name(instance_id),
            Description="gpu-ami: terminates an instance whose run has died",
            ScheduleExpression=f"at({expires.removesuffix('Z')})",
            ScheduleExpressionTimezone="UTC",
            FlexibleTimeWindow={"Mode": "OFF"},
            ActionAfterCompletion="DELETE",
            Target=target,
        )


def disarm(scheduler: Any, instance_id: str) -> bool:
    """Deletes the schedule; False where there is none, as after it has run. CloudError: it cannot be deleted."""
    with aws_errors.translated(f"deleting the schedule of {instance_id}"):
        try:
            scheduler.delete_schedule(Name=schedule_name(instance_id))
        except scheduler.exceptions.ResourceNotFoundException:
            return False
    return True
