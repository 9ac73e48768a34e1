"""The CloudWatch agent of a machine: its configuration, its log, and a linter.

config               the configuration, and the series and streams that follow from it
log                  the agent's log: errors, and calls that AWS refused
way_out              whether the machine can connect to CloudWatch at all
injected_lines       lines that a proof injects into the kernel log, and their way through the agent
injected_xids        those that are Xids
lint                 a linter for the configuration: agent and metrics
lint_logs            the linter's rules for logs, with those of the CloudWatch Logs API
lint_plugins         the linter's rules for cpu, disk, mem and other system plugins
release_schema       what the agent's own check of a release refuses (release_schema.yml)
findings             the linter's findings and shared rules
json_lines           line numbers of the values in a JSON document
"""

from validator.probes.agent.config import LogFile
from validator.probes.agent.findings import ERROR, Finding
from validator.probes.agent.lint import lint, lint_text

__all__ = ["ERROR", "Finding", "LogFile", "lint", "lint_text"]
