"""gpu-ami replica of the Amazon CloudWatch agent. Python's standard library alone, and few imports of it."""

from __future__ import annotations

HOME = "/opt/aws/amazon-cloudwatch-agent"
UNIT = "amazon-cloudwatch-agent.service"


def version() -> str:
    """The package's version, as bin/CWAGENT_VERSION has it."""
    with open(HOME + "/bin/CWAGENT_VERSION", encoding="ascii") as file:
        return file.read().strip()
