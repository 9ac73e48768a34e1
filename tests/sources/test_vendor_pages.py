"""Served copies of vendors' changelogs, listings and pages: planted news are found, and nothing is written on doubt.

The copies have the form of the originals: amazon-eks-ami CHANGELOG (v20260714), amazon-ecs-ami CHANGELOG (20260820),
aws-parallelcluster CHANGELOG (3.11), EKS user guide (Kubernetes versions), the DLAMI release notes of 2026-10, NVIDIA's
matrix of drivers (620), CUDA release notes (13.5), a CSAF record of NVIDIA/product-security (2026/5821).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_ami.files import parse_yaml
from gpu_ami.recipes import VARIABLES, load_facts
from gpu_ami.sources import vendor_pages
from gpu_ami.sources.http import Client, SourceError, mirrored
from gpu_ami.sources.refresh import Refreshed, refresh

from .conftest import PATIENT, Web

FACTS = load_facts()
ROWS = FACTS.sources["rows"]
TODAY = "2026-12-24"
LOGIN = b"<!DOCTYPE html><html><head><title>Sign in &amp; continue</title></head><body><form></form></body></html>"


def path_of(url: str) -> str:
    """Where a mirror serves it."""
    return f"/{url.partition('://')[2]}"


def tags(*names: str) -> bytes:
    return "".join(f"{'d' * 40}\trefs/tags/{name}\n" for name in names).encode()


EKS = """# Changelog

<!--new-changelog-entry-placeholder-->

# AMI Release v20261218

<h2>AMI Details</h2>

<table>
  <tr>
    <th>AMI Type</th>
    <th>Source AMI Name (K8s 1.36 \u2013 1.38)</th>
    <th>Source AMI Name (K8s 1.33 \u2013 1.35)</th>
  </tr>
  <tr>
    <td>AL2023_x86_64_NVIDIA</td>
    <td>al2023-ami-minimal-2023.12.20261210.0-kernel-6.18-x86_64</td>
    <td>al2023-ami-minimal-2023.12.20261210.0-kernel-6.12-x86_64</td>
  </tr>
  <tr>
    <td>AL2023_x86_64_STANDARD</td>
    <td>al2023-ami-minimal-2023.12.20261210.0-kernel-6.18-x86_64</td>
    <td>al2023-ami-minimal-2023.12.20261210.0-kernel-6.12-x86_64</td>
  </tr>
</table>

# AMI Release v20260714

<table><tr><th>AMI Type</th><th>Source AMI Name (K8s 1.30)</th></tr>
<tr><td>AL2023_x86_64_STANDARD</td><td>al2023-ami-minimal-2023.12.1-kernel-6.1-x86_64</td></tr></table>
"""
ECS = """# Changelog

## 20261218
- al2023 ami version: 20261218
- ecs version: 1.109.0
- source al2023 ami: al2023-ami-minimal-2023.12.20261210.0-kernel-6.1-x86_64

## 20261113
- al2023 ami version: 20261113
"""
PCLUSTER = """CHANGELOG
=========
3.17.0
------

**CHANGES**
- Upgrade NVIDIA driver to version 595.112.07 (from 580.105.08).

3.16.3
------

