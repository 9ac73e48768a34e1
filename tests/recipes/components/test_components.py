"""The registry: every component is found, in an order that follows from what each one says of its place.

Rules of one component alone: Lustre client, MIG, Neuron, MKL.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes import components as registry
from gpu_ami.recipes.components import (
    build_order,
    chosen,
    components,
    in_order,
    layers,
    lustre,
    mkl,
    neuron,
    of_role,
    tuning,
)
from gpu_ami.recipes.rules import Component
from gpu_ami.recipes.rules import system as rules
from tests.recipes.conftest import FACTS, context
from validator.schema import Flag, Integer

ROOT = Path(__file__).resolve().parents[3]
# Roles that only other roles include: nothing of them is in a recipe or plan.
INCLUDED = {"node_base", "nvidia_device_nodes", "vendor_key", "vendor_packages", "vendor_source"}


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


NEURON = "neuron: {version: 2.26.1}\ntelemetry: {profile: neuron}"
A100 = "p4d.24xlarge"
FINGERPRINT = "0123456789abcdef0123456789abcdef01234567"


def test_lustre_client_is_built_for_some_kernels() -> None:
    """AWS's matrix of Ubuntu 24.04 ends at 6.17."""
    of_617 = context("lustre: {}\nkernel: {version: '6.17'}", os="ubuntu2404")
    assert list(lustre.client_is_built(of_617, {})) == []
    (conflict,) = lustre.client_is_built(context("lustre: {}\nkernel: {version: '7.0'}", os="ubuntu2404"), {})
    assert conflict.nearest == (
        'kernel.version "6.8" or kernel.version "6.14" or kernel.version "6.17", or leave out lustre'
    )


def test_lustre_client_is_not_built_for_every_system() -> None:
    (conflict,) = lustre.client_is_built(context("lustre: {}", os="debian12"), {})
    assert conflict.text == "no Lustre client is built for debian12"
    assert list(lustre.client_is_built(context(os="debian12"), {})) == []


@pytest.mark.parametrize(
    ("name", "profiles", "says"),
    [
        (A100, "3g.20gb,3g.20gb", None),
        (A100, "4g.20gb,2g.10gb,1g.5gb", None),
        (A100, "9g.99gb", "has no MIG profile 9g.99gb"),
        (A100, "4g.20gb,4g.20gb", "takes at most 1 x 4g.20gb, not 2"),
        (A100, "4g.20gb,3g.20gb,1g.5gb", "needs 8 compute and 9 memory slices, has 7 and 8"),
        ("p5.48xlarge", "1g.10gb", "p5.48xlarge is not among the recipe's instance types"),
        ("g5.xlarge", "1g.10gb", "NVIDIA A10G (g5.xlarge) cannot be divided into MIG instances"),
    ],
)
def test_mig_profiles_fit_the_gpu(name: str, profiles: str, says: str | None) -> None:
    asked = context(f"tuning: {{mig: {{{name}: '{profiles}'}}}}", types=f"{A100} g5.xlarge")
    found = list(tuning.mig_is_possible(asked, {}))
    assert [conflict.path for conflict in found] == ([f"tuning.mig.{name}"] if says else [])
    assert all(says and says in conflict.text for conflict in found)


def test_neuron_release_drives_the_devices_of_the_types() -> None:
    releases = FACTS.neuron["releases"]
    without = [version for version, row in releases.items() if "Inferentia" not in row["devices"]]
    newest = list(releases)[-1]
    assert without
    (conflict,) = neuron.drives_devices(context(NEURON, types="inf1.xlarge"), {"neuron": without[-1]})
    assert conflict.text.endswith("does not support Inferentia of inf1.xlarge")
    assert list(neuron.drives_devices(context(NEURON, types="trn1.2xlarge"), {"neuron": newest})) == []


def test_mkl_is_for_x86_64() -> None:
    chosen = {"mkl": "2020.0-088"}
    (conflict,) = mkl.has_architecture(context("architecture: arm64"), chosen)
    assert conflict.text == "MKL 2020.0-088 is for x86_64, the image is arm64"
    assert list(mkl.has_architecture(context(), chosen)) == []


def test_release_is_for_the_systems_of_its_row() -> None:
    rule = rules.has_packages("neuron")
    release, row = next(
        (name, row) for name, row in FACTS.neuron["releases"].items() if "ubuntu2004" not in row["operating_systems"]
    )
    (conflict,) = rule(context(os="ubuntu2004"), {"neuron": release})
    assert conflict.text == f"Neuron {release} is not packaged for ubuntu2004"
    assert list(rule(context(os=row["operating_systems"][0]), {"neuron": release})) == []
