"""The layers of a plan: each role in one, and a digest that moves with what a layer is made of, with nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.build.layering import BELOW, HYGIENE, Layer, cut, files_digest, included_roles, load_definition
from gpu_ami.cloud import Place
from gpu_ami.plan import Plan, make_plan
from gpu_ami.recipes.components import build_order
from validator import remote

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "variables" / "recipes"
PLACE = Place(name="aws", region="us-east-1")


def plan_of(*overrides: str) -> Plan:
    return make_plan(RECIPES / "debian12-gpu.yml", PLACE, overrides)


def digests(plan: Plan, ami: str = "ami-1", place: Place = PLACE, root: Path = ROOT) -> dict[str, str]:
    return {layer.name: layer.digest for layer in cut(plan, ami, place, root)}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name, digest in after.items() if before.get(name) != digest]


ALL = ["kernel", "driver", "libraries", "node", "telemetry"]


def test_every_role_is_in_one_layer_in_the_order_of_the_build() -> None:
    defaults = build_order()
    listed = [role for roles in load_definition().roles.values() for role in roles]
    assert sorted(listed) == sorted(defaults) and len(set(listed)) == len(listed)
    order = list(load_definition().roles)
    placed = [order.index(name) for name in load_definition().names(defaults)]
    assert placed == sorted(placed)
    assert [name for name, roles in load_definition().roles.items() if HYGIENE in roles] == [order[-1]]


def test_a_plan_is_cut_into_the_layers_that_it_has_roles_of() -> None:
    layers = cut(plan_of(), "ami-1", PLACE, ROOT)
    assert [layer.name for layer in layers] == ALL
    assert [role for layer in layers for role in layer.roles] + [HYGIENE] == plan_of()["roles"]
    assert [layer.is_top for layer in layers] == [False] * 4 + [True]
    assert [BELOW in layer.parts for layer in layers] == [False] + [True] * 4
    assert layers[1].parts[BELOW] == layers[0].digest


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["kernel", "cuda", "my_role", "tuning"], ["kernel", "libraries", "libraries", "node"]),
        (["tuning", "cuda"], ["node", "node"]),  # never below the layer of the role before
        (["my_role"], ["kernel"]),
    ],
)
def test_a_role_that_is_not_listed_goes_with_the_one_before_it(roles: Sequence[str], expected: list[str]) -> None:
    assert list(load_definition().names(roles)) == expected


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (["kernel", "driver", "libraries", "node", "telemetry"], ["kernel", "node"]),
        (["kernel", "driver", "telemetry"], ["kernel", "driver"]),  # the nearest one below
        (["driver", "telemetry"], ["driver", "driver"]),  # else the lowest
        (["telemetry"], []),  # never in the finished image, where the role runs as a whole
    ],
)
def test_early_tasks_are_in_a_layer_below_the_finished_image(layers: Sequence[str], expected: list[str]) -> None:
    definition = replace(load_definition(), early={"kernel": {"x": "first"}, "node": {"y": "second"}})
    early = [("x", "first"), ("y", "second")] if expected else []
    found = list(definition.early_tasks(layers, ["x", "y", "z"]))
    assert found == [(layer, *row) for layer, row in zip(expected, early, strict=True)]
    assert list(definition.early_tasks(layers, ["z"])) == []


def test_a_site_s_role_of_the_name_has_no_early_tasks(checkout: Path) -> None:
    folder = checkout / "roles" / "event_parser" / "tasks"
    there = {path: path.read_text() for path in folder.glob("boot_loader*.yml")}
    try:
        for path in there:
            path.unlink()
        layers = cut(plan_of(), "ami-1", PLACE, checkout)
        assert [layer.early for layer in layers] == [
            (),
            (),
            (),
            ("cloudwatch_agent:package", "event_parser:files", "drain_hook:files"),
            (),
        ]
    finally:
        for path, text in there.items():
            path.write_text(text)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["telemetry.interval_s=20"], ["telemetry"]),
        (["tuning.memlock=false"], ["node", "telemetry"]),
        (["nvidia_driver.version=580.159.03"], ALL[1:]),
        (["build.root_volume_gib=64"], ALL),
        (["event_parser.json_log=/var/log/x.jsonl"], ["telemetry"]),
        (["event_parser.log_buf_len=8M"], ALL),  # early, in the lowest layer
        (["cloudwatch_agent.version=1.300070.0"], ["node", "telemetry"]),  # its package is early
    ],
    ids=str,
)
def test_a_change_of_the_plan_moves_its_layer_and_those_above(overrides: list[str], expected: list[str]) -> None:
    assert changed(digests(plan_of()), digests(plan_of(*overrides))) == expected


def test_another_base_ami_or_key_moves_every_layer() -> None:
    before = digests(plan_of())
    assert changed(before, digests(plan_of(), ami="ami-2")) == ALL
    assert changed(before, digests(plan_of(), place=Place(name="aws", region="us-east-1", kms_key_id="k"))) == ALL
    assert (
        changed(
            before, digests(plan_of(), place=replace(PLACE, machines=replace(PLACE.machines, sandbox_builder=True)))
        )
        == ALL
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    for name in ("packer", "playbooks", "roles"):
        shutil.copytree(ROOT / name, root / name, symlinks=True)
    shutil.copy(ROOT / "ansible.cfg", root)
    shutil.copytree(ROOT / "onhost", root / "onhost", symlinks=True)
    return root


@pytest.fixture(autouse=True)
def programs(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PROGRAMS", checkout / "onhost")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("roles/nvidia_driver/files/new", ALL[1:]),
        ("roles/tuning/tasks/main.yml", ["node", "telemetry"]),
        ("roles/vendor_key/tasks/main.yml", ALL),  # through vendor_packages, which holds kernels too
        ("roles/event_parser/tasks/main.yml", ["telemetry"]),
        ("roles/event_parser/tasks/boot_loader_debian.yml", ALL),
        ("roles/event_parser/handlers/main.yml", ALL),
        ("onhost/event_parser/hwevents/data/xid.csv", ["node", "telemetry"]),  # copied early
        ("onhost/diagnose.py", ["node", "telemetry"]),
        ("onhost/drain_hook/drain_hook/state.py", ["node", "telemetry"]),
        ("onhost/inventory.py", ALL),
        ("onhost/provoke_xid.py", []),  # only sent to hosts
        ("roles/event_parser/files/new", ["node", "telemetry"]),
        ("roles/cloudwatch_agent/tasks/configure.yml", ["telemetry"]),
        ("roles/cloudwatch_agent/tasks/package_install.yml", ["node", "telemetry"]),
        ("roles/hygiene/tasks/main.yml", ALL),
        ("roles/dcgm/tasks/main.yml", []),  # a role that the plan has not
        ("playbooks/image.yml", ALL),
        ("packer/source.pkr.hcl", ALL),
        ("ansible.cfg", ALL),
    ],
)
def test_a_change_of_a_source_moves_its_layer_and_those_above(checkout: Path, path: str, expected: list[str]) -> None:
    before = digests(plan_of(), root=checkout)
    file = checkout / path
    text = file.read_text() if file.exists() else ""
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{text}\n# changed\n")
        assert changed(before, digests(plan_of(), root=checkout)) == expected
    finally:
        file.write_text(text)
        if not text:
            file.unlink()


def test_no_role_reads_the_section_of_another() -> None:
    """The digest of a layer has the sections of its own roles; a role that reads another's would go unseen."""
    names = [folder.name for folder in (ROOT / "roles").glob("*/")]
    foreign = []
    for name in names:
        folder = ROOT / "roles" / name
        readable = {name, *included_roles(folder)}
        for other in set(names) - readable:
            specs = yaml.safe_load((ROOT / "roles" / other / "meta" / "argument_specs.yml").read_text())
            variables = list(specs["argument_specs"]["main"].get("options", {}))
            for file in [*folder.glob("tasks/*.yml"), *folder.glob("vars/*.yml"), *folder.glob("templates/*")]:
                text = file.read_text(encoding="utf-8")
                foreign += [f"{file}: {key}" for key in variables if re.search(rf"(?<![\w.]){key}\b", text)]
    assert foreign == []


