"""Releases that no package index names: Neuron's manifest, EFA's changelog, the agent's tags.

Rows are added to tables without touching what is there.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_ami.files import parse_yaml
from gpu_ami.recipes import VARIABLES, load_facts
from gpu_ami.sources import table_text
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.refresh import refresh
from gpu_ami.sources.releases import COMPONENTS, newer_releases

from .conftest import PATIENT, Web

FACTS = load_facts()
PACKAGES = {
    "aws-neuronx-dkms": "9.1.2.0", "aws-neuronx-runtime-lib": "9.2.3.0", "aws-neuronx-collectives": "9.3.4.0",
    "aws-neuronx-tools": "9.4.5.0",
}  # fmt: skip


def published(web: Web) -> None:
    """Each list where the client finds it: https://HOST/PATH at the web's own root."""
    rows = [{"name": name, "version": version, "supported_instances": ["trn1", "inf2", "trn2"]}
            for name, version in PACKAGES.items()]  # fmt: skip
    known = {"neuron_version": "2.23.0", "packages": rows}
    manifest = {"neuron_releases": [{"neuron_version": "2.99.0", "packages": rows}, known]}
    web.put("/aws-neuron/aws-neuron-sdk/master/src/helperscripts/n2-manifest.json", json.dumps(manifest).encode())
    cells = "".join(f"<tr><td><p>{release}</p></td><td>text of 1.98.0</td></tr>" for release in ("1.99.0", "1.36.0"))
    web.put("/AWSEC2/latest/UserGuide/efa-changelog.html", f"<table>{cells}</table>".encode())
    tags = "".join(f"{'d' * 40}\trefs/tags/{tag}\n" for tag in ("v1.300099.0", "v1.300098.0-rc1", "v1.300020.0"))
    web.put("/aws/amazon-cloudwatch-agent/info/refs?service=git-upload-pack", tags.encode())


def asking(web: Web) -> Client:
    return Client(limits=PATIENT, rewrite=lambda url: f"{web.url}/{url.split('/', 3)[3]}")


def test_newer_releases_are_found_and_known_ones_are_not(web: Web) -> None:
    published(web)
    found = {name: [one.version for one in newer_releases(asking(web), FACTS, name)] for name in COMPONENTS}
    assert found == {"efa": ["1.99.0"], "cloudwatch_agent": ["1.300099.0"], "neuron": ["2.99.0"]}


def test_neuron_s_manifest_gives_a_whole_row(web: Web) -> None:
    published(web)
    (one,) = newer_releases(asking(web), FACTS, "neuron")
    assert one.row == {
        "driver": "9.1.2.0", "runtime": "9.2.3.0", "collectives": "9.3.4.0", "tools": "9.4.5.0",
        "devices": ["Inferentia2", "Trainium", "Trainium2"],
        "operating_systems": FACTS.neuron["releases"]["2.33.0"]["operating_systems"],
    }  # fmt: skip
    assert not one.missing and one.source.endswith("n2-manifest.json (2.99.0)")


def test_what_the_lists_do_not_say_is_left_to_a_person(web: Web) -> None:
    published(web)
    (efa,), (agent,) = (newer_releases(asking(web), FACTS, name) for name in ("efa", "cloudwatch_agent"))
    assert efa.missing == "its kernel module, libfabric, rdma-core and plugin"
    assert agent.missing == "the build number of its download directory"


@pytest.mark.parametrize("body", [b"not json", b"{}", b'{"neuron_releases": [{}]}', b"[]", b"[" * 100_000])
def test_another_manifest_is_an_error(web: Web, body: bytes) -> None:
    web.put("/aws-neuron/aws-neuron-sdk/master/src/helperscripts/n2-manifest.json", body)
    with pytest.raises(SourceError, match="expected Neuron's manifest"):
        newer_releases(asking(web), FACTS, "neuron")


@pytest.mark.parametrize("version", ["9.banana", "2.\u0669\u0669.0", "99", "2.99.0~rc1"])
def test_a_release_of_another_form_is_an_error(web: Web, version: str) -> None:
    path = "/aws-neuron/aws-neuron-sdk/master/src/helperscripts/n2-manifest.json"
    published(web)
    manifest = web.files[path].body.replace(b"2.99.0", version.encode())
    web.put(path, manifest)
    with pytest.raises(SourceError, match=r"expected releases like 2\.\d+\.\d+, got "):
        newer_releases(asking(web), FACTS, "neuron")


