"""What a node's base AMI brings outlives the last role of a build, which takes the traces of the builder."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
NODES = ("node_eks", "node_eks_ubuntu", "node_ecs", "node_parallelcluster")


def read(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROLES / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize("role", NODES)
def test_hygiene_takes_nothing_that_a_node_needs(role: str) -> None:
    hygiene = read("hygiene/defaults/main.yml")
    kept = [*read(f"{role}/vars/main.yml")[f"__{role}_files"], f"/usr/share/gpu-ami/{role}.sha256"]
    for path in kept:
        above = [str(part) for part in (Path(path), *Path(path).parents)]
        taken = [pattern for pattern in hygiene["hygiene_removed"] for one in above if fnmatch.fnmatch(one, pattern)]
        assert taken == [], path
        assert not set(above) & set(hygiene["hygiene_emptied"]), path


def test_the_test_would_see_it() -> None:
    removed = read("hygiene/defaults/main.yml")["hygiene_removed"]
    assert any(fnmatch.fnmatch("/var/tmp/ecs-agent.tar", pattern) for pattern in removed)


@pytest.mark.parametrize("role", NODES)
def test_check_and_role_speak_of_the_same_record(role: str) -> None:
    """The role is recorded under its own name, which the check asks for."""
    check = (ROLES.parent / "validator" / "checks" / f"{role}.py").read_text(encoding="utf-8")
    assert f'check_unchanged(host, "{role}", observe)' in check
    record = read("node_base/vars/main.yml")["__node_base_record"]
    assert record == "/usr/share/gpu-ami/{{ __node_base_role }}.sha256"