def test_every_inclusion_of_a_role_is_seen() -> None:
    for folder in (ROOT / "roles").glob("*/"):
        text = "\n".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.yml"))
        statements = re.findall(r"(?:include|import)_role:", text)
        assert bool(statements) == bool(included_roles(folder)), folder.name
    assert included_roles(ROOT / "roles" / "efa") == ["vendor_key", "vendor_packages"]


def test_changes_name_the_parts() -> None:
    layer = Layer("driver", ("x",), "sha256:2", {BELOW: "a", "plan: x": "b"})
    assert layer.changes({BELOW: "a", "plan: x": "0", "role gone": "c"}) == ["plan: x", "role gone"]


def move(folder: Path) -> None:
    (folder / "a").rename(folder / "b")


def rewrite(folder: Path) -> None:
    (folder / "a").write_text("2")


def compile_a_module(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("x")


@pytest.mark.parametrize(("change", "same"), [(move, False), (rewrite, False), (compile_a_module, True)])
def test_the_digest_of_files_is_of_names_and_contents(
    tmp_path: Path, change: Callable[[Path], Any], same: bool
) -> None:
    (tmp_path / "a").write_text("1")
    before = files_digest([tmp_path])
    change(tmp_path)
    assert (files_digest([tmp_path]) == before) is same
