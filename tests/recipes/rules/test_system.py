"""Rules of the Lustre client and of MIG."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.rules import system as rules
from tests.recipes.conftest import context

A100 = "p4d.24xlarge"
FINGERPRINT = "0123456789abcdef0123456789abcdef01234567"


def test_lustre_repository_needs_a_fingerprint_in_the_recipe() -> None:
    pinned = context(f"lustre: {{key_fingerprint: {FINGERPRINT}}}", os="ubuntu2404")
    assert list(rules.lustre_is_there(pinned, {})) == []
    (conflict,) = rules.lustre_is_there(context("lustre: {}", os="ubuntu2404"), {})
    assert conflict.path == "lustre.key_fingerprint"


def test_lustre_client_is_not_built_for_every_system() -> None:
    (conflict,) = rules.lustre_is_there(context("lustre: {}", os="debian12"), {})
    assert conflict.text == "no Lustre client is built for debian12"
    assert list(rules.lustre_is_there(context(os="debian12"), {})) == []


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
    found = list(rules.mig_is_possible(asked, {}))
    assert [conflict.path for conflict in found] == ([f"tuning.mig.{name}"] if says else [])
    assert all(says and says in conflict.text for conflict in found)
