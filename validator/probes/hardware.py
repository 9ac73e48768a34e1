"""What hardware a machine has, and how it differs from its instance type: by the plan's facts, then by a golden file.

A golden file (`variables/golden/<instance type>.json`, schema gpu-ami/golden/1) is what `gpu-ami record` once saw on a
machine of that type. One that was recorded on simulated hardware holds for simulated hardware alone. Pure but for
`see` and `find_golden`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator import plan_document
from validator.probes import nvidia_smi

SCHEMA = "gpu-ami/golden/1"
_ROOT = Path(__file__).resolve().parents[2]
# In a checkout, and in a wheel, which holds the project's data in gpu_ami/_data/ (pyproject.toml).
_FOLDERS = (_ROOT / "variables" / "golden", _ROOT / "gpu_ami" / "_data" / "variables" / "golden")
FOLDER = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
# How far nvidia-smi's memory total may lie from the fact. Drivers before R510 leave out what they reserve: 15109 MiB of
# 15360 on a T4 (1.6 %), 22731 of 23028 on an A10 (1.3 %), 40536 of 40960 on an A100 (1.0 %); public nvidia-smi outputs.
MEMORY_PERCENT = 2.0
# The fabric manager guide: the NVSwitches of HGX A100 and H100 are PCI devices of the host, those of HGX B200 are not.
SWITCHES_ON_PCI = ("Ampere", "Hopper")
PCI_LIST = (
    "for d in /sys/bus/pci/devices/*; do read -r v <$d/vendor; read -r i <$d/device; read -r c <$d/class;"
    ' n=$(readlink $d/driver); echo "${d##*/} $v $i $c ${n##*/}"; done'
)
# The same judgement as `is_simulated`, in the machine's own shell: "real", "simulated", or nothing without a GPU.
KIND = (
    f'{{ {PCI_LIST}; }} | awk \'$2 == "0x10de" && $4 ~ /^0x03/ {{ real = 1 }}'
    ' $2 != "0x10de" && ($5 == "nvidia" || $5 == "nvidia-gpu") { simulated = 1 }'
    ' END { if (simulated) print "simulated"; else if (real) print "real" }\''
)
DRIVER = "cat /proc/driver/nvidia/version"  # modinfo is not on the path of a user who is not root
Run = Callable[[str], tuple[int, str]]  # a command → exit status, standard output


class Unseen(Exception):
    """The machine does not say what hardware it has; the message names the command."""


@dataclass(frozen=True)
class PciDevice:
    """One row of /sys/bus/pci: "0000:00:1b.0", "10de", "20b0", "030200", "nvidia" ("" where no driver has it)."""

    address: str
    vendor: str
    device: str
    kind: str
    driver: str = ""

    @property
    def is_gpu(self) -> bool:
        """A display device of NVIDIA's, or whatever a driver called nvidia has taken: an unbound GPU counts too."""
        return (self.vendor == "10de" and self.kind.startswith("03")) or self.driver in ("nvidia", "nvidia-gpu")

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == "10de" and self.kind.startswith("0680")

    @property
    def is_efa(self) -> bool:
        return self.vendor == "1d0f" and self.device.startswith("efa")


@dataclass(frozen=True)
class Board:
    """One GPU as nvidia-smi shows it; memory in MiB."""

    pci: str
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Hardware:
    """What a machine has. links: "0-1" (indices of two GPUs) → "NV12", "PHB", … as `nvidia-smi topo -m` says it."""

    gpus: tuple[Board, ...]
    links: Mapping[str, str]
    nvswitches: tuple[str, ...] = ()
    efa_interfaces: tuple[str, ...] = ()
    simulated: bool = False
    driver: str = ""


@dataclass(frozen=True)
class Golden:
    """A golden file's content. recorded: when, where, by which version, under which driver."""

    instance_type: str
    hardware: Hardware
    recorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        kind = "simulated" if self.hardware.simulated else "real"
        return f"{self.instance_type}.json of {self.recorded.get('when', 'unknown date')} ({kind} hardware)"

    def to_json(self) -> dict[str, object]:
        seen = self.hardware
        return {
            "schema": SCHEMA,
            "instance_type": self.instance_type,
            "hardware": "simulated" if seen.simulated else "real",
            "recorded": {**self.recorded, "driver": seen.driver},
            "gpus": [{"pci": one.pci, "name": one.name, "memory_mib": one.memory_mib} for one in seen.gpus],
            "links": dict(seen.links),
            "nvswitches": list(seen.nvswitches),
            "efa_interfaces": list(seen.efa_interfaces),
        }


