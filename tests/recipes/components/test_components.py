"""The registry: every component is found, in an order that follows from what each one says of its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes import components as registry
from gpu_ami.recipes.components import build_order, chosen, components, in_order, layers, of_role
from gpu_ami.recipes.rules import Component
from validator.schema import Flag, Integer

ROOT = Path(__file__).resolve().parents[3]
# Roles that only other roles include: nothing of them is in a recipe or plan.
INCLUDED = {"node_base", "nvidia_device_nodes", "vendor_key", "vendor_packages"}


def test_every_role_is_a_component() -> None:
    roles = {path.parent.parent.name for path in (ROOT / "roles").glob("*/tasks/main.yml")}
    assert set(build_order()) == roles - INCLUDED
    assert len(build_order()) == len(set(build_order()))


def test_build_follows_the_layers_and_hygiene_ends_it() -> None:
    assert [role for roles in layers().values() for role in roles] == list(build_order())
    assert build_order()[0] == "kernel" and build_order()[-1] == "hygiene"
    assert build_order().index("mkl") < build_order().index("nvidia_driver")  # of a lower layer


def test_nccl_is_chosen_when_its_plugin_is_known() -> None:
    assert chosen().index("efa") < chosen().index("ofi_nccl") < chosen().index("nccl")
    assert set(chosen()) <= set(components())


@pytest.mark.parametrize("before", [{"a": "b", "b": "a"}, {"a": "c"}])
def test_circle_and_unknown_component_are_refused(before: dict[str, str]) -> None:
    found = {name: Component(name, after=(before[name],) if name in before else ()) for name in ("a", "b")}
    with pytest.raises(ValueError, match="before each other, or unknown: "):
        in_order(found, lambda component: component.after)


def test_component_comes_behind_what_it_names() -> None:
    found = {name: Component(name, after=after) for name, after in (("a", ("c",)), ("b", ()), ("c", ()))}
    assert in_order(found, lambda component: component.after) == ["b", "c", "a"]


def test_component_of_no_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "components", lambda: {"a": Component("a", layer="cellar")})
    with pytest.raises(ValueError, match="unknown layers: a"):
        layers.__wrapped__()


def test_options_of_a_role_are_a_component_s_keys(tmp_path: Path) -> None:
    """Of a site's role, and of ours that declares no keys."""
    specs = {"probe_period_s": {"type": "int", "default": 5, "description": "Seconds."},
             "probe_on": {"type": "bool", "required": True}}  # fmt: skip
    path = tmp_path / "probe" / "meta" / "argument_specs.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({"argument_specs": {"main": {"options": specs}}}))
    made = of_role(tmp_path, Component("probe", layer="node"))
    assert made.keys is not None and not callable(made.keys)
    assert isinstance(made.keys.keys["period_s"], Integer) and isinstance(made.keys.keys["on"], Flag)
    assert (made.keys.needed, made.defaults, made.layer) == (("on",), {"period_s": 5}, "node")
    assert made.meanings["period_s"] == "Seconds."


def test_specification_without_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "probe" / "meta" / "argument_specs.yml"
    path.parent.mkdir(parents=True)
    path.write_text("argument_specs: []")
    with pytest.raises(UsageError, match=r"expected argument_specs\.main\.options"):
        of_role(tmp_path, "probe")
