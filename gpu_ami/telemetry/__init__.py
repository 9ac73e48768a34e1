"""What is watched on running instances: alarms and their runbooks, made from a plan.

alarms               the table of alarms: variables/alarms.yml
runbook              what to do for an alarm, an Xid or an SXid
"""

from gpu_ami.telemetry.alarms import Alarm, load_alarms
from gpu_ami.telemetry.runbook import Runbook, find_runbook

__all__ = ["Alarm", "Runbook", "find_runbook", "load_alarms"]
