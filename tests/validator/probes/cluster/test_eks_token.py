"""The token of a caller for an EKS cluster; which tokens are accepted is in tests/localregion/eks/test_tokens.py."""

from __future__ import annotations

import base64
from typing import Any

import botocore.session
import pytest

from validator.probes.cluster import kubernetes


def a_session() -> Any:
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    return session


def decoded(token: str) -> str:
    text = token.removeprefix(kubernetes.PREFIX)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def test_a_token_is_made_once_until_it_is_renewed() -> None:
    sessions: list[Any] = []

    def session() -> Any:
        sessions.append(a_session())
        return sessions[-1]

    token = kubernetes.renewed_token("c", "us-east-1", session)
    assert token() == token() and len(sessions) == 1


def test_without_credentials_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    session = botocore.session.Session()
    monkeypatch.setattr(session, "get_credentials", lambda: None)
    with pytest.raises(ValueError, match="no AWS credentials"):
        kubernetes.make_token("c", "us-east-1", session)


def test_a_region_of_china_has_its_own_domain() -> None:
    assert "sts.cn-north-1.amazonaws.com.cn" in decoded(kubernetes.make_token("c", "cn-north-1", a_session()))
