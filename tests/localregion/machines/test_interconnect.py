"""The network of a placement group: addresses, QEMU's options, and what its DHCP server answers."""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

import pytest

from localregion.machines import interconnect
from localregion.machines.interconnect import DhcpServer, Interconnect, reply
from localregion.machines.qemu import MachineSpec, command_line

CARD = Interconnect.of("127.20.3.7", 1)


def asked(kind: int = 1, mac: str = CARD.mac, *, port: int = 67, operation: int = 1, options: bytes = b"") -> bytes:
    """A frame as systemd-networkd broadcasts it."""
    hardware = bytes.fromhex(mac.replace(":", ""))
    fields = (operation, 1, 6, 0, 0x1234, 0, 0x8000, b"", b"", b"", b"", hardware, b"", b"")
    message = struct.pack("!BBBBIHH4s4s4s4s16s64s128s", *fields) + b"\x63\x82\x53\x63" + options
    message += bytes([53, 1, kind, 255])
    udp = struct.pack("!HHHH", 68, port, 8 + len(message), 0) + message
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    return b"\xff" * 6 + hardware + b"\x08\x00" + head + udp


def test_address_mac_and_group_follow_from_the_instance() -> None:
    assert (CARD.address, CARD.mac, CARD.group) == ("10.20.3.7", "02:47:0a:14:03:07", "239.255.20.2")
    assert Interconnect.of("127.20.3.7", 2).group != CARD.group != Interconnect.of("127.21.3.7", 1).group
    assert ipaddress.ip_address(CARD.group).is_multicast and ipaddress.ip_address(CARD.address).is_private


def test_frames_stay_on_the_loopback_interface(tmp_path: Path) -> None:
    spec = MachineSpec("i-1", "g5.xlarge", tmp_path, "127.20.3.7", 2222, "02:00:00:00:00:01", 512, 1, False)
    plain = command_line(spec)
    options = command_line(MachineSpec(**vars(spec) | {"interconnect": CARD}))
    assert "socket" not in " ".join(plain)
    assert "socket,id=net1,mcast=239.255.20.2:23230,localaddr=127.0.0.1" in options
    cards = [option for option in options if option.startswith("virtio-net-pci")]
    assert [card.partition("addr=")[2] for card in cards] == ["0x3", "0x5"] and f"mac={CARD.mac}" in cards[1]


def test_an_interface_that_is_kept_apart_has_its_address_and_nobody_else() -> None:
    other = Interconnect.of("127.20.3.8", 1)
    assert CARD.alone().address == CARD.address and CARD.alone().mac == CARD.mac
    assert len({CARD.group, CARD.alone().group, other.alone().group}) == 3 and other.group == CARD.group
    assert ipaddress.ip_address(CARD.alone().group).is_multicast


@pytest.mark.parametrize(("kind", "answer"), [(1, 2), (3, 5)])
def test_discover_and_request_get_the_address(kind: int, answer: int) -> None:
    frame = reply(asked(kind, options=bytes([61, 7, 1, 2, 3, 4, 5, 6, 7, 0, 0])))
    assert frame is not None and frame[:6].hex(":") == CARD.mac
    header, message = frame[14:34], frame[42:]
    assert interconnect.internet_checksum(header) == 0 and struct.unpack("!H", header[2:4])[0] == len(frame) - 14
    assert message[0] == 2 and message[4:8] == (0x1234).to_bytes(4, "big")
    assert socket.inet_ntoa(message[16:20]) == CARD.address and message[28:34].hex(":") == CARD.mac
    options = message[240:]
    assert interconnect.dhcp_option(options, 53) == bytes([answer])
    assert socket.inet_ntoa(interconnect.dhcp_option(options, 1)) == "255.255.0.0"
    assert interconnect.dhcp_option(options, 51) == b"\xff" * 4 and interconnect.dhcp_option(options, 3) == b"", (
        "no router"
    )


@pytest.mark.parametrize(
    "frame",
    [
        b"", asked()[:200], asked(port=68), asked(operation=2), asked(kind=7), asked(mac="52:54:00:12:34:56"),
        asked().replace(b"\x08\x00\x45", b"\x08\x06\x45"), asked()[:-4] + bytes([53, 1]),
    ],
)  # fmt: skip
def test_other_frames_get_no_answer(frame: bytes) -> None:
    assert reply(frame) is None


def test_the_server_answers_on_the_group_until_it_is_closed() -> None:
    server = DhcpServer("239.255.20.250")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guest:
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            guest.bind(("239.255.20.250", interconnect.PORT))
            member = socket.inet_aton("239.255.20.250") + socket.inet_aton("127.0.0.1")
            guest.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            guest.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            guest.settimeout(10)
            guest.sendto(asked(), ("239.255.20.250", interconnect.PORT))
            frames = [guest.recv(2048), guest.recv(2048)]  # its own, as a guest gets it, and the answer
            assert reply(asked()) in frames
    finally:
        server.close()
    assert server.socket_of_network.fileno() == -1
