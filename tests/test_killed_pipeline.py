"""`gpu-ami prove` and `publish` killed by SIGKILL at 12 moments from plan to publication, under `aws-like`.

Then `gpu-ami sweep` leaves nothing that costs money but a finished AMI that build.json names, the same commands
succeed, and what they publish is an AMI that one run has made to its end. The moments are drawn by seed over the
changes that an undisturbed run makes; `pytest -s` prints them. No machine is booted (tests/killed_driver).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami import cli
from tests.killed_driver import account
from tests.killed_driver.project import COMMANDS, HOME_REGION, Project, project, published, quickened

pytestmark = pytest.mark.slow

SEED, MOMENTS = 38, 12
CONDITIONS = "aws-like:1"


@pytest.fixture(scope="module", autouse=True)
def access() -> Iterator[None]:
    with quickened():
        yield


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The changes of a run that nobody disturbs: it leaves an image in each region, and nothing else."""
    with project(tmp_path_factory.mktemp("undisturbed") / "project", CONDITIONS) as undisturbed:
        code = undisturbed.drivers.run(COMMANDS)
        assert code == 0, undisturbed.log()
        assert account.left(undisturbed.endpoint, undisturbed.home) == {}
        published(undisturbed)
        return undisturbed.drivers.changes


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project(tmp_path / "project", CONDITIONS) as made:
        monkeypatch.setenv("GPU_AMI_HOME", str(made.home))
        monkeypatch.chdir(made.folder)
        yield made


def nothing_is_half_made(of: Project) -> None:
    """Every image at home is one that build.json names and that is complete; its snapshots alone are there."""
    build = of.document("build.json")
    found = account.images(of.endpoint, HOME_REGION)
    assert [row["ImageId"] for row in found] == ([build["ami"]] if build else [])
    assert all(row["State"] == "available" and row["Tags"].get("gpu-ami:expires") == "never" for row in found)
    assert account.snapshots(of.endpoint, HOME_REGION) == account.of_images(found)


@pytest.mark.parametrize("number", range(MOMENTS))
def test_after_sigkill_nothing_is_left_and_the_next_run_succeeds(
    number: int, changes: list[str], killed: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = account.draw(SEED, len(changes), MOMENTS)[number]
    code = killed.drivers.run(COMMANDS, moment)
    assert code == -9, f"{moment}: {code}\n{killed.log()}"
    at = killed.drivers.changes[moment.number - 1]
    before = account.left(killed.endpoint, killed.home)
    assert cli.main(["sweep", "--where", "aws.yml", "--json"]) == 0, capsys.readouterr().out
    swept = sorted({row["kind"] for row in json.loads(capsys.readouterr().out)})
    assert account.left(killed.endpoint, killed.home) == {}, f"{moment} ({at}); before: {before}"
    nothing_is_half_made(killed)
    assert killed.drivers.run(COMMANDS) == 0, f"{moment} ({at})\n{killed.log()}"
    assert account.left(killed.endpoint, killed.home) == {}
    published(killed)
    with capsys.disabled():
        print(f"\n| {number + 1} | {moment} | {at} | {', '.join(swept)} |", end="")


def test_the_moments_are_of_the_whole_way(changes: list[str]) -> None:
    """Of builder, image, proof and publication, and the same for a seed ever after."""
    moments = account.draw(SEED, len(changes), MOMENTS)
    assert moments == account.draw(SEED, len(changes), MOMENTS)
    first, last = changes.index("RunInstances"), changes.index("CopyImage")
    numbers = [moment.number - 1 for moment in moments]
    assert any(number <= first + 2 for number in numbers) and any(number >= last for number in numbers)
    assert any(moment.seconds is None for moment in moments) and any(moment.seconds for moment in moments)
