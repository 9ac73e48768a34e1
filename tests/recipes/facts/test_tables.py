"""The tables: every row has source and date, every reference resolves, nothing goes backwards, EC2's data agree.

Rows that a plan relies on; one table of architectures.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.components import chosen
from gpu_ami.recipes.facts.tables import (
    ARCHITECTURES,
    Facts,
    Sources,
    add_changes,
    at_least,
    at_most,
    branch,
    load_facts,
    measured,
    parts,
    read_yaml,
)
from validator.measurement import BY_NAME, MEASUREMENTS

FACTS = load_facts()
TYPES = FACTS.instance_types["instance_types"]
FAMILIES = FACTS.instance_types["families"]


def test_every_source_has_its_date() -> None:
    rows = list(FACTS.rows())
    assert len(rows) > 400
    for path, row in rows:
        assert row["source"].strip(), path
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", str(row.get("date"))), f"{path} has no date"
        assert row.get("unverified", True) is True, path


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            assert isinstance(key, str), f"{path}: key {key!r} is not text; quote it"
            yield from leaves(below, f"{path}.{key}")
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from leaves(below, f"{path}[{index}]")
    else:
        yield path, value


def test_every_table_row_is_sourced() -> None:
    """A release, type, family, architecture, system or measurement set without a source would not be a fact."""
    tables: dict[str, dict[str, Any]] = {component: dict(FACTS.releases(component)) for component in chosen()}
    tables |= {
        "types": TYPES, "families": FAMILIES, "gpus": FACTS.instance_types["gpus"],
        "branches": FACTS.nvidia_drivers["branches"], "architectures": FACTS.nvidia_drivers["architectures"],
        "models": FACTS.nvidia_drivers["models"], "majors": FACTS.cuda["majors"], "systems": FACTS.operating_systems,
        "nodes": FACTS.node_families, "telemetry": FACTS.telemetry, "ansible": FACTS.ansible["releases"],
        "agent": FACTS.cloudwatch_agent["versions"],
    }  # fmt: skip
    for name, family in FACTS.node_families.items():
        tables[f"versions of {name}"] = family.get("versions", {})
    bare = [f"{table}: {name}" for table, rows in tables.items() for name, row in rows.items() if "source" not in row]
    assert not bare


def test_versions_are_text() -> None:
    """`12.10` read as a number is 12.1."""
    numbers = [
        path
        for path, value in FACTS.rows()
        for path, value in leaves(value, path)
        if isinstance(value, float) and not path.startswith("prices.on_demand.hourly_usd.")
    ]
    assert {path.rpartition(".")[2] for path in numbers} <= {"memory_gib", "gib", "month_usd"}


def test_the_check_for_numbers_sees_one() -> None:
    assert [path for path, value in leaves({"a": {"b": [1.5]}}) if isinstance(value, float)] == [".a.b[0]"]


@pytest.mark.parametrize("component", [name for name in chosen() if name != "mkl"])
def test_no_release_is_older_than_its_predecessor(component: str) -> None:
    releases = list(FACTS.releases(component))
    assert releases == sorted(releases, key=parts)
    assert len(releases) == len({parts(release) for release in releases})


def test_minimum_drivers_and_bundles_never_go_backwards() -> None:
    minimums = [row["minimum_driver"] for row in FACTS.cuda["releases"].values()]
    assert minimums == sorted(minimums, key=parts)
    for key in ("kernel_module", "libfabric", "rdma_core", "ofi_nccl"):
        found = [row[key] for row in FACTS.efa["releases"].values() if key in row]
        assert found == sorted(found, key=parts), key
    branches = list(FACTS.nvidia_drivers["branches"].items())
    assert [name for name, _ in branches] == sorted((name for name, _ in branches), key=int)
    highest = [row["highest_cuda"] for _, row in branches]
    assert highest == sorted(highest, key=parts)


def test_driver_branches_hold_their_own_releases() -> None:
    for name, row in FACTS.nvidia_drivers["branches"].items():
        assert {branch(release) for release in row["releases"]} == {name}
        assert re.fullmatch(r"20\d\d-\d\d", row["end_of_support"])


def test_highest_cuda_of_a_branch_runs_on_its_newest_release() -> None:
    for name, row in FACTS.nvidia_drivers["branches"].items():
        known = FACTS.cuda["releases"].get(row["highest_cuda"])
        if known:
            assert at_least(row["releases"][-1], known["minimum_driver"]), name


def test_references_between_tables_resolve(facts: Facts = FACTS) -> None:
    drivers, types = facts.nvidia_drivers, facts.instance_types
    for name, row in TYPES.items():
        assert row["family"] in FAMILIES, name
        if "gpu" in row:
            assert row["gpu"]["compute_capability"] in drivers["architectures"], name
            model = types["gpus"][FAMILIES[row["family"]]["model"]]
            assert model["name"] == row["gpu"].get("fraction_of", row["gpu"]["name"]), name
            assert drivers["architectures"][model["compute_capability"]]["name"] == model["architecture"], name
    assert set(drivers["models"]) <= {gpu["name"] for gpu in types["gpus"].values()}
    assert set(facts.gpudirect["encoder"]["without"]) <= {gpu["name"] for gpu in types["gpus"].values()}
    for release, row in facts.cuda["releases"].items():
        assert branch(release) in facts.cuda["majors"]
        assert row["package"].startswith(f"{release}.")
    for row in facts.cuda["majors"].values():
        assert set(row["forward_from"]) <= set(drivers["branches"])
    for component in ("cudnn", "nccl", "dcgm"):
        for release, row in facts.releases(component).items():
            assert set(row["cuda"]) <= set(facts.cuda["majors"]), f"{component} {release}"


def test_network_references_resolve() -> None:
    for release, row in FACTS.efa["releases"].items():
        assert row["bundled"] == ("ofi_nccl" in row), release
        assert not row["bundled"] or row["ofi_nccl"] in FACTS.ofi_nccl["releases"], release
    for release, row in FACTS.ofi_nccl["releases"].items():
        assert set(row["tested_nccl"]) <= set(FACTS.nccl["releases"]), release
        assert re.fullmatch(r"[0-9a-f]{40}", row.get("commit", "0" * 40))
    bundled = {row["ofi_nccl"] for row in FACTS.efa["releases"].values() if row["bundled"]}
    assert set(FACTS.ofi_nccl["releases"]) - set(FACTS.releases("ofi_nccl")) <= bundled
    for table in ("systems", "plugin_systems"):
        assert set(FACTS.efa[table]) - {"source", "date"} <= set(FACTS.operating_systems)
    for row in FACTS.gdrcopy["releases"].values():
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])


def test_system_and_node_references_resolve() -> None:
    systems = FACTS.operating_systems
    for name, row in systems.items():
        assert set(row["source_ami"]) == set(row["architectures"]), name
        assert row["packages"] in FACTS.driver_packages["drivers"], name
        assert row["packages"] in FACTS.driver_packages["fabric_manager"], name
        assert row["packages"] in FACTS.driver_packages["libraries"], name
        assert "cost" in row or row["end_of_life"] > FACTS.read_on, f"{name} has ended; say what that costs"
    for name, family in FACTS.node_families.items():
        assert set(family["operating_systems"]) <= set(systems), name
        assert set(family.get("source_ami", {})) in (set(), set(family["operating_systems"])), name
        for version, row in family.get("versions", {}).items():
            for component, release in row.get("provides", {}).items():
                assert release in FACTS.releases(component), f"{name} {version}: {component}"
        for variant, row in family.get("variants", {}).items():
            assert set(row["source_ami"]) <= set(family["operating_systems"]), f"{name} {variant}"
            for component, release in row["provides"].items():
                assert release in FACTS.releases(component), f"{name} {variant}: {component}"
    for release, row in FACTS.neuron["releases"].items():
        assert set(row["operating_systems"]) <= set(systems), release


VARIANTS = [
    pytest.param(row, id=f"{name} {variant}")
    for name, family in FACTS.node_families.items()
    for variant, row in family.get("variants", {}).items()
    if "driver_branches" in row
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_branches_of_a_base_ami_drive_their_families(variant: dict[str, Any]) -> None:
    """Each family takes one branch, which supports its GPU with that module, by the driver's own tables."""
    drivers = FACTS.nvidia_drivers
    taken = [family for row in variant["driver_branches"].values() for family in row["families"]]
    assert len(taken) == len(set(taken)) and set(variant["without_gsp"]) <= set(taken)
    for row in variant["driver_branches"].values():
        assert row["version"] in FACTS.driver_releases
        for family, flavour in row["families"].items():
            model = FACTS.instance_types["gpus"][FAMILIES[family]["model"]]
            architecture = drivers["architectures"][model["compute_capability"]]
            assert {"grid": "open"}.get(flavour, flavour) in architecture["flavours"], family
            for limits in (architecture["driver"], drivers["models"].get(model["name"], {}).get("driver", {})):
                assert at_least(row["version"], limits.get("first", "0")), family
                assert at_most(row["version"], limits.get("last", "9999")), family
            assert (FAMILIES[family].get("gsp") is False) == (family in variant["without_gsp"]), family


