"""What `gpu-ami sweep` takes of ECS: what a run of this machine left that died, or one that ended long ago."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.cloud import ApiAccess, Cloud, Place, ecs, runs, sweep
from gpu_ami.cloud.place import Credentials
from gpu_ami.progress import Progress
from tests.cloud.test_sweep import dead_record
from tests.localregion.conftest import empty_moto, endpoint, world  # noqa: F401

DEAD, ELSEWHERE, OLD = "20261125-000000-abcdef", "29991125-000000-abcdef", "20201125-000000-abcdef"


def define(cloud: Cloud, family: str) -> None:
    cloud.client("ecs").register_task_definition(
        family=family, containerDefinitions=[{"name": "c", "image": "x", "memory": 16}]
    )


def test_what_dead_and_old_runs_left_is_removed(endpoint: str, tmp_path: Path) -> None:  # noqa: F811
    cloud = Cloud(
        Place("aws", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    )
    home = tmp_path / "driver"
    dead_record(home, DEAD)
    for run in (DEAD, ELSEWHERE, OLD):
        ecs.create(cloud, f"gpu-ami-{run}", {runs.TAG_RUN: run, runs.TAG_EXPIRES: runs.ended_by(run)})
        define(cloud, f"gpu-ami-{run}")
    define(cloud, "gpu-ami-training")
    cloud.client("ecs").create_cluster(clusterName="of-others")
    plan = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
    assert {(row.kind, row.id, row.outcome) for row in plan} == {
        (kind, f"gpu-ami-{run}", "would be removed")
        for run in (DEAD, OLD)
        for kind in (ecs.CLUSTER, ecs.TASK_DEFINITION)
    }
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert {(row.id, row.outcome) for row in swept} == {(f"gpu-ami-{run}", "removed") for run in (DEAD, OLD)}
    assert {row.tags[runs.TAG_RUN] for row in ecs.left_of_runs(cloud)} == {ELSEWHERE}
    assert ecs.state(cloud, "of-others") == "ACTIVE"


def test_a_run_id_says_when_its_run_has_ended() -> None:
    assert runs.ended_by(DEAD) == "2026-11-26T00:00:00Z"
    assert [runs.ended_by(text) for text in ("training", "20261399-000000-abcdef", f"{DEAD}-x")] == ["", "", ""]
    assert [ecs.run_of(name) for name in (f"gpu-ami-{DEAD}", "gpu-ami-training", DEAD)] == [DEAD, "", ""]
