"""Telemetry for machines in service, through AWS Systems Manager (docs/fleet.md).

attachment  attach and detach: which command after which, on which machines
condition   what a machine answers of its telemetry, what is wrong with it; the proof of machines in service
payload     the Command documents and parameters of a plan, with what is installed, packed from the roles' files
"""

from gpu_ami.fleet.attachment import Attachment
from gpu_ami.fleet.condition import Check, Condition, MachineProof
from gpu_ami.fleet.payload import Bundle

__all__ = ["Attachment", "Bundle", "Check", "Condition", "MachineProof"]
