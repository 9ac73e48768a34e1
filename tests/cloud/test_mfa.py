"""A profile with MFA: one prompt, and children that need neither prompt nor profile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.build import packer
from gpu_ami.cloud import Cloud, Credentials, Place, with_session_credentials
from gpu_ami.errors import UsageError
from gpu_ami.validate import validator_process

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
    place = with_session_credentials(Place("aws", "us-east-1", profile="guarded"))
    assert place.credentials == Credentials("ASIA", "secret", "token") and place.profile is None
    assert with_session_credentials(place) == place and prompts == ["guarded"]
    for environment in (validator_process.environment(place), packer._access(place)):
        keys = {name: environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")}
        assert keys == {"ACCESS_KEY_ID": "ASIA", "SECRET_ACCESS_KEY": "secret", "SESSION_TOKEN": "token"}
    assert "secret" not in repr(place) and "token=" not in repr(place)


@pytest.mark.parametrize("profile", ["plain", None])
def test_other_profiles_are_left_to_every_program(prompts: list[str], profile: str | None) -> None:
    place = Place("aws", "us-east-1", profile=profile)
    assert with_session_credentials(place) == place and prompts == []


def test_a_profile_that_is_not_there_is_a_mistake_of_the_place(prompts: list[str]) -> None:
    with pytest.raises(UsageError, match="profile absent"):
        with_session_credentials(Place("aws", "us-east-1", profile="absent"))


def test_the_session_of_a_place_has_its_token() -> None:
    place = Place("aws", "us-east-1", credentials=Credentials("ASIA", "secret", "token"))
    assert Cloud(place).session().get_credentials().token == "token"
    static = Place("own", "us-east-1", credentials=Credentials("AKIA", "secret"))
    assert Cloud(static).session().get_credentials().token is None
