"""Which machines are meant, and which can be reached."""

from __future__ import annotations

import pytest

from gpu_ami.cloud.fleet import FleetMachine, Selection, machines
from gpu_ami.errors import CloudError, UsageError
from tests.fleet.service_machines import Fleet


@pytest.mark.parametrize(
    ("ids", "tags", "group", "message"),
    [
        ([], [], "", "name the machines"),
        (["i-1"], ["a=b"], "", "name the machines"),
        ([], ["training"], "", "--tag: expected KEY=VALUE, got 'training'"),
        ([], ["=x"], "", "--tag: expected KEY=VALUE"),
    ],
)
def test_a_selection_needs_one_kind(ids: list[str], tags: list[str], group: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selection.of(ids, tags, group)


def test_a_group_is_the_tag_that_auto_scaling_sets() -> None:
    chosen = Selection.of([], ["fleet=a=b"], "train")
    assert chosen.tags == {"fleet": "a=b", "aws:autoscaling:groupName": "train"}
    assert chosen.targets[1] == {"Key": "tag:aws:autoscaling:groupName", "Values": ["train"]}


def test_machines_are_found_with_their_agents(in_service: Fleet) -> None:
    managed, unmanaged = in_service.add(), in_service.add(start=False)
    in_service.wait()
    rows = {row.instance_id: row for row in machines.find(in_service.cloud, Selection(tags={"fleet": "train"}))}
    assert rows[managed.instance_id].silence == "" and rows[managed.instance_id].addresses["private_ip"]
    assert "does not manage it" in rows[unmanaged.instance_id].silence
    by_id = machines.find(in_service.cloud, Selection((managed.instance_id,)))
    assert [row.instance_id for row in by_id] == [managed.instance_id]


def test_none_is_a_mistake_and_an_unknown_id_an_error(in_service: Fleet) -> None:
    with pytest.raises(UsageError, match="no instance in us-east-1 has fleet=none"):
        machines.find(in_service.cloud, Selection(tags={"fleet": "none"}))
    with pytest.raises(CloudError, match=r"InvalidInstanceID\.NotFound"):
        machines.find(in_service.cloud, Selection(("i-0123456789abcdef0",)))


@pytest.mark.parametrize(
    ("state", "ping", "words"),
    [("stopped", "Online", "stopped"), ("running", "ConnectionLost", "ConnectionLost"), ("running", "", "AmazonSSM")],
)
def test_silence_has_a_reason(state: str, ping: str, words: str) -> None:
    assert words in FleetMachine("i-1", "g5.12xlarge", state, ping=ping).silence
