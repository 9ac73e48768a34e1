"""What machines cost: hourly prices from variables/facts/prices.yml, the estimate of a run, and a limit.

Instances alone, at On-Demand prices: volumes, snapshots, logs and traffic of a run are cents.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

from gpu_ami.errors import UsageError
from gpu_ami.recipes import PlanDocument, load_facts
from validator.plan_document import InstanceType

# Hours for which a machine of a run is paid, by pattern of the instance type: two restarts and three passes of the
# checks. Slow boots (bare metal, p5, p6) come on top: variables/facts/deadlines.yml has their deadlines.
BUILD_HOURS = 1.0
_PROOF_HOURS = (("*.metal*", 2.5), ("p5*", 1.5), ("p6*", 1.5), ("*", 0.75))
_OLD_DAYS = 180


NO_LIMIT = float("inf")  # --max-cost none, said expressly
NO_PRICES: Mapping[str, float] = MappingProxyType({})


def hourly_usd(instance_type: str, own: Mapping[str, float] = NO_PRICES) -> float | None:
    """Price of an hour: the place's own, else of the price list; None where neither has one."""
    price = own.get(instance_type, load_facts().prices["on_demand"]["hourly_usd"].get(instance_type))
    return None if price is None else float(price)


def basis(today: date | None = None) -> str:
    """Where the prices are from and how old they are, for whoever reads a sum."""
    listed = load_facts().prices["on_demand"]
    age = ((today or date.today()) - date.fromisoformat(listed["date"])).days
    old = f", {age} days old" if age > _OLD_DAYS else ""
    return f"On-Demand, {listed['region']}, {listed['date']}{old}"


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a run. hours: of all machines of a type, the builder's too. unknown: types without a price."""

    usd: float
    hours: Mapping[str, float]
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """One line: the sum, what is unknown, and the basis."""
        unknown = f" + {', '.join(self.unknown)} (price unknown)" if self.unknown else ""
        hours = ", ".join(f"{name} {count:g} h" for name, count in self.hours.items())
        return f"expected cost: {self.usd:.2f} USD{unknown} ({hours}; {basis()})"


def estimate(
    plan: PlanDocument,
    instance_types: Sequence[str],
    *,
    build: bool,
    nodes: int = 1,
    own: Mapping[str, float] = NO_PRICES,
) -> Estimate:
    """Of booting `nodes` machines of each instance type, and of the builder where an image is built.

    own: prices of the place.
    """
    hours = {name: nodes * _proof_hours(name) for name in instance_types}
    if build:
        builder = plan["build"]["instance_type"]
        hours[builder] = hours.get(builder, 0.0) + BUILD_HOURS
    prices = {name: hourly_usd(name, own) for name in hours}
    usd = sum(price * hours[name] for name, price in prices.items() if price is not None)
    return Estimate(round(usd, 2), hours, tuple(name for name, price in prices.items() if price is None))


def _proof_hours(instance_type: str) -> float:
    return next(hours for like, hours in _PROOF_HOURS if fnmatch.fnmatchcase(instance_type, like))


def require_within(expected: Estimate, max_cost: float | None, spent: float = 0.0, *, is_billed: bool = True) -> None:
    """UsageError, before anything is launched: the run is expected to cost more than `--max-cost`, or nobody knows.

    max_cost: None where none was said, NO_LIMIT for `none`. spent: US dollars that the run has cost already. is_billed:
    whether machines cost anything; where they do not, a type without a price needs a limit to be refused.
    """
    if max_cost == NO_LIMIT or (max_cost is None and not is_billed):
        return
    if expected.unknown:
        names = ", ".join(expected.unknown)
        hint = f"add `prices: {{{expected.unknown[0]}: USD}}` (an hour) to the --where file, leave the type out"
        more = " (--instance-type), or say --max-cost none: nothing then limits what the run costs"
        said = "" if max_cost is None else f"--max-cost {max_cost:g}: "
        raise UsageError(f"{said}no price of {names}", hint=hint + more)
    if max_cost is not None and expected.usd + spent > max_cost:
        hint = "raise it, or prove fewer instance types (--instance-type)"
        before = f"; the build has cost {spent:.2f} USD" if spent else ""
        raise UsageError(f"--max-cost {max_cost:g}: {expected.text}{before}", hint=hint)


def telemetry(plan: PlanDocument, instance_types: Sequence[str]) -> str:
    """One line: what the metrics of a machine in service cost a month; "" where the image publishes none of GPUs."""
    listed = load_facts().prices["metrics"]
    counts = {row["name"]: _metrics_of(plan, row) for row in plan["instance_types"] if row["name"] in instance_types}
    costs = [f"{name} {count} ({count * listed['month_usd']:.2f} USD)" for name, count in counts.items() if count]
    if not costs:
        return ""
    basis_of_price = f"{listed['month_usd']:.2f} USD each in {listed['region']}, {listed['date']}; logs not counted"
    return f"metrics of an instance in service, a month: {', '.join(costs)} ({basis_of_price})"


def _metrics_of(plan: PlanDocument, row: InstanceType) -> int:
    """Series that the agent publishes on an instance of a type: of each GPU, and of each rollup without its index."""
    agent = plan.get("cloudwatch_agent", {})
    metrics = agent.get("gpu_config", {}).get("metrics")
    if not metrics:
        return 0
    absent = plan["telemetry"].get("absent", {}).get(row["name"], [])
    measured = [name for name in metrics["metrics_collected"]["nvidia_gpu"]["measurement"] if name not in absent]
    rollups = [names for names in metrics["aggregation_dimensions"] if "index" not in names]
    return len(measured) * (row.get("gpu_count", 0) + len(rollups))


@dataclass(frozen=True)
class MachineTime:
    """Seconds for which an instance ran for this run. own: prices of the place."""

    instance_type: str
    seconds: float
    own: Mapping[str, float] = field(default_factory=dict)

    @property
    def usd(self) -> float | None:
        """Its cost, per second as EC2 bills it (a minute at least); None where the price is unknown."""
        price = hourly_usd(self.instance_type, self.own)
        return None if price is None else price * max(self.seconds, 60.0) / 3600.0


def spent_usd(times: Sequence[MachineTime]) -> float:
    """What machines have cost so far; those without a price count as nothing."""
    return sum(time.usd or 0.0 for time in times)


@dataclass
class Budget:
    """What a run may cost (`--max-cost`, US dollars; None, NO_LIMIT: no limit), and what its builder has cost.

    own: prices of the place.
    """

    max_cost: float | None = None
    spent: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict)

    def seconds_left(self, instance_type: str) -> float | None:
        """For how long an instance may run; None for no limit, or where the price is unknown."""
        price = hourly_usd(instance_type, self.own)
        if self.max_cost in (None, NO_LIMIT) or not price:
            return None
        return max(0.0, (self.max_cost or 0.0) - self.spent) / price * 3600.0
