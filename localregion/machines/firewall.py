"""Applies security groups to machines: connections that no rule allows are dropped.

Into a machine: the forwarded SSH port is opened and closed as the rules change, within a second. Out of a machine: its
relays to the region's API and mirror are those that the rules allow when it is powered on; QEMU drops what has none.
Between machines of a placement group: all traffic, or none, as the rules say when they are powered on.
The metadata service is not subject to security groups, as on EC2.

A port that answers nothing: connections to it time out, as to one that no rule of a security group opens.

A listening socket whose queue is full: Linux drops the SYN of every further connection (net/ipv4/tcp_input.c,
tcp_conn_request: sk_acceptq_is_full), with net.ipv4.tcp_abort_on_overflow at its default of 0. Needs no privileges.

The relays between a guest and the host's services.

QEMU's user network starts one program per connection of the guest (`guestfwd=…-cmd:PROGRAM`; the form with a host and a
port keeps a single connection for the machine's whole life). The program connects its stdin, a socket, to a service.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

from localregion.backends import Ec2, ec2_groups
from localregion.loopback import METADATA_ADDRESS
from localregion.machines.qemu import MachineSpec, QemuMachine

# -I -S: no site packages, no environment; starts in about 15 ms. A half-closed connection stays open the other way.
_PROGRAM = """\
#!/bin/sh
exec "{python}" -I -S -c '
import select, socket, sys
here = socket.socket(fileno=0)
there = socket.socket(socket.{family})
there.connect({address})
other = {{here: there, there: here}}
while other:
    for end in select.select(list(other), [], [])[0]:
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if data:
            other[end].sendall(data)
            continue
        try:
            other[end].shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if end is there:
            sys.exit()
        del other[end]
'
"""


def write_unix_relay(program: Path, socket_name: str) -> None:
    """A relay to the unix socket `socket_name` in the program's own folder (QEMU's working directory)."""
    _write(program, "AF_UNIX", f'"{socket_name}"')


def write_tcp_relay(program: Path, port: int) -> None:
    """A relay to a port of the host's loopback."""
    _write(program, "AF_INET", f'("127.0.0.1", {port})')


def write_port_file_relay(program: Path, port_file: Path) -> None:
    """A relay to the port of the host's loopback that a file names now; without the file, connections end at once."""
    _write(program, "AF_INET", f'("127.0.0.1", int(open({str(port_file)!r}).read()))'.replace("'", '"'))


def _write(program: Path, family: str, address: str) -> None:
    python = str(Path(sys.executable).resolve())
    program.write_text(_PROGRAM.format(python=python, family=family, address=address))
    program.chmod(0o700)


class DroppedPort:
    """Drops connections to `address`:`port` until `close`. OSError: the port is in use."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((address, port))
            self._listener.listen(0)  # a queue of one connection: this one
            self._only = socket.create_connection((address, port), timeout=5)
        except OSError:
            self._listener.close()
            raise

    def close(self) -> None:
        self._only.close()
        self._listener.close()


CALLER = "127.0.0.1"  # whoever connects to an instance of the region comes from there
_RELAY_PORT = 80


class Firewall:
    """The security groups of all machines. For the thread that owns machines."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._machines: dict[str, QemuMachine] = {}
        self._open: set[str] = set()  # instances whose SSH port QEMU forwards
        self._dropped: dict[str, DroppedPort] = {}

    def before_power_on(self, spec: MachineSpec) -> MachineSpec:
        """The machine with what its groups allow now."""
        groups = self._ec2.groups_of(self._ec2.instance(spec.instance_id))
        relays = tuple(
            (address, program)
            for address, program in spec.relays
            if address == METADATA_ADDRESS or ec2_groups.allows_egress(groups, _RELAY_PORT, address)
        )
        is_open = self._allows_ssh(spec)
        self._set_dropped(spec, not is_open)
        card = spec.interconnect
        if card and not ec2_groups.allows_members(groups):
            card = card.alone()
        return replace(spec, relays=relays, ssh_closed=not is_open, interconnect=card)

    def powered_on(self, machine: QemuMachine) -> None:
        instance_id = machine.spec.instance_id
        self._machines[instance_id] = machine
        if not machine.spec.ssh_closed:
            self._open.add(instance_id)
        else:
            self._open.discard(instance_id)

    def apply(self) -> None:
        """Follows rules that have changed."""
        for instance_id, machine in self._machines.items():
            if not machine.ready or machine.poll() is not None:
                continue
            allowed, is_open = self._allows_ssh(machine.spec), instance_id in self._open
            if is_open and not allowed:
                machine.close_ssh()
                self._open.discard(instance_id)
            self._set_dropped(machine.spec, not allowed)
            if allowed and not is_open:
                machine.open_ssh()
                self._open.add(instance_id)

    def forget(self, instance_id: str) -> None:
        """The instance is gone: nothing drops connections to its address any more."""
        self._machines.pop(instance_id, None)
        self._open.discard(instance_id)
        dropped = self._dropped.pop(instance_id, None)
        if dropped:
            dropped.close()

    def _allows_ssh(self, spec: MachineSpec) -> bool:
        groups = self._ec2.groups_of(self._ec2.instance(spec.instance_id))
        return ec2_groups.allows_ingress(groups, spec.ssh_port, CALLER)

    def _set_dropped(self, spec: MachineSpec, wanted: bool) -> None:
        instance_id = spec.instance_id
        if not wanted and instance_id in self._dropped:
            self._dropped.pop(instance_id).close()
        elif wanted and instance_id not in self._dropped:
            try:
                self._dropped[instance_id] = DroppedPort(spec.address, spec.ssh_port)
            except OSError:  # QEMU has not freed the port yet: the next round tries again
                return