def golden(document: Any, name: str) -> Golden:
    """A golden file's JSON, read. ValueError names what is wrong with it."""
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"{name}: schema is {document['schema']!r}, expected {SCHEMA!r}")
        if document["hardware"] not in ("real", "simulated"):
            raise ValueError(f"{name}: hardware is {document['hardware']!r}, expected 'real' or 'simulated'")
        hardware = Hardware(
            gpus=tuple(Board(one["pci"], one["name"], int(one["memory_mib"])) for one in document["gpus"]),
            links={str(pair): str(kind) for pair, kind in document["links"].items()},
            nvswitches=tuple(document["nvswitches"]),
            efa_interfaces=tuple(document["efa_interfaces"]),
            simulated=document["hardware"] == "simulated",
            driver=str(document["recorded"]["driver"]),
        )
        return Golden(document["instance_type"], hardware, document["recorded"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: not a golden file ({type(error).__name__}: {error})") from error


def find_golden(instance_type: str, *folders: Path) -> Golden | None:
    """The golden file of an instance type in the first folder that has one (no folder: those that come with gpu-ami).

    None where nobody has recorded one. ValueError: it is broken.
    """
    paths = [folder / f"{instance_type}.json" for folder in folders or (FOLDER,)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        found = golden(json.loads(path.read_text(encoding="utf-8")), path.name)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}: not JSON ({error})") from error
    if found.instance_type != instance_type:
        raise ValueError(f"{path.name}: it is of {found.instance_type}")
    return found


def see(run: Run) -> Hardware:
    """Asks a machine for its hardware. Unseen: nvidia-smi or the PCI bus does not answer."""
    pci = pci_devices(_ask(run, PCI_LIST))
    try:
        gpus = nvidia_smi.read(_ask(run, "nvidia-smi -q -x"))
    except ValueError as error:
        raise Unseen(str(error)) from error
    return describe(pci, gpus, _ask(run, "nvidia-smi topo -m"), loaded_version(_ask(run, DRIVER)))


def loaded_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version; "" where it names none."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return found[1] if found else ""


def _ask(run: Run, command: str) -> str:
    rc, out = run(command)
    if rc != 0 or not out.strip():
        said = out.strip().splitlines() or ["no output"]
        raise Unseen(f"`{command.split(';')[0]}` ended with {rc}: {said[0]}")
    return out


def describe(pci: Sequence[PciDevice], gpus: Iterable[nvidia_smi.Gpu], topology: str, driver: str = "") -> Hardware:
    """What three listings amount to."""
    boards = tuple(Board(one.pci, one.name, int(one.values.get("memory_total", 0))) for one in gpus)
    return Hardware(
        gpus=boards,
        links=read_topology(topology),
        nvswitches=tuple(one.address for one in pci if one.is_nvswitch),
        efa_interfaces=tuple(one.address for one in pci if one.is_efa),
        simulated=is_simulated(pci),
        driver=driver,
    )


def is_simulated(pci: Iterable[PciDevice]) -> bool:
    """Whether a GPU is another vendor's on the PCI bus. Without any GPU there nothing is real either."""
    vendors = {one.vendor for one in pci if one.is_gpu}
    return vendors != {"10de"}


def pci_devices(listed: str) -> list[PciDevice]:
    """The answer to PCI_LIST, in the order of the addresses."""
    rows = [line.split() for line in listed.splitlines()]
    return sorted(
        (
            PciDevice(
                nvidia_smi.pci_address(row[0]), *(word.removeprefix("0x").lower() for word in row[1:4]), *row[4:5]
            )
            for row in rows
            if len(row) >= 4
        ),
        key=lambda one: one.address,
    )


def read_topology(text: str) -> dict[str, str]:
    """`nvidia-smi topo -m` → {"0-1": "NV12"}. Where the two directions differ, both: "NV12/SYS"."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the header is underlined, on a terminal or not
    rows = [[cell.strip() for cell in line.split("\t")] for line in plain.splitlines()]
    head: list[str] = next((row for row in rows if row[:1] == [""] and "GPU0" in row), [])
    columns = {at: int(cell[3:]) for at, cell in enumerate(head) if re.fullmatch(r"GPU\d+", cell)}
    cells: dict[tuple[int, int], str] = {}
    for row in rows:
        if row and re.fullmatch(r"GPU\d+", row[0]):
            cells |= {(int(row[0][3:]), other): row[at] for at, other in columns.items() if at < len(row)}
    links = {}
    for one, other in itertools.combinations(sorted(columns.values()), 2):
        there, back = cells.get((one, other), "?"), cells.get((other, one), "?")
        links[f"{one}-{other}"] = there if there == back else f"{there}/{back}"
    return links


def model_differences(gpus: Sequence[Board], promised: plan_document.Gpu, recorded: Golden | None) -> list[str]:
    """GPUs that are not the promised model, or have not its memory: by the fact within MEMORY_PERCENT, by golden file
    exactly. `promised` is the plan's `gpu`."""
    wrong = []
    slack = promised["memory_mib"] * MEMORY_PERCENT / 100
    for board in gpus:
        if board.name != promised["name"]:
            wrong.append(f"GPU {board.pci} is {board.name}, expected {promised['name']}")
        elif abs(board.memory_mib - promised["memory_mib"]) > slack:
            told = f"{promised['memory_mib']} MiB within {MEMORY_PERCENT:g} %"
            wrong.append(f"GPU {board.pci} has {board.memory_mib} MiB, expected {told}")
    if wrong or recorded is None:
        return wrong
    known = {board.pci: board.memory_mib for board in recorded.hardware.gpus}
    return [
        f"GPU {board.pci} has {board.memory_mib} MiB, recorded are {known[board.pci]} ({recorded.name})"
        for board in gpus
        if known.get(board.pci, board.memory_mib) != board.memory_mib
    ]


def address_differences(found: Iterable[str], promised: plan_document.Gpu, recorded: Golden | None) -> list[str]:
    """PCI addresses at which a GPU is missing or one too many: by the facts, else by the golden file."""
    if promised.get("pci"):
        expected, by = set(promised["pci"]), "facts"
    elif recorded is not None:
        expected, by = {board.pci for board in recorded.hardware.gpus}, recorded.name
    else:
        return []
    here = set(found)
    missing = [f"no GPU at {address} ({by})" for address in sorted(expected - here)]
    return missing + [f"a GPU at {address}, where none is promised ({by})" for address in sorted(here - expected)]


def link_differences(seen: Hardware, promised: plan_document.InstanceType, recorded: Golden | None) -> list[str]:
    """Pairs of GPUs that are not linked as promised. Behind NVSwitches every pair has the same count of NVLinks; how
    many, and everything else, only a golden file knows. `promised` is the plan's instance type."""
    wrong = []
    if promised["nvswitch"]:
        usual = max(seen.links.values(), key=list(seen.links.values()).count, default="")
        for pair, kind in seen.links.items():
            if not re.fullmatch(r"NV\d+", kind):
                wrong.append(f"{_pair(pair, seen)} are linked by {kind}, expected NVLink ({promised['name']})")
            elif kind != usual:
                wrong.append(f"{_pair(pair, seen)} are linked by {kind}, the others by {usual}")
    if wrong or recorded is None:
        return wrong
    for pair in sorted(seen.links.keys() | recorded.hardware.links.keys()):
        kind, was = seen.links.get(pair, "nothing"), recorded.hardware.links.get(pair, "nothing")
        if kind != was:
            wrong.append(f"{_pair(pair, seen)} are linked by {kind}, recorded is {was} ({recorded.name})")
    return wrong


def _pair(pair: str, seen: Hardware) -> str:
    places = [f"{index} ({seen.gpus[int(index)].pci})" for index in pair.split("-") if int(index) < len(seen.gpus)]
    return f"GPUs {' and '.join(places)}" if len(places) == 2 else f"GPUs {pair}"


def applicable(recorded: Golden | None, *, simulated: bool) -> Golden | None:
    """The golden file where it holds for this kind of hardware."""
    return recorded if recorded is not None and recorded.hardware.simulated == simulated else None


def same_branch(recorded: Golden | None, driver: str) -> Golden | None:
    """The golden file where it was recorded under the same driver branch: the memory total moves between branches."""
    if recorded is None or recorded.hardware.driver.partition(".")[0] != driver.partition(".")[0]:
        return None
    return recorded


def basis(recorded: Golden | None) -> str:
    """What the seen hardware was compared with, for the report."""
    return f"facts and {recorded.name}" if recorded is not None else "facts only, no golden file applies"