- Upgrade EFA installer to `1.51.0`.
"""
KUBERNETES = """<html><title>Understand the Kubernetes version lifecycle on EKS</title><table><thead>
<tr><th>Kubernetes version</th><th>Upstream release</th><th>Amazon EKS release</th><th>End of standard support</th>
<th>End of extended support</th></tr></thead>
<tr><td><p><code>1.37</code></p></td><td>August 26, 2026</td><td>October 20, 2026</td><td>December 20, 2027</td>
<td>December 20, 2028</td></tr><tr><td>1.32</td><td>December 11, 2024</td><td>January 23, 2025</td>
<td>March 23, 2026</td><td>March 23, 2027</td></tr></table></html>"""
DLAMI_INDEX = """<html><a href="aws-deep-learning-ami-gpubaseoss-al2023-2026-12-18.html">new</a>
<a href="./aws-deep-learning-ami-gpubaseossarm64-ul2404-2025-01-02.html">old</a></html>"""
DLAMI = """<html><title>notes</title><h1>Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) 20261217</h1>
<table><tr><td>kernel_version</td><td>6.12.110-135.202.amzn2023.x86_64</td></tr>
<tr><td>nvidia_driver</td><td>595.91.07</td></tr>
<tr><td>default_cuda</td><td>/usr/local/cuda-13.2/</td></tr>
<tr><td>nvidia_container_toolkit_version</td><td>1.20.1</td></tr>
<tr><td>dcgm_version</td><td>4.7.0</td></tr><tr><td>efa_version</td><td>1.50.0</td></tr>
<tr><td>ofi_nccl_version</td><td>1.21.1</td></tr></table></html>"""
GRID = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>ec2-linux-nvidia-drivers</Name>{keys}
<IsTruncated>{more}</IsTruncated>{token}</ListBucketResult>"""
CUDA = """<html><title>CUDA Toolkit 13.6 - Release Notes</title><table><tr><th>CUDA Toolkit</th><th>Minimum</th></tr>
<tr><td>CUDA 13.x</td><td>&gt;= 580</td></tr></table><table>
<tr><td><p>CUDA 13.6 GA</p></td><td><p>&gt;=625.10.02</p></td><td>N/A</td></tr>
<tr><td>CUDA 13.0 Update 3</td><td>&gt;=580.126.20</td><td>N/A</td></tr>
<tr><td>CUDA 13.0 GA</td><td>&gt;=580.65.06</td><td>&gt;=580.88</td></tr></table></html>"""
MATRIX = """<html><title>Supported Drivers</title><table>
<thead><tr><th></th><th>R580</th><th>R595</th><th>R625</th></tr></thead>
<tr><td>Branch Designation</td>
<td>Long Term Support Branch</td><td>Production Branch</td><td>Production Branch</td></tr>
<tr><td>End of Life</td><td>June 2028</td><td>May 2027</td><td>March 2028</td></tr></table></html>"""
RELEASES: dict[str, Any] = {
    "625": {
        "type": "production branch",
        "driver_info": [{"release_version": "625.10.02"}, {"release_version": "626.01"}],
    },
    "595": {"type": "production branch", "driver_info": [{"release_version": "595.140.02"}]},
}


def bulletin(number: str) -> dict[str, Any]:
    fixed = ["linuxr595_tesla_595_140_02", "linuxr580_tesla_580_190_01", "windowsr595_tesla_597_01"]
    weak = {"cve": "CVE-2026-1", "scores": [{"cvss_v3": {"baseScore": 5.5, "baseSeverity": "MEDIUM"}}]}
    grave = {"cve": "CVE-2026-2", "scores": [{"cvss_v3": {"baseScore": 8.2, "baseSeverity": "HIGH"}}]}
    status = {"product_status": {"fixed": fixed}}
    return {
        "document": {"title": f"Security Bulletin: GPU Display Driver - December 2026 ({number})"},
        "vulnerabilities": [{**weak, **status}, {**grave, **status}],
    }