def test_telemetry_measures_what_the_agent_can() -> None:
    assert {name for row in MEASUREMENTS for name in row.sets} < set(FACTS.telemetry)
    assert [name for name in FACTS.telemetry if measured(FACTS, name)] == ["compute", "graphics"]
    read = {row["agent_from"] for row in FACTS.cloudwatch_agent["nvidia_smi"]["power_draw"]}
    assert read == set(BY_NAME["power_draw"].paths.values()) - {""}
    published_before = {
        "utilization_gpu", "utilization_memory", "memory_total", "memory_used", "memory_free",
        "clocks_current_graphics", "clocks_current_sm", "clocks_current_memory", "clocks_current_video",
    }  # fmt: skip
    for name in ("compute", "graphics"):
        assert published_before <= set(measured(FACTS, name)), f"{name}: a dashboard loses a metric"


def test_keys_are_whole_fingerprints() -> None:
    found = [
        value for path, value in leaves(json.loads(json.dumps([vars(FACTS)], default=str))) if "fingerprint" in path
    ]
    assert len(found) >= 6
    assert all(re.fullmatch(r"[0-9A-F]{40}", value) for value in found)


def test_key_files_are_named_after_their_keys() -> None:
    """NVIDIA names a key's file by the last 8 digits of its fingerprint."""
    for key in FACTS.driver_packages["keys"].values():
        assert key["fingerprint"].endswith(key["file"].removesuffix(".pub").upper())


