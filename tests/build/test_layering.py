"""Which layer image a build starts from, which ones it makes, and what --explain says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import image, layering, packer
from gpu_ami.build.layering import ALL, AUTO, Layer, Layering, explain
from gpu_ami.cloud import Cloud, runs
from gpu_ami.cloud import amis as images
from gpu_ami.errors import BuildError
from gpu_ami.plan import Plan
from gpu_ami.progress import Progress
from tests.build.conftest import QUIET, an_ami

ROLES = ["kernel", "nvidia_driver", "cuda", "tuning", "event_parser", "hygiene"]


class Packers:
    """In Packer's place: registers an image with the tags of the template, and keeps what it was given."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.runs, self.fails_at = cloud, list[Mapping[str, str]](), ""

    def build(self, packer_run: packer.PackerRun) -> packer.Made:
        folder, variables = packer_run.folder, packer_run.variables
        self.runs.append(variables)
        if self.fails_at and variables.get("layer") == self.fails_at:
            raise BuildError("Packer failed")
        ami = an_ami(self.cloud, f"made-{len(self.runs)}-{folder.parent.name}")
        tags = {"gpu-ami:run": "r", "gpu-ami:expires": variables.get("image_expires", "never")}
        if "layer" in variables:
            tags |= {images.TAG_LAYER: variables["layer"], images.TAG_DIGEST: variables["layer_digest"]}
        listed: Any = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.cloud.ec2.create_tags(Resources=[ami], Tags=listed)
        return packer.Made(ami, "us-east-1", {})

    def shown(self) -> list[tuple[str, str, list[str]]]:
        """(layer, source AMI, roles) of each run."""
        return [(row.get("layer", ""), row["source_ami"], json.loads(row.get("roles", "[]"))) for row in self.runs]


