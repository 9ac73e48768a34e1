"""A place prepares what a plan installs, before anything is built with it."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import pipeline
from gpu_ami.build import image
from gpu_ami.cloud.place import ApiAccess, Place
from gpu_ami.errors import MissingTool, UsageError
from gpu_ami.plan.document import Plan, digest_of
from gpu_ami.progress import Progress
from gpu_ami.region import SessionRequest
from localregion import architectures, region
from localregion.commands import region_verbs as command
from localregion.images import source_ami
from localregion.mirror import mirror

QUIET = Progress("quiet")
DOCUMENT: dict[str, Any] = {
    "schema": "gpu-ami/plan/1",
    "image": "an-image",
    "architecture": "x86_64",
    "roles": [],
    "instance_types": [],
    "build": {"instance_type": "m6i.2xlarge", "root_volume_gib": 40},
}


@pytest.fixture
def done(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the local region, in order; nothing is started."""
    seen: list[Any] = []

    def ensure(_home: Path, **asked: Any) -> None:
        seen.append(("mirror", asked["plan"], asked.get("agent_package")))

    def up(*_: Any, **__: Any) -> Place:
        seen.append("up")
        return Place(name="local", region="us-east-1", api=ApiAccess(endpoint="http://127.0.0.1:1"))

    monkeypatch.setattr(mirror, "ensure", ensure)
    monkeypatch.setattr(region, "up", up)
    monkeypatch.setattr(region, "release", lambda _home: seen.append("release"))
    monkeypatch.setattr(region, "publish_source_ami", lambda plan, *_, **__: seen.append(("publish_source_ami", plan)))
    return seen


def _stop(*_: Any, **__: Any) -> None:
    raise RuntimeError("building")


def test_plans_packages_are_there_before_it_is_built(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "build_image", _stop)
    monkeypatch.setattr(Plan, "write", lambda *_: None)
    agent = tmp_path / "agent.deb"
    with (
        pytest.raises(RuntimeError, match="building"),
        pipeline.open_session(SessionRequest(agent_package=agent), QUIET) as session,
    ):
        pipeline.build_stage(Plan(DOCUMENT | {"digest": "sha256:0"}), tmp_path, session, fresh=True)
    asked = [one for one in done if one[0] == "mirror"]
    assert asked == [("mirror", None, agent), ("mirror", DOCUMENT | {"digest": "sha256:0"}, agent)]
    assert done[0] == "up" and done[-1] == "release"


def test_packages_that_this_host_lacks_are_said_before_the_mirror(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(architectures, "is_there", lambda tool: tool != "aarch64-linux-gnu-gcc")
    plan = Plan(DOCUMENT | {"digest": "sha256:0", "architecture": "arm64"})
    with (
        pytest.raises(MissingTool, match="these packages are not installed: gcc-aarch64-linux-gnu"),
        pipeline.open_session(SessionRequest(), QUIET) as session,
    ):
        pipeline.build_stage(plan, tmp_path, session, fresh=True)
    assert [one for one in done if one[0] == "mirror"] == [("mirror", None, None)]


def test_conditions_reach_the_region_and_have_no_meaning_on_aws(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    place = Place(
        name="local", region="us-east-1", conditions="aws-like:7", api=ApiAccess(endpoint="http://127.0.0.1:1")
    )

    def up(*_: Any, conditions: str = "", **__: Any) -> Place:
        asked.append(conditions)
        return place

    monkeypatch.setattr(region, "up", up)
    with pipeline.open_session(SessionRequest(conditions="aws-like:7"), QUIET) as session:
        assert session.place == place
    assert asked == ["aws-like:7"]
    where = tmp_path / "aws.yml"
    where.write_text("region: us-east-1\n")
    with (
        pytest.raises(UsageError, match="--conditions are of the local region"),
        pipeline.open_session(SessionRequest(where, conditions="aws-like"), QUIET),
    ):
        pass


def test_region_comes_up_with_what_a_plan_needs(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "region_status", lambda *_: "status")
    written: list[Any] = []
    monkeypatch.setattr(Plan, "write", lambda plan, folder, place: written.append((plan.document, folder, place)))
    document = DOCUMENT | {"digest": digest_of(DOCUMENT)}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    for words, plans in (([], []), (["--plan", str(tmp_path / "plan.json")], [document])):
        done.clear()
        args = parser.parse_args(["region", "up", *words])
        assert args.execute(args, QUIET) == "status"
        assert [one[1] for one in done if one[0] == "mirror"] == [*plans, None]
        assert [one[1] for one in done if one[0] == "publish_source_ami"] == (plans or [source_ami.DEBIAN])
    # Packer by hand reaches the region through the var-file: it names the endpoint of the region that is up now.
    assert [(plan, folder, place.api.endpoint) for plan, folder, place in written] == [
        (document, tmp_path, "http://127.0.0.1:1")
    ]
