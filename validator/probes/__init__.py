"""What a machine reports about itself.

The machine and its system:
machine              instance metadata, boot, clock, environment of login shells and services
since_image          what a machine still has of its image, byte for byte
kernel_log           kernel panic, oops or lockup, and GPUs that the driver could not initialise
restarts             restarts of a service in this boot, with systemd's reasons
logrotate            whether logs are rotated, and by rules that lose no lines
footprints           files that no package owns and which are expected, setuid programs, capabilities and listeners
rights               setuid programs, capabilities, files that every user may write, authorized keys: one walk
bill_of_materials    the image's own bill of materials against what is installed

GPUs, accelerators and their driver:
hardware             PCI devices, GPUs and links, compared with the plan and a golden file
nvidia_smi           `nvidia-smi -q -x` as numbers
compute              what the compute probe says of each GPU
containers           what containers with GPUs see, and the configuration that containerd runs with
base_driver          the driver planned for a machine, and programs that require exactly its version
kernel_modules       kernel modules on disk
xid_injection        a real fault on a real GPU
neuron_reports       neuron-monitor's own report, and the series that follow from it
rdma                 RDMA devices, and which of them are EFAs

Boot, packages and libraries:
boot_entries         what GRUB boots next
packages             packages of a planned component, paths of no package, whether their database can be read
keyrings             the keys in an OpenPGP keyring
system_upgrade       what an upgrade of the whole system would change
shared_libraries     shared libraries as a program loads them
base_ami             files, kernel options and masked units of a base AMI

Packages:
agent                the CloudWatch agent's configuration and log, and a linter for the configuration
cluster              a node in its cluster, and several machines that work together
"""

from validator.probes.base_driver import Program
from validator.probes.footprints import Declared, Entry
from validator.probes.hardware import Golden, Hardware, loaded_version, require_driver
from validator.probes.kernel_log import PANIC, troubles
from validator.probes.machine import (
    CLOCK_SECONDS,
    METADATA,
    MachineUnderTest,
    environments,
    in_login_shell,
    metadata_of,
)
from validator.probes.nvidia_smi import Gpu, pci_address
from validator.probes.since_image import SinceImage, still_holds, unchanged_since_image
from validator.probes.system_upgrade import Upgrade

__all__ = [
    "CLOCK_SECONDS",
    "METADATA",
    "PANIC",
    "Declared",
    "Entry",
    "Golden",
    "Gpu",
    "Hardware",
    "MachineUnderTest",
    "Program",
    "SinceImage",
    "Upgrade",
    "environments",
    "in_login_shell",
    "loaded_version",
    "metadata_of",
    "pci_address",
    "require_driver",
    "still_holds",
    "troubles",
    "unchanged_since_image",
]