def served(web: Web) -> None:
    """A copy of each source, with news in it."""
    pages = {
        "eks_amis": EKS, "ecs_amis": ECS, "parallelcluster": PCLUSTER, "kubernetes_support": KUBERNETES,
        "dlami": DLAMI_INDEX, "cuda_release_notes": CUDA, "driver_branches": json.dumps(RELEASES),
        "grid_drivers": GRID.format(
            keys="<Contents><Key>latest/NVIDIA-Linux-x86_64-595.91.07-grid-aws.run</Key></Contents>"
            "<Contents><Key>grid-20.1/NVIDIA-Linux-x86_64-595.71.05-grid-aws.run</Key></Contents>",
            more="true", token="<NextContinuationToken>abc</NextContinuationToken>"),
    }  # fmt: skip
    for name, text in pages.items():
        web.put(path_of(ROWS[name]["url"]), text.encode(), headers={"Content-Type": "text/html"})
    rest = "<Contents><Key>grid-19.0/NVIDIA-Linux-x86_64-580.65.06-grid-aws.run</Key></Contents>"
    more = GRID.format(keys=rest, more="false", token="")
    web.put(f"{path_of(ROWS['grid_drivers']['url'])}&continuation-token=abc", more.encode())
    notes = ROWS["dlami"]["url"].rpartition("/")[0]
    web.put(path_of(f"{notes}/aws-deep-learning-ami-gpubaseoss-al2023-2026-12-18.html"), DLAMI.encode())
    web.put(path_of(ROWS["driver_branches"]["matrix"]), MATRIX.encode())
    git = f"{path_of(ROWS['parallelcluster']['tags'])}/info/refs?service=git-upload-pack"
    web.put(git, tags("v3.16.1", "v3.16.3", "v3.17.0", "v3.17.0b1"))
    root, files = (path_of(ROWS["advisories"][key]) for key in ("url", "files"))
    web.put(f"{root}/2025", json.dumps([{"name": "README.md"}, {"name": "5703"}]).encode())
    web.put(f"{root}/2026", json.dumps([{"name": "5821"}, {"name": "5999"}]).encode())
    web.put(f"{files}/2026/5999/5999.json", json.dumps(bulletin("5999")).encode())


def refreshed(web: Web) -> Refreshed:
    """What plans of every kind of node, and with a GRID driver, lead to."""
    base = {"os": {"id": "amzn", "version": "2023"}, "roles": ["nvidia_driver", "cuda"], "architecture": "x86_64"}
    documents: Any = [
        {**base, "node": {"family": node}, "nvidia_driver": {"source": source}}
        for node, source in (("eks", "vendor"), ("ecs", "vendor"), ("parallelcluster", "grid"), ("dlami", "vendor"))
    ]

    def table(name: str) -> str:
        return (VARIABLES / "facts" / f"{name}.yml").read_text()

    return refresh(documents, FACTS, table, Client(limits=PATIENT, rewrite=mirrored(web.url)), TODAY)


def tables(result: Refreshed) -> dict[str, Any]:
    return {name: parse_yaml(text, name) for name, text in result.texts.items()}


def test_every_planted_row_is_proposed_with_its_source(web: Web) -> None:
    served(web)
    result = refreshed(web)
    assert result.errors == []
    new = tables(result)
    nodes = new["node_families"]
    assert nodes["eks"]["versions"]["1.38"] == {
        "kernel": "6.18", "source": f"{ROWS['eks_amis']['url']} (v20261218)", "date": TODAY,
    }  # fmt: skip
    assert nodes["eks"]["versions"]["1.37"]["ended"] == "2028-12-20"
    assert nodes["eks"]["versions"]["1.32"]["ended"] == "2027-03-23"
    cluster = nodes["parallelcluster"]["versions"]["3.17.0"]["provides"]
    assert cluster == {
        "nvidia_driver": "595.112.07", "fabric_manager": "595.112.07", "imex": "595.112.07", "efa": "1.51.0",
    }  # fmt: skip
    assert nodes["dlami"]["versions"]["20261217"]["provides"] == {
        "nvidia_driver": "595.91.07", "cuda": "13.2", "efa": "1.50.0", "ofi_nccl": "1.21.1", "dcgm": "4.7.0",
        "container_toolkit": "1.20.1",
    }  # fmt: skip
    grid = new["grid_drivers"]["releases"]["595.71.05"]
    assert (grid["vgpu"], grid["folder"]) == ("20.1", "grid-20.1")
    branches = new["nvidia_drivers"]["branches"]
    assert {key: branches["625"][key] for key in ("kind", "end_of_support", "highest_cuda", "releases")} == {
        "kind": "PB", "end_of_support": "2028-03", "highest_cuda": "13.6", "releases": ["625.10.02"],
    }  # fmt: skip
    assert branches["595"]["end_of_support"] == "2027-05" and branches["595"]["releases"][-1] == "595.140.02"
    row = new["advisories"]["rows"]["nvidia-5999"]
    assert (row["component"], row["cve"], row["severity"]) == ("nvidia_driver", "CVE-2026-2", "high")
    assert row["fixed"] == {"580": "580.190.01", "595": "595.140.02"}
    seen = {name: new["sources"]["rows"][name].get("seen") for name in ("eks_amis", "ecs_amis", "advisories")}
    assert seen == {"eks_amis": "v20261218", "ecs_amis": "20261218", "advisories": "5999"}


