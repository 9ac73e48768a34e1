"""The order in which capacity is searched for, and what the error names."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud import Place, aws_errors, capacity, place_of
from gpu_ami.cloud.capacity import Search, Way, ways_of
from gpu_ami.errors import CapacityError, CloudError, MachineError, UsageError
from validator.aws import CAPACITY_ADVICE

A, B = "subnet-0000000a", "subnet-0000000b"
ZONES = {A: "us-east-1a", B: "us-east-1b"}
SHORT = "InsufficientInstanceCapacity"
Tried = list[tuple[str, str]]


def place(**changes: Any) -> Place:
    return place_of({"name": "aws", "region": "us-east-1", "subnet_ids": (A, B), **changes})


def refused(code: str, message: str = "no") -> Any:
    return aws_errors.from_code("launching p5.48xlarge", code, message)


def search(
    ways: list[str], answers: dict[tuple[str, str], str], **changes: Any
) -> tuple[Search, list[tuple[str, str]], Any]:
    """A search, the calls that it makes, and the launch: it succeeds where `answers` has no code."""
    tried: Tried = []

    def launch(way: Way, subnet_id: str) -> str:
        tried.append((str(way), ZONES.get(subnet_id, "")))
        code = answers.get(tried[-1], "")
        if code.startswith("Client."):
            raise aws_errors.from_state_reason("i-1 is terminated, expected running", code, "no")
        if code:
            raise refused(code)
        return "i-1"

    made = Search(
        place(**changes), "p5.48xlarge", [Way.parse(way) for way in ways], lambda subnet: ZONES.get(subnet, "")
    )
    return made, tried, launch


def test_the_next_subnet_is_tried_and_then_the_next_way() -> None:
    none = {("spot", "us-east-1a"): SHORT, ("spot", "us-east-1b"): SHORT, ("on-demand", "us-east-1a"): SHORT}
    made, tried, launch = search(["spot", "on-demand"], none)
    assert made.run(launch) == "i-1"
    assert tried == [*none, ("on-demand", "us-east-1b")]
    assert [attempt.zone for attempt in made.attempts] == ["us-east-1a", "us-east-1b", "us-east-1a"]


def test_the_error_names_type_zone_way_answer_and_time_of_each_attempt() -> None:
    every = {(way, zone): SHORT for way in ("spot", "on-demand") for zone in ZONES.values()}
    made, _, launch = search(["spot", "on-demand"], every)
    with pytest.raises(CapacityError, match=r"no capacity for p5\.48xlarge in 4 attempts") as caught:
        made.run(launch)
    error = caught.value
    assert error.code == SHORT and error.exit_code == 5 and error.hint == CAPACITY_ADVICE
    assert [line.partition(" ")[2] for line in error.details] == [
        f"p5.48xlarge in {zone} ({subnet}), {way}: {SHORT}: no"
        for way in ("spot", "on-demand")
        for subnet, zone in ZONES.items()
    ]
    assert all(line[:2] == "20" and line.split()[0].endswith("Z") for line in error.details)


@pytest.mark.parametrize(
    "code",
    [
        "MaxSpotInstanceCountExceeded",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "Client.VolumeLimitExceeded",  # of an instance that ended while it was pending
    ],
)
def test_a_quota_is_asked_once_a_way(code: str) -> None:
    quota = {("spot", "us-east-1a"): code}
    made, tried, launch = search(["spot", "on-demand"], quota)
    made.run(launch)
    assert tried == [("spot", "us-east-1a"), ("on-demand", "us-east-1a")]


def test_a_reservation_is_used_in_its_zone_only() -> None:
    made, tried, launch = search(["reservation:cr-00000001"], {})
    made.reservation_zone = lambda _: "us-east-1b"
    made.run(launch)
    assert tried == [("reservation:cr-00000001", "us-east-1b")]
    made, tried, launch = search(["capacity-block:cr-00000001", "on-demand"], {})
    made.reservation_zone = lambda _: "us-east-1f"
    made.run(launch)
    assert tried == [("on-demand", "us-east-1a")]
    assert "is in us-east-1f, and no subnet of the place is" in made.attempts[0].answer


def test_an_error_that_is_not_of_capacity_ends_the_search() -> None:
    made, tried, launch = search(["spot", "on-demand"], {("spot", "us-east-1a"): "UnauthorizedOperation"})
    with pytest.raises(CloudError, match="UnauthorizedOperation"):
        made.run(launch)
    assert len(tried) == 1


def test_rounds_are_repeated_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    made, tried, launch = search(
        ["on-demand"], {("on-demand", zone): SHORT for zone in ZONES.values()}, capacity_minutes=3
    )
    made.wait = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    with pytest.raises(CapacityError, match="in 8 attempts"):
        made.run(launch)
    assert len(tried) == 8 and clock == [180.0]


def test_a_cancelled_run_waits_no_longer() -> None:
    made, tried, launch = search(
        ["on-demand"], {("on-demand", zone): SHORT for zone in ZONES.values()}, capacity_minutes=9
    )
    made.wait = lambda _: True
    with pytest.raises(MachineError, match="the run was interrupted"):
        made.run(launch)
    assert len(tried) == 2


def test_each_instance_type_goes_its_way() -> None:
    where = place(capacity={"p5*": ("capacity-block:cr-00000001",), "*": ("spot", "on-demand")})
    assert ways_of(where, "p5.48xlarge") == (Way(capacity.CAPACITY_BLOCK, "cr-00000001"),)
    assert ways_of(where, "g5.12xlarge") == (Way(capacity.SPOT), Way())
    assert ways_of(place(), "g5.12xlarge") == (Way(),)


@pytest.mark.parametrize(
    ("way", "request_"),
    [
        ("on-demand", {}),
        (
            "spot",
            {
                "InstanceMarketOptions": {
                    "MarketType": "spot",
                    "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
                }
            },
        ),
        (
            "reservation:cr-1",
            {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}},
        ),
        (
            "capacity-block:cr-1",
            {
                "InstanceMarketOptions": {"MarketType": "capacity-block"},
                "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
            },
        ),
    ],
)
def test_a_way_adds_its_parameters_to_run_instances(way: str, request_: dict[str, Any]) -> None:
    request: Any = {}
    Way.parse(way).add_to(request)
    assert request == request_


def test_the_builder_takes_the_ways_of_the_place_in_order() -> None:
    ways = ("spot", "reservation:cr-00000001", "capacity-block:cr-00000003", "on-demand")
    taken = capacity.ways_of_builder(place(capacity={"*": ways}), "m6i.2xlarge")
    assert [str(way) for way in taken] == list(ways)
    assert capacity.ways_of_builder(place(), "m6i.2xlarge") == (Way(),)


@pytest.mark.parametrize(
    ("way", "by_packer"),
    [
        ("on-demand", True), ("spot", False), ("capacity-block:cr-00000002", False),
        ("reservation:cr-00000001", False), ("reservation:cr-00000002", True),
    ],
)  # fmt: skip
def test_packer_launches_what_needs_no_name(way: str, by_packer: bool) -> None:
    assert capacity.is_of_packer(Way.parse(way), lambda name: name == "cr-00000002") is by_packer


def search_types(
    monkeypatch: pytest.MonkeyPatch, full: set[str], minutes: int = 0
) -> tuple[list[tuple[str, str]], Any]:
    """What was tried, and the search for a builder of three types; `full` have no capacity anywhere."""
    clock, tried = [0.0], list[tuple[str, str]]()
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def launch(name: str, _way: Way, subnet_id: str) -> str:
        tried.append((name, ZONES[subnet_id]))
        if name in full:
            raise refused(SHORT)
        return "i-1"

    def search_of(name: str) -> Search:
        made = Search(place(), name, [Way()], lambda subnet: ZONES[subnet])
        made.wait = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        return made

    types = capacity.builder_types(
        place(builder_types={"x86_64": ("m7i.2xlarge", "m6i.2xlarge", "c7i.4xlarge"), "arm64": ("m7g.2xlarge",)}),
        "m6i.2xlarge", "x86_64",
    )  # fmt: skip
    assert types == ("m6i.2xlarge", "m7i.2xlarge", "c7i.4xlarge")
    return tried, lambda: capacity.search_types(types, search_of, launch, minutes)


def test_the_next_type_of_the_place_is_tried_after_all_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, run = search_types(monkeypatch, {"m6i.2xlarge"})
    assert run() == "i-1"
    assert tried == [("m6i.2xlarge", "us-east-1a"), ("m6i.2xlarge", "us-east-1b"), ("m7i.2xlarge", "us-east-1a")]


def test_every_type_is_tried_in_each_round_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, run = search_types(monkeypatch, {"m6i.2xlarge", "m7i.2xlarge", "c7i.4xlarge"}, minutes=1)
    with pytest.raises(CapacityError, match=r"m6i\.2xlarge or m7i\.2xlarge or c7i\.4xlarge in 12 attempts") as caught:
        run()
    assert len(tried) == 12 and tried[:6] == tried[6:]
    assert sum("m7i.2xlarge in us-east-1b" in line for line in caught.value.details) == 2


@pytest.mark.parametrize("way", ["spot", "reservation:cr-00000001", "capacity-block:cr-00000001"])
def test_with_session_manager_the_builder_is_packers(way: str) -> None:
    """Packer's null builder, which provisions a builder that gpu-ami launched, has no Session Manager."""
    by_session = place(capacity={"m6i*": (way,)}, ssh_interface="session_manager")
    with pytest.raises(
        UsageError, match=rf"on-demand or an open reservation among the ways of the builder \(m6i.2xlarge\), got {way}"
    ) as caught:
        capacity.ways_of_builder(by_session, "m6i.2xlarge")
    (detail,) = caught.value.details
    assert detail.startswith("ssh_interface session_manager: ") and "[on-demand]" in caught.value.hint
    mixed = place(capacity={"*": (way, "on-demand")}, ssh_interface="session_manager")
    assert capacity.ways_of_builder(mixed, "m6i.2xlarge") == (Way(),)
