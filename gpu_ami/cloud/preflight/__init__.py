"""Examines an account and a place before anything is launched, without creating anything.

access       the instance profile: EC2 may assume its role, and its policies let the agent publish
clusters     the cluster of --join, and what a node and its role may do there, a row a service
eks_clusters the same of EKS: state, version, access entry, network, add-ons
examination  all checks in order; a refused look-up is a finding; summary and exit code
findings     what an examination found, and what it examines
identity     who the caller is, how long the credentials last, which permissions they have
instances    instance types: offered, quota, architecture of the builder
login        programs, keys and endpoints of the way to log in
network      subnet, routes, security groups
resources    KMS key, source AMI, Capacity Reservations and Capacity Blocks
"""

from gpu_ami.cloud.preflight.examination import (
    examine,
    examine_builder,
    examine_cluster,
    exit_code,
    require,
    summary,
)
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope, SourceAmi

__all__ = [
    "Finding",
    "Level",
    "Scope",
    "SourceAmi",
    "examine",
    "examine_builder",
    "examine_cluster",
    "exit_code",
    "require",
    "summary",
]
