"""Which of a base AMI's drivers is planned for a machine, and where its files are not installed yet."""

from __future__ import annotations

import pytest
import testinfra

from tests.validator.checks.conftest import METADATA, FakeMachine
from validator.plan import as_plan
from validator.probes import base_driver

ONE = as_plan({"nvidia_driver": {"version": "595.112.07", "provided_by": "parallelcluster 3.16.3"}})
TWO = as_plan({
    "nvidia_driver": {
        "version": "580.178.04",
        "branches": {
            "lts": {"version": "580.178.04", "instance_types": ["g5.12xlarge"]},
            "pb": {"version": "595.91.07", "instance_types": ["g7.12xlarge"]},
        },
    }
})  # fmt: skip


def machine(instance_type: str) -> FakeMachine:
    return FakeMachine(METADATA, instance_type=instance_type)


def test_version_is_that_of_the_type_where_there_are_several() -> None:
    assert base_driver.version(ONE, machine("g7.12xlarge")) == "595.112.07"  # type: ignore[arg-type]
    assert base_driver.version(TWO, machine("g5.12xlarge")) == "580.178.04"  # type: ignore[arg-type]
    assert base_driver.version(TWO, machine("g7.12xlarge")) == "595.91.07"  # type: ignore[arg-type]
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no driver branch for p5\.48xlarge"):
        base_driver.planned_branch(TWO, "p5.48xlarge")


def test_machine_has_what_an_image_has_not_yet() -> None:
    host = testinfra.get_host("local://")
    base_driver.require_installed(host, TWO, "x")
    image = testinfra.get_host("local://")
    image.backend = object.__new__(base_driver.backend.ImageBackend)
    base_driver.require_installed(image, ONE, "x")
    with pytest.raises(
        pytest.skip.Exception, match=r"at the first boot on a machine with a GPU: see driver_branches::x"
    ):
        base_driver.require_installed(image, TWO, "driver_branches::x")