@pytest.fixture
def packers(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Packers:
    packers = Packers(cloud)
    monkeypatch.setattr(packer, "build", packers.build)
    return packers


def a_plan(source_ami: str, **sections: Any) -> Plan:
    document: Any = {
        "image": "x", "digest": "sha256:1", "architecture": "x86_64", "source_ami": {"id": source_ami},
        "build": {"instance_type": "c7i.2xlarge", "root_volume_gib": 40}, "os": {"id": "debian"},
        "node": {"family": "ec2"}, "roles": ROLES, **{role: {} for role in ROLES}, **sections,
    }  # fmt: skip
    return Plan(document)


def build(cloud: Cloud, root: Path, folder: Path, plan: Plan, layered: Layering) -> image.Build:
    folder.mkdir(exist_ok=True)
    with runs.begin(folder.parent / "home", "aws") as run:
        return image.build_image(plan, folder, cloud, run, root, progress=QUIET, layered=layered)


def test_without_layers_all_roles_run_on_the_source_ami(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    base = an_ami(cloud, "base")
    build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    packers.runs.clear()
    made = build(cloud, root, tmp_path / "b", a_plan(base), Layering())
    assert packers.shown() == [("", base, [])]
    assert [row["from_image"] for row in made.layers] == [False] * 5


def test_all_makes_each_layer_on_the_one_below(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    base = an_ami(cloud, "base")
    made = build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    amis = [str(row["ami"]) for row in made.layers[:-1]]
    assert packers.shown() == [
        ("kernel", base, ["kernel", "hygiene"]),
        ("driver", amis[0], ["nvidia_driver", "hygiene"]),
        ("libraries", amis[1], ["cuda", "hygiene"]),
        ("node", amis[2], ["tuning", "hygiene"]),
        ("", amis[3], ["event_parser", "hygiene"]),
    ]
    assert [row["from_image"] for row in made.layers] == [True] * 4 + [False]
    assert made.layers[-1]["ami"] == "" and made.source_ami == base
    tags = packers.runs[0]
    assert tags["layer_digest"] == made.layers[0]["digest"]
    expires = tags["image_expires"]
    assert not runs.has_expired(expires) and expires < runs.as_text(runs.now() + timedelta(days=8))
    assert (tmp_path / "a" / "layers" / "driver").is_dir()
    assert image.load(tmp_path / "a") == made


@pytest.mark.parametrize(
    ("sections", "source", "roles"),
    [
        ({"event_parser": {"a": 1}}, 3, ["event_parser"]),
        ({"cuda": {"version": "13"}}, 1, ["cuda", "tuning", "event_parser"]),
        ({"nvidia_driver": {"version": "580"}}, 0, ["nvidia_driver", "cuda", "tuning", "event_parser"]),
        ({"kernel": {"version": "6"}}, None, []),
    ],
    ids=["telemetry", "libraries", "driver", "kernel"],
)
def test_auto_starts_from_the_deepest_layer_that_is_there(
    cloud: Cloud,
    root: Path,
    tmp_path: Path,
    home: Path,
    packers: Packers,
    sections: dict[str, Any],
    source: int | None,
    roles: list[str],
) -> None:
    base = an_ami(cloud, "base")
    amis = [row["ami"] for row in build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL)).layers]
    packers.runs.clear()
    made = build(cloud, root, tmp_path / "b", a_plan(base, **sections), Layering(AUTO))
    start = base if source is None else amis[source]
    assert packers.shown() == [("", start, [*roles, "hygiene"] if roles else [])]
    assert [row["from_image"] for row in made.layers] == [
        index <= (-1 if source is None else source) for index in range(5)
    ]


def test_all_makes_only_what_is_missing_above_the_deepest(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    base = an_ami(cloud, "base")
    first = build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    cloud.ec2.deregister_image(ImageId=str(first.layers[0]["ami"]))  # below the deepest: not missed
    packers.runs.clear()
    build(cloud, root, tmp_path / "b", a_plan(base, tuning={"a": 1}), Layering(ALL))
    assert [(name, roles) for name, _, roles in packers.shown()] == [
        ("node", ["tuning", "hygiene"]),
        ("", ["event_parser", "hygiene"]),
    ]


def test_early_tasks_run_in_their_layer_and_where_the_whole_role_does_not(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    tasks = root / "roles/event_parser/tasks/boot_loader.yml"
    tasks.parent.mkdir(parents=True)
    tasks.write_text("[]")
    specs = root / "roles/event_parser/meta/argument_specs.yml"
    specs.parent.mkdir()
    specs.write_text("argument_specs: {boot_loader: {options: {event_parser_log_buf_len: {}}}}")
    base = an_ami(cloud, "base")
    plan = a_plan(base, event_parser={"log_buf_len": "4M"})
    build(cloud, root, tmp_path / "a", plan, Layering(ALL))
    shown = [roles for _, _, roles in packers.shown()]
    assert shown[0] == ["kernel", "event_parser:boot_loader", "hygiene"]
    assert [role for roles in shown[1:] for role in roles if "boot_loader" in role] == []
    packers.runs.clear()
    build(cloud, root, tmp_path / "b", a_plan(base, event_parser={"log_buf_len": "8M"}), Layering(AUTO))
    assert packers.shown() == [("", base, [])]  # from nothing: the role runs as a whole


@pytest.mark.parametrize(("mode", "names"), [(AUTO, [""]), (ALL, ["kernel", "driver", "libraries", "node", ""])])
def test_refresh_takes_no_layer_that_is_there(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers, mode: str, names: list[str]
) -> None:
    base = an_ami(cloud, "base")
    build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    for row in packers.cloud.ec2.describe_images(Owners=["self"])["Images"]:
        backdate(row["ImageId"])
    packers.runs.clear()
    build(cloud, root, tmp_path / "b", a_plan(base), Layering(mode, refresh=True))
    assert [name for name, *_ in packers.shown()] == names
    assert packers.runs[0]["source_ami"] == base


def backdate(ami: str, days: float = 1.0) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2 import ec2_backends

    moment = runs.now() - timedelta(days=days)
    ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].amis[ami].creation_date = moment


def test_layers_that_are_too_old_are_not_used(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    """Nothing is frozen unseen: a layer has the repositories' updates of its own day."""
    base = an_ami(cloud, "base")
    first = build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    for row in first.layers[2:4]:
        backdate(str(row["ami"]), days=8)
    packers.runs.clear()
    build(cloud, root, tmp_path / "b", a_plan(base), Layering(AUTO))
    assert packers.shown()[0][1] == first.layers[1]["ami"]


def test_a_build_that_fails_keeps_the_layers_that_it_made(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers
) -> None:
    base, packers.fails_at = an_ami(cloud, "base"), "libraries"
    with pytest.raises(BuildError):
        build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    packers.runs.clear()
    packers.fails_at = ""
    build(cloud, root, tmp_path / "a", a_plan(base), Layering(ALL))
    assert [name for name, *_ in packers.shown()] == ["libraries", "node", ""]


def test_of_two_builds_at_once_the_second_uses_what_the_first_makes(
    cloud: Cloud, root: Path, tmp_path: Path, home: Path, packers: Packers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the second build waits for the lock of a layer, the first one makes it."""
    base = an_ami(cloud, "base")
    plan, waited = a_plan(base), []
    locked = layering.locked

    def while_another_builds(path: Path, on_wait: Any) -> Any:
        monkeypatch.setattr(layering, "locked", locked)
        waited.append(path.parent)
        build(cloud, root, tmp_path / "first", plan, Layering(ALL))
        packers.runs.clear()
        return locked(path, on_wait)

    monkeypatch.setattr(layering, "locked", while_another_builds)
    made = build(cloud, root, tmp_path / "second", plan, Layering(ALL))
    assert waited == [home / "layers"]
    assert [name for name, *_ in packers.shown()] == [""]
    assert [row["from_image"] for row in made.layers] == [True] * 4 + [False]


def stack() -> list[Layer]:
    parts = {"plan: x": "1"}
    return [
        Layer("kernel", ("kernel",), f"sha256:{'1' * 64}", parts),
        Layer("driver", ("nvidia_driver",), f"sha256:{'2' * 64}", parts),
        Layer("telemetry", ("event_parser",), f"sha256:{'3' * 64}", parts, is_top=True),
    ]


def test_explain_says_what_is_there_and_what_changed(cloud: Cloud, home: Path, packers: Packers) -> None:
    for layer in stack()[:2]:
        variables = {"layer": layer.name, "layer_digest": layer.digest, "image_expires": "2999-01-01T00:00:00Z"}
        one = packer.PackerRun(home, home, cloud.place, "r", "", "k", Progress("quiet"), variables=variables)
        packers.build(one)
    kernel, driver = (row["ImageId"] for row in cloud.ec2.describe_images(Owners=["self"])["Images"])
    backdate(driver, days=8)
    before = [{"name": "kernel", "parts": {"plan: x": "1"}}, {"name": "driver", "parts": {"plan: x": "0"}}]
    today, old = f"{runs.now():%Y-%m-%d}", f"{runs.now() - timedelta(days=8):%Y-%m-%d}"
    assert [state.text for state in explain(cloud, stack(), before)] == [
        f"kernel     sha256:111111111111…  {kernel} of {today}, until 2999-01-01T00:00:00Z, used; unchanged",
        f"driver     sha256:222222222222…  missing ({driver} of {old} is too old);"
        " changed since the last build: plan: x",
        "telemetry  sha256:333333333333…  the finished image: event_parser, hygiene",
    ]
