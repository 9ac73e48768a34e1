"""Replica tools against the transcripts of their originals: the same elements, N/A groups, counters and errors.

Only values with a source are compared; what a transcript composes is no measure of a replica.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from localregion.mirror.table import REPLICAS
from tests.replicas.test_nvidia_smi import smi

FOLDER = Path(__file__).parents[1] / "transcripts"
# Capability by architecture: which GPUs nvidia-smi divides.
CAPABILITY = {"NVIDIA A10G": "8.6", "Ampere": "8.0", "Hopper": "9.0", "Blackwell": "10.0", "Ada Lovelace": "8.9",
              "Turing": "7.5", "Volta": "7.0"}  # fmt: skip
# Elements of originals that the replica's document does not have, as no reader of the project asks for them.
LEFT_OUT = {"performance_state", "fan_speed", "gpu_virtualization_mode/virtualization_mode", "retired_pages"}
# Of `nvidia-smi -a`: the document has a count and a list of pages below them.
LEFT_OUT |= {"retired_pages/multiple_single_bit_retirement", "retired_pages/double_bit_retirement"}


def groups(name: str) -> Iterator[Mapping[str, Any]]:
    """The groups of a transcript that have a source."""
    document = yaml.load((FOLDER / name / "transcript.yml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    yield from (group for group in document["values"] if "source" in document["sources"][group["from"]])


def sourced(name: str) -> tuple[dict[str, str], str]:
    """(path in nvidia-smi -q -x → value, driver) of the values that have a source."""
    values: dict[str, str] = {}
    driver = ""
    for group in groups(name):
        gpus = group.get("gpus", {})
        driver = str(gpus.get("driver", driver))
        values |= {path: str(value) for path, value in gpus.get("common", {}).items() if not path.startswith("query.")}
    return values, driver


GPUS = [
    name
    for name in sorted(path.parent.name for path in FOLDER.glob("*/transcript.yml"))
    if sourced(name)[0].keys() & {"product_name", "mig_mode/current_mig"} and sourced(name)[1]
]
# The last has the document of a driver before the one that it names.
_NOT_HEALTHY = ("fabric-degraded", "fabric-in-progress", "gpu-lost", "seven-of-eight", "gpu-waits-for-reset")
HEALTHY = [name for name in GPUS if name not in _NOT_HEALTHY]
# Of a machine whose GPUs run without their GSP, an option of the driver.
OF_THAT_MACHINE = {"g6e-550": {"gsp_firmware_version"}}


@pytest.fixture
def like(tmp_path: Path) -> Callable[[str], Callable[..., tuple[int, str]]]:
    """like(transcript) → nvidia-smi of a machine with two of its GPUs and its driver."""

    def make(name: str) -> Callable[..., tuple[int, str]]:
        values, driver = sourced(name)
        proc = tmp_path / "proc/driver/nvidia"
        line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (x@y)\n"
        for index in range(2):
            board = proc / "gpus" / f"0000:00:{27 + index:02x}.0" / "board"
            board.parent.mkdir(parents=True)
            of_name = "Volta" if "V100" in values.get("product_name", "") else "Hopper"
            architecture = values.get("product_architecture", of_name)
            facts = {
                "magic": "gpu-ami-board/1", "index": index, "minor": index, "pci": board.parent.name,
                "name": values.get("product_name", "NVIDIA H100 80GB HBM3"), "architecture": architecture,
                "compute_capability": CAPABILITY.get(values.get("product_name", ""), CAPABILITY[architecture]),
                 "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
                "serial": "1", "vbios": "1", "memory_mib": values.get("fb_memory_usage/total", "81559 MiB").split()[0],
                "power_limit_w": 700, "clock_graphics_mhz": 1980, "clock_sm_mhz": 1980, "clock_memory_mhz": 2619,
                "clock_video_mhz": 1545, "pcie_gen": 5, "pcie_width": 16,
            }  # fmt: skip
            board.write_text("".join(f"{key}: {value}\n" for key, value in facts.items()))
        (proc / "version").write_text(line)
        run = lambda *words: smi(str(tmp_path), *words, own=driver)  # noqa: E731
        if values.get("mig_mode/current_mig") == "Enabled":
            assert run("-mig", "1")[0] == 0
            assert run("--gpu-reset")[0] == 0  # an A100 changes its mode at a reset
            assert run("mig", "-cgi", "1g.20gb,1g.20gb", "-C")[0] == 0
        return run

    return make


@pytest.mark.parametrize("name", HEALTHY)
def test_nvidia_smi_has_the_elements_and_groups_of_the_original(name: str, like: Callable[[str], Any]) -> None:
    status, text = like(name)("-q", "-x")
    assert status == 0
    gpu = ElementTree.fromstring(text).find("gpu")
    assert gpu is not None
    values, _ = sourced(name)
    left_out = LEFT_OUT | OF_THAT_MACHINE.get(name, set())
    missing = [path for path in values if gpu.find(path) is None and path not in left_out]
    absent = {path for path, value in values.items() if value in ("N/A", "Not Supported") and path not in left_out}
    known = {path: gpu.findtext(path) for path in absent if gpu.findtext(path) not in ("N/A", "Not Supported")}
    assert (missing, known) == ([], {})


@pytest.mark.parametrize(
    "name", [name for name in HEALTHY if any("counters" in g.get("nvlink", {}) for g in groups(name))]
)
def test_nvlink_has_the_counters_of_the_original(name: str, like: Callable[[str], Any]) -> None:
    (original,) = [set(group["nvlink"]["counters"]) for group in groups(name) if "counters" in group.get("nvlink", {})]
    printed = like(name)("nvlink", "-e")[1]
    names = set(re.findall(r"^\t Link \d+: (.+): \S+$", printed, re.MULTILINE))
    assert original - names == set()
    composed = {
        "Tx packets",
        "Tx bytes",
        "Rx packets",
        "Rx bytes",
        *(f"FEC Errors - {bucket}" for bucket in range(1, 16)),
    }
    assert names - original <= composed


@pytest.mark.parametrize(("name", "loaded"), [("version-mismatch", "570.148.08"), ("no-devices", "580.105.08")])
def test_nvidia_smi_fails_as_the_original(name: str, loaded: str, machine: Callable[..., str]) -> None:
    (failed,) = [
        output for group in groups(name) for key, output in group.get("commands", {}).items() if key == "nvidia-smi *"
    ]
    root = machine(count=0, loaded=loaded)
    for words in (["-q", "-x"], ["-L"], ["topo", "-m"], ["--query-gpu=index", "--format=csv"]):
        assert smi(root, *words, own="580.105.08") == (failed["status"], failed["stdout"]), words


@pytest.mark.parametrize("name", ["a100-mig", "h100-mig"])
def test_nvidia_ctk_lists_mig_devices_as_the_original(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each MIG device by index and UUID, and no full GPU: the names of the original, with other UUIDs."""
    (listed,) = [
        text
        for group in groups(name)
        for key, text in group.get("commands", {}).items()
        if key == "nvidia-ctk cdi list"
    ]
    original = re.findall(r"=(\S+)", listed)
    indices = sorted(entry for entry in original if ":" in entry)
    count = len({entry.partition(":")[0] for entry in indices})
    monkeypatch.syspath_prepend(str(REPLICAS / "container_toolkit/base/usr/lib/nvidia-ctk"))
    module: Any = importlib.import_module("toolkit.specification")
    monkeypatch.setattr(module, "RUN", str(tmp_path))
    uuids = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(count)]
    for uuid in uuids:
        (tmp_path / uuid).write_text(json.dumps({"mig": True, "instances": ["1g"] * (len(indices) // count)}))
    # A node that is there: the specification has its numbers.
    document = module.specify([(str(index), uuid, os.devnull) for index, uuid in enumerate(uuids)], (1, 20, 1))
    names = [device["name"] for device in document["devices"]]
    for module_name in [each for each in sys.modules if each.partition(".")[0] == "toolkit"]:
        monkeypatch.delitem(sys.modules, module_name)
    assert sorted(entry for entry in names if ":" in entry) == indices
    assert [sum(entry.startswith(kind) for entry in names) for kind in ("MIG-", "GPU-", "all")] == [
        sum(entry.startswith(kind) for entry in original) for kind in ("MIG-", "GPU-", "all")
    ]


def test_a_gpu_in_mig_mode_shows_no_links_as_the_original(like: Callable[[str], Any]) -> None:
    name, command = "h100-mig-590", "nvidia-smi nvlink -s"
    (original,) = [group["commands"][command] for group in groups(name) if command in group.get("commands", {})]
    status, printed = like(name)("nvlink", "-s")
    assert (status, printed.splitlines()[1]) == (0, original.splitlines()[1])


@pytest.mark.parametrize(("name", "links"), [("g6e-595", False), ("h100-590", True)])
def test_links_and_topology_are_printed_as_by_the_originals(name: str, links: bool, like: Callable[[str], Any]) -> None:
    """Of an L40S with 595.80 and an H100 with 590.48.01 (captures of nvidia_gpu_exporter): the header is underlined."""
    run = like(name)
    assert ("Device does not have or support Nvlink" in run("nvlink", "-s")[1]) is not links
    assert run("topo", "-m")[1].startswith("\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n")
