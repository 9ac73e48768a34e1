"""The program that leads to an instance, by the place's keys."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud import Place, login
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import UsageError


def place(**keys: Any) -> Place:
    return Place("aws", "eu-central-1", **keys)


@pytest.mark.parametrize(
    ("keys", "command", "programs"),
    [
        ({}, "", []),
        (
            {"jump_host": "admin@bastion.example:2222", "jump_key": "/k"},
            "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -i /k -o IdentitiesOnly=yes -p 2222"
            " -W %h:%p admin@bastion.example",
            ["ssh"],
        ),
        (
            {"ssh_interface": "session_manager", "profile": "images"},
            "aws --region eu-central-1 --profile images ssm start-session --target i-1 --document-name"
            " AWS-StartSSHSession --parameters portNumber=%p",
            ["aws", "session-manager-plugin"],
        ),
        (
            {"instance_connect_endpoint": "eice-00000001"},
            "aws --region eu-central-1 ec2-instance-connect open-tunnel --instance-id i-1"
            " --instance-connect-endpoint-id eice-00000001 --remote-port %p",
            ["aws"],
        ),
        (
            {"instance_connect_endpoint": "any"},
            "aws --region eu-central-1 ec2-instance-connect open-tunnel --instance-id i-1 --remote-port %p",
            ["aws"],
        ),
        ({"proxy_command": "tunnel --to %i %h %p"}, "tunnel --to i-1 %h %p", ["tunnel"]),
    ],
)
def test_each_way_is_a_proxy_command(keys: dict[str, Any], command: str, programs: list[str]) -> None:
    assert login.proxy_command(place(**keys), "i-1") == command
    assert login.programs(place(**keys)) == programs


def test_keys_of_a_place_are_in_the_environment_only() -> None:
    own = place(ssh_interface="session_manager", credentials=Credentials("id", "secret", "token"), profile="x")
    assert "secret" not in login.proxy_command(own, "i-1") and "--profile" not in login.proxy_command(own, "i-1")
    assert login.proxy_environment(own)["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert login.proxy_environment(place()) == {}


def test_packer_gets_the_jump_host() -> None:
    assert login.bastion(place(jump_host="admin@192.0.2.1")) == {
        "ssh_bastion_host": "192.0.2.1", "ssh_bastion_username": "admin", "ssh_bastion_port": 22,
        "ssh_bastion_key_file": "",
    }  # fmt: skip
    assert login.bastion(place()) == {}


@pytest.mark.parametrize("keys", [{"proxy_command": "x"}, {"instance_connect_endpoint": "any"}])
def test_what_packer_cannot_use_is_refused_before_a_build(keys: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(keys))}: Packer cannot log in"):
        login.require_packer_login(place(**keys))
    login.require_packer_login(place(jump_host="a@b"))
