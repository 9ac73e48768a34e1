"""Rules of security groups: what they allow, and how those of conditions are set."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.local.backends import security_groups
from gpu_ami.local.backends.security_groups import GroupRules, Rule
from tests.local.conftest import SSH_PORT, World


def group_with(world: World, *ingress: Rule, egress: tuple[Rule, ...] = ()) -> Any:
    security_groups.set_rules(world.ec2.backend, world.ec2.group_id, GroupRules(ingress, egress), 2222)
    return world.ec2.backend.get_security_group_from_id(world.ec2.group_id)


@pytest.mark.parametrize(
    ("rule", "port", "source", "allowed"),
    [
        (Rule("ssh", "127.0.0.0/8"), 2222, "127.0.0.1", True),
        (Rule("ssh", "127.0.0.0/8"), 22, "127.0.0.1", False),
        (Rule("ssh", "10.0.0.0/8"), 2222, "127.0.0.1", False),
        (Rule("2000-3000"), 2222, "127.0.0.1", True),
        (Rule("2000-2221"), 2222, "127.0.0.1", False),
        (Rule("443"), 2222, "127.0.0.1", False),
        (Rule("all"), 2222, "127.0.0.1", True),
    ],
)
def test_a_rule_allows_its_ports_from_its_network(
    world: World, rule: Rule, port: int, source: str, allowed: bool
) -> None:
    group = group_with(world, rule)
    assert security_groups.allows_ingress([group], port, source) is allowed
    assert not security_groups.allows_egress([group], port, source)  # the rules are all that there are
    group = group_with(world, egress=(rule,))
    assert security_groups.allows_egress([group], port, source) is allowed


def test_rules_of_several_groups_add_up(world: World) -> None:
    closed = world.ec2.backend.create_security_group("closed", "d", vpc_id=world.ec2.vpc_id)
    assert not security_groups.allows_ingress([closed], 2222, "127.0.0.1")
    assert security_groups.allows_ingress([closed, group_with(world, Rule("ssh"))], 2222, "127.0.0.1")


def test_a_rule_for_members_of_a_group_lets_nobody_else_in(world: World) -> None:
    group = group_with(world)
    pairs = [{"GroupId": group.id}]
    world.ec2.backend.authorize_security_group_ingress(group.id, "tcp", 2222, 2222, [], source_groups=pairs)
    assert group.ingress_rules and not security_groups.allows_ingress([group], 2222, "127.0.0.1")


@pytest.mark.parametrize(
    ("ingress", "egress", "allowed"),
    [
        (Rule("all", "members"), Rule("all", "members"), True),
        (Rule("all", "members"), Rule("all"), True),
        (Rule("all"), Rule("all"), False),
        (Rule("22", "members"), Rule("all"), False),
        (Rule("all", "members"), Rule("443"), False),
    ],
)
def test_traffic_of_members_needs_rules_both_ways(world: World, ingress: Rule, egress: Rule, allowed: bool) -> None:
    assert security_groups.allows_members([group_with(world, ingress, egress=(egress,))]) is allowed


def test_a_region_without_filters_lets_members_reach_each_other(world: World) -> None:
    assert security_groups.allows_members(world.ec2.groups_of(world.launch()))


def test_an_instance_without_groups_is_in_the_default_one(world: World) -> None:
    instance = world.launch(security_group_ids=[])
    assert [group.name for group in world.ec2.groups_of(instance)] == ["default"]
    assert [group.id for group in world.ec2.groups_of(world.launch())] == [world.ec2.group_id]


@pytest.mark.parametrize("named", [True, False])
def test_without_filtering_the_groups_say_that_a_login_works(world: World, named: bool) -> None:
    """A proof reads the rules before it waits for a login: what is not filtered must not look closed."""
    instance = world.launch() if named else world.launch(security_group_ids=[])
    assert world.rules is None
    assert security_groups.allows_ingress(world.ec2.groups_of(instance), SSH_PORT, "127.0.0.1")
