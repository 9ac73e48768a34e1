"""The recipe's keys: what is accepted, what is refused, what is needed."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.grammar import recipe_keys

KEYS = recipe_keys(load_facts(), components(), ("ec2", "eks"))


@pytest.mark.parametrize(
    "document",
    [
        {"nvidia_driver": {"version": "580", "flavour": "boot", "gsp": False}},
        {"nvidia_driver": {"flavour": "open"}},
        {"cuda": {"version": "newest", "forward_compatibility": True}},
        {"mkl": {"version": "2020.0-088"}},
        {"build": {"instance_type": "c7i.4xlarge", "root_volume_gib": 40}},
        {"node": "eks", "node_version": "1.33", "roles": ["cuda"]},
        {"tuning": {"sysctl": {"net.core.rmem_max": "67108864"}, "mig": {"p4d.24xlarge": "3g.20gb,3g.20gb"}}},
        {"source_ami": {"id": "ami-0123456789abcdef0"}},
    ],
)
def test_keys_that_a_recipe_may_have(document: dict[str, Any]) -> None:
    assert list(KEYS.check(document, "")) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"colour": "red"}, "colour"),
        ({"flag": "Debian"}, "flag"),
        ({"os": "debian"}, "os"),
        ({"node": "dlami"}, "node"),
        ({"roles": ["cuda", "cude"]}, "roles[1]"),
        ({"cuda": {"version": 12.4}}, "cuda.version"),
        ({"cuda": {"version": "latest"}}, "cuda.version"),
        ({"nvidia_driver": {"version": "580", "flavour": "closed"}}, "nvidia_driver.flavour"),
        ({"efa": {"version": "1.38.0", "mode": "none"}}, "efa.mode"),
        ({"build": {"instance_type": "g5.13xlarge", "root_volume_gib": 40}}, "build.instance_type"),
        ({"build": {"instance_type": "g5.xlarge", "root_volume_gib": 2}}, "build.root_volume_gib"),
        ({"telemetry": {"interval_s": 0}}, "telemetry.interval_s"),
        ({"telemetry": {"retention_days": 31}}, "telemetry.retention_days"),
        ({"event_parser": {"raw_log": "gpuevent.log"}}, "event_parser.raw_log"),
        ({"tuning": {"mig": {"p4d.24xlarge": "3g"}}}, "tuning.mig.'p4d.24xlarge'"),
        ({"source_ami": {"id": "ami-1"}}, "source_ami.id"),
        ({"lustre": {"key_fingerprint": "0123"}}, "lustre.key_fingerprint"),
    ],
)
def test_mistake_is_reported_at_its_path(document: dict[str, Any], path: str) -> None:
    assert [mistake.path for mistake in KEYS.check(document, "")] == [path]


def test_needed_keys_are_missing_until_they_are_set() -> None:
    top = {"flag", "os", "instance_types", "architecture", "node", "build", "roles", "ansible"}
    assert {gap.path for gap in KEYS.missing({})} >= top
    assert "cuda.version" in {gap.path for gap in KEYS.missing({"cuda": {}})}
    assert "nvidia_driver.version" not in {gap.path for gap in KEYS.missing({"nvidia_driver": {}})}
