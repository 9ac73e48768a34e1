"""Telemetry for machines in service, through AWS Systems Manager (docs/fleet.md).

documents   the Command documents and parameters of a plan, with what is installed, packed from the roles' own files
attachment  attach and detach: which command after which, on which machines
condition   what a machine answers of its telemetry, and what is wrong with it
proof       the proof of machines in service
"""

from gpu_ami.fleet.attachment import Attachment
from gpu_ami.fleet.condition import Condition
from gpu_ami.fleet.documents import Bundle
from gpu_ami.fleet.proof import Check, MachineProof

__all__ = ["Attachment", "Bundle", "Check", "Condition", "MachineProof"]
