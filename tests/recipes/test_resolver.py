"""Recipes to plans: the tables of cases (case_tables.py) hold recipes and what must come of each.

`pytest tests/recipes/test_resolver.py --update-golden` writes what comes out now; review the difference.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.components import build_order, chosen, components
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import Recipe, layered, read_recipe, recipe_keys
from gpu_ami.recipes.resolver import resolve
from tests.recipes.case_tables import FOLDER, TABLES, Case, cases, update, write

CASES = cases()
KEYS = ", ".join(recipe_keys(load_facts(), components(), ()).keys)
ROLES = ", ".join(sorted(build_order()))
RECIPES = sorted((Path(__file__).resolve().parents[2] / "variables" / "recipes").glob("*.yml"))


def outcome(case: Case, folder: Path) -> str | Mapping[str, Any]:
    """The error's text, or what the plan says; the recipe is a file in `folder`."""
    facts = load_facts()
    try:
        plan = resolve(read(case, folder), facts)
    except UsageError as error:
        text = "\n".join([error.message.replace(str(folder), "CASE"), *error.details]) + "\n"
        return text.replace(KEYS, "KEYS").replace(ROLES, "ROLES")  # so that a new component changes no case
    said: dict[str, Any] = {
        "versions": {name: plan[name]["version"] for name in (*chosen(), "fabric_manager", "imex") if name in plan},
        "flavour": plan.get("nvidia_driver", {}).get("flavour"),
        "roles": plan["roles"],
        "interval_s": plan["telemetry"]["interval_s"],
        "absent": plan["telemetry"].get("absent"),
        "notes": [note for note in plan["notes"] if not note.startswith(("not established", "CloudWatch agent"))],
    }
    if "cuda" in plan:
        said["compatibility"] = plan["cuda"].get("compatibility")
    return {key: value for key, value in said.items() if value}


def read(case: Case, folder: Path) -> Recipe:
    recipe = folder / "recipe.yml"
    recipe.write_text(case.recipe, encoding="utf-8")
    return read_recipe(recipe, load_facts(), case.overrides)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_comes_out_as_written(case: Case, tmp_path: Path, update_golden: bool) -> None:
    came_out = outcome(case, tmp_path)
    if update_golden:
        update(case, came_out)
    else:
        assert case.expected is not None, f"{case.name} has no outcome yet: run with --update-golden and review it"
        assert came_out == case.expected


def test_an_update_writes_one_outcome_and_leaves_the_rest_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table.yml"
    text = "# first\nflag: x\n\ttab\n"
    write(table, [Case(table, "b", text, ("a.b=1",), {"roles": ["x"]}), Case(table, "a", "flag: y\n", (), None)])
    update(Case(table, "a", "", (), None), "CASE: 1 mistake\nline\n")
    assert cases([table]) == [
        Case(table, "a", "flag: y\n", (), "CASE: 1 mistake\nline\n"),
        Case(table, "b", text, ("a.b=1",), {"roles": ["x"]}),
    ]