def test_edits_keep_comments_and_all_other_rows(web: Web) -> None:
    served(web)
    result = refreshed(web)
    for name, text in result.texts.items():
        comments = [line for line in result.before[name].splitlines() if line.lstrip().startswith("#")]
        assert [line for line in comments if line not in text] == []
    before, after = parse_yaml(result.before["node_families"], "x"), tables(result)["node_families"]
    for family in ("ec2", "ecs"):
        assert after[family] == before[family]
    assert after["eks"]["versions"].pop("1.38") and {**after["eks"], "versions": 0} == {**before["eks"], "versions": 0}


def test_what_left_the_sources_is_named(web: Web) -> None:
    served(web)
    told = "\n".join(refreshed(web).changed)
    assert "EKS 1.32: release v20261218 has no AMI of it" in told
    assert "GRID 570.133.20: withdrawn, grid-18.1 does not have it" in told
    assert "ParallelCluster 3.16.2: withdrawn, no tag v3.16.2" in told


def test_what_the_pages_do_not_say_in_full_is_left_to_a_person(web: Web) -> None:
    served(web)
    web.put(path_of(ROWS["cuda_release_notes"]["url"]), CUDA.replace("625.10.02", "620.99.01").encode())
    page = path_of(ROWS["dlami"]["url"].rpartition("/")[0]) + "/aws-deep-learning-ami-gpubaseoss-al2023-2026-12-18.html"
    web.put(page, DLAMI.replace("595.91.07", "595.91.99").encode())
    told = "\n".join(refreshed(web).by_hand)
    assert "driver branch 625 (625.10.02): highest CUDA" in told
    assert "DLAMI 20261217: not in the facts: nvidia_driver 595.91.99" in told
    assert "GRID 595.91.07: in latest alone" in told


@pytest.mark.parametrize("name", ["cuda_release_notes", "driver_branches", *vendor_pages.READERS])
@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (LOGIN, {}),
        (b"", {}),
        (b"gone", {"status": 404}),
        (b"\xff\xfe\x00garbage", {}),
        (b"", {"status": 301, "headers": {"Location": "/login"}}),
    ],
    ids=["login page", "empty", "gone", "garbage", "moved to a login page"],
)
def test_nothing_of_a_doubtful_source_is_written(web: Web, name: str, body: bytes, answer: dict[str, Any]) -> None:
    """Each says what was expected and what came, and the other sources count all the same."""
    served(web)
    web.put("/login", LOGIN)
    url = ROWS[name]["url"] + ("/2026" if name == "advisories" else "")
    web.put(path_of(url), body, **answer)
    result = refreshed(web)
    assert [error for error in result.errors if url in error or "HTTP 404" in error], result.errors
    own = {
        "eks_amis": "eks.versions.1.38", "ecs_amis": "rows.ecs_amis", "parallelcluster": "parallelcluster.",
        "kubernetes_support": "ended", "dlami": "dlami.", "grid_drivers": "releases.595", "advisories": "nvidia-",
        "driver_branches": "branches.625", "cuda_release_notes": "branches.625",
    }  # fmt: skip
    rows = [f"{one.table} {one.row}" for one in result.proposals]
    assert [row for row in rows if own[name] in row] == [] and rows != []
    if body == LOGIN:
        assert any("'Sign in & continue'" in error and "login page" in error for error in result.errors)


def test_a_page_that_was_moved_is_read_and_named(web: Web) -> None:
    served(web)
    web.put(path_of(ROWS["ecs_amis"]["url"]), b"", status=301, headers={"Location": "/elsewhere"})
    web.put("/elsewhere", ECS.encode())
    result = refreshed(web)
    assert any(row.row == "rows.ecs_amis.seen" for row in result.proposals)
    assert any(line.startswith(f"moved: {ROWS['ecs_amis']['url']} answers from ") for line in result.changed)


