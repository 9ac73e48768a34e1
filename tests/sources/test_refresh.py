"""New rows come from the repositories' own metadata, with source and date; what an index does not say is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.files import parse_yaml
from gpu_ami.plan import make_plan
from gpu_ami.recipes import VARIABLES, Facts, find_recipe, load_facts
from gpu_ami.sources.http import Client
from gpu_ami.sources.package_index import Index, Package
from gpu_ami.sources.refresh import Refreshed, refresh, releases_in

from .conftest import PATIENT, Signer, Web, put_apt

TODAY = "2026-12-24"


def stanzas(*packages: str) -> str:
    pairs = [package.split() for package in packages]
    return "\n".join(f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n" for name, version in pairs)


def refreshed(web: Web, vendor: Signer, *packages: str) -> Refreshed:
    """What the plan of a recipe for Ubuntu proposes where NVIDIA's repository has these packages."""
    recipe, place = find_recipe(Path("ubuntu2204-compute")), Place(name="x", region="us-east-1")
    document: Any = make_plan(recipe, place, ["gds.version=2.29"]).document
    repository = {
        "url": f"{web.url}/flat/", "suite": "./",
        "key_url": f"{web.url}/key.pub", "key_fingerprint": vendor.fingerprint,
    }  # fmt: skip
    roles = ["nvidia_driver", "cuda", "cudnn", "nccl", "dcgm", "gds", "gdrcopy"]
    sections = {name: document[name] | {"repository": repository} for name in roles if name != "gdrcopy"}
    sections["gdrcopy"] = document["gdrcopy"] | {"url": f"{web.url}/gdrcopy.git"}
    put_apt(web, vendor, stanzas(*packages))
    web.put("/key.pub", vendor.public)
    plan: Any = {**document, **sections, "roles": roles}

    def table(name: str) -> str:
        return (VARIABLES / "facts" / f"{name}.yml").read_text()

    return refresh([plan], without_pages(load_facts()), table, Client(limits=PATIENT), TODAY)


def without_pages(facts: Facts) -> Facts:
    """The facts without the addresses of pages (test_vendor_pages.py)."""
    rows = {
        name: {key: value for key, value in row.items() if key != "url"} for name, row in facts.sources["rows"].items()
    }
    return Facts({**facts.tables, "sources": {"rows": rows}})


def test_rows_are_proposed_with_source_and_date(web: Web, vendor: Signer) -> None:
    web.put("/gdrcopy.git/info/refs?service=git-upload-pack", f"{'d' * 40}\trefs/tags/v99.0\n".encode())
    result = refreshed(
        web, vendor, "libnccl2 99.1.2-1+cuda13.4", "libnccl2 99.1.2-1+cuda12.9", "libcudnn9-cuda-13 99.2.0.7-1",
        "libcudnn9-cuda-12 99.2.0.7-1", "datacenter-gpu-manager-4-core 1:99.3.1-1",
        "nvidia-dkms-580-open 580.999.01-1ubuntu1",
    )  # fmt: skip
    source = f"{web.url}/flat/"
    assert result.errors == []
    nccl = parse_yaml(result.texts["nccl"], "nccl")
    row = nccl["releases"]["99.1.2"]
    assert (row["cuda"], row["packaged"], row["date"]) == (["12", "13"], ["12.9", "13.4"], TODAY)
    assert row["source"] == f"{source} (libnccl2 99.1.2-1+cuda13.4)"
    assert nccl["systems"]["seen"]["ubuntu2204"] == {"releases": ["99.1.2"], "source": source, "date": TODAY}
    cudnn = parse_yaml(result.texts["cudnn"], "cudnn")["releases"]["99.2.0"]
    assert (cudnn["full"], cudnn["cuda"]) == ("99.2.0.7", ["12", "13"])
    dcgm = parse_yaml(result.texts["dcgm"], "dcgm")["releases"]["99.3.1"]
    assert dcgm["packages"] == load_facts().dcgm["releases"][list(load_facts().dcgm["releases"])[-1]]["packages"]
    assert parse_yaml(result.texts["nvidia_drivers"], "x")["branches"]["580"]["releases"][-1] == "580.999.01"
    assert parse_yaml(result.texts["gdrcopy"], "x")["releases"]["99.0"]["commit"] == "d" * 40
    assert "+++ b/variables/facts/nccl.yml" in result.diff and result.diff.count("\n-") < result.diff.count("\n+")
    assert {proposal.date for proposal in result.proposals} == {TODAY} and result.by_hand == [] and result.errors == []


def test_a_new_row_has_no_remark_of_the_release_before_it(web: Web, vendor: Signer) -> None:
    """What was not established of the newest known release says nothing of the next one, which the index has."""
    newest = list(load_facts().gds["releases"].values())[-1]
    assert "note" in newest
    result = refreshed(web, vendor, "nvidia-fs-dkms 2.31.2-1", "nvidia-fs-dkms 2.26.6-1")
    rows = parse_yaml(result.texts["gds"], "gds")["releases"]
    assert list(rows)[-1] == "2.31.2"
    assert rows["2.31.2"] == {"source": f"{web.url}/flat/ (nvidia-fs-dkms 2.31.2-1)", "date": TODAY}


