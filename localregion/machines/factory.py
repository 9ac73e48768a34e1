"""Creates the machine of an instance: folder, disk, boot files, boards, metadata service and relays."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpu_ami.errors import MachineError
from localregion import host
from localregion.architectures import DEFAULT
from localregion.images import LoopDevice, SpareDisks, copy_disk, own_disk
from localregion.loopback import API_ADDRESS, CLUSTER_ADDRESS, METADATA_ADDRESS, MIRROR_ADDRESS
from localregion.machines import firewall, platforms
from localregion.machines.boards import FAULT_TAG, boards_of, devices_of, without_faulty, write_boards
from localregion.machines.firewall import Firewall
from localregion.machines.firmware import Boot, read_boot
from localregion.machines.interconnect import DhcpServer, Interconnect
from localregion.machines.metadata import Metadata, MetadataServer
from localregion.machines.platforms import can_use_kvm
from localregion.machines.qemu import (
    MachineSpec,
    QemuMachine,
    cap_console,
    note_on_console,
)
from localregion.state import Layout

if TYPE_CHECKING:
    from localregion.backends import Ec2, InstanceView
    from localregion.machines.reconcile import Machine

# Enough to compile a kernel module in the guest; the instance type's memory is not provided.
MEMORY_MIB = 2048
VCPUS = 2
_METADATA_SOCKET = "metadata.sock"
_GIB = 1024**3
# A builder is a sandbox of the host if its launch says so (localregion/sandbox/builder.py).
MACHINE_TAG, SANDBOX = "gpu-ami:machine", "sandbox"


class Sandboxes(Protocol):
    """Machines that are sandboxes of this host (localregion.sandbox.builder.Sandboxes)."""

    def prepare(self, view: InstanceView, folder: Path, ssh_port: int, loop: LoopDevice | None) -> Any:
        """Makes the instance's disk ready. loop: of the disk, if it has one. Returns what `power_on` takes."""

    def power_on(self, prepared: Any, wake: Callable[[], None]) -> Machine: ...


