"""Rules of one component alone: Lustre client, MIG, Neuron, MKL."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import lustre, mkl, neuron, tuning
from gpu_ami.recipes.rules import image as rules
from tests.recipes.conftest import FACTS, context

NEURON = "neuron: {version: 2.26.1}\ntelemetry: {profile: neuron}"
A100 = "p4d.24xlarge"
FINGERPRINT = "0123456789abcdef0123456789abcdef01234567"


def test_lustre_repository_needs_a_fingerprint_in_the_recipe() -> None:
    pinned = context(f"lustre: {{key_fingerprint: {FINGERPRINT}}}", os="ubuntu2404")
    assert list(lustre.client_is_built(pinned, {})) == []
    (conflict,) = lustre.client_is_built(context("lustre: {}", os="ubuntu2404"), {})
    assert conflict.path == "lustre.key_fingerprint"


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
