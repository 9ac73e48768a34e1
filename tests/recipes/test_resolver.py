"""Recipes to plans: every folder of tests/cases/ is a recipe and what must come of it.

recipe.yml (and set.txt, a command-line override a line) gives error.txt, the exact message, or plan.yml: the versions,
the notes and whatever else the case is about. UPDATE_GOLDEN=1 writes what comes out now; review the difference.
"""

from __future__ import annotations

import os
import random
import string
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered, read_recipe
from gpu_ami.recipes.resolver import resolve
from gpu_ami.recipes.rules.resolve_context import COMPONENTS
from gpu_ami.recipes.solver import RULES

CASES = sorted(path for path in (Path(__file__).parent / "cases").iterdir() if path.is_dir())
RECIPES = sorted((Path(__file__).resolve().parents[2] / "variables" / "recipes").glob("*.yml"))
_UPDATE = bool(os.environ.get("UPDATE_GOLDEN"))


def outcome(case: Path) -> tuple[str, str]:
    """(error.txt, message) or (plan.yml, what the plan says)."""
    facts = load_facts()
    overrides = (case / "set.txt").read_text().splitlines() if (case / "set.txt").exists() else []
    try:
        plan = resolve(read_recipe(case / "recipe.yml", facts, overrides), facts)
    except UsageError as error:
        return "error.txt", "\n".join([error.message.replace(str(case), "CASE"), *error.details]) + "\n"
    said: dict[str, Any] = {
        "versions": {name: plan[name]["version"] for name in (*COMPONENTS, "fabric_manager", "imex") if name in plan},
        "flavour": plan.get("nvidia_driver", {}).get("flavour"),
        "roles": plan["roles"],
        "interval_s": plan["telemetry"]["interval_s"],
        "absent": plan["telemetry"].get("absent"),
        "notes": [note for note in plan["notes"] if not note.startswith(("not established", "CloudWatch agent"))],
    }
    if "cuda" in plan:
        said["compatibility"] = plan["cuda"].get("compatibility")
    kept = {key: value for key, value in said.items() if value}
    return "plan.yml", yaml.safe_dump(kept, sort_keys=False, width=140, allow_unicode=True, default_flow_style=None)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_case_comes_out_as_written(case: Path) -> None:
    name, text = outcome(case)
    if _UPDATE:
        for stale in ("error.txt", "plan.yml"):
            (case / stale).unlink(missing_ok=True)
        (case / name).write_text(text, encoding="utf-8")
    expected = {path.name for path in case.iterdir()} & {"error.txt", "plan.yml"}
    assert expected == {name}, f"expected {expected}, came out as {name}:\n{text}"
    assert text == (case / name).read_text(encoding="utf-8")


def test_there_are_enough_cases_of_both_kinds() -> None:
    errors = [case for case in CASES if (case / "error.txt").exists()]
    assert len(CASES) >= 60
    assert len(errors) >= 50
    assert len(CASES) - len(errors) >= 15  # near misses: a rule that refuses everything would be seen


def test_every_rule_has_refused_something() -> None:
    """Each rule is seen red: no rule is only ever passed by."""
    from gpu_ami.recipes.rules.image import IMAGE_RULES, base_keeps_its_own
    from gpu_ami.recipes.rules.resolve_context import ResolveContext
    from gpu_ami.recipes.solver import solve

    facts = load_facts()
    red: set[str] = set()
    for case in CASES:
        overrides = (case / "set.txt").read_text().splitlines() if (case / "set.txt").exists() else []
        try:
            context = ResolveContext(read_recipe(case / "recipe.yml", facts, overrides).values, facts)
        except UsageError:
            continue
        chosen = solve(context).versions
        for rule in (*IMAGE_RULES, base_keeps_its_own):
            red |= {rule.__qualname__ for _ in rule(context, chosen)}
        for names, component_rule in RULES:
            if all(name in chosen for name in names):
                red |= {f"{names}{component_rule.__qualname__}" for _ in component_rule(context, chosen)}
    rules = {rule.__qualname__ for rule in (*IMAGE_RULES, base_keeps_its_own)}
    rules |= {f"{names}{rule.__qualname__}" for names, rule in RULES}
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
    component = rng.choice(COMPONENTS)
    return rng.choice(
        [
            None, True, 0, -1, 580, 12.4, 10**30, float("nan"), "", "newest", "580", "12", "99999.9", "latest", [], {},
            [[]], {"version": None}, {"version": []}, {1: 2}, {None: {}}, "../../etc/passwd", "\x00", "x" * 10_000,
            _word(rng), rng.choice(list(facts.releases(component))), rng.choice(list(facts.operating_systems)),
            rng.choice(list(facts.node_families)), [rng.choice(list(facts.instance_types["instance_types"]))],
            {"version": rng.choice(list(facts.releases(component)))}, "arm64", "boot", "proprietary", "graphics",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
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
