"""The plan document: its digest, schema and cost."""

from __future__ import annotations

import argparse
import copy
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_ami.commands import options
from gpu_ami.errors import UsageError
from gpu_ami.json_schemas import plan_schema
from gpu_ami.plan import cost
from gpu_ami.plan.document import Plan, canonical_json, digest_of, roles_path, site_files
from gpu_ami.plan.resolution import make_plan
from gpu_ami.recipes import load_facts
from tests.plan.conftest import AWS, DEBIAN, LOCAL, RECIPES, ROOT

# plan.json: digest, reader, writer.


def test_digest_covers_everything_else() -> None:
    document = dict(make_plan(DEBIAN, AWS).document)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["digest"])
    for key in document:
        if key not in ("digest", "schema", "image"):
            assert digest_of({**document, key: "changed"}) != document["digest"], key
    assert digest_of(dict(reversed(document.items()))) == document["digest"]
    assert canonical_json({"b": "ü", "a": [1]}) == '{"a":[1],"b":"ü"}'


def test_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(DEBIAN, LOCAL)
    path = plan.write(tmp_path / "out" / "x", LOCAL)
    assert Plan.load(path).document == plan.document
    assert sorted(file.name for file in path.parent.iterdir()) == ["ansible.json", "packer.pkrvars.json", "plan.json"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"schema": "gpu-ami/plan/0"}', "expected schema 'gpu-ami/plan/1', got 'gpu-ami/plan/0'"),
        ('{"schema": "gpu-ami/plan/1", "digest": "sha256:0"}', "does not match its digest"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Plan.load(path)
    with pytest.raises(UsageError, match="no such file"):
        Plan.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("instance_types", None, "instance_types: missing"),
        ("instance_types", [5], "instance_types[0]: expected a section, found '5'"),
        ("instance_types", [{"name": "g5.xlarge"}], "instance_types[0].gpu_count: missing"),
        ("os", {"id": 5}, "os.id: expected str, found '5'"),
        (
            "nvidia_driver",
            {"version": "1", "branches": {"a": 5}},
            "nvidia_driver.branches.a: expected a section, found '5'",
        ),
        ("cuda", 5, "cuda: expected a section, found '5'"),
        ("kernel", {"hold": [5]}, "kernel.hold[0]: expected str, found '5'"),
        (
            "telemetry",
            {"absent": {"g5.xlarge": "power"}},
            "telemetry.absent.g5.xlarge: expected list[str], found 'power'",
        ),
        ("roles", 5, "roles: expected list[str], found '5'"),
        ("os", "debian12", "os: expected a section, found 'debian12'"),
        ("image", {}, "image: expected str, found '{}'"),
    ],
)
def test_types_are_looked_at_where_the_digest_was_renewed(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    document: dict[str, object] = {**make_plan(DEBIAN, LOCAL).document, key: value}
    if value is None:
        del document[key]
    document["digest"] = digest_of(document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="not a plan as gpu-ami writes it") as caught:
        Plan.load(tmp_path / "plan.json")
    assert message in caught.value.details


# docs/schemas/plan.json: true of real plans, and it refuses what they are not.


COMMITTED = ROOT / "docs" / "schemas" / "plan.json"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_schema_holds_of_the_plan_of_every_recipe(recipe: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(COMMITTED.read_text()))
    for place in (AWS, LOCAL):
        errors = list(validator.iter_errors(json.loads(json.dumps(make_plan(recipe, place).document))))
        assert [f"{error.json_path}: {error.message}" for error in errors] == []


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("cuda.versoin", "13.0", "'versoin' was unexpected"),
        ("instance_types.0.vcpus", "96", "'96' is not of type 'integer'"),
        ("roles", {}, "is not of type 'array'"),
        ("schema", "gpu-ami/plan/0", "'gpu-ami/plan/1' was expected"),
        ("digest", "sha256:0", "does not match"),
        ("telemetry", {}, "'profile' is a required property"),
    ],
)
def test_schema_refuses_what_is_no_plan(path: str, value: object, message: str) -> None:
    document: Any = copy.deepcopy(dict(make_plan(DEBIAN, AWS).document))
    *parents, key = path.split(".")
    target = document
    for parent in parents:
        target = target[int(parent) if parent.isdigit() else parent]
    target[key] = value
    with pytest.raises(jsonschema.ValidationError, match=message):
        jsonschema.Draft202012Validator(plan_schema()).validate(document)


# Prices, the estimate of a run, and --max-cost.


PLAN = {"build": {"instance_type": "m6i.2xlarge"}}


def test_every_price_is_of_an_instance_type_and_the_list_has_a_source() -> None:
    listed = load_facts().prices["on_demand"]
    assert listed["source"] and date.fromisoformat(listed["date"])
    assert all(price > 0 for price in listed["hourly_usd"].values())
    priced = listed["hourly_usd"].keys() & load_facts().instance_types["instance_types"].keys()
    assert len(priced) > 90 and cost.hourly_usd("p5e.48xlarge") is None


def test_an_estimate_counts_all_machines() -> None:
    plan: Any = {"build": {"instance_type": "m6i.2xlarge"}}
    two = cost.estimate(plan, ["p5.48xlarge"], build=True, nodes=2)
    assert two.hours == {"p5.48xlarge": 3.0, "m6i.2xlarge": 1.0}
    assert two.usd == pytest.approx(2 * 1.5 * 55.04 + 0.384, abs=0.01)


