"""The log groups of a proof are removed when its machines have ended, whatever ended the proof."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Place, runs
from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.progress import Progress
from gpu_ami.validate import proof
from gpu_ami.validate.proof import described, own_log_groups
from tests.cloud.test_log_groups import PLANNED, create, names

PLAN: Any = {"telemetry": {"raw_log_group": "/raw", "json_log_group": "/json"}}


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1"))


@pytest.fixture
def run(home: Path) -> Iterator[runs.Run]:
    with runs.begin(home, "aws") as begun:
        yield begun


@pytest.mark.parametrize("error", [None, CloudError("a launch failed"), KeyboardInterrupt()])
def test_groups_go_with_the_proof(cloud: Cloud, run: runs.Run, error: BaseException | None) -> None:
    own, other = f"{PLANNED}-proof/{run.id}", f"{PLANNED}-proof/20260101-000000-0a1b2c"

    def prove() -> None:
        with own_log_groups(cloud, run, Progress("quiet")):
            create(cloud, PLANNED, own, other)
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            prove()
    else:
        prove()
    assert names(cloud) == [PLANNED, other]


def test_groups_stay_until_the_machines_have_ended(
    cloud: Cloud,
    run: runs.Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent sends what it still has while its machine shuts down, and would create the group again."""
    group, looks = f"{PLANNED}-proof/{run.id}", [["i-1"], ["i-1"], []]

    def shutting_down(run_id: str) -> list[str]:
        assert run_id == run.id and names(cloud) == [group]
        return looks.pop(0)

    monkeypatch.setattr(cloud, "shutting_down", shutting_down)
    monkeypatch.setattr(proof, "POLL_SECONDS", 0.01)
    with own_log_groups(cloud, run, Progress("quiet")):
        create(cloud, group)
    assert names(cloud) == [] and looks == []


def test_groups_that_cannot_be_removed_are_left_to_sweep(
    cloud: Cloud,
    run: runs.Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: str) -> list[str]:
        raise CloudError("AccessDeniedException")

    monkeypatch.setattr(cloud, "shutting_down", refuse)
    errors: list[GpuAmiError] = []
    with own_log_groups(cloud, run, Progress("quiet"), errors.append):
        create(cloud, f"{PLANNED}-proof/{run.id}")
    assert [error.message for error in errors] == ["AccessDeniedException"] and (run.folder / "left-behind").exists()


def test_production_groups_are_not_touched(tmp_path: Path) -> None:
    place = Place("aws", "us-east-1", log_groups="production")
    nowhere: Any = SimpleNamespace(place=place)  # any call would be an AttributeError
    with own_log_groups(nowhere, SimpleNamespace(id="1", folder=tmp_path), Progress("quiet")):  # type: ignore[arg-type]
        pass


def test_report_says_where_the_machines_sent() -> None:
    run: Any = SimpleNamespace(id="20260101-000000-0a1b2c")
    own = described(PLAN, Place("aws", "us-east-1"), run, launched=True)
    assert "/raw-proof/20260101-000000-0a1b2c" in own and "metrics went to the namespace …-proof" in own
    production = described(PLAN, Place("aws", "us-east-1", log_groups="production"), run, launched=True)
    assert production == "the plan's (/raw, /json): injected events went there"
    host = described(PLAN, Place("aws", "us-east-1"), run, launched=False)
    assert "nothing on it was reconfigured" in host and "-proof/" not in host
    neuron: Any = {**PLAN, "neuron_monitor": {"log_group": "/neuron"}}
    assert "/neuron-proof/20260101" in described(neuron, Place("aws", "us-east-1"), run, launched=True)
    assert json.dumps(described(None, None, run, launched=False))
