"""GPUs of an instance: promised by facts, described in their own memory, at their addresses.

Devices beside GPUs: what the facts promise, and how a machine is told.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from localregion.machines.boards import (
    Board,
    Devices,
    assumed_addresses,
    boards_of,
    device_options,
    devices_of,
    without_faulty,
    write_boards,
)
from localregion.machines.qemu import reserved_slots

FACTS = """
instance_types:
  two.small:
    gpu:
      vendor: nvidia
      name: NVIDIA T
      architecture: Ampere
      compute_capability: "8.0"
      count: 2
      memory_mib: 1024
      power_limit_w: 70
      max_clock_mhz: {graphics: 1, sm: 2, memory: 3, video: 4}
      pcie_gen: 4
      pcie_width: 16
      pci: PCI
  none.small: {vcpus: 2}
"""

RESERVED = reserved_slots("x86_64")


def facts(tmp_path: Path, pci: str = '["0000:00:1d.0", "0000:00:1e.0"]') -> Path:
    path = tmp_path / "facts.yml"
    path.write_text(FACTS.replace("PCI", pci))
    return path


def board(index: int, pci: str) -> Board:
    return Board(index, pci, {})


def test_a_board_describes_itself(tmp_path: Path) -> None:
    boards = boards_of("i-1", "two.small", facts(tmp_path))
    content = boards[1].encode()
    assert len(content) == 64 * 1024
    text = content[:4096].rstrip(b"\0").decode()
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    assert next(iter(lines)) == "magic"
    uuid, serial = lines.pop("uuid"), lines.pop("serial")
    assert uuid.startswith("GPU-") and len(uuid) == 40
    assert serial.isdigit()
    assert lines == {
        "magic": "gpu-ami-board/1",
        "index": "1",
        "minor": "1",
        "pci": "0000:00:1e.0",
        "name": "NVIDIA T",
        "architecture": "Ampere",
        "compute_capability": "8.0",
        "vbios": "92.00.00.00.00",
        "memory_mib": "1024",
        "power_limit_w": "70",
        "clock_graphics_mhz": "1",
        "clock_sm_mhz": "2",
        "clock_memory_mhz": "3",
        "clock_video_mhz": "4",
        "pcie_gen": "4",
        "pcie_width": "16",
    }


def test_boards_stay_the_same_for_an_instance_and_differ_between_two(tmp_path: Path) -> None:
    path = facts(tmp_path)
    uuids = [
        board.description["uuid"] for name in ("i-1", "i-1", "i-2") for board in boards_of(name, "two.small", path)
    ]
    assert uuids[:2] == uuids[2:4]
    assert len(set(uuids)) == 4


@pytest.mark.parametrize("name", ["none.small", "unknown.type"])
def test_a_type_without_gpus_has_no_boards(tmp_path: Path, name: str) -> None:
    assert boards_of("i-1", name, facts(tmp_path)) == ()


def test_the_promised_number_must_have_addresses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"two\.small\.gpu\.pci: 1 addresses for 2 GPUs"):
        boards_of("i-1", "two.small", facts(tmp_path, '["0000:00:1d.0"]'))


def test_unknown_addresses_are_assumed_and_said_to_be(tmp_path: Path) -> None:
    boards = boards_of("i-1", "two.small", facts(tmp_path, "[]"))
    assert [board.pci for board in boards] == ["0000:00:1d.0", "0000:00:1e.0"]
    assert boards[0].description["pci_source"].startswith("assumed")
    assert len(device_options([board(n, pci) for n, pci in enumerate(assumed_addresses(16))], RESERVED)) == 64


def test_the_facts_of_this_checkout_give_every_promised_gpu() -> None:
    assert [board.pci for board in boards_of("i-1", "g5.12xlarge")] == [f"0000:00:1{slot}.0" for slot in "bcde"]
    assert len(boards_of("i-1", "p4d.24xlarge")) == 8


def test_a_fault_leaves_a_board_out(tmp_path: Path) -> None:
    boards = boards_of("i-1", "p4d.24xlarge")
    left = without_faulty(boards, "missing-gpu-3, missing-gpu-7")
    assert [board.index for board in left] == [0, 1, 2, 4, 5, 6]
    assert without_faulty(boards, "") == boards
    write_boards(tmp_path, boards)
    write_boards(tmp_path, left)
    assert len(list(tmp_path.glob("gpu*.board"))) == 6
    assert not (tmp_path / "gpu3.board").exists()


def test_boards_on_bus_0_sit_there() -> None:
    assert device_options([board(0, "0000:00:1e.0")], RESERVED) == [
        "-object", "memory-backend-file,id=gpu0,share=on,mem-path=gpu0.board,size=65536",
        "-device", "ivshmem-plain,memdev=gpu0,bus=pcie.0,addr=0x1e.0x0",
    ]  # fmt: skip


def test_other_buses_hang_below_root_complexes_of_their_own() -> None:
    options = device_options(
        [board(0, "0000:10:1c.0"), board(1, "0000:10:1d.0"), board(2, "0000:a0:00.0")], [0, 2, 0x1F]
    )
    devices = [option for option in options if "pxb" in option or "bridge" in option]
    assert devices == [
        "pxb-pcie,id=root0f,bus_nr=15,bus=pcie.0,addr=0x1",
        "i82801b11-bridge,id=bus10,bus=root0f,addr=0x0",
        "pxb-pcie,id=root9f,bus_nr=159,bus=pcie.0,addr=0x3",
        "i82801b11-bridge,id=busa0,bus=root9f,addr=0x0",
    ]
    assert "ivshmem-plain,memdev=gpu2,bus=busa0,addr=0x0.0x0" in options


def test_neighbouring_buses_share_a_root_complex() -> None:
    options = device_options([board(0, "0000:11:00.0"), board(1, "0000:10:00.0")], RESERVED)
    assert [option for option in options if "pxb" in option or "bridge" in option] == [
        "pxb-pcie,id=root0f,bus_nr=15,bus=pcie.0,addr=0x1",
        "i82801b11-bridge,id=bus10,bus=root0f,addr=0x0",
        "i82801b11-bridge,id=bus11,bus=root0f,addr=0x1",
    ]


@pytest.mark.parametrize(
    ("pci", "said"),
    [
        ("0000:00:02.0", "slot 02 of bus 00 cannot hold a GPU"),
        ("0000:01:00.0", "bus 01 cannot hold a GPU"),
        ("0001:00:1e.0", "expected a PCI address of domain 0000"),
        ("10:1c.0", "expected a PCI address of domain 0000"),
    ],
)
def test_addresses_that_cannot_be(pci: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        device_options([board(0, pci)], RESERVED)


def test_a_description_must_fit() -> None:
    with pytest.raises(UsageError, match="GPU 0: 4103 bytes of description; a board holds 4095"):
        Board(0, "0000:00:1e.0", {"name": "x" * 4096}).encode()


PROMISED = {
    "g5.12xlarge": Devices(gpu=4, efa=1),
    "p4d.24xlarge": Devices(gpu=8, nvswitch=6, efa=4),
    "p5.48xlarge": Devices(gpu=8, nvswitch=4, efa=32),
    "p6-b200.48xlarge": Devices(gpu=8, efa=8, umad=4),  # NVSwitches of the fourth generation: ports
    "g4ad.xlarge": Devices(),  # AMD's
    "inf2.48xlarge": Devices(neuron=12),
    "trn1.32xlarge": Devices(efa=8, neuron=16),
    "unheard.of": Devices(),
}


@pytest.mark.parametrize("instance_type", PROMISED)
def test_facts_promise_devices(instance_type: str) -> None:
    assert devices_of(instance_type) == PROMISED[instance_type]


def test_nvswitches_follow_the_generation(tmp_path: Path) -> None:
    facts = tmp_path / "facts.yml"
    facts.write_text(
        "nvswitches: {2: {count: 5}}\nfamilies: {a: {nvswitch_generation: 2}, b: {nvswitch_generation: 0}}\n"
        "instance_types: {a.x: {family: a, nvswitch: true}, b.x: {family: b, nvswitch: false}}\n"
    )
    assert [devices_of(name, facts).nvswitch for name in ("a.x", "b.x")] == [5, 0]


def test_firmware_names_only_what_is_there() -> None:
    assert Devices(gpu=8, nvswitch=6, efa=4).oem_strings() == ("gpu-ami:nvswitch=6", "gpu-ami:efa=4")
    assert Devices(gpu=8, umad=4).oem_strings() == ("gpu-ami:umad=4",)
    assert Devices(gpu=4).oem_strings() == ()


def test_a_list_is_read() -> None:
    assert Devices.parse("gpu=4,neuron=0,efa=2") == Devices(gpu=4, efa=2)
    assert Devices.parse("") == Devices()


@pytest.mark.parametrize("text", ["gpu", "gpu=x", "gpu=-1", "tpu=4"])
def test_a_wrong_list_says_what_is_right(text: str) -> None:
    with pytest.raises(UsageError, match=f"--devices: '{text}'") as caught:
        Devices.parse(text)
    assert "gpu, nvswitch, efa, neuron" in caught.value.hint
