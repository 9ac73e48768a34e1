"""`gpu-ami validate --nodes 2` ended by Ctrl-C or by SIGKILL at five moments of its machines, under `aws-like`.

After Ctrl-C the run itself leaves nothing, after SIGKILL `gpu-ami sweep` does: no machine, placement group, key, log
group or schedule. No machine is booted (tests/killed_driver).
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli
from tests.killed_driver import account
from tests.killed_driver.project import Project, project, quickened
from tests.localregion.conftest import BASE_ID

pytestmark = pytest.mark.slow

CONDITIONS = "aws-like:1"
PLANNED = "plan killed.yml -o out/killed -q"
NODES = f"validate out/killed --ami {BASE_ID} --where aws.yml --nodes 2 -q"
# Of both machines: their group, their launch, the checks of tier T4, the second one's end, the end of all.
MOMENTS = [
    account.Moment(1, action="CreatePlacementGroup"),
    account.Moment(1, 0.0, "RunInstances"),
    account.Moment(1, action="CreateLogStream"),
    account.Moment(1, action="TerminateInstances"),
    account.Moment(2, action="TerminateInstances"),
]


@pytest.fixture(scope="module", autouse=True)
def access() -> Iterator[None]:
    with quickened():
        yield


def left(project: Project) -> dict[str, list[str]]:
    """What is there of any run. Placement groups are the region's own, which moto does not know."""
    groups = project.world.ec2.placement_groups.answer("DescribePlacementGroups", {}) or b""
    names = re.findall(r"<groupName>(.*?)</groupName>", groups.decode())
    found = account.left(project.endpoint, project.home)
    return found | {"placement groups": names} if names else found


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An account in which nothing was launched yet."""
    with project(tmp_path / "project", CONDITIONS) as made:
        monkeypatch.setenv("GPU_AMI_HOME", str(made.home))
        monkeypatch.chdir(made.folder)
        assert made.drivers.run(PLANNED) == 0, made.log()
        yield made


def test_two_machines_that_nobody_disturbs(planned: Project) -> None:
    assert planned.drivers.run(NODES) == 0, planned.log()
    assert left(planned) == {}
    changes = planned.drivers.changes
    numbers = [
        [at for at, name in enumerate(changes) if name == moment.action][moment.number - 1] for moment in MOMENTS
    ]
    assert numbers == sorted(numbers), "the moments are in the order of the run"
    report = planned.document("report.json")
    assert report and report["hosts"][0]["facts"]["nodes"]["count"] == 2


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_ctrl_c_leaves_nothing(planned: Project, moment: account.Moment) -> None:
    pressed = replace(moment, signal=signal.SIGINT)
    assert planned.drivers.run(NODES, pressed) == 130, planned.log()
    assert left(planned) == {}, planned.log()


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_sweep_leaves_nothing_of_a_killed_run(
    planned: Project, moment: account.Moment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned.drivers.run(NODES, moment) == -9, planned.log()
    assert left(planned)["records"]
    assert cli.main(["sweep", "--where", "aws.yml", "--json"]) == 0, capsys.readouterr().out
    swept = {row["kind"] for row in json.loads(capsys.readouterr().out)}
    assert "placement-group" in swept, swept
    assert left(planned) == {}, swept
