"""The program that leads to an instance, by the place's keys.

A profile with MFA: one prompt, and children that need neither prompt nor profile.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Credentials, Place, login, place_of, with_session_credentials
from gpu_ami.errors import UsageError
from gpu_ami.validate import validator_process


def place(**keys: Any) -> Place:
    return place_of({"name": "aws", "region": "eu-central-1", **keys})


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
    assert own.api.keys()["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert place().api.keys() == {}


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


CONFIG = """\
[profile plain]
region = us-east-1
[profile guarded]
role_arn = arn:aws:iam::111122223333:role/images
source_profile = plain
mfa_serial = arn:aws:iam::111122223333:mfa/me
"""


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts for a code, each answered with a session's credentials."""
    from botocore.session import Session

    asked: list[str] = []

    def get_credentials(session: Any) -> Any:
        asked.append(str(session.get_config_variable("profile")))
        keys = SimpleNamespace(access_key="ASIA", secret_key="secret", token="token")
        return SimpleNamespace(get_frozen_credentials=lambda: keys)

    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(Session, "get_credentials", get_credentials)
    return asked


def test_a_profile_with_mfa_is_asked_once_for_all_children(prompts: list[str]) -> None:
    place = with_session_credentials(Place("aws", "us-east-1", api=ApiAccess(profile="guarded")))
    assert place.api.credentials == Credentials("ASIA", "secret", "token") and place.api.profile is None
    assert with_session_credentials(place) == place and prompts == ["guarded"]
    for environment in (validator_process.environment(place), place.api.environment()):
        keys = {name: environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")}
        assert keys == {"ACCESS_KEY_ID": "ASIA", "SECRET_ACCESS_KEY": "secret", "SESSION_TOKEN": "token"}
    assert "secret" not in repr(place) and "token=" not in repr(place)


@pytest.mark.parametrize("profile", ["plain", None])
def test_other_profiles_are_left_to_every_program(prompts: list[str], profile: str | None) -> None:
    place = Place("aws", "us-east-1", api=ApiAccess(profile=profile))
    assert with_session_credentials(place) == place and prompts == []


def test_a_profile_that_is_not_there_is_a_mistake_of_the_place(prompts: list[str]) -> None:
    with pytest.raises(UsageError, match="profile absent"):
        with_session_credentials(Place("aws", "us-east-1", api=ApiAccess(profile="absent")))


def test_the_session_of_a_place_has_its_token() -> None:
    place = Place("aws", "us-east-1", api=ApiAccess(credentials=Credentials("ASIA", "secret", "token")))
    assert Cloud(place).session().get_credentials().token == "token"
    static = Place("own", "us-east-1", api=ApiAccess(credentials=Credentials("AKIA", "secret")))
    assert Cloud(static).session().get_credentials().token is None