def test_a_listing_that_is_cut_off_counts_for_nothing(web: Web) -> None:
    served(web)
    url = ROWS["grid_drivers"]["url"]
    web.put(path_of(url), GRID.format(keys="", more="true", token="").encode())
    assert any("the listing is cut off" in error for error in refreshed(web).errors)


def asked(web: Web, name: str) -> Iterator[vendor_pages.News]:
    client = Client(limits=PATIENT, rewrite=mirrored(web.url))
    return vendor_pages.READERS[name](vendor_pages.Asked(client, FACTS, ROWS[name], TODAY))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("eks_amis", "# AMI Release v20261218\n\nnothing\n", "with their Kubernetes versions"),
        ("ecs_amis", "# Changelog\n", "a changelog with `## YYYYMMDD`"),
        ("kubernetes_support", "<table><tr><td>1.37</td><td>soon</td></tr></table>", "the calendar"),
        ("grid_drivers", "<Error><Code>AccessDenied</Code></Error>", "expected ListBucketResult, got '<Error>"),
        ("grid_drivers", GRID.format(keys="", more="false", token=""), "expected installers like"),
        ("advisories", '{"message": "rate limit exceeded"}', "expected a list of files"),
        ("dlami", "<html><title>Release notes</title></html>", "a list of release notes"),
        ("eks_amis", EKS.replace("x86_64_STANDARD", "x86_64_OTHER"), "with their Kubernetes versions"),
        ("ecs_amis", ECS.replace("## 2026", "## \u0662\u0660\u0662\u0666"), "a changelog with `## YYYYMMDD`"),
        ("advisories", "[" * 100_000, "expected JSON"),
        (
            "kubernetes_support",
            KUBERNETES.replace("December 20, 2028", "February 30, 2028").replace("1.32", "x"),
            "the c",
        ),
    ],
)
def test_another_form_is_an_error(web: Web, name: str, text: str, expected: str) -> None:
    served(web)
    url = ROWS[name]["url"] + ("/2026" if name == "advisories" else "")
    web.put(path_of(url), text.encode())
    with pytest.raises(SourceError, match=expected):
        list(asked(web, name))


@pytest.mark.parametrize("release", ["595.20261399.02", "595.14\u0660.02", "595.banana", "595"])
def test_a_driver_of_another_form_is_proposed_by_no_source(web: Web, release: str) -> None:
    served(web)
    odd = {"595": {"type": "production branch", "driver_info": [{"release_version": release}]}}
    web.put(path_of(ROWS["driver_branches"]["url"]), json.dumps(odd).encode())
    keys = f"<Contents><Key>grid-20.2/NVIDIA-Linux-x86_64-{release}-grid-aws.run</Key></Contents>"
    web.put(path_of(ROWS["grid_drivers"]["url"]), GRID.format(keys=keys, more="false", token="").encode())
    result = refreshed(web)
    assert [row for row in result.proposals if release in str(row)] == []
    assert any("expected drivers like" in error for error in result.errors)
    assert any("expected installers like" in error for error in result.errors)


@pytest.mark.parametrize(("old", "new"), [("CVE-2026-2", "CVE-x"), ("595_140_02", "2026_140_02"), ("8.2", '"high"')])
def test_a_bulletin_of_another_form_is_an_error(web: Web, old: str, new: str) -> None:
    served(web)
    url = f"{path_of(ROWS['advisories']['files'])}/2026/5999/5999.json"
    web.put(url, json.dumps(bulletin("5999")).replace(old, new).encode())
    with pytest.raises(SourceError, match="expected a bulletin in CSAF"):
        list(asked(web, "advisories"))


def test_rows_of_the_sources_have_a_reader_or_a_reason() -> None:
    addressed = {name for name, row in ROWS.items() if "url" in row}
    assert addressed == {*vendor_pages.READERS, "cuda_release_notes", "driver_branches"}
    assert list(ROWS).index("cuda_release_notes") < list(ROWS).index("driver_branches")
