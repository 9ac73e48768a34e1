"""Instance types that the facts do not know, of EC2's own answers.

The answers are those that moto recorded of DescribeInstanceTypes in us-east-1 (moto/ec2/resources/instance_types.json).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import moto
import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import Facts, with_described
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.resolver import resolve

FACTS = load_facts()
_RECORDED = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
ANSWERS: dict[str, Any] = json.loads(gzip.decompress(_RECORDED.read_bytes()))
TYPES = FACTS.instance_types["instance_types"]
KNOWN = [
    name
    for name, answer in ANSWERS.items()
    if name in TYPES
    and ("NeuronInfo" in answer or answer.get("GpuInfo", {}).get("Gpus", [{}])[0].get("Manufacturer") == "NVIDIA")
]


def without(*names: str) -> Facts:
    """The facts without these types, and without families that have no other."""
    table = FACTS.instance_types
    types = {name: row for name, row in table["instance_types"].items() if name not in names}
    left = {row["family"] for row in types.values()}
    families = {name: row for name, row in table["families"].items() if name in left}
    return Facts({**FACTS.tables, "instance_types": {**table, "instance_types": types, "families": families}})


def described(name: str, *, like: str, **gpu: Any) -> dict[str, Any]:
    """EC2's answer for a type of another name, with other values of its GPU."""
    answer: dict[str, Any] = json.loads(json.dumps(ANSWERS[like])) | {"InstanceType": name}
    if gpu:
        answer["GpuInfo"]["Gpus"][0] |= gpu
    return answer


def plan(recipe: str, *answers: dict[str, Any], facts: Facts = FACTS) -> dict[str, Any]:
    document = {"flag": "x", "os": "ubuntu2404", **yaml.safe_load(recipe)}
    facts = with_described(facts, answers, "us-east-1", "2026-11-27")
    return dict(resolve(layered(Path("image.yml"), document, "0" * 64, facts), facts))


def test_a_new_family_with_a_known_board_is_planned() -> None:
    """P6e-GB300 has no row; the board has, and what the platform needs of the driver."""
    answer = described("p6e-gb300.36xlarge", like="p6-b300.48xlarge", Name="GB300", Count=4)
    answer["ProcessorInfo"]["SupportedArchitectures"] = ["arm64"]
    recipe = "architecture: arm64\ninstance_types: [p6e-gb300.36xlarge]\nnvidia_driver: {version: '620'}\nimex: {}\n"
    document = plan(recipe, answer)
    assert (document["instance_types"][0]["gpu"]["name"], document["unverified"]) == (
        "NVIDIA GB300",
        {"instance_type": "p6e-gb300.36xlarge"},
    )
    assert document["nvidia_driver"]["options"] == {"NVreg_CreateImexChannel0": "1"}


@pytest.mark.parametrize("name", KNOWN)
def test_a_recorded_answer_gives_the_row_of_the_facts(name: str) -> None:
    """Without its row, each type of the facts is described as its row has it; addresses of GPUs EC2 does not know."""
    rows = with_described(without(name), [{**ANSWERS[name], "InstanceType": name}], "us-east-1", "2026-11-27")
    made, known = rows.instance_types["instance_types"][name], TYPES[name]
    for key in ("family", "vcpus", "memory_gib", "architecture", "efa_interfaces", "neuron"):
        assert made.get(key) == known.get(key), key
    if "gpu" in known:
        assert made["gpu"] == {key: value for key, value in known["gpu"].items() if key != "pci"}
        assert made["nvswitch"] == known["nvswitch"]


def test_a_new_size_of_a_known_family_is_planned() -> None:
    answer = described("g6.96xlarge", like="g6.48xlarge")
    document = plan("instance_types: [g6.96xlarge]\nnvidia_driver: {version: '595'}\n", answer)
    assert document["instance_types"][0]["gpu"]["name"] == "NVIDIA L4"
    assert "unverified" not in document
    fact = {"fact": "instance type g6.96xlarge", "source": "EC2 DescribeInstanceTypes (us-east-1)"}
    assert fact | {"date": "2026-11-27", "unverified": False} in document["sources"]


def test_a_new_family_is_planned_as_its_neighbour_and_says_so() -> None:
    """Of p5x, EC2 does not say whether it has NVSwitches: planned as p5, with a fabric manager, and not built so."""
    answer = described("p5x.48xlarge", like="p5.48xlarge")
    document = plan("instance_types: [p5x.48xlarge]\nnvidia_driver: {version: '595'}\n", answer)
    assert document["unverified"] == {"instance_type": "p5x.48xlarge"}
    assert document["notes"][0].startswith("unverified: instance_type p5x.48xlarge has no row in the facts")
    assert "accept: [unverified-instance_type]" in document["notes"][0]
    assert document["fabric_manager"]["instance_types"] == ["p5x.48xlarge"]
    accepted = "instance_types: [p5x.48xlarge]\nnvidia_driver: {version: '595'}\naccept: [unverified-instance_type]\n"
    assert "unverified" not in plan(accepted, answer)


def test_a_new_neuron_device_is_planned_with_a_release_that_no_row_refuses_for_it() -> None:
    answer = described("trn3.48xlarge", like="trn2.48xlarge")
    answer["NeuronInfo"]["NeuronDevices"][0]["Name"] = "Trainium3"
    recipe = "os: al2023\ninstance_types: [trn3.48xlarge]\nneuron: {version: newest}\ntelemetry: {profile: neuron}\n"
    document = plan(recipe, answer)
    assert document["instance_types"][0]["neuron"] == {"name": "Trainium3", "count": 16, "cores": 8}
    assert document["unverified"] == {"instance_type": "trn3.48xlarge"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            described("p7.48xlarge", like="p6-b300.48xlarge", Name="B400"),
            "p7.48xlarge: EC2 says 8 x NVIDIA B400 (275040 MiB), a GPU that the facts do not know",
        ),
        (
            described("p5z.48xlarge", like="p5.48xlarge", MemoryInfo={"SizeInMiB": 120000}),
            "8 x NVIDIA H100 (120000 MiB), a GPU that the facts do not know",
        ),
        (described("g9ad.xlarge", like="g5.xlarge", Manufacturer="AMD", Name="V710"), "its accelerator is AMD V710"),
        (described("m9i.large", like="m5.large"), "neither an NVIDIA GPU nor a Neuron device"),
    ],
)
def test_a_type_without_a_known_accelerator_is_refused(answer: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        with_described(FACTS, [answer], "us-east-1", "2026-11-27")
    assert text in refused.value.message


def test_an_unknown_type_without_a_place_says_who_knows_it() -> None:
    with pytest.raises(UsageError) as refused:
        plan("instance_types: [p7.48xlarge]\nnvidia_driver: {version: '595'}\n")
    assert "no instance type 'p7.48xlarge'" in refused.value.details[0]
    assert "`gpu-ami plan --where FILE`" in refused.value.details[0]


@pytest.mark.parametrize("name", ["ubuntu2604", "debian14", "rhel9", "al2027"])
def test_an_unknown_system_says_where_its_row_goes(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan(f"os: {name}\ninstance_types: [g6.xlarge]\nnvidia_driver: {{version: '595'}}\n")
    assert f"got '{name}'" in refused.value.details[0]
    assert "site/facts/operating_systems.yml" in refused.value.details[0]