class MachineFactory:
    """Creates machines on this host. `prepare` may run in any thread, `power_on` in the one that owns machines."""

    def __init__(
        self,
        layout: Layout,
        ec2: Ec2,
        disk_of: Callable[[str], tuple[Path, Any]],
        wake: Callable[[], None],
        ports: tuple[int, int, int | None],
        *,
        filtered: bool = False,
        sandboxes: Sandboxes | None = None,
        spares: SpareDisks | None = None,
    ) -> None:
        """`ports`: ssh (on each instance's address), API and mirror (on the host's loopback; None: no mirror).

        filtered: security groups are applied. sandboxes: for instances with the tag MACHINE_TAG; None: there are none.
        spares: disks that may have been copied already.
        """
        self._spares = spares
        self._sandboxes = sandboxes
        self._layout, self._ec2, self._disk_of, self._wake = layout, ec2, disk_of, wake
        self._ssh_port, self._api_port, self._mirror_port = ports
        self._services: dict[str, MetadataServer] = {}
        self._interconnected: dict[str, str] = {}  # instance → multicast address of its placement group
        self._dhcp: dict[str, DhcpServer] = {}  # by that address
        self._probe = threading.Lock()
        self._firewall = Firewall(ec2) if filtered else None

    def prepare(self, instance: Any) -> Any:
        """Writes what the machine needs on disk. GpuAmiError: no space, or the image or its boot menu is incomplete."""
        folder = self._layout.instance(instance.id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        disk, loop = folder / "disk.raw", None
        if disk.exists():
            own_disk(disk)
        else:
            loop = self._copy_disk(instance, disk)
        try:
            asked = self._ec2.tags(instance.id).get(MACHINE_TAG)
            if asked is None:
                return self._prepare_qemu(instance, folder, disk)
            if asked != SANDBOX or self._sandboxes is None:
                message = f"tag {MACHINE_TAG}: {asked!r}: there are no such machines here"
                raise MachineError(message, hint="omit the tag")
            self._write_relays(folder)
            prepared = self._sandboxes.prepare(self._ec2.view(instance), folder, self._ssh_port, loop)
            loop = None  # the sandbox's now
            return prepared
        finally:
            if loop:
                loop.close()

    def _prepare_qemu(self, instance: Any, folder: Path, disk: Path) -> MachineSpec:
        boot = read_boot(disk, folder)
        architecture = self._ec2.view(instance).architecture
        accelerated = can_use_kvm(architecture) and self.kvm_usable(boot, architecture)
        faults = self._ec2.tags(instance.id).get(FAULT_TAG, "")
        boards = without_faulty(boards_of(instance.id, instance.instance_type), faults)
        write_boards(folder, boards)
        return MachineSpec(
            instance_id=instance.id,
            instance_type=instance.instance_type,
            folder=folder,
            address=instance.private_ip,
            ssh_port=self._ssh_port,
            mac=instance.nics[0].mac_address,
            memory_mib=MEMORY_MIB,
            vcpus=vcpus_of(os.cpu_count() or 1, kvm=accelerated),
            kvm=accelerated,
            boot=boot,
            boards=boards,
            oem_strings=devices_of(instance.instance_type).oem_strings(),
            relays=(*self._write_relays(folder), *self._write_cluster_relay(folder)),
            interconnect=self._interconnect(instance),
            architecture=architecture,
        )

    def _interconnect(self, instance: Any) -> Interconnect | None:
        """The instance's interface to the machines of its placement group, if it is in one."""
        group = self._ec2.placement_groups.of(instance)
        return Interconnect.of(instance.private_ip, group.number) if group else None

    def _copy_disk(self, instance: Any, disk: Path) -> LoopDevice | None:
        """Copies the image's disk; the loop device of a copy that had been begun before."""
        source, _ = self._disk_of(instance.image_id)
        partial = disk.with_suffix(".partial")
        spare = self._spares.take(instance.image_id, partial) if self._spares else None
        to_copy = 0 if spare else host.allocated(source)
        host.require(disk.parent, to_copy + host.BOOT_BYTES, f"the disk of {instance.id}")
        if spare is None:
            copy_disk(source, partial)
        volume = self._ec2.root_volume(instance)
        size = int(volume.size) * _GIB if volume else 0
        if size > partial.stat().st_size:  # the guest grows its partition at first boot, as on EC2
            os.truncate(partial, size)
        partial.rename(disk)
        return spare.loop if spare else None

    def kvm_usable(self, boot: Boot | None, architecture: str = DEFAULT) -> bool:
        if boot is None:
            return False
        with self._probe:
            return platforms.usable(boot.kernel, self._layout.kvm, architecture)

    def _write_relays(self, folder: Path) -> tuple[tuple[str, str], ...]:
        firewall.write_unix_relay(folder / "to-metadata", _METADATA_SOCKET)
        firewall.write_tcp_relay(folder / "to-api", self._api_port)
        relays = [(METADATA_ADDRESS, "to-metadata"), (API_ADDRESS, "to-api")]
        if self._mirror_port is not None:
            firewall.write_tcp_relay(folder / "to-mirror", self._mirror_port)
            relays.append((MIRROR_ADDRESS, "to-mirror"))
        return tuple(relays)

    def _write_cluster_relay(self, folder: Path) -> tuple[tuple[str, str], ...]:
        """To the API server of an EKS cluster; of homes in which one can run."""
        if not self._layout.kubernetes.is_dir():
            return ()
        firewall.write_port_file_relay(folder / "to-cluster", self._layout.cluster_port)
        return ((f"{CLUSTER_ADDRESS}:443", "to-cluster"),)

    def power_on(self, prepared: Any) -> Machine:
        instance_id = prepared.instance_id
        if instance_id not in self._services:
            instance = self._ec2.instance(instance_id)
            metadata = Metadata(lambda: self._ec2.view(instance))
            self._services[instance_id] = MetadataServer(prepared.folder / _METADATA_SOCKET, metadata)
        if self._sandboxes and not isinstance(prepared, MachineSpec):
            return self._sandboxes.power_on(prepared, self._wake)
        spec = self._firewall.before_power_on(prepared) if self._firewall else prepared
        self._serve_addresses(spec)
        machine = QemuMachine(spec, self._wake)
        if self._firewall is None:
            return machine
        self._firewall.powered_on(machine)
        return machine

    def _serve_addresses(self, spec: MachineSpec) -> None:
        if spec.interconnect:
            group = self._interconnected[spec.instance_id] = spec.interconnect.group
            if group not in self._dhcp:
                self._dhcp[group] = DhcpServer(group)

    def _forget_interconnect(self, instance_id: str) -> None:
        group = self._interconnected.pop(instance_id, None)
        if group and group not in self._interconnected.values():
            self._dhcp.pop(group).close()

    def apply_security_groups(self) -> None:
        """Opens and closes machines' ports as the rules of their groups say now. In the thread that owns machines."""
        if self._firewall:
            self._firewall.apply()

    def folder(self, instance_id: str) -> Path:
        return self._layout.instance(instance_id)

    def free_space(self, instance_id: str) -> int:
        """Bytes free on the disk that holds the instance's folder."""
        return host.free(self._layout.instance(instance_id))

    def note(self, instance_id: str, text: str) -> None:
        """Writes a line of the region's own to the instance's console."""
        note_on_console(self._layout.instance(instance_id), text)

    def discard(self, instance_id: str) -> None:
        if self._firewall:
            self._firewall.forget(instance_id)
        self._forget_interconnect(instance_id)
        service = self._services.pop(instance_id, None)
        if service:
            service.close()
        shutil.rmtree(self._layout.instance(instance_id), ignore_errors=True)

    def cap_consoles(self) -> None:
        for instance_id in list(self._services):
            cap_console(self._layout.instance(instance_id))


def vcpus_of(host_cpus: int, *, kvm: bool) -> int:
    """A machine's virtual processors on a host with so many.

    An emulated machine gets at most half of them: a proof runs two machines, and with a second processor the same work
    takes a quarter more of the host's time (locks, interrupts, TLB flushes, and a clock that is read from the HPET,
    because Linux takes the counters of several emulated processors for unsynchronized).
    """
    return min(VCPUS, host_cpus if kvm else max(1, host_cpus // 2))
