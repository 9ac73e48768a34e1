"""QEMU machines behind the EC2 API.

factory              turns an instance into a machine: disk, boot files, devices, metadata service
qemu                 one QEMU process: command line, how it ended, the serial console's file, the control socket
reconcile            keeps machines and the API in the same state
boards               GPUs of an instance type as PCI devices; its NVSwitches, EFA interfaces and Neuron devices
firmware             kernel, initrd and command line of a disk image
platforms            what QEMU emulates for an architecture: machine, processor, firmware; whether KVM works
metadata             instance metadata service (IMDSv2), with notices of an instance's end
firewall             security groups, applied to machines; ports that time out; relays from a guest to the host
interconnect         the network between the machines of a placement group

The region's daemon alone needs factory and reconcile, and with them moto; clients do not load it.
"""

from localregion.machines.boards import Devices, devices_of, planned_architecture
from localregion.machines.firmware import default_entry
from localregion.machines.platforms import qemu_version
from localregion.machines.qemu import CONSOLE, PROCESS, Exit, read_console, short_path

__all__ = [
    "CONSOLE",
    "PROCESS",
    "Devices",
    "Exit",
    "default_entry",
    "devices_of",
    "planned_architecture",
    "qemu_version",
    "read_console",
    "short_path",
]
