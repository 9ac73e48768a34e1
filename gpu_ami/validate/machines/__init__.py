"""The machines of a proof: an instance from its launch, through its boots, to its end.

launch      launches instances with their user data, and terminates them
machine     one instance and its boot, stage by stage
login       waits for an SSH login after a boot, and for cloud-init and systemd
restarts    reboot, and stop and start, within a proof
console     the console of an instance: evidence, kernel panics; sees at once that an instance was stopped
deadlines   how long a machine may take to boot, to stop, and to be seen in CloudWatch
"""

from gpu_ami.validate.machines.console import Watch
from gpu_ami.validate.machines.deadlines import deadlines, parse_deadlines
from gpu_ami.validate.machines.login import is_at_fault
from gpu_ami.validate.machines.machine import Boot, Machine, require_interface
from gpu_ami.validate.machines.restarts import REBOOT, RESTARTS, parse

__all__ = [
    "REBOOT",
    "RESTARTS",
    "Boot",
    "Machine",
    "Watch",
    "deadlines",
    "is_at_fault",
    "parse",
    "parse_deadlines",
    "require_interface",
]
