"""Examines an account and a place before anything is launched, without creating anything.

clusters     the cluster of --join, and what a node and its role may do there, a row a service
examination  all checks in order; a refused look-up is a finding; summary and exit code
findings     what an examination found, and what it examines
identity     the caller, their credentials and permissions; the instance profile and what its role allows
network      subnet, routes, security groups; programs, keys and endpoints of the way to log in
resources    instance types and quotas; KMS key, source AMI, Capacity Reservations, Capacity Blocks; Spot's role
"""

from gpu_ami.cloud.preflight.examination import (
    examine,
    examine_builder,
    examine_cluster,
    exit_code,
    require,
    summary,
)
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope, SourceAmi, error, examined, ok
from gpu_ami.cloud.preflight.resources import AWS_EBS, volume_key

__all__ = [
    "AWS_EBS",
    "Finding",
    "Level",
    "Scope",
    "SourceAmi",
    "error",
    "examine",
    "examine_builder",
    "examine_cluster",
    "examined",
    "exit_code",
    "ok",
    "require",
    "summary",
    "volume_key",
]
