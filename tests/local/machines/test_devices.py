"""Devices beside GPUs: what the facts promise, and how a machine is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.local.machines.boards import Devices, devices_of

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
