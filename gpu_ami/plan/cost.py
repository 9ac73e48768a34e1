"""What machines cost: hourly prices from variables/facts/prices.yml, the estimate of a run, and a limit.

Instances alone, at On-Demand prices: volumes, snapshots, logs and traffic of a run are cents.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from gpu_ami.errors import UsageError
from gpu_ami.recipes import PlanDocument, load_facts

# Hours for which a machine of a run is paid, by pattern of the instance type: two restarts and three passes of the
# checks. Slow boots (bare metal, p5, p6) come on top: variables/facts/deadlines.yml has their deadlines.
BUILD_HOURS = 1.0
_PROOF_HOURS = (("*.metal*", 2.5), ("p5*", 1.5), ("p6*", 1.5), ("*", 0.75))
_OLD_DAYS = 180


def hourly_usd(instance_type: str) -> float | None:
    """Price of an hour in the region of the price list; None where it has none."""
    price = load_facts().prices["on_demand"]["hourly_usd"].get(instance_type)
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


def estimate(plan: PlanDocument, instance_types: Sequence[str], *, build: bool, nodes: int = 1) -> Estimate:
    """Of booting `nodes` machines of each instance type, and of the builder where an image is built."""
    hours = {name: nodes * _proof_hours(name) for name in instance_types}
    if build:
        builder = plan["build"]["instance_type"]
        hours[builder] = hours.get(builder, 0.0) + BUILD_HOURS
    prices = {name: hourly_usd(name) for name in hours}
    usd = sum(price * hours[name] for name, price in prices.items() if price is not None)
    return Estimate(round(usd, 2), hours, tuple(name for name, price in prices.items() if price is None))


def _proof_hours(instance_type: str) -> float:
    return next(hours for like, hours in _PROOF_HOURS if fnmatch.fnmatchcase(instance_type, like))


def require_within(expected: Estimate, max_cost: float | None, spent: float = 0.0) -> None:
    """UsageError, before anything is launched: the run is expected to cost more than `--max-cost`, or nobody knows.

    spent: US dollars that the run has cost already.
    """
    if max_cost is None:
        return
    if expected.unknown:
        hint = "leave the type out (--instance-type), or say --max-cost none: nothing then limits what the run costs"
        raise UsageError(f"--max-cost {max_cost:g}: no price of {', '.join(expected.unknown)}", hint=hint)
    if expected.usd + spent > max_cost:
        hint = "raise it, or prove fewer instance types (--instance-type)"
        before = f"; the build has cost {spent:.2f} USD" if spent else ""
        raise UsageError(f"--max-cost {max_cost:g}: {expected.text}{before}", hint=hint)


@dataclass(frozen=True)
class MachineTime:
    """Seconds for which an instance ran for this run."""

    instance_type: str
    seconds: float

    @property
    def usd(self) -> float | None:
        """Its cost, per second as EC2 bills it (a minute at least); None where the price is unknown."""
        price = hourly_usd(self.instance_type)
        return None if price is None else price * max(self.seconds, 60.0) / 3600.0


def spent_usd(times: Sequence[MachineTime]) -> float:
    """What machines have cost so far; those without a price count as nothing."""
    return sum(time.usd or 0.0 for time in times)


@dataclass
class Budget:
    """What a run may cost (`--max-cost`, US dollars; None: no limit), and what its builder has cost."""

    max_cost: float | None = None
    spent: float = 0.0

    def seconds_left(self, instance_type: str) -> float | None:
        """For how long an instance may run; None for no limit, or where the price is unknown."""
        price = hourly_usd(instance_type)
        if self.max_cost is None or not price:
            return None
        return max(0.0, self.max_cost - self.spent) / price * 3600.0
