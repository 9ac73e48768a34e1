"""Calls to Systems Manager for machines in service.

machines     which instances are meant, and which of them are managed nodes; when each sent its newest log event
run_command  Command documents, parameters, associations; one command on many machines and what became of it
"""

from gpu_ami.cloud.fleet.machines import FleetMachine, Selection
from gpu_ami.cloud.fleet.run_command import Limits, Outcome

__all__ = ["FleetMachine", "Limits", "Outcome", "Selection"]
