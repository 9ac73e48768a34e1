"""Which instances are managed nodes, and who is online."""

from __future__ import annotations

import pytest

from gpu_ami.local.backends.systems_manager import Refused
from gpu_ami.local.backends.systems_manager.nodes import Nodes
from tests.local.conftest import Clock, World


def test_a_node_is_online_while_its_agent_asks(world: World) -> None:
    clock, instance = Clock(100.0), world.launch()
    nodes = Nodes(world.ec2, clock, silent_seconds=30)
    with pytest.raises(Refused, match="not registered"):
        nodes.ping(instance.id)
    assert [nodes.report(instance.id, {"PlatformName": "Debian"}) for _ in range(2)] == [True, False]
    clock.now += 29
    assert nodes.describe([])[0]["PingStatus"] == "Online"
    clock.now += 2
    (row,) = nodes.describe([{"Key": "PingStatus", "Values": ["ConnectionLost"]}])
    assert (row["InstanceId"], row["PlatformName"], row["RegistrationDate"]) == (instance.id, "Debian", 100.0)
    nodes.ping(instance.id)
    assert nodes.is_online(instance.id)


def test_targets_select_by_id_and_tag(world: World) -> None:
    nodes = Nodes(world.ec2)
    ids = [world.launch(tags={"instance": {"fleet": name}}).id for name in "ab"]
    for each in ids:
        nodes.report(each, {})
    assert nodes.matching([{"Key": "tag:fleet", "Values": ["a"]}]) == [ids[0]]
    assert nodes.matching([{"Key": "InstanceIds", "Values": [ids[1]]}]) == [ids[1]]
    with pytest.raises(Refused, match="InvalidTarget"):
        nodes.matching([{"Key": "resource-groups:Name", "Values": ["x"]}])


def test_a_terminated_instance_is_no_node(world: World) -> None:
    nodes, instance = Nodes(world.ec2), world.launch()
    nodes.report(instance.id, {})
    world.ec2.set_state(instance, "terminated")
    assert nodes.describe([]) == [] and not nodes.is_managed(instance.id)
    with pytest.raises(Refused, match="InvalidInstanceId"):
        nodes.report(instance.id, {})


def test_an_unknown_filter_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="InvalidFilterKey"):
        Nodes(world.ec2).describe([{"Key": "AgentVersion", "Values": ["1"]}])