def test_wanted_families_are_known_built_or_refused() -> None:
    wanted = {
        "p2", "p3", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200",
        "g3", "g3s", "g4dn", "g4ad", "g5", "g5g", "g6", "g6e", "g6f", "gr6", "g7", "g7e",
        "f1", "f2", "inf1", "inf2", "trn1", "trn1n", "trn2",
    }  # fmt: skip
    assert wanted <= set(FAMILIES)
    assert {family for family, row in FAMILIES.items() if "refused" in row} >= {"p2", "g4ad", "f1", "f2", "g6f"}


def recorded_types() -> dict[str, Any]:
    """EC2's own answers, as moto keeps them."""
    packed = resources.files("moto.ec2") / "resources" / "instance_types.json.gz"
    return dict(json.loads(gzip.decompress(packed.read_bytes())))


RECORDED = recorded_types()


@pytest.mark.parametrize("family", FAMILIES)
def test_instance_types_agree_with_ec2(family: str) -> None:
    for name, row in TYPES.items():
        if row["family"] == family and name in RECORDED:
            agrees_with_ec2(name, row, RECORDED[name])


def agrees_with_ec2(name: str, row: dict[str, Any], said: dict[str, Any]) -> None:
    assert row["vcpus"] == said["VCpuInfo"]["DefaultVCpus"], name
    assert row["memory_gib"] == said["MemoryInfo"]["SizeInMiB"] / 1024, name
    assert row["architecture"] in said["ProcessorInfo"]["SupportedArchitectures"], name
    assert row["efa_interfaces"] == said["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0), name
    if "gpu" in row and ("fraction_of" in row["gpu"] or "refused" not in FAMILIES[row["family"]]):
        theirs = said["GpuInfo"]["Gpus"][0]
        count = theirs["Count"] or theirs["LogicalGpuCount"]  # of fractions there is no whole one
        assert (row["gpu"]["count"], theirs["Manufacturer"]) == (count, "NVIDIA"), name
        assert ("fraction_of" in row["gpu"]) == (theirs.get("GpuPartitionSize", 1) < 1), name
        # EC2 counts the board's memory, nvidia-smi what ECC and firmware leave of it; of fractions GB, and GiB.
        assert row["gpu"]["memory_mib"] == pytest.approx(theirs["MemoryInfo"]["SizeInMiB"], rel=0.075), name
    devices = said.get("NeuronInfo", {}).get("NeuronDevices") or said.get("InferenceAcceleratorInfo", {}).get(
        "Accelerators"
    )
    if devices and "neuron" in row:
        assert row["neuron"]["count"] == devices[0]["Count"], name


def test_every_accelerated_type_of_ec2_is_known() -> None:
    keys = ("GpuInfo", "NeuronInfo", "InferenceAcceleratorInfo", "FpgaInfo", "MediaAcceleratorInfo")
    accelerated = {name for name, said in RECORDED.items() if any(key in said for key in keys)}
    assert accelerated - set(TYPES) == set()


def test_every_type_is_a_name_of_botocore() -> None:
    from botocore.loaders import Loader

    shapes = Loader().load_service_model("ec2", "service-2")["shapes"]
    assert set(TYPES) <= set(shapes["InstanceType"]["enum"])


def test_pci_addresses_are_as_many_as_gpus() -> None:
    for name, row in TYPES.items():
        addresses = row.get("gpu", {}).get("pci")
        if addresses is not None:
            assert len(addresses) == len(set(addresses)) == row["gpu"]["count"], name
            assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", one) for one in addresses), name


def test_missing_table_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text("{}")
    with pytest.raises(UsageError) as caught:
        read_yaml(tmp_path / "recip.yml")
    assert caught.value.hint == f"did you mean {tmp_path}/recipe.yml?"


def test_duplicate_keys_are_refused_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("os: al2023\ncuda: {version: '12'}\nos: debian12\nbuild:\n  a: 1\n  b: [{c: 1, c: 2}]\n  a: 3\n")
    with pytest.raises(UsageError, match="3 duplicate keys") as caught:
        read_yaml(path)
    assert caught.value.details == (
        "line 3: os: expected once, also in line 1",
        "line 6: c: expected once, also in line 6",
        "line 7: a: expected once, also in line 5",
    )


def test_merged_mapping_may_override_a_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a, y: 4}\n")
    assert read_yaml(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1, "y": 4}}


