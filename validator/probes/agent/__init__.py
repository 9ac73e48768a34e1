"""The CloudWatch agent of a machine: its configuration, its log, and a linter.

config               the configuration, and the series and streams that follow from it
delivery             what keeps the agent from delivering: its log, calls that AWS refused, the connection
injected_lines       lines that a proof injects into the kernel log, Xids among them, and their way through the agent
lint                 a linter for the configuration: agent, metrics, system plugins and logs
findings             the linter's findings and their lines; what the agent's own check refuses (release_schema.yml)
"""

from validator.probes.agent.config import LogFile
from validator.probes.agent.findings import ERROR, Finding, retention_days
from validator.probes.agent.lint import lint, lint_text

__all__ = ["ERROR", "Finding", "LogFile", "lint", "lint_text", "retention_days"]
