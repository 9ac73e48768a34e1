"""Calls to Systems Manager for machines in service.

machines     which instances are meant, and which of them are managed nodes; when each sent its newest log event
run_command  one command on many machines, and what became of it on each
documents    Command documents, the parameters of the agent's configuration, associations
"""

from gpu_ami.cloud.fleet.machines import FleetMachine, Selection
from gpu_ami.cloud.fleet.run_command import Limits, Outcome

__all__ = ["FleetMachine", "Limits", "Outcome", "Selection"]
