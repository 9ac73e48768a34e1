from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud.preflight import network


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"IpProtocol": "-1"}, True),
        ({"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}, True),
        ({"IpProtocol": "6", "FromPort": 0, "ToPort": 65535}, True),
        ({"IpProtocol": "tcp", "FromPort": 23, "ToPort": 80}, False),
        ({"IpProtocol": "udp", "FromPort": 22, "ToPort": 22}, False),
        ({"IpProtocol": "icmp", "FromPort": -1, "ToPort": -1}, False),
    ],
)
def test_rule_covers_ssh(rule: dict[str, Any], expected: bool) -> None:
    assert network._covers(rule, 22) is expected
