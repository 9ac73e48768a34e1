"""The line has its place offer what a plan installs, before anything is built with it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import build, line
from gpu_ami.commands import region as command
from gpu_ami.local import mirror, region, source_ami
from gpu_ami.log import Progress
from gpu_ami.place import Place
from gpu_ami.plan import Plan, digest_of

QUIET = Progress("quiet")
DOCUMENT: dict[str, Any] = {"schema": "gpu-ami/plan/1", "image": "an-image", "roles": []}


@pytest.fixture
def done(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the local region, in order; nothing is started."""
    seen: list[Any] = []

    def ensure(_home: Path, **asked: Any) -> None:
        seen.append(("mirror", asked["plan"], asked.get("agent_package")))

    def up(*_: Any, **__: Any) -> Place:
        seen.append("up")
        return Place(name="local", region="us-east-1", endpoint="http://127.0.0.1:1")

    monkeypatch.setattr(mirror, "ensure", ensure)
    monkeypatch.setattr(region, "up", up)
    monkeypatch.setattr(region, "release", lambda _home: seen.append("release"))
    monkeypatch.setattr(region, "offer", lambda plan, *_, **__: seen.append(("offer", plan)))
    return seen


def _stop(*_: Any, **__: Any) -> None:
    raise RuntimeError("building")


def test_plans_packages_are_there_before_it_is_built(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build_image", _stop)
    monkeypatch.setattr(Plan, "write", lambda *_: None)
    agent = tmp_path / "agent.deb"
    with pytest.raises(RuntimeError, match="building"), line.standing(None, QUIET, agent) as at:
        line.build_stage(Plan(DOCUMENT | {"digest": "sha256:0"}), tmp_path, at, fresh=True)
    asked = [one for one in done if one[0] == "mirror"]
    assert asked == [("mirror", None, agent), ("mirror", DOCUMENT | {"digest": "sha256:0"}, agent)]
    assert done[0] == "up" and done[-1] == "release"


def test_region_comes_up_with_what_a_plan_needs(
    tmp_path: Path, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_status", lambda *_: "status")
    document = DOCUMENT | {"digest": digest_of(DOCUMENT)}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    for words, plans in (([], []), (["--plan", str(tmp_path / "plan.json")], [document])):
        done.clear()
        args = parser.parse_args(["region", "up", *words])
        assert args.execute(args, QUIET) == "status"
        assert [one[1] for one in done if one[0] == "mirror"] == [*plans, None]
        assert [one[1] for one in done if one[0] == "offer"] == (plans or [source_ami.DEBIAN])