def test_file_that_is_no_recipe_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "folder.yml").mkdir()
    (tmp_path / "folder.yml" / "other.yml").write_text("a: 1\n")
    (tmp_path / "latin.yml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "huge.yml").write_text("a" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe.yml")
    expected = {
        "pipe.yml": ("cannot be read: expected a regular file, got a named pipe", "a YAML file"),
        "folder.yml": ("cannot be read: Is a directory", "other.yml"),
        "latin.yml": ("not UTF-8: byte 0xe9 in line 2", "save it as UTF-8"),
        "huge.yml": ("expected at most 1 MiB, got 1.0 MiB", "is this the right file?"),
    }
    for name, (message, hint) in expected.items():
        with pytest.raises(UsageError) as caught:
            read_yaml(tmp_path / name)
        assert caught.value.message == f"{tmp_path / name}: {message}"
        assert hint in caught.value.hint


ROW = {"source": "release notes", "date": "2026-11-21"}


def test_row_is_cited_once_for_each_fact() -> None:
    sources = Sources()
    for fact in ("driver 580", "driver 580", "CUDA 13.0"):
        sources.add(fact, ROW)
    assert [citation["fact"] for citation in sources.rows] == ["driver 580", "CUDA 13.0"]
    assert sources.rows[0] == {"fact": "driver 580", **ROW, "unverified": False}
    assert sources.notes == []


def test_unverified_row_leaves_its_note() -> None:
    sources = Sources()
    sources.add("driver 580", {**ROW, "unverified": True})
    sources.add("CUDA 13.0", {**ROW, "unverified": True, "note": "CUDA 13.0 was not tried"})
    assert sources.notes == ["not established: driver 580 (release notes)", "CUDA 13.0 was not tried"]
    assert all(citation["unverified"] for citation in sources.rows)


def test_note_is_one_line_and_not_repeated() -> None:
    sources = Sources()
    sources.note("two\n  lines")
    sources.note("two lines")
    assert sources.notes == ["two lines"]


ROOT = Path(__file__).resolve().parents[2]


def test_names_are_those_of_each_system() -> None:
    assert {name: (row.deb, row.rpm, row.triplet) for name, row in ARCHITECTURES.items()} == {
        "x86_64": ("amd64", "x86_64", "x86_64-linux-gnu"),
        "arm64": ("arm64", "aarch64", "aarch64-linux-gnu"),
    }


def test_no_other_module_has_a_table_of_its_own() -> None:
    table = re.compile(r"[\"']arm64[\"']: [\"'](arm64|aarch64)")
    folders = [ROOT / "gpu_ami", ROOT / "validator"]
    modules = [path for folder in folders for path in folder.rglob("*.py") if "replicas" not in path.parts]
    assert [str(path.relative_to(ROOT)) for path in modules if table.search(path.read_text(encoding="utf-8"))] == []


def test_changes_of_a_table_become_rows_of_a_site(tmp_path: Path) -> None:
    """A refresh for a site: new rows beside its own, and a list with what the site had added to it."""
    before = "releases: {1.0.0: {source: a}}\nbranches: {'580': {kind: LTS, releases: ['580.1', '580.2']}}\n"
    after = before.replace("'580.2']", "'580.2', '580.4']").replace("releases: {", "releases: {1.1.0: {source: b}, ", 1)
    (tmp_path / "facts").mkdir()
    own = {"releases": {"0.9.0": {"source": "mine"}}, "branches": {"580": {"releases": ["580.1", "580.2", "580.3"]}}}
    (tmp_path / "facts" / "x.yml").write_text(yaml.safe_dump(own))
    path = add_changes("x", before, after, tmp_path)
    assert read_yaml(path) == {
        "releases": {"0.9.0": {"source": "mine"}, "1.1.0": {"source": "b"}},
        "branches": {"580": {"releases": ["580.1", "580.2", "580.3", "580.4"]}},
    }
