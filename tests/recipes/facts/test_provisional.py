"""Versions that the facts do not know: planned as unverified where plausible, refused as a typing error elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import Facts
from gpu_ami.recipes.facts.provisional import is_plausible, neuron_packages
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.resolver import resolve
from gpu_ami.sources.survey import Finding, Survey, require_verified

FACTS = load_facts()
BASE = "flag: x\nos: ubuntu2404\ninstance_types: [g6.xlarge]\n"


def without(facts: Facts, *branches: str) -> Facts:
    """The facts as they were before anybody wrote these driver branches, and CUDA from 13.4 on, down."""
    drivers, cuda = facts.nvidia_drivers, facts.cuda
    rows = {name: row for name, row in drivers["branches"].items() if name not in branches}
    releases = {name: row for name, row in cuda["releases"].items() if name not in ("13.4", "13.5")}
    tables = {**facts.tables, "nvidia_drivers": {**drivers, "branches": rows}, "cuda": {**cuda, "releases": releases}}
    return Facts(tables)


def plan(text: str, facts: Facts = FACTS) -> dict[str, Any]:
    document = {**yaml.safe_load(BASE), **yaml.safe_load(text)}
    return dict(resolve(layered(Path("image.yml"), document, "0" * 64, facts), facts))


@pytest.mark.parametrize(
    ("component", "version", "plausible"),
    [
        ("nvidia_driver", "640.12.03", True),
        ("nvidia_driver", "580.199.01", True),  # a branch that is supported
        ("nvidia_driver", "550.163.02", False),  # one that ended
        ("nvidia_driver", "580.95.06", False),  # older than its newest: the lists would have it
        ("nvidia_driver", "6200.70.06", False),
        ("nvidia_driver", "260.70.06", False),
        ("nvidia_driver", "999.70.06", False),
        ("nvidia_driver", "640", False),  # a branch is not an exact version
        ("cuda", "13.9", True),
        ("cuda", "14.0", True),
        ("cuda", "12.7", False),
        ("cuda", "31.0", False),
        ("cuda", "13.0.3", True),
        ("cuda", "12.7.1", False),
        ("cuda", "13.6.1", True),  # an update of a toolkit that is unknown itself
        ("cuda", "14.0.0", True),
        ("cuda", "13.30.1", False),
        ("cuda", "13.6.10", False),
        ("nccl", "2.34.1", True),
        ("nccl", "2.12.12", True),  # released, and of no row
        ("nccl", "2.28.8", False),
        ("nccl", "2.283.9", False),
        ("cudnn", "9.40.0", True),
        ("cudnn", "10.0.0", True),
        ("cudnn", "98.0.0", False),
        ("cudnn", "9.20.7", False),
        ("efa", "1.60.0", True),
        ("efa", "1.5", False),
        ("container_toolkit", "1.18.2", True),
        ("container_toolkit", "1.81.1", False),
        ("dcgm", "4.9.0", True),
    ],
)
def test_a_version_is_plausible_by_the_rule(component: str, version: str, plausible: bool) -> None:
    assert is_plausible(FACTS, component, version) is plausible


def test_new_branch_and_toolkit_are_planned_without_their_rows() -> None:
    """The plan says so first, names the skipped rules, and what no source has told of yet."""
    recipe = "nvidia_driver: {version: 620.70.06}\ncuda: {version: '13.5'}\n"
    document = plan(recipe, without(FACTS, "615", "620"))
    assert document["unverified"] == {"nvidia_driver": "620.70.06", "cuda": "13.5"}
    first, second = document["notes"][:2]
    assert (
        first.startswith("unverified: nvidia_driver 620.70.06 has no row in the facts") and "Rules skipped: " in first
    )
    assert second.startswith("unverified: cuda 13.5 has no row")
    assert document["kernel"]["version"] == "7.0"
    assert document["cuda"]["packages"] == {"cuda-toolkit-13-5": "13.5.*"}
    assert document["nvidia_driver"]["version"] == "620.70.06"


def test_with_their_rows_nothing_of_them_is_unverified() -> None:
    document = plan("nvidia_driver: {version: 620.70.06}\ncuda: {version: '13.5'}\n")
    assert "unverified" not in document and document["cuda"]["compatibility"] == "native"
    assert not [note for note in document["notes"] if note.startswith("unverified: ")]
    assert {row["unverified"] for row in document["sources"] if row["fact"] in ("driver 620.70.06", "CUDA 13.5")} == {
        False
    }


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("nvidia_driver: {version: 6200.70.06}\n", "no driver 6200.70.06"),
        ("nvidia_driver: {version: '580'}\ncuda: {version: '12.7'}\n", "nearest below 12.6, above 12.8"),
        # What is known of the branch, the GPU and the major version still refuses.
        ("nvidia_driver: {version: '550'}\ncuda: {version: '13.9'}\n", "cannot run CUDA 13.9"),
        (
            "instance_types: [p3.2xlarge]\nnvidia_driver: {version: 640.12.03, flavour: proprietary}\n",
            "no longer supports",
        ),
        ("kernel: {version: '9.9'}\nnvidia_driver: {version: '580'}\n", "has no kernel 9.9"),
        (
            "node: eks\nos: al2023\nnode_version: '1.30'\nnvidia_driver: {version: '580'}\n",
            "support ended on 2026-07-23",
        ),
        ("node: eks\nos: al2023\nnode_version: '1.73'\nnvidia_driver: {version: '580'}\n", "1.73 is unknown"),
        (
            "node: eks\nos: al2023\nnode_version: '1.41'\nnvidia_driver: {version: '580'}\n",
            "gpu-ami facts --add eks 1.41",
        ),
        ("node: eks\nos: al2023\nnode_version: '3.0'\nnvidia_driver: {version: '580'}\n", "3.0 is unknown"),
        (
            "node: parallelcluster\nnode_version: 4.7.0\nnvidia_driver: {version: '620'}\n",
            "add its row to site/facts/node_families.yml",
        ),
        # Between known branches, and newer than the list of releases: nobody says that there is no such release.
        ("nvidia_driver: {version: 605.44.01}\n", "gpu-ami facts --add nvidia_driver 605.44.01"),
        ("nvidia_driver: {version: '640'}\n", "planned, as unverified, if its whole version is named, as in 620.70.06"),
        ("nvidia_driver: {version: '580'}\ncuda: {version: '14.0'}\n", "cannot run CUDA 14.0: needs ≥ 620.70.06"),
        ("instance_types: [p7.48xlarge]\nnvidia_driver: {version: '620'}\n", "`gpu-ami plan --where FILE`"),
        ("os: ubuntu2604\nnvidia_driver: {version: '620'}\n", "add a row to site/facts/operating_systems.yml"),
        ("os: debian14\nnvidia_driver: {version: '620'}\n", "add a row to site/facts/operating_systems.yml"),
        (
            "instance_types: [g5g.xlarge, g6.xlarge]\nnvidia_driver: {version: 640.12.03}\n",
            "is arm64, the image is x86",
        ),
        ("kernel: {version: '99.1'}\nnvidia_driver: {version: '595'}\n", "has no kernel 99.1"),
        ("node: ecs\nos: al2023\nnode_version: '20261120'\nnvidia_driver: {version: '580'}\n", "source_ami.name pins"),
        ("nvidia_driver: {source: grid, version: 640.12.03}\n", "nvidia_driver.folder takes it"),
    ],
)
def test_typing_errors_and_what_is_known_are_refused(recipe: str, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan(recipe)
    assert text in "\n".join([refused.value.message, *refused.value.details])


@pytest.mark.parametrize(
    ("recipe", "unverified"),
    [
        ("kernel: {version: '7.3'}\nnvidia_driver: {version: '595'}\n", {"kernel": "7.3"}),
        ("os: al2023\nkernel: {version: '6.24'}\nnvidia_driver: {version: '595'}\n", {"kernel": "6.24"}),
        ("node: eks\nos: al2023\nnode_version: '1.39'\nnvidia_driver: {version: '595'}\n", {"node_version": "1.39"}),
        ("nvidia_driver: {version: '595'}\ncuda: {version: 13.0.4}\n", {"cuda": "13.0.4"}),
        ("nvidia_driver: {version: '595'}\ncuda: {version: '13.0'}\nnccl: {version: 2.34.1}\n", {"nccl": "2.34.1"}),
        ("nvidia_driver: {version: '595'}\ncuda: {version: '13.0'}\ncudnn: {version: 9.40.0}\n", {"cudnn": "9.40.0"}),
        ("instance_types: [p5.48xlarge]\nnvidia_driver: {version: '595'}\nefa: {version: 1.60.0}\n", {"efa": "1.60.0"}),
        ("nvidia_driver: {version: 640.12.03}\naccept: [unverified-nvidia_driver]\n", {}),
        (
            "nvidia_driver: {version: 640.12.03}\ncuda: {version: '14.0'}\n",
            {"nvidia_driver": "640.12.03", "cuda": "14.0"},
        ),
        (
            "node: parallelcluster\nnode_version: 3.18.0\nnvidia_driver: {version: '620'}\nefa: {version: 1.52.0}\n",
            {"node_version": "3.18.0", "efa": "1.52.0"},
        ),
        ("node: eks\nos: al2023\nnode_variant: nvidia\nnode_version: '1.39'\n", {"node_version": "1.39"}),
        ("node: dlami\nnode_version: '20261201'\n", {"node_version": "20261201"}),
        ("node: parallelcluster\nnode_version: 4.0.0\nnvidia_driver: {version: '620'}\n", {"node_version": "4.0.0"}),
        ("nvidia_driver: {version: '620'}\ncuda: {version: 13.6.1}\n", {"cuda": "13.6.1"}),
        ("nvidia_driver: {version: '620'}\ncuda: {version: 14.0.0}\n", {"cuda": "14.0.0"}),
        (
            "os: al2023\ninstance_types: [p6e-gb200.36xlarge]\narchitecture: arm64\n"
            "nvidia_driver: {version: 625.10.02}\ncuda: {version: 13.5.2}\nnccl: {version: 2.33.0}\nimex: {}\n",
            {"nvidia_driver": "625.10.02", "cuda": "13.5.2", "nccl": "2.33.0"},
        ),
        (
            "nvidia_driver: {version: '595'}\ncuda: {version: '13.2'}\ncudnn: {version: 10.0.0}\n"
            "dcgm: {version: 4.9.1}\ncontainer_toolkit: {version: 1.25.0}\n",
            {"cudnn": "10.0.0", "dcgm": "4.9.1", "container_toolkit": "1.25.0"},
        ),
    ],
)
def test_unknown_versions_of_each_kind_are_planned(recipe: str, unverified: dict[str, str]) -> None:
    document = plan(recipe)
    assert document.get("unverified", {}) == unverified
    assert document["notes"][0].startswith("unverified: ")


def test_a_series_newer_than_all_comes_by_the_rolling_package() -> None:
    """Before the facts knew 7.0 of Ubuntu 24.04, linux-image-aws brought it: there was no linux-image-aws-7.0."""
    systems = FACTS.operating_systems
    row = {**systems["ubuntu2404"], "kernels": [one for one in systems["ubuntu2404"]["kernels"] if one != "7.0"]}
    facts = Facts({**FACTS.tables, "operating_systems": {**systems, "ubuntu2404": row}}, FACTS.site)
    document = plan("os: ubuntu2404\nkernel: {version: '7.0'}\nnvidia_driver: {version: '595'}\n", facts)
    assert document["unverified"] == {"kernel": "7.0"}
    assert document["kernel"]["package"] == "linux-image-aws"


COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEURON = "os: al2023\ninstance_types: [trn2.48xlarge]\ntelemetry: {profile: neuron}\n"
EFA = "instance_types: [p5.48xlarge]\n"


@pytest.mark.parametrize(
    ("recipe", "unverified", "neighbour"),
    [
        ("nvidia_driver: {version: 595.130.01}\n", {"nvidia_driver": "595.130.01"}, "of 595.112.07"),
        (f"{NEURON}neuron: {{version: 2.34.0}}\n", {"neuron": "2.34.0"}, "of 2.33.0"),
        (
            f"nvidia_driver: {{version: '595'}}\ngdrcopy: {{version: 2.7.1, commit: {COMMIT}}}\n",
            {"gdrcopy": "2.7.1"},
            "of 2.6",
        ),
        (
            "node: parallelcluster\nnode_version: 3.16.1\nnvidia_driver: {version: '595'}\n",
            {"node_version": "3.16.1"},
            "of 3.16.3",
        ),
        (
            "node: dlami\nos: al2023\nnode_version: '20261016'\nnvidia_driver: {version: '595'}\n",
            {"node_version": "20261016"},
            "of 20261009",
        ),
        (
            f"{EFA}nvidia_driver: {{version: '570'}}\nkernel: {{version: '6.8'}}\nefa: {{version: 1.37.0}}\n",
            {"efa": "1.37.0"},
            "of 1.38.0",
        ),
        (
            "nvidia_driver: {version: '595'}\ncuda: {version: '12.9'}\nnccl: {version: 2.40.1}\n",
            {"nccl": "2.40.1"},
            "of 2.32.3",
        ),
    ],
)
def test_an_unknown_version_takes_the_row_of_its_series(
    recipe: str, unverified: dict[str, str], neighbour: str
) -> None:
    document = plan(recipe)
    assert document["unverified"] == unverified
    assert f"is planned with what is known {neighbour}. " in document["notes"][0]


JAMMY = "os: ubuntu2204\nnvidia_driver: {version: '580'}\n"


@pytest.mark.parametrize(
    ("recipe", "text", "nearest"),
    [
        (
            "nvidia_driver: {version: '595'}\ncuda: {version: '14.0'}\n",
            "cannot run CUDA 14.0: needs ≥ 620.70.06",
            "nearest: driver 620.70.06",
        ),
        (f"{JAMMY}cuda: {{version: '11.8'}}\nnccl: {{version: 2.40.1}}\n", "not built for CUDA 11.8", "NCCL 2.19.3"),
        (f"{JAMMY}cuda: {{version: '11.8'}}\ncudnn: {{version: 9.40.0}}\n", "not built for CUDA 11.8", "cuDNN 9.10.2"),
        (
            f"{NEURON}neuron: {{version: 2.34.0}}\ninstance_types: [inf1.xlarge]\n".replace("[trn2.48xlarge]", "[]", 1),
            "does not support Inferentia",
            "nearest: Neuron 2.26.1",
        ),
        (f"{NEURON}neuron: {{version: 2.34.0}}\nos: al2\n", "2.34.0 is not packaged for al2", "Neuron 2.23.0"),
        (
            f"{EFA}nvidia_driver: {{version: '570'}}\nkernel: {{version: '6.17'}}\nefa: {{version: 1.37.0}}\n",
            "EFA 1.37.0 (its module at most 2.13.0) does not build on kernel 6.17",
            "nearest: EFA 1.43.3",
        ),
        (
            f"{EFA}nvidia_driver: {{version: 640.12.03}}\nefa: {{version: 1.42.0}}\n",
            "peer-to-peer access",
            "EFA 1.43.3",
        ),
        (
            "nvidia_driver: {version: '595'}\ngdrcopy: {version: 2.7.1}\n",
            "git ls-remote https://github.com/NVIDIA/gdrcopy refs/tags/v2.7.1",
            "below 2.6",
        ),
        (
            f"nvidia_driver: {{version: '595'}}\ngdrcopy: {{version: '2.6', commit: {COMMIT}}}\n",
            "tag v2.6 of https://github.com/NVIDIA/gdrcopy is commit 93c606bb",
            "leave out commit",
        ),
        (
            "node: dlami\nos: al2023\nnode_version: '20261399'\nnvidia_driver: {version: '595'}\n",
            "dlami 20261399 is unknown",
            "20261006",
        ),
        (
            "node: ecs\nos: al2023\nnode_version: '20261113'\nnvidia_driver: {version: '595'}\n",
            "node ecs takes no node_version",
            "source_ami.name pins a release",
        ),
    ],
)
def test_what_holds_for_a_series_refuses_an_unknown_version(recipe: str, text: str, nearest: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan(recipe)
    message = "\n".join(refused.value.details)
    assert text in message and nearest in message


def test_a_toolkit_is_not_called_native_before_its_driver_is_known() -> None:
    document = plan("nvidia_driver: {version: 640.12.03}\ncuda: {version: '13.9'}\n")
    assert document["cuda"]["compatibility"] == "minor"
    assert "not established: whether driver 640.12.03 was made for CUDA 13.9; planned as if not" in document["notes"]


def test_packages_of_an_unknown_neuron_follow_its_minor_version() -> None:
    packages = plan(f"{NEURON}neuron: {{version: 2.35.0}}\n")["neuron"]["packages"]
    assert packages == {
        "aws-neuronx-dkms": "2.33.*",
        "aws-neuronx-runtime-lib": "2.37.*",
        "aws-neuronx-collectives": "2.37.*",
        "aws-neuronx-tools": "2.35.*",
    }


def test_known_releases_of_neuron_bear_out_the_rule_of_their_packages() -> None:
    """From each release to the next, the packages of the table have the minor versions that the rule gives."""
    rows = FACTS.neuron["releases"]
    for version, following in pairwise(rows):
        expected = neuron_packages(rows[version], version, following)
        assert all(str(rows[following][key]).startswith(minor) for key, minor in expected.items()), following


def test_a_found_source_ami_verifies_the_release_of_the_node() -> None:
    document: Any = plan("node: eks\nos: al2023\nnode_version: '1.38'\nnvidia_driver: {version: '595'}\n")
    require_verified(document, Survey("x", "", "", [Finding("source_ami", "name", "ami-1", "there")]))


def test_packages_of_an_unknown_version_leave_open_what_is_not_known() -> None:
    recipe = (
        "nvidia_driver: {version: '595'}\ncuda: {version: 13.0.4}\ncudnn: {version: 9.40.0}\nnccl: {version: 2.34.1}\n"
    )
    document = plan(recipe)
    assert document["cuda"]["packages"] == {"cuda-toolkit-13-0": "13.0.4-1"}
    assert list(document["cudnn"]["packages"].values()) == ["9.40.0*"] and "full" not in document["cudnn"]
    assert list(document["nccl"]["packages"].values()) == ["2.34.1-1+cuda13*"]


@pytest.mark.parametrize(
    ("driver", "asked", "package", "compatibility"),
    [
        ("580.178.04", "13.0.3", "13.0.3-1", "native"),
        ("580.95.05", "13.0.3", "13.0.3-1", "minor"),  # 13.0.2 is native there
        ("580.95.05", "'13.0'", "13.0.2-1", "native"),
        ("580.178.04", "12.9.2", "12.9.2-1", "native"),
    ],
)
def test_a_known_update_of_a_toolkit_is_planned_with_its_own_driver(
    driver: str, asked: str, package: str, compatibility: str
) -> None:
    document = plan(f"nvidia_driver: {{version: {driver}}}\ncuda: {{version: {asked}}}\n")
    assert "unverified" not in document
    assert [*document["cuda"]["packages"].values()] == [package]
    assert document["cuda"]["compatibility"] == compatibility


def test_a_build_needs_the_version_found_or_accepted() -> None:
    document: Any = plan("nvidia_driver: {version: 640.12.03}\n")
    with pytest.raises(UsageError, match=r"nvidia_driver 640\.12\.03") as refused:
        require_verified(document, None)
    assert "accept: [unverified-nvidia_driver]" in (refused.value.hint or "")
    survey = Survey("x", "", "", [Finding("nvidia_driver", "nvidia-dkms-open", "640.12.03-1ubuntu1", "unreachable")])
    with pytest.raises(UsageError):
        require_verified(document, survey)
    survey.findings.append(Finding("nvidia_driver", "nvidia-dkms-open", "640.12.03-1ubuntu1", "there"))
    require_verified(document, survey)


G6 = "os: ubuntu2404\ninstance_types: [g6.xlarge]\n"


@pytest.mark.parametrize(
    ("recipe", "unverified"),
    [
        ("nvidia_driver: {version: 595.71.05, source: grid, folder: grid-20.1}\n", {"grid_driver": "595.71.05"}),
        ("nvidia_driver: {version: 640.12.03, source: grid, folder: grid-21.0}\n", {"grid_driver": "640.12.03"}),
        ("nvidia_driver: {version: '580'}\nmkl: {version: 2019.5-281}\n", {"mkl": "2019.5-281"}),
        ("nvidia_driver: {version: '595.140'}\n", {"nvidia_driver": "595.140"}),  # two numbers, as 595.64
        ("nvidia_driver: {version: '595'}\ncuda: {version: 13.0.4}\n", {"cuda": "13.0.4"}),
        (
            "os: ubuntu2404\ninstance_types: [p5.48xlarge]\nnvidia_driver: {version: '595'}\ncuda: {version: '13.2'}\n"
            f"nccl: {{version: newest}}\nefa: {{version: 1.51.0, mode: minimal}}\n"
            f"ofi_nccl: {{version: 1.23.0, commit: {'a' * 40}}}\n",
            {"ofi_nccl": "1.23.0"},
        ),
    ],
)
def test_what_no_table_has_is_planned_with_what_the_recipe_says(recipe: str, unverified: dict[str, str]) -> None:
    document: Any = plan(recipe if recipe.startswith("os") else G6 + recipe)
    assert document["unverified"] == unverified
    driver = document["nvidia_driver"]
    if "grid_driver" in unverified:
        assert driver["url"].endswith(f"NVIDIA-Linux-x86_64-{driver['version']}-grid-aws.run")
        with pytest.raises(UsageError, match="grid_driver"):
            require_verified(document, None)
        found = Finding("nvidia_driver", "x.run", driver["version"], "there")
        require_verified(document, Survey("x", "", "", [found]))
    if "mkl" in unverified:
        assert document["mkl"]["package"] == "intel-mkl-2019.5-281"
    if "cuda" in unverified:
        (note,) = [note for note in document["notes"] if note.startswith("unverified: cuda")]
        assert "what is known of 13.0. Rules skipped: the driver that this update is made for" in note


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("nvidia_driver: {version: 580.1260.09}\n", "no driver 580.1260.09"),
        ("nvidia_driver: {version: 595.71.99, source: grid}\n", "nvidia_driver.folder takes it"),
        ("nvidia_driver: {version: '595', folder: grid-20.1}\n", "nvidia_driver.folder is of the GRID driver"),
        ("nvidia_driver: {version: '595'}\nmkl: {version: 2024.2-663}\n", "oneAPI's repository"),
        ("nvidia_driver: {version: '580'}\nmkl: {version: 2020.40-912}\n", "no MKL 2020.40-912"),
    ],
)
def test_what_is_mistyped_or_elsewhere_is_refused(recipe: str, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan(G6 + recipe)
    assert text in "\n".join(refused.value.details)