def test_a_prerelease_is_not_its_release(web: Web, vendor: Signer) -> None:
    """2.31.2~rc1 sorts before 2.31.2, which the index does not have: a plan of it would find no package."""
    result = refreshed(
        web, vendor, "nvidia-fs-dkms 2.31.2~rc1-1", "libnccl2 99.1.2~rc1-1+cuda13.4", "cuda-toolkit-13-0 13.0.9~rc2-1",
        "nvidia-dkms-580-open 580.999.01~beta1-1ubuntu1", "libcudnn9-cuda-13 99.2.0.7~rc1-1",
    )  # fmt: skip
    assert (result.diff, result.by_hand) == ("", [])


def test_what_is_known_and_seen_is_not_proposed(web: Web, vendor: Signer) -> None:
    web.put("/gdrcopy.git/info/refs?service=git-upload-pack", f"{'d' * 40}\trefs/tags/v2.5\n".encode())
    assert refreshed(web, vendor, "libnccl2 1.0.0-1+cuda9.0", "other 1").diff == ""


def test_what_the_index_does_not_say_is_left_to_a_person(web: Web, vendor: Signer) -> None:
    result = refreshed(web, vendor, "cuda-toolkit-99-1 99.1.0-1", "nvidia-dkms-999-open 999.10.01-0ubuntu1")
    assert any("driver branch 999 (999.10.01)" in line for line in result.by_hand)
    assert any("CUDA 99.1 (99.1.0-1): its minimum driver" in line for line in result.by_hand)
    assert result.diff == ""
    assert any("gdrcopy.git" in error for error in result.errors)  # nothing answers there


def test_updates_of_known_releases_are_proposed(web: Web, vendor: Signer) -> None:
    """CUDA 13.0.3 of the known 13.0, a rebuild of cuDNN; the source stands behind the changed value."""
    result = refreshed(
        web, vendor, "cuda-toolkit-13-0 13.0.2-1", "cuda-toolkit-13-0 13.0.9-1", "libcudnn9-cuda-13 9.28.0.99-1"
    )
    assert parse_yaml(result.texts["cuda"], "cuda")["releases"]["13.0"]["package"] == "13.0.9-1"
    assert parse_yaml(result.texts["cudnn"], "cudnn")["releases"]["9.28.0"]["full"] == "9.28.0.99"
    assert f"# 13.0.9-1: {web.url}/flat/ (cuda-toolkit-13-0 13.0.9-1), {TODAY}" in result.diff


def test_new_revisions_and_withdrawn_versions_are_named(web: Web, vendor: Signer) -> None:
    planned: Any = make_plan(find_recipe(Path("ubuntu2204-compute")), Place(name="x", region="us-east-1")).document
    version = planned["nvidia_driver"]["version"]
    module = planned["nvidia_driver"]["package"]
    dcgm = next(iter(planned["dcgm"]["packages"]))
    result = refreshed(web, vendor, f"{module} {version}-7ubuntu9", f"{dcgm} 1:4.0.1-1")
    assert any(f"{module} {version}-" in line and "revision" in line and "7ubuntu9" in line for line in result.changed)
    assert any(f"{dcgm} " in line and "withdrawn; the index has 4.0.1-1" in line for line in result.changed)


def test_what_was_not_looked_at_is_listed(web: Web, vendor: Signer) -> None:
    result = refreshed(web, vendor, "libnccl2 1.0.0-1+cuda9.0")
    told = "\n".join(result.not_read)
    assert "eks_amis" in told and "because" in told and "none of the recipes has neuron" in told
    rows = load_facts().sources["rows"]
    assert all(("by_hand" in row) != ("read" in row) for row in rows.values())


def test_an_empty_index_is_an_error(web: Web, vendor: Signer) -> None:
    assert any("empty index" in error for error in refreshed(web, vendor).errors)


@pytest.mark.parametrize(
    ("component", "name", "version", "release", "cuda"),
    [
        ("nccl", "libnccl", "2.32.3-1+cuda13.4", "2.32.3", {"13.4"}),
        ("cudnn", "libcudnn9-cuda-13", "9.25.1.1-1", "9.25.1", {"13"}),
        ("cuda", "cuda-toolkit-13-2", "13.2.2-1", "13.2", set()),
        ("nvidia_driver", "kmod-nvidia-open-dkms", "3:580.178.04-1.amzn2023", "580.178.04", set()),
        ("container_toolkit", "nvidia-container-toolkit", "1.19.1-1", "1.19.1", set()),
    ],
)
def test_releases_are_read_from_package_versions(
    component: str, name: str, version: str, release: str, cuda: set[str]
) -> None:
    index = Index.of("rpm", [Package(name, version, "x86_64"), Package("other", "1-1", "x86_64")])
    releases = releases_in(index, component, "https://v.example/")
    assert list(releases) == [release] and releases[release].cuda == cuda