def test_tables_are_all_that_the_folder_of_cases_holds() -> None:
    """A folder of files, as cases once were, would be run by nothing."""
    assert sorted(FOLDER.iterdir()) == sorted(TABLES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{name: a, recipe: x}, {name: a, recipe: y}]", "names of more than one case"),
        ("[{name: b, recipe: x}, {name: a, recipe: y}]", "sorted by name"),
        ("[{name: a, recipe: x, error: e, plan: {}}]", "an error or a plan"),
        ("[{name: a, recipe: x, eror: e}]", "unknown keys"),
        ("[{name: a, error: e}]", "expected name and recipe"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "table.yml"
    table.write_text(text)
    with pytest.raises(AssertionError, match=message):
        cases([table])


def test_there_are_enough_cases_of_both_kinds() -> None:
    errors = [case for case in CASES if isinstance(case.expected, str)]
    assert len(CASES) >= 200
    assert len(errors) >= 160
    assert len(CASES) - len(errors) >= 40  # near misses: a rule that refuses everything would be seen


def test_every_rule_has_refused_something(tmp_path: Path) -> None:
    """Each rule is seen red: no rule is only ever passed by."""
    from gpu_ami.recipes.rules.resolve_context import ResolveContext
    from gpu_ami.recipes.solver import image_rules, solve

    facts = load_facts()
    red: set[str] = set()
    for case in CASES:
        try:
            context = ResolveContext(read(case, tmp_path).values, facts, components())
        except UsageError:
            continue
        chosen = solve(context).versions
        for rule in image_rules(context):
            red |= {rule.__qualname__ for _ in rule(context, chosen)}
        for names, component_rule in context.rules:
            if all(name in chosen for name in names):
                red |= {f"{names}{component_rule.__qualname__}" for _ in component_rule(context, chosen)}
    rules = {rule.__qualname__ for rule in image_rules(context)}
    rules |= {f"{names}{rule.__qualname__}" for names, rule in context.rules}
    # No system of the facts lacks a Python for the ansible-core releases in them: see test_rules_image.py.
    assert rules - red <= {"ansible_finds_python"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_resolving_twice_gives_the_same_document(recipe: Path) -> None:
    facts = load_facts()
    assert resolve(read_recipe(recipe, facts), facts) == resolve(read_recipe(recipe, facts), facts)


def _mutate(document: Any, rng: random.Random) -> Any:
    """One mutation: a value, a key, a type, a missing or an added entry, somewhere in the document."""
    if not isinstance(document, dict) or not document or rng.random() < 0.05:
        return _strange(rng)
    key = rng.choice(list(document))
    kind = rng.randrange(6)
    changed = dict(document)
    if kind == 0:
        del changed[key]
    elif kind == 1:
        changed[rng.choice([*document, "version", "flavour", _word(rng)])] = _strange(rng)
    elif kind == 2:
        changed[_word(rng)] = changed.pop(key)
    elif isinstance(changed[key], dict):
        changed[key] = _mutate(changed[key], rng)
    elif isinstance(changed[key], list) and changed[key]:
        changed[key] = [_strange(rng) if rng.random() < 0.5 else item for item in changed[key]] * rng.choice([1, 1, 2])
    else:
        changed[key] = _strange(rng)
    return changed


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.printable, k=rng.randrange(8)))


def _strange(rng: random.Random) -> Any:
    facts = load_facts()
    component = rng.choice(chosen())
    return rng.choice(
        [
            None, True, 0, -1, 580, 12.4, 10**30, float("nan"), "", "newest", "580", "12", "99999.9", "latest", [], {},
            [[]], {"version": None}, {"version": []}, {1: 2}, {None: {}}, "../../etc/passwd", "\x00", "x" * 10_000,
            _word(rng), rng.choice(list(facts.releases(component))), rng.choice(list(facts.operating_systems)),
            rng.choice(list(facts.node_families)), [rng.choice(list(facts.instance_types["instance_types"]))],
            {"version": rng.choice(list(facts.releases(component)))}, "arm64", "boot", "proprietary", "graphics",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_mutated_recipes_end_in_a_plan_or_an_error_with_a_path(seed: int) -> None:
    """4 times 2,500 mutated recipes; a traceback is a failure, an error without a key path too."""
    rng, facts = random.Random(seed), load_facts()
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RECIPES]
    ended = {"plan": 0, "error": 0}
    for _ in range(2_500):
        document = rng.choice(documents)
        for _ in range(rng.randrange(1, 4)):
            document = _mutate(document, rng)
        try:
            resolve(layered(Path("mutated.yml"), document, "0" * 64, facts), facts)
            ended["plan"] += 1
        except UsageError as error:
            ended["error"] += 1
            assert error.details
            for line in error.details:
                origin, path, rest = line.split(": ", 2)
                assert origin and path and rest, line
    assert ended["plan"] > 100
    assert ended["error"] > 1_000


@pytest.mark.parametrize(
    "text", ["a: [", "a: &a [*a]\n", "\t", "a: !!python/object:os.system {}", "flag: x\nflag: *y\n"]
)
def test_broken_yaml_is_an_error(text: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(text)
    with pytest.raises(UsageError):
        resolve(read_recipe(recipe, load_facts()), load_facts())


def test_budget_of_a_boot_is_in_the_plan_where_it_is_set() -> None:
    facts, recipe = load_facts(), next(path for path in RECIPES if path.stem == "debian12-gpu")
    assert "boot_seconds" not in resolve(read_recipe(recipe, facts), facts)
    assert resolve(read_recipe(recipe, facts, ["boot_seconds=120"]), facts)["boot_seconds"] == 120
