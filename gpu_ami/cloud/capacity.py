"""Where capacity for a launch comes from: subnets and ways of a place, tried in order until one has it.

Ways are `on-demand`, `spot`, `reservation:ID` (an On-Demand Capacity Reservation) and `capacity-block:ID` (a Capacity
Block for ML). Each attempt is remembered, so that an error names all of them. Source: EC2 API reference, RunInstances
(InstanceMarketOptions, CapacityReservationSpecification), read 2026-11-22.
"""

from __future__ import annotations

import fnmatch
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gpu_ami.cloud import aws_errors, runs
from gpu_ami.errors import CapacityError, MachineError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import RunInstancesRequestTypeDef

    from gpu_ami.cloud.place import Place

ON_DEMAND, SPOT, RESERVATION, CAPACITY_BLOCK = "on-demand", "spot", "reservation", "capacity-block"
# Packer cannot ask for all of these as iam/ and sweep need it: with 1.7 and later, Spot is CreateFleet with a launch
# template that has no tags of the run; no Packer targets a reservation (amazon 1.8.2 crashes,
# hashicorp/packer-plugin-amazon#684) or knows Capacity Blocks. gpu-ami launches such a builder itself
# (gpu_ami.build.builder).
_BY_SESSION = "Packer reaches a builder that it did not launch by its address alone, not by Session Manager"
LAUNCHED = "launched"  # the answer of an attempt that succeeded
_ROUND_SECONDS = 60.0  # between two rounds through all subnets and ways
_Launched = TypeVar("_Launched")


@dataclass(frozen=True)
class Way:
    """How capacity is bought. reservation: id of the Capacity Reservation or Capacity Block; "" for other kinds."""

    kind: str = ON_DEMAND
    reservation: str = ""

    @staticmethod
    def parse(text: str) -> Way:
        kind, _, reservation = text.partition(":")
        return Way(kind, reservation)

    def __str__(self) -> str:
        return f"{self.kind}:{self.reservation}" if self.reservation else self.kind

    def add_to(self, request: RunInstancesRequestTypeDef) -> None:
        """Adds what RunInstances needs for this way."""
        if self.kind == SPOT:  # one-time: a persistent request would launch another instance after this one has ended
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}  # type: ignore[typeddict-item]
        if self.kind == CAPACITY_BLOCK:
            request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if self.reservation:
            target = {"CapacityReservationId": self.reservation}
            request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}  # type: ignore[typeddict-item]


@dataclass(frozen=True)
class Attempt:
    """One launch. at: RFC 3339, UTC. zone: "" where AWS did not say. answer: what AWS said, or `launched`.

    instance_id: of what runs; of several machines of one call, all ids with commas.
    """

    at: str
    instance_type: str
    subnet_id: str
    zone: str
    way: str
    answer: str
    instance_id: str = ""

    def __str__(self) -> str:
        subnet = self.subnet_id or "a subnet of the default VPC"
        where = f"{self.zone} ({subnet})" if self.zone else subnet
        return f"{self.at} {self.instance_type} in {where}, {self.way}: {self.answer}"


def ways_of(place: Place, instance_type: str) -> tuple[Way, ...]:
    """The ways of an instance type, in order: those of the first pattern in `capacity` that matches it."""
    matching = (ways for like, ways in place.capacity.ways.items() if fnmatch.fnmatchcase(instance_type, like))
    return tuple(Way.parse(text) for text in next(matching, (ON_DEMAND,)))


def builder_types(place: Place, planned: str, architecture: str) -> tuple[str, ...]:
    """The instance types of a builder in the order in which they are tried: the plan's, then the place's."""
    return tuple(dict.fromkeys((planned, *place.capacity.builder_types.get(architecture, ()))))


def is_of_packer(way: Way, is_open: Callable[[str], bool] = lambda _: False) -> bool:
    """Whether Packer itself can launch the builder so: On-Demand, or in a reservation that is open.

    is_open: whether a reservation takes every launch that matches it.
    """
    return way.kind == ON_DEMAND or (way.kind == RESERVATION and is_open(way.reservation))


def ways_of_builder(
    place: Place, instance_type: str, is_open: Callable[[str], bool] = lambda _: False
) -> tuple[Way, ...]:
    """The ways of a builder, in the order of the place. UsageError: none of them leads to a builder in this place."""
    ways = ways_of(place, instance_type)
    if place.login.ssh_interface != "session_manager":
        return ways
    usable = tuple(way for way in ways if is_of_packer(way, is_open))
    if not usable:
        raise UsageError(
            "capacity: expected on-demand or an open reservation among the ways of the builder"
            f" ({instance_type}), got {', '.join(map(str, ways))}",
            details=[f"ssh_interface session_manager: {_BY_SESSION}"],
            hint=f'add "{instance_type}": [on-demand] before the other patterns of capacity, or use jump_host',
        )
    return usable