def test_an_estimate_names_hours_prices_and_what_is_unknown() -> None:
    found = cost.estimate(PLAN, ["g5.12xlarge", "p5.48xlarge", "trn2.48xlarge"], build=True)
    hours = {"g5.12xlarge": 0.75, "p5.48xlarge": 1.5, "trn2.48xlarge": 0.75, "m6i.2xlarge": 1.0}
    assert found.hours == hours and found.unknown == ("trn2.48xlarge",)
    assert found.usd == pytest.approx(0.75 * 5.672 + 1.5 * 55.04 + 0.384, abs=0.01)
    assert "+ trn2.48xlarge (price unknown)" in found.text and "On-Demand, us-east-1, 2026-07-20" in found.text
    assert "m6i.2xlarge" not in cost.estimate(PLAN, ["g5.12xlarge"], build=False).hours


@pytest.mark.parametrize(("day", "old"), [(date(2026, 8, 1), ""), (date(2027, 7, 20), ", 365 days old")])
def test_old_prices_say_so(day: date, old: str) -> None:
    assert cost.basis(day) == f"On-Demand, us-east-1, 2026-07-20{old}"


@pytest.mark.parametrize(
    ("types", "limit", "message"),
    [(["g5.12xlarge"], 1.0, "expected cost: 4.25 USD"), (["trn2.48xlarge"], 999.0, "no price of trn2.48xlarge")],
)
def test_a_run_that_would_cost_more_is_refused(types: list[str], limit: float, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        cost.require_within(cost.estimate(PLAN, types, build=False), limit)
    assert caught.value.exit_code == 2
    cost.require_within(cost.estimate(PLAN, ["g5.12xlarge"], build=False), 5.0)
    cost.require_within(cost.estimate(PLAN, types, build=False), cost.NO_LIMIT)


def test_a_type_without_a_price_runs_by_the_place_s_own_or_with_no_limit_said() -> None:
    """Without --max-cost it ran without any limit, and nobody had been told what it costs."""
    unknown = cost.estimate(PLAN, ["trn2.48xlarge"], build=False)
    with pytest.raises(UsageError, match=r"^no price of trn2\.48xlarge") as caught:
        cost.require_within(unknown, None)
    assert "prices: {trn2.48xlarge: USD}" in caught.value.hint and "--max-cost none" in caught.value.hint
    cost.require_within(unknown, None, is_billed=False)
    cost.require_within(unknown, cost.NO_LIMIT)
    own = {"trn2.48xlarge": 50.0}
    priced = cost.estimate(PLAN, ["trn2.48xlarge"], build=False, own=own)
    assert (priced.usd, priced.unknown) == (37.5, ())
    cost.require_within(priced, None)
    assert cost.MachineTime("trn2.48xlarge", 3600.0, own).usd == 50.0
    assert cost.Budget(100.0, 50.0, own).seconds_left("trn2.48xlarge") == 3600.0
    assert cost.Budget(cost.NO_LIMIT, 0.0, own).seconds_left("trn2.48xlarge") is None


def test_metrics_of_a_month_are_counted() -> None:
    """13 measurements of 8 GPUs and of all of them: 117 metrics."""
    measured = [f"m{number}" for number in range(13)]
    metrics = {
        "metrics_collected": {"nvidia_gpu": {"measurement": measured}},
        "aggregation_dimensions": [["InstanceId"]],
    }
    plan: Any = {
        "instance_types": [{"name": "p5.48xlarge", "gpu_count": 8}, {"name": "g5.xlarge", "gpu_count": 1}],
        "cloudwatch_agent": {"gpu_config": {"metrics": metrics}},
        "telemetry": {"absent": {"g5.xlarge": ["m0", "m1"]}},
    }
    text = cost.telemetry(plan, ["p5.48xlarge", "g5.xlarge"])
    assert "p5.48xlarge 117 (35.10 USD), g5.xlarge 22 (6.60 USD)" in text and "0.30 USD each" in text
    assert cost.telemetry({**plan, "cloudwatch_agent": {}}, ["p5.48xlarge"]) == ""


def test_machine_time_is_billed_by_the_second_a_minute_at_least() -> None:
    assert cost.MachineTime("g5.12xlarge", 1800.0).usd == pytest.approx(2.836)
    assert cost.MachineTime("g5.12xlarge", 5.0).usd == pytest.approx(5.672 / 60)
    assert cost.MachineTime("trn2.48xlarge", 5.0).usd is None
    times = [cost.MachineTime("g5.12xlarge", 3600.0), cost.MachineTime("trn2.48xlarge", 3600.0)]
    assert cost.spent_usd(times) == pytest.approx(5.672)


@pytest.mark.parametrize(("text", "usd"), [("25", 25.0), ("7.50", 7.5), ("none", cost.NO_LIMIT)])
def test_a_limit_is_an_amount_or_expressly_none(text: str, usd: float | None) -> None:
    assert options.dollars(text) == usd


@pytest.mark.parametrize("text", ["None", "0", "-1", "nan", "inf", "much"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="or none"):
        options.dollars(text)


@pytest.mark.parametrize("link", ["site", "site/checks", "site/roles", "site/checks/test_mine.py"])
def test_files_of_a_site_are_not_where_a_link_leads(link: str, tmp_path: Path) -> None:
    """A plan's folder may be one that somebody sent: its checks and roles are those that were signed with it."""
    elsewhere = tmp_path / "elsewhere"
    for folder in (elsewhere, elsewhere / "checks", elsewhere / "roles"):
        folder.mkdir()
        (folder / "test_mine.py").write_text("")
    out = tmp_path / "out"
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere / "checks/test_mine.py" if link.endswith(".py") else elsewhere)
    with pytest.raises(UsageError, match="a symbolic link, expected a file or folder of its own"):
        site_files(out, "checks", "test_{}.py", ())
        roles_path(out / "site")