def test_a_page_without_releases_is_an_error(web: Web) -> None:
    web.put("/AWSEC2/latest/UserGuide/efa-changelog.html", b"<p>moved</p>")
    with pytest.raises(SourceError, match="expected a table of EFA installer releases"):
        newer_releases(asking(web), FACTS, "efa")


def test_refresh_proposes_them(web: Web) -> None:
    published(web)
    plan: Any = {"os": {"id": "debian", "version": "12"}, "roles": list(COMPONENTS)}
    texts = {"neuron": "releases:\n  2.33.0: {driver: 2.31.7.0}\n"}
    result = refresh([plan], FACTS, texts.__getitem__, asking(web), "2026-12-24")
    assert "+  2.99.0: {driver: 9.1.2.0, runtime: 9.2.3.0, collectives: 9.3.4.0, tools: 9.4.5.0" in result.diff
    assert [proposal.row for proposal in result.proposals] == ["2.99.0"] and result.errors == []
    assert [line.partition(":")[0] for line in result.by_hand] == ["EFA 1.99.0", "CloudWatch agent 1.300099.0"]


ROW = {
    "cuda": ["12", "13"],
    "packaged": ["13.4"],
    "source": "https://v.example/ (libnccl2 2.99.0-1)",
    "date": "2026-11-22",
}


@pytest.mark.parametrize("table", ["nccl", "cudnn", "dcgm", "container_toolkit", "gdrcopy"])
@pytest.mark.parametrize("release", ["0.0.1", "2.28.99", "99.1.0"])
def test_release_is_added_in_order_to_each_table(table: str, release: str) -> None:
    text = (VARIABLES / "facts" / f"{table}.yml").read_text()
    added = table_text.add_release(text, release, ROW)
    assert added is not None
    before, after = parse_yaml(text, table), parse_yaml(added, table)
    assert after["releases"].pop(release) == ROW and after == before
    (line,) = set(added.splitlines()) - set(text.splitlines())
    assert added.replace(f"{line}\n", "") == text
    keys = list(parse_yaml(added, table)["releases"])
    assert keys.index(release) == (
        0 if release == "0.0.1" else len(keys) - 1 if release == "99.1.0" else keys.index(release)
    )


def test_driver_is_added_to_its_branch() -> None:
    text = (VARIABLES / "facts" / "nvidia_drivers.yml").read_text()
    for branch in ("580", "595", "610"):
        added = table_text.add_driver(text, branch, f"{branch}.999.01", "https://v.example/", "2026-11-22")
        assert added is not None
        before, after = parse_yaml(text, "x"), parse_yaml(added, "x")
        assert after["branches"][branch]["releases"].pop() == f"{branch}.999.01" and after == before
        assert f"# {branch}.999.01: https://v.example/, 2026-11-22" in added
    assert table_text.add_driver(text, "999", "999.1.1", "", "") is None


@pytest.mark.parametrize("table", ["nccl", "cudnn", "dcgm", "cuda", "nvidia_drivers"])
@pytest.mark.parametrize("system", ["al2023", "ubuntu2404"])
def test_seen_row_is_new_or_replaced(table: str, system: str) -> None:
    text = (VARIABLES / "facts" / f"{table}.yml").read_text()
    row = {"releases": ["13.0", "2.32.3"], "source": "https://v.example/", "date": "2026-11-22"}
    changed = table_text.set_seen(text, system, row)
    assert changed is not None
    before, after = parse_yaml(text, table), parse_yaml(changed, table)
    assert after["systems"]["seen"][system] == row
    before["systems"]["seen"].pop(system, None)
    after["systems"]["seen"].pop(system)
    assert after == before


def test_table_without_the_key_is_left() -> None:
    assert table_text.add_release("other: {}\n", "1.0", {}) is None
    assert table_text.set_seen("releases: {}\n", "al2023", {}) is None


@pytest.mark.parametrize(
    "value", ["13.0", "580", "1e5", "yes", "2.28.9", "2026-11-22", "a: b", "v2.5", "", "0x1f", "x#y"]
)
def test_text_stays_text(value: str) -> None:
    assert parse_yaml(f"key: {table_text.flow_style([value])}", "x")["key"] == [value]
