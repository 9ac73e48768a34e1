"""Which packages of a plan an upgrade must leave alone, and a change as a person reads it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN
from validator.plan import as_plan
from validator.probes import system_upgrade
from validator.probes.system_upgrade import Change

KERNEL = {"package": "linux-image-aws", "hold": ["linux-aws", "linux-image-aws"], "version": "6.8", "headers": "x"}


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({"nvidia_driver": {"package": "kmod", "packages": {"smi": "1", "libcuda": "1"}}}, {"kmod", "smi", "libcuda"}),
        ({"nvidia_driver": {"provided_by": "ami", "package": "kmod"}}, set()),
        ({"cloudwatch_agent": {"version": "1"}}, {"amazon-cloudwatch-agent"}),
        ({"efa": {"version": "1"}, "kernel": KERNEL}, set()),
    ],
)
def test_planned_packages(sections: dict[str, Any], names: set[str]) -> None:
    assert system_upgrade.planned(as_plan(PLAN | sections | {"roles": sorted(sections)})) == names


def test_kernel_counts_where_a_role_installs_it() -> None:
    plan = PLAN | {"kernel": KERNEL}
    assert system_upgrade.kernel(as_plan(plan | {"roles": ["kernel"]})) == ["linux-aws", "linux-image-aws"]
    assert system_upgrade.kernel(as_plan(plan | {"roles": []})) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change("dkms", "3.0", "3.4", "nvidia"), "dkms 3.0 → 3.4 from nvidia"),
        (Change("linux", "", "6.1", ""), "linux (new) 6.1"),
        (Change("kmod", "1", "", ""), "kmod 1 (removed)"),
    ],
)
def test_change_is_readable(change: Change, text: str) -> None:
    assert str(change) == text
