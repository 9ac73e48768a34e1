"""moto's models, where they answer otherwise than AWS.

ec2                  EC2: loopback networks, images with disks, instance states that match the machines
instance             what the metadata service returns about an instance
cloudwatch           CloudWatch metrics as the agent and the validator use them; delays of new data
logs                 log events that arrive late; metrics of log events: metric filters, embedded metric documents
cloudformation       alarms and metric filters of stacks
published_amis       copies, sharing, deprecation and protection of AMIs, and parameters that name them
ec2_groups           placement groups; which connections security groups allow; how a service refuses a call
container_service    ECS: container instances and tasks
systems_manager/     managed nodes, Run Command and State Manager
"""

from typing import Any

from localregion.backends import cloudwatch, ec2, ec2_groups, logs, published_amis
from localregion.backends.cloudwatch import NO_DELAYS, Delays, metric_data, metric_series
from localregion.backends.ec2 import REGION, ZONE, Ec2, architectures_of, fraction_of
from localregion.backends.ec2_groups import Refused, calling_instance
from localregion.backends.instance import (
    INSTANCE_SECRET,
    InstanceView,
    instance_access_key,
    instance_of_access_key,
)

__all__ = [
    "INSTANCE_SECRET",
    "NO_DELAYS",
    "REGION",
    "ZONE",
    "Delays",
    "Ec2",
    "InstanceView",
    "Refused",
    "architectures_of",
    "calling_instance",
    "ec2_groups",
    "fraction_of",
    "install",
    "instance_access_key",
    "instance_of_access_key",
    "metric_data",
    "metric_series",
    "service_application",
]  # fmt: skip


def install(delays: Delays = NO_DELAYS, *, stacks: bool = True) -> None:
    """Makes moto answer as the region needs it. stacks: CloudFormation's too, with which all services are imported."""
    ec2.install()
    cloudwatch.install(delays)
    logs.install(delays.log_events)
    logs.install_metrics()
    published_amis.install()
    if stacks:
        from localregion.backends import cloudformation

        cloudformation.install()


def service_application(service: Any) -> Any:
    """moto's WSGI application of a service, at its first call: a region without stacks imports no CloudFormation."""
    from moto.moto_server.werkzeug_app import create_backend_app

    if service == "cloudformation":
        from localregion.backends import cloudformation

        cloudformation.install()
    return create_backend_app(service)
