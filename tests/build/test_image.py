"""One build: what Packer is given, what build.json keeps, and when an AMI is used again."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import image, packer
from gpu_ami.cloud import Cloud, runs
from gpu_ami.errors import UsageError
from localregion.machines import factory
from tests.build.conftest import QUIET, a_plan, an_ami


def packer_that_makes(ami: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Packer was given, once it has run."""
    given: dict[str, Any] = {}

    def build(packer_run: packer.PackerRun) -> packer.Made:
        given.update(vars(packer_run))
        return packer.Made(ami, "us-east-1", {})

    monkeypatch.setattr(packer, "build", build)
    return given


def test_build_looks_up_the_source_ami_and_keeps_what_it_made(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    given = packer_that_makes(made, monkeypatch)
    with runs.begin(home, "aws") as run:
        result = image.build_image(a_plan(base), tmp_path, cloud, run, root, progress=QUIET)
    # Without groups, Packer would make one that is open to the world.
    group = json.loads(given["variables"].pop("security_group_ids"))
    assert group == [cloud.default_security_group()]
    assert given["variables"] == {"source_ami": base, "root_device_name": "/dev/sda1"}
    assert (result.ami, result.source_ami) == (made, base)
    assert [(one["instance_type"], one["answer"]) for one in result.attempts] == [("c7i.2xlarge", "launched")]
    assert image.load(tmp_path) == result
    assert image.reusable(tmp_path, a_plan(base), cloud, root) == result
    sandboxed = Cloud(replace(cloud.place, machines=replace(cloud.place.machines, sandbox_builder=True)))
    assert image.reusable(tmp_path, a_plan(base), sandboxed, root) == result  # a booted builder is as good
    replace(result, sandbox=True).write(tmp_path)
    assert image.reusable(tmp_path, a_plan(base), cloud, root) is None  # but not the other way round
    assert image.reusable(tmp_path, a_plan(base), sandboxed, root)
    (root / "roles/x/tasks/main.yml").write_text("[{}]")  # other roles make another image
    assert image.reusable(tmp_path, a_plan(base), sandboxed, root) is None


def test_an_ami_that_is_not_published_expires_where_the_place_says_so(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = packer_that_makes(an_ami(cloud, "made"), monkeypatch)
    cloud.place = replace(cloud.place, image_days=30)
    with runs.begin(home, "aws") as run:
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, progress=QUIET)
    expires = datetime.datetime.fromisoformat(given["variables"]["image_expires"])
    assert 29.9 < (expires - runs.now()) / datetime.timedelta(days=1) <= 30


@pytest.mark.parametrize("content", ["{", '{"schema": "gpu-ami/build/1", "ami": "ami-1"}', '{"schema": "other"}'])
def test_a_file_of_no_build_is_replaced_by_the_next_build(
    cloud: Cloud, root: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "build.json").write_text(content)
    assert image.reusable(tmp_path, a_plan(an_ami(cloud, "base")), cloud, root) is None
    with pytest.raises(UsageError, match=r"build\.json") as caught:
        image.load(tmp_path)
    assert caught.value.hint == "`gpu-ami build` writes a new one"


def test_a_sandbox_is_asked_for_by_a_tag_and_kept(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, made = an_ami(cloud, "base"), an_ami(cloud, "made")
    given = packer_that_makes(made, monkeypatch)
    sandboxed = Cloud(replace(cloud.place, machines=replace(cloud.place.machines, sandbox_builder=True)))
    with runs.begin(home, "aws") as run:
        result = image.build_image(a_plan(base), tmp_path, sandboxed, run, root, progress=QUIET)
    assert json.loads(given["variables"]["builder_tags"]) == {factory.MACHINE_TAG: factory.SANDBOX}
    assert result.sandbox and image.load(tmp_path).sandbox


def test_a_failed_build_leaves_no_build_file(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / image.BUILD_FILE).write_text("{}")

    def fail(*_: object, **__: object) -> None:
        raise UsageError("no")

    monkeypatch.setattr(packer, "build", fail)
    with runs.begin(home, "aws") as run, pytest.raises(UsageError):
        image.build_image(a_plan(an_ami(cloud, "base")), tmp_path, cloud, run, root, progress=QUIET)
    assert not (tmp_path / image.BUILD_FILE).exists()


def test_no_source_ami_is_said_before_packer_starts(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "build", lambda *_, **__: pytest.fail("Packer was started"))
    with runs.begin(home, "aws") as run, pytest.raises(UsageError, match=r"source AMI ami-0 .* is not in us-east-1"):
        image.build_image(a_plan("ami-0"), tmp_path, cloud, run, root, progress=QUIET)
