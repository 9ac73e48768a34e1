"""Prices, the estimate of a run, and --max-cost."""

from __future__ import annotations

from datetime import date

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.plan import cost
from gpu_ami.recipes import load_facts

PLAN = {"build": {"instance_type": "m6i.2xlarge"}}


def test_every_price_is_of_an_instance_type_and_the_list_has_a_source() -> None:
    listed = load_facts().prices["on_demand"]
    assert listed["source"] and date.fromisoformat(listed["date"])
    assert all(price > 0 for price in listed["hourly_usd"].values())
    priced = listed["hourly_usd"].keys() & load_facts().instance_types["instance_types"].keys()
    assert len(priced) > 90 and cost.hourly_usd("p5e.48xlarge") is None


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
    cost.require_within(cost.estimate(PLAN, types, build=False), None)


def test_machine_time_is_billed_by_the_second_a_minute_at_least() -> None:
    assert cost.MachineTime("g5.12xlarge", 1800.0).usd == pytest.approx(2.836)
    assert cost.MachineTime("g5.12xlarge", 5.0).usd == pytest.approx(5.672 / 60)
    assert cost.MachineTime("trn2.48xlarge", 5.0).usd is None
    times = [cost.MachineTime("g5.12xlarge", 3600.0), cost.MachineTime("trn2.48xlarge", 3600.0)]
    assert cost.spent_usd(times) == pytest.approx(5.672)
