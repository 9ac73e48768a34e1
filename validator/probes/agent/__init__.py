"""The CloudWatch agent of a machine: its configuration, its log, and a linter.

config               the configuration, and the series and streams that follow from it
delivery             what keeps the agent from delivering: its log, calls that AWS refused, the connection
injected_lines       lines that a proof injects into the kernel log, Xids among them, and their way through the agent
lint                 a linter for the configuration: agent, metrics, system plugins and logs
release_schema       what the agent's own check of a release refuses (release_schema.yml)
findings             the linter's findings, their lines, and shared rules
"""

from validator.probes.agent.config import LogFile
from validator.probes.agent.findings import ERROR, Finding
from validator.probes.agent.lint import lint, lint_text
from validator.probes.agent.release_schema import retention_days

__all__ = ["ERROR", "Finding", "LogFile", "lint", "lint_text", "retention_days"]
