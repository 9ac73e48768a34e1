"""The network between the machines of one placement group: an Ethernet of multicast datagrams on the host's loopback.

QEMU sends each frame of the machines' second interface as a datagram to the group's multicast address, and every
machine of the group gets it; nothing leaves the loopback interface. A DHCP server of the region (RFC 2131) gives each
interface its address: 10.20.3.7 to the machine whose own address is 127.20.3.7. There is no router and no name server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
PORT = 23230
_HOSTS_OF_GROUP = 254
_PREFIX = "02:47"  # locally administered
_SERVER_MAC = bytes.fromhex("024700000001")
_BROADCAST = b"\xff" * 6
_COOKIE = b"\x63\x82\x53\x63"
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_MESSAGE_TYPE, _END, _PAD = 53, 255, 0
_NO_END = 0xFFFFFFFF  # seconds of a lease that is never renewed
_HEADERS = 14 + 20 + 8  # Ethernet, IPv4 without options, UDP
_BOOTP = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")


@dataclass(frozen=True)
class Interconnect:
    """One machine's interface. group: multicast address; address: the machine's own in this network."""

    group: str
    address: str

    @staticmethod
    def of(instance_address: str, number: int) -> Interconnect:
        """number: of the placement group. instance_address: of the instance on this host, in its region's network."""
        _, region, *host = instance_address.split(".")
        return Interconnect(f"239.255.{region}.{1 + number % _HOSTS_OF_GROUP}", ".".join(["10", region, *host]))

    def alone(self) -> Interconnect:
        """The same interface in a network of its own, where nobody answers."""
        _, _, *host = self.address.split(".")
        region = self.address.split(".")[1]
        return Interconnect(".".join(["238", region, *host]), self.address)

    @property
    def mac(self) -> str:
        """It has the address in it, so that the DHCP server needs no table."""
        return ":".join([_PREFIX, *(f"{int(part):02x}" for part in self.address.split("."))])

    def netdev(self, name: str) -> str:
        """QEMU's -netdev."""
        return f"socket,id={name},mcast={self.group}:{PORT},localaddr={LOOPBACK}"


def reply(frame: bytes) -> bytes | None:
    """The frame that answers a DHCPDISCOVER or DHCPREQUEST of an interface of ours; None for every other frame."""
    if len(frame) < _HEADERS + _BOOTP.size + 4 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP:
        return None
    start = 14 + 4 * (frame[14] & 15) + 8
    if frame[start - 6 : start - 4] != struct.pack("!H", 67):  # the server's port
        return None
    message = frame[start:]
    mac, options = message[28:34], message[_BOOTP.size + 4 :]
    kind = dhcp_option(options, _MESSAGE_TYPE)
    if (
        message[0] != 1
        or not mac.startswith(bytes.fromhex(_PREFIX.replace(":", "")))
        or kind[:1] not in (b"\x01", b"\x03")
    ):
        return None
    return _framed(mac, _answered(message, mac, _OFFER if kind[0] == _DISCOVER else _ACK))


def dhcp_option(options: bytes, code: int) -> bytes:
    """The value of a DHCP option (RFC 2132); b"" where it is missing or cut off."""
    index = 0
    while index + 1 < len(options) and options[index] != _END:
        if options[index] == _PAD:
            index += 1
            continue
        length = options[index + 1]
        if options[index] == code:
            return options[index + 2 : index + 2 + length]
        index += 2 + length
    return b""


def _server(mac: bytes) -> bytes:
    """Address of the DHCP server in the network of an interface: 10.20.0.1."""
    return bytes([mac[2], mac[3], 0, 1])


def _answered(message: bytes, mac: bytes, kind: int) -> bytes:
    transaction, flags = struct.unpack("!I", message[4:8])[0], struct.unpack("!H", message[10:12])[0]
    server, none = _server(mac), bytes(4)
    fields = (2, 1, 6, 0, transaction, 0, flags, none, mac[2:6], server, none, mac.ljust(16, b"\0"), b"", b"")
    options = bytes([_MESSAGE_TYPE, 1, kind, 54, 4, *server, 1, 4, 255, 255, 0, 0, 51, 4])
    return _BOOTP.pack(*fields) + _COOKIE + options + struct.pack("!IB", _NO_END, _END)


def _framed(mac: bytes, payload: bytes) -> bytes:
    """In UDP (without a checksum, which IPv4 allows), IPv4 and Ethernet, to this interface alone."""
    length = 20 + 8 + len(payload)
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, socket.IPPROTO_UDP, 0, _server(mac), b"\xff" * 4)
    checksum = struct.pack("!H", internet_checksum(header))
    udp = struct.pack("!HHHH", 67, 68, 8 + len(payload), 0)
    return mac + _SERVER_MAC + b"\x08\x00" + header[:10] + checksum + header[12:] + udp + payload


def internet_checksum(header: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class DhcpServer:
    """Answers the machines of one group until `close`."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.socket_of_network = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket_of_network.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket_of_network.bind((group, PORT))
        member = socket.inet_aton(group) + ipaddress.ip_address(LOOPBACK).packed
        self.socket_of_network.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self.socket_of_network.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        self.socket_of_network.settimeout(0.5)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"dhcp {group}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.socket_of_network.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):  # a time-out, or a buffer that is full: DHCP asks again
                answer = reply(self.socket_of_network.recv(65536))
                if answer:
                    self.socket_of_network.sendto(answer, (self._group, PORT))
