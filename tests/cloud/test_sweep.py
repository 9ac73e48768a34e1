"""What `gpu-ami sweep` removes, what it leaves alone, and what it says of both."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from gpu_ami.cloud import runs, sweep
from gpu_ami.cloud.client import Cloud, Launch
from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from tests.cloud.conftest import PUBLIC_KEY, an_ami


def dead_record(home: Path, identity: str, place: str = "aws") -> None:
    folder = home / "runs" / identity
    folder.mkdir(parents=True)
    process = {"pid": 4194303, "started": "another boot/1"}
    record = {"id": identity, "expires": "2999-01-01T00:00:00Z", "process": process, "place": place}
    (folder / "run.json").write_text(json.dumps(record))


def test_sweep_takes_leftovers_and_nothing_else(cloud: Cloud, home: Path) -> None:
    cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
    dead_record(home, "dead-run")
    dead_record(home, "dead-elsewhere", place="other")
    with runs.begin(home, "aws", timedelta(hours=-1)) as alive_but_late:
        past, future = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"

        def start(**tags: str) -> str:
            named = {key.replace("_", ":", 1).replace("gpu:", "gpu-ami:"): value for key, value in tags.items()}
            return cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", named, ""))

        leftovers = [start(gpu_run="gone", gpu_expires=past), start(gpu_run="dead-run", gpu_expires=future)]
        kept = [
            start(gpu_run="elsewhere", gpu_expires=future),
            start(gpu_run="dead-elsewhere", gpu_expires=future),
            start(gpu_run=alive_but_late.id, gpu_expires=alive_but_late.expires),
            start(gpu_expires=past),
            start(Name="somebody's"),
        ]
        cloud.import_key("gpu-ami-dead-run-builder", PUBLIC_KEY, {"by": "packer"})  # old Packer: by name only, no tags
        cloud.import_key("gpu-ami-tagged", PUBLIC_KEY, {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: past})
        plan = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
        assert {one.outcome for one in plan} == {"would be removed"} and len(cloud.tagged(runs.TAG_RUN)) >= 5
        swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
        assert sorted(one.id for one in swept) == sorted([*leftovers, "gpu-ami-dead-run-builder", "gpu-ami-tagged"])
        states = {one: cloud.instance(one)["State"]["Name"] for one in [*leftovers, *kept]}
        assert {states[one] for one in leftovers} == {"terminated"} and {states[one] for one in kept} == {"running"}
        assert {pair["KeyName"] for pair in cloud.ec2.describe_key_pairs()["KeyPairs"]} == {"k"}
        sweep.forget_dead_runs(home, "aws", Progress("quiet"))
        assert sorted(one.id for one in runs.records(home)) == sorted(["dead-elsewhere", alive_but_late.id])
        assert sweep.sweep_cloud(cloud, home, Progress("quiet")) == []


def test_sweep_reports_what_it_could_not_remove(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.import_key("gpu-ami-x", PUBLIC_KEY, {runs.TAG_RUN: "x", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"})

    def refuse(_: object) -> None:
        raise CloudError("UnauthorizedOperation")

    monkeypatch.setattr(cloud, "remove", refuse)
    (leftover,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert (leftover.outcome, leftover.error) == ("not removed", "UnauthorizedOperation")
    assert leftover.text == "not removed: UnauthorizedOperation"
