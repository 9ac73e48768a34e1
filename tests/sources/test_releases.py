"""Releases that no package index names: Neuron's manifest, EFA's changelog, the agent's tags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_ami.recipes import load_facts
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


@pytest.mark.parametrize("body", [b"not json", b"{}", b'{"neuron_releases": [{}]}'])
def test_another_manifest_is_an_error(web: Web, body: bytes) -> None:
    web.put("/aws-neuron/aws-neuron-sdk/master/src/helperscripts/n2-manifest.json", body)
    with pytest.raises(SourceError, match="expected Neuron's manifest"):
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
