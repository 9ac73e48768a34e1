"""Condition files: what is read, what is refused, and that a seed repeats a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from localregion.api import conditions
from localregion.api.conditions import Conditions, Decisions, ErrorRule, LaunchFailure
from localregion.api.protocol import ServiceCall

DESCRIBE = ServiceCall("ec2", "DescribeInstances", "ec2")


def launch(instance_type: str) -> ServiceCall:
    return ServiceCall("ec2", "RunInstances", "ec2", {"InstanceType": instance_type})


@pytest.mark.parametrize("name", conditions.names())
def test_every_file_is_valid_and_described(name: str) -> None:
    found = conditions.load(name)
    assert (found.name, bool(found.description)) == (name, True)
    differs = found.consistency.most or found.policies or found.delays != conditions.NONE.delays
    assert found.errors or found.launch_failures or found.security_groups or differs


def test_aws_like_includes_what_it_names() -> None:
    found = conditions.load("aws-like:7")
    assert (found.seed, found.consistency) == (7, conditions.load("consistency").consistency)
    assert {rule.error for rule in found.errors} == {"insufficient-capacity", "throttling"}
    assert found.delays.boot and found.delays.log_events


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("- a", ["(whole file): expected keys and values, got a list of 1"]),
        ("description: 1", ["description: expected text such as what AWS does, got 1; in YAML write"]),
        ("throtling: []", ["throtling: unknown key; allowed: description, include"]),
        ("errors: {}", ["errors: expected a list with at least one item, got an empty mapping"]),
        ("errors: [{error: throttling}]", ["errors[0].actions: missing: expected a list"]),
        ("errors: [{error: throttlin, actions: ['*']}]", ["errors[0].error: expected one of", "mean throttling?"]),
        (
            "errors: [{error: throttling, actions: ['*'], probability: 2}]",
            ["errors[0].probability: expected a number from 0 to 1, got 2"],
        ),
        (
            "delays: {boot: -1, stop: soon}",
            ["delays.boot: expected a number that is not negative, got -1", "delays.stop: ", "got 'soon'"],
        ),
        ("consistency: {seconds: 1}", ["consistency.seconds: unknown key; allowed: least, most, known_at_once"]),
        ("include: [aws-lik]", ["include[0]: expected one of", "did you mean aws-like?"]),
        ("policies: {caller: [caller-build]}", ["policies.instance: missing"]),
        ("security_groups: {ingress: [{ports: smtp}]}", ["ingress[0].ports: expected ssh, all, a port"]),
        (
            "security_groups: {egress: [{ports: 9-1}, {ports: '1', cidr: 10.0.0.0/99}]}",
            ["egress[0].ports: expected ssh, all, a port or a range", "egress[1].cidr: expected `members` or a"],
        ),
    ],
)
def test_all_mistakes_are_named_with_their_keys(tmp_path: Path, text: str, messages: list[str]) -> None:
    file = tmp_path / "bad.yml"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"{file}: [12] mistake") as caught:
        conditions.read(file)
    assert [message for message in messages if message not in "\n".join(caught.value.details)] == []


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no conditions 'aws'") as caught:
        conditions.load("aws")
    assert "aws-like, consistency" in caught.value.hint
    with pytest.raises(UsageError, match="expected a whole number as seed, got 'x'"):
        conditions.load("aws-like:x")
    assert conditions.load("") is conditions.NONE


def decide(seed: int, calls: list[ServiceCall]) -> list[bool]:
    rule = ErrorRule("throttling", ("ec2:*",), probability=0.5)
    decisions = Decisions(Conditions(seed=seed, errors=(rule,)))
    return [decisions.error(call, "us-east-1a", 0) is not None for call in calls]


def test_a_seed_decides_the_same_whatever_other_calls_come_between() -> None:
    alone = decide(1, [DESCRIBE] * 40)
    mixed = decide(1, [call for _ in range(40) for call in (launch("g5.xlarge"), DESCRIBE)])[1::2]
    assert alone == mixed
    assert 8 < sum(alone) < 32
    assert decide(2, [DESCRIBE] * 40) != alone


def test_a_rule_ends_after_its_times_and_begins_after_its_time() -> None:
    rules = (ErrorRule("insufficient-capacity", ("ec2:RunInstances",), times=2, after_seconds=60),)
    decisions = Decisions(Conditions(errors=rules))
    found = [decisions.error(launch("p5.48xlarge"), "us-east-1a", uptime) for uptime in (0, 60, 61, 62)]
    assert [bool(error) for error in found] == [False, True, True, False]


def test_a_rule_is_for_its_instance_types_and_zones() -> None:
    rule = ErrorRule(
        "unsupported-in-zone", ("ec2:RunInstances",), instance_types=("p5.48xlarge",), zones=("us-east-1a",)
    )
    decisions = Decisions(Conditions(errors=(rule,)))
    error = decisions.error(launch("p5.48xlarge"), "us-east-1a", 0)
    assert error is not None and "(p5.48xlarge) is not supported in your requested Availability Zone" in error.message
    assert decisions.error(launch("g5.xlarge"), "us-east-1a", 0) is None
    assert decisions.error(launch("p5.48xlarge"), "us-east-1b", 0) is None


def test_a_launch_failure_ends_after_its_times() -> None:
    rule = LaunchFailure("Server.InsufficientInstanceCapacity", "m", times=1, instance_types=("p5.48xlarge",))
    decisions = Decisions(Conditions(launch_failures=(rule,)))
    assert decisions.launch_failure("g5.xlarge") is None
    assert decisions.launch_failure("p5.48xlarge") == ("Server.InsufficientInstanceCapacity", "m")
    assert decisions.launch_failure("p5.48xlarge") is None


@pytest.mark.parametrize(("name", "label"), [("aws-like", "aws-like:1"), ("aws-like:7", "aws-like:7"), ("", "")])
def test_the_label_repeats_the_conditions(name: str, label: str) -> None:
    assert conditions.load(name).label == label
