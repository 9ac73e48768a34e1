"""The machines of a proof: an instance from its launch, through its boots, to its end.

launch      launches instances with their user data, and terminates them
machine     one instance, its boot stage by stage, and its restarts
login       waits for an SSH login after a boot, and for cloud-init and systemd; orders a reboot
restarts    how a boot and a restart are judged
hanging     the units that a boot waits for
console     the console of an instance: evidence, kernel panics; sees at once that an instance was stopped
deadlines   how long a machine may take to boot, to stop, and to be seen in CloudWatch
"""

from gpu_ami.validate.machines.console import Watch
from gpu_ami.validate.machines.deadlines import deadlines, parse_deadlines
from gpu_ami.validate.machines.hanging import ImageUnits
from gpu_ami.validate.machines.machine import Boot, Machine, require_interface, restart
from gpu_ami.validate.machines.restarts import REBOOT, RESTARTS, is_at_fault, left_out_by, parse

__all__ = [
    "REBOOT",
    "RESTARTS",
    "Boot",
    "ImageUnits",
    "Machine",
    "Watch",
    "deadlines",
    "is_at_fault",
    "left_out_by",
    "parse",
    "parse_deadlines",
    "require_interface",
    "restart",
]
