"""What is missing in a list of EC2 while it is unknown."""

from __future__ import annotations

from gpu_ami.local.api.listings import without

ANSWER = b"""<?xml version="1.0"?><DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet>
<item><reservationId>r-1</reservationId><instancesSet>
<item><instanceId>i-1</instanceId><groupSet><item><groupId>sg-1</groupId></item></groupSet></item>
<item><instanceId>i-2</instanceId></item></instancesSet></item>
<item><reservationId>r-2</reservationId><instancesSet><item><instanceId>i-3</instanceId></item></instancesSet></item>
</reservationSet></DescribeInstancesResponse>"""


def test_unknown_instances_and_their_empty_reservations_are_missing() -> None:
    listed = without(ANSWER, "DescribeInstances", lambda name: name in ("i-2", "i-3", "sg-1")).decode()
    assert "i-1" in listed and "sg-1" in listed and "r-1" in listed
    assert "i-2" not in listed and "i-3" not in listed and "r-2" not in listed
    assert 'xmlns="http://ec2.amazonaws.com/' in listed


def test_other_answers_stay_byte_for_byte() -> None:
    assert without(ANSWER, "DescribeInstances", lambda _: False) == ANSWER
    assert without(b"not XML", "RunInstances", lambda _: True) == b"not XML"
