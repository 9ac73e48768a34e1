"""Systems Manager of the local region: managed nodes, Run Command and State Manager.

Parameters and documents are moto's.

A machine's agent (localregion/replicas/ssm_agent) asks for what it has to run, and sends what became of it.

ssm           the actions of the API, as dictionaries in and out; State Manager associations; managed nodes; commands
              and their invocations: concurrency, errors, timeouts, output
documents     Command documents: AWS's own that are known here, and the steps of a document with its parameters

Sources: AWS Systems Manager API reference (SendCommand, CommandInvocation, GetCommandInvocation, CommandPlugin,
InstanceInformation, CreateAssociation) and user guide ("Understanding command statuses", "Using targets and rate
controls to run commands"), read 2026-11-23.
"""

from localregion.backends.systems_manager.ssm import SystemsManager

__all__ = ["SystemsManager"]
