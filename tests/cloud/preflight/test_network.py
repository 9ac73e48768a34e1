"""Who may log in, as a preflight shows it; each mistake beside the others is in test_examination.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.cloud.preflight import network
from gpu_ami.cloud.preflight.findings import Level


def rule(**sources: Any) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **sources}


@pytest.mark.parametrize(
    ("rules", "level", "found"),
    [
        ([], Level.ERROR, "sg-1 do not allow TCP 22"),
        ([rule(IpRanges=[{"CidrIp": "52.94.76.7/32"}])], Level.OK, "sg-1 allow TCP 22 from 52.94.76.7/32"),
        ([rule(IpRanges=[{"CidrIp": "0.0.0.0/0"}])], Level.WARNING, "sg-1 allow TCP 22 from anywhere"),
        ([rule(PrefixListIds=[{"PrefixListId": "pl-1"}])], Level.OK, "sg-1 allow TCP 22 from pl-1"),
        ([rule(UserIdGroupPairs=[{"GroupId": "sg-9"}])], Level.WARNING, "from members of sg-9 only"),
    ],
)
def test_ssh_ingress(rules: list[Any], level: Level, found: str) -> None:
    scope: Any = SimpleNamespace(place=Place("aws", "us-east-1"))
    groups: Any = [{"GroupId": "sg-1", "IpPermissions": rules}]
    (finding,) = network._ssh_ingress(scope, groups)
    assert finding.level is level and found in finding.found
    session: Any = SimpleNamespace(place=Place("aws", "us-east-1", ssh_interface="session_manager"))
    assert list(network._ssh_ingress(session, groups)) == []
