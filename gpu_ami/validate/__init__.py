"""The proof of an image: machines, restarts, validator processes.

image_proof          boots an AMI on each instance type, runs the validator on every machine; boots one to observe it
host_proof           runs the validator on a host that gpu-ami did not launch, or on image files
proof                what the hosts of a proof share: log groups, one pass of the checks and its progress; the report
validator_process    the validator as a process: command line, deadline, results
recorder             keeps report.json on disk while a proof runs
machines/            an instance: launch, boot, login, restarts, console
cluster              the machines as nodes of a cluster: refusals, checks of tier TN
node_services        the services whose nodes they can be: ECS, EKS, ParallelCluster
golden               golden files: recorded hardware of instance types
transcripts          recorded transcripts: what a machine shows, without names, ids and addresses
hosts                a running machine that somebody else booted: its address, and whether it answers
machine_group        several machines of one type: launch, boots, checks of tier T4
"""

from gpu_ami.validate.machines import REBOOT, RESTARTS, parse
from gpu_ami.validate.proof import BUSY, Proof, ProofOptions, site_checks
from gpu_ami.validate.validator_process import A_MACHINE, IMAGE_FILES_ALONE, Target, collect, why_not_collected

__all__ = [
    "A_MACHINE",
    "BUSY",
    "IMAGE_FILES_ALONE",
    "REBOOT",
    "RESTARTS",
    "Proof",
    "ProofOptions",
    "Target",
    "collect",
    "parse",
    "site_checks",
    "why_not_collected",
]
