"""Instance types that the facts do not know: rows made of what EC2's DescribeInstanceTypes says of them.

A GPU has to be one that the facts know: clocks, power limit and compute capability, which plan and checks need, are
in no answer of EC2. Of a new family, EC2 does not say whether there are NVSwitches and IMEX, nor which GSP rule holds:
they are those of the family with the nearest name, and the row is unverified.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts.tables import Facts, Row

Described = Mapping[str, Any]
_STEPS = "docs/tasks/add-an-instance-type.md has the steps"


def with_described(facts: Facts, described: Iterable[Described], where: str, today: str) -> Facts:
    """The facts with a row for each of the types (InstanceTypes of the answer). where: the place that was asked.

    UsageError: a type has no accelerator that images are built for, or a GPU that the facts do not know.
    """
    table = dict(facts.instance_types)
    types, families = dict(table["instance_types"]), dict(table["families"])
    for answer in described:
        name = str(answer["InstanceType"])
        source = {"source": f"EC2 DescribeInstanceTypes ({where})", "date": today}
        accelerator = _accelerator(facts, name, answer)
        family = name.partition(".")[0]
        if family not in families:
            families[family] = _family(facts, family, _architecture(answer), accelerator) | source
        types[name] = _type(name, families[family], answer, accelerator) | source
        if "nearest" in families[family]:
            note = families[family]["note"]
            types[name] |= {"unverified": True, "unknown": families[family]["nearest"], "note": f"{name}: {note}"}
    return Facts(
        {**facts.tables, "instance_types": {**table, "instance_types": types, "families": families}}, facts.site
    )


def _accelerator(facts: Facts, name: str, answer: Described) -> dict[str, Any]:
    """`gpu` or `neuron` of the type's row."""
    for device in answer.get("NeuronInfo", {}).get("NeuronDevices", ()):
        cores = device["CoreInfo"]["Count"]
        return {"neuron": {"name": device["Name"], "count": device["Count"], "cores": cores}}
    for gpu in answer.get("GpuInfo", {}).get("Gpus", ()):
        model, memory, whole = gpu["Name"], gpu["MemoryInfo"]["SizeInMiB"], gpu.get("GpuPartitionSize", 1.0)
        if gpu["Manufacturer"].upper() != "NVIDIA":
            raise UsageError(f"no image is built for {name}: its accelerator is {gpu['Manufacturer']} {model}")
        row = gpu_named(facts, model, round(memory / whole))
        if row is None:
            raise UsageError(
                f"{name}: EC2 says {gpu['Count']} x NVIDIA {model} ({memory} MiB), a GPU that the facts do not know",
                details=["what the checks compare is not in EC2's answer: clocks, power limit, compute capability"],
                hint=f"add its row to the table gpus of site/facts/instance_types.yml: {_STEPS}",
            )
        return {"gpu": {**row, "count": gpu["Count"]}}
    raise UsageError(f"no image is built for {name}: EC2 says of no NVIDIA GPU and no Neuron device there")


def gpu_named(facts: Facts, model: str, memory_mib: int) -> Row | None:
    """The row of the GPU that EC2 calls `model` (A100, RTX PRO Server 6000) and whose memory is within an eighth."""
    words = _words(model)
    rows = [row for row in facts.instance_types["gpus"].values() if words <= _words(row["name"])]
    nearest = min(rows, key=lambda row: abs(row["memory_mib"] - memory_mib), default=None)
    return nearest if nearest and abs(nearest["memory_mib"] - memory_mib) < memory_mib / 8 else None


def _words(name: str) -> set[str]:
    return set(re.split(r"[ -]", name.upper()))


def _type(name: str, family: Row, answer: Described, accelerator: Mapping[str, Any]) -> dict[str, Any]:
    gpus = accelerator.get("gpu", {}).get("count", 0)
    return {
        "family": name.partition(".")[0],
        "vcpus": answer["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": answer["MemoryInfo"]["SizeInMiB"] // 1024,
        "architecture": _architecture(answer),
        "nvswitch": bool(family["nvswitch_generation"]) and gpus == 8,
        "efa_interfaces": answer["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        **accelerator,
    }


def _architecture(answer: Described) -> str:
    return "arm64" if "arm64" in answer["ProcessorInfo"]["SupportedArchitectures"] else "x86_64"


def _family(facts: Facts, name: str, architecture: str, accelerator: Mapping[str, Any]) -> dict[str, Any]:
    kind, device = ("nvidia", accelerator["gpu"]) if "gpu" in accelerator else ("neuron", accelerator["neuron"])
    families = facts.instance_types["families"]
    built = {
        row["family"] for row in facts.instance_types["instance_types"].values() if row["architecture"] == architecture
    }
    alike = [other for other, row in families.items() if row["accelerator"] == kind and "refused" not in row]
    alike = [other for other in alike if other in built] or alike
    nearest = (difflib.get_close_matches(name, alike, n=1, cutoff=0.0) or alike)[0]
    note = f"whether {name} has NVSwitches, IMEX and GSP rules of its own is in no answer of EC2: taken from {nearest}"
    copied = {key: value for key, value in families[nearest].items() if key not in ("source", "date", "model")}
    model = str(device["name"])
    return copied | {"model": model, "nearest": nearest, "note": note, "unverified": True}
