"""What a machine reports about itself.

machine              instance metadata, boot and clock
hardware             PCI devices, GPUs and links, compared with the plan and a golden file
nvidia_smi           `nvidia-smi -q -x` as numbers
unpackaged           files that no package owns, and which of them are expected
footprints           expected files, setuid programs, capabilities and listeners
packages             installed packages of a planned component
shared_libraries     shared libraries as a program loads them
kernel_modules       kernel modules on disk
kernel_panics        kernel panic, oops or lockup on a console or in the kernel log
driver_locked        programs that need a driver of exactly their own version
base_ami             what a node's base AMI installed
environment          environment of login shells and services
agent_log            the CloudWatch agent's log: errors, and calls that AWS refused
agent_config         the CloudWatch agent's configuration and the series and streams that follow from it
agent_lint           a linter for that configuration: agent and metrics
agent_lint_logs      the linter's rules for logs, with those of the CloudWatch Logs API
agent_findings       the linter's findings and shared rules
json_lines           line numbers of the values in a JSON document
event_policy         an operator's policy over the catalogue of Xids
logrotate            rotation rules that lose lines
xid_injection        a real fault on a real GPU
"""

from validator.probes.agent_config import LogFile
from validator.probes.agent_findings import ERROR, Finding
from validator.probes.agent_lint import lint, lint_text
from validator.probes.driver_locked import Program
from validator.probes.environment import environments, in_login_shell
from validator.probes.hardware import Golden, Hardware, loaded_version
from validator.probes.kernel_panics import PANIC, troubles
from validator.probes.logrotate import losses
from validator.probes.machine import CLOCK_SECONDS, METADATA, MachineUnderTest
from validator.probes.nvidia_smi import Gpu, pci_address
from validator.probes.unpackaged import Entry

__all__ = [
    "CLOCK_SECONDS",
    "ERROR",
    "METADATA",
    "PANIC",
    "Entry",
    "Finding",
    "Golden",
    "Gpu",
    "Hardware",
    "LogFile",
    "MachineUnderTest",
    "Program",
    "environments",
    "in_login_shell",
    "lint",
    "lint_text",
    "loaded_version",
    "losses",
    "pci_address",
    "troubles",
]