def search_types(
    types: Sequence[str], search_of: Callable[[str], Search], launch: Callable[[str, Way, str], _Launched], minutes: int
) -> _Launched:
    """What `launch(type, way, subnet id)` returns for the first type that has capacity anywhere.

    All types are tried in each round, for so many minutes. CapacityError names every attempt of every type.
    """
    deadline = time.monotonic() + 60.0 * minutes
    failed: list[CapacityError] = []
    while True:
        for name in types:
            search = search_of(name)
            try:
                return search.run(functools.partial(launch, name))
            except CapacityError as error:
                failed.append(error)
        if time.monotonic() + _ROUND_SECONDS > deadline:
            break
        if search.wait(_ROUND_SECONDS):
            raise MachineError(f"{' or '.join(types)} was not launched: the run was interrupted")
    if len(failed) == 1:
        raise failed[0]
    last, lines = failed[-1], [line for error in failed for line in error.details]
    cause = last.message.rpartition("; the last: ")[2]
    message = f"no capacity for {' or '.join(types)} in {len(lines)} attempts; the last: {cause}"
    raise CapacityError(message, details=lines, hint=last.hint, code=last.code)


@dataclass
class Search:
    """The search for capacity for one launch. zone_of: a subnet's zone; reservation_zone: a reservation's; "" unknown.

    wait: sleeps, and says whether the run was cancelled meanwhile. on_attempt: gets each attempt, the one that succeeds
    included; `attempts` are those that found no capacity.
    """

    place: Place
    instance_type: str
    ways: Sequence[Way]
    zone_of: Callable[[str], str]
    reservation_zone: Callable[[str], str] = lambda _: ""
    wait: Callable[[float], object] = time.sleep
    on_attempt: Callable[[Attempt], object] = lambda _: None

    def __post_init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._last: CapacityError | None = None

    def run(self, launch: Callable[[Way, str], _Launched]) -> _Launched:
        """What `launch(way, subnet id)` returns where there is capacity.

        CapacityError names every attempt; other errors end the search.
        """
        deadline = time.monotonic() + 60.0 * self.place.capacity.minutes
        while True:
            for way, subnet_id in self._round():
                try:
                    launched = launch(way, subnet_id)
                except CapacityError as error:
                    self._note(way, subnet_id, error)
                    continue
                self.on_attempt(self._attempt(way, subnet_id, LAUNCHED, _identity(launched)))
                return launched
            if time.monotonic() + _ROUND_SECONDS > deadline:
                raise self._error()
            if self.wait(_ROUND_SECONDS):
                raise MachineError(f"{self.instance_type} was not launched: the run was interrupted")

    def _round(self) -> Iterator[tuple[Way, str]]:
        """Each way with each subnet; not those that the last answer rules out."""
        for way in self.ways:
            zone = self.reservation_zone(way.reservation) if way.reservation else ""
            subnets = [
                subnet_id
                for subnet_id in self.place.network.subnets
                if not zone or self.zone_of(subnet_id) in ("", zone)
            ]
            if not subnets:
                text = f"{way} is in {zone}, and no subnet of the place is"
                self._note(way, "", CapacityError(text, hint=f"add a subnet in {zone} to subnet_ids"))
            for subnet_id in subnets:
                yield way, subnet_id
                if self._last and aws_errors.is_quota(self._last.code):
                    break  # a quota is the region's, whatever the subnet

    def _note(self, way: Way, subnet_id: str, error: CapacityError) -> None:
        self._last = error
        answer = f"{error.code}: {' '.join(error.details)}" if error.code else error.message
        self.attempts.append(self._attempt(way, subnet_id, answer))
        self.on_attempt(self.attempts[-1])

    def _attempt(self, way: Way, subnet_id: str, answer: str, instance_id: str = "") -> Attempt:
        zone = self.zone_of(subnet_id) if subnet_id else ""
        return Attempt(runs.as_text(runs.now()), self.instance_type, subnet_id, zone, str(way), answer, instance_id)

    def _error(self) -> CapacityError:
        last = self._last
        assert last  # a round without an error has returned
        lines = [str(attempt) for attempt in self.attempts]
        if len(lines) == 1:
            return CapacityError(last.message, details=lines, hint=last.hint, code=last.code)
        message = f"no capacity for {self.instance_type} in {len(lines)} attempts; the last: {last.message}"
        return CapacityError(message, details=lines, hint=last.hint, code=last.code)


def _identity(launched: object) -> str:
    if isinstance(launched, list):
        return ", ".join(map(str, launched))
    return launched if isinstance(launched, str) else ""
