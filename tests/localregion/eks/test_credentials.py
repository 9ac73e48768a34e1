"""Tokens for an EKS cluster: those of botocore and of the node's replica are accepted, all others are not."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
import pytest

import localregion
from localregion.backends import INSTANCE_SECRET, instance_access_key
from localregion.eks import credentials
from validator.probes.cluster import kubernetes

_AWS = Path(localregion.__file__).parent / "replicas/eks_ami/rootfs/usr/bin/aws"
KEY, SECRET = "gpu-ami-local", "gpu-ami-local"
NODE_KEY = instance_access_key("i-0123456789abcdef0")
SECRETS = {KEY: SECRET, NODE_KEY: INSTANCE_SECRET}


def a_session() -> Any:
    session = botocore.session.Session()
    session.set_credentials(KEY, SECRET)
    return session


def a_token(cluster: str = "c") -> str:
    return kubernetes.make_token(cluster, "us-east-1", a_session())


def node_token(cluster: str = "c", now: datetime | None = None) -> str:
    loader = SourceFileLoader("aws_replica", str(_AWS))
    spec = importlib.util.spec_from_loader("aws_replica", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    keys = {"AccessKeyId": NODE_KEY, "SecretAccessKey": INSTANCE_SECRET, "Token": "any/token+="}
    return encoded(module.presigned(keys, "us-east-1", cluster, now or datetime.now(UTC)))


def encoded(url: str) -> str:
    return credentials.PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def decoded(token: str) -> str:
    text = token.removeprefix(credentials.PREFIX)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def test_a_caller_s_token_names_its_access_key() -> None:
    assert credentials.access_key(a_token(), "c", SECRETS.get) == KEY


def test_a_node_s_token_names_its_access_key() -> None:
    assert credentials.access_key(node_token(), "c", SECRETS.get) == NODE_KEY


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: "x", "does not begin with"),
        (lambda: credentials.PREFIX + "é", "is not base64"),
        (lambda: a_token("another"), "not signed for cluster c"),
        (lambda: node_token("another"), "not signed for cluster c"),
        (lambda: encoded(decoded(a_token()).replace("https", "http")), "expected https://sts.REGION"),
        (
            lambda: encoded(decoded(a_token()).replace("sts.us-east-1.amazonaws.com", "evil.example")),
            "expected https://sts",
        ),
        (
            lambda: encoded(decoded(a_token()).replace("GetCallerIdentity", "AssumeRole")),
            "expected action GetCallerIdentity",
        ),
        (lambda: encoded(decoded(a_token()) + "&Further=1"), "unexpected or repeated parameters: further"),
        (lambda: encoded(decoded(a_token()) + "&Version=1"), "unexpected or repeated parameters"),
        (lambda: encoded(decoded(a_token()).replace(quote(";x-k8s-aws-id"), "")), "is not signed"),
        (
            lambda: encoded(decoded(a_token()).replace("X-Amz-Expires=60", "X-Amz-Expires=901")),
            "expected 1 to 900, got 901",
        ),
        (lambda: encoded(decoded(a_token()).replace("X-Amz-Expires=60", "X-Amz-Expires=x")), "invalid literal"),
        (lambda: encoded(decoded(a_token()).replace(KEY, "stranger")), "unknown access key stranger"),
        (lambda: node_token(now=datetime.now(UTC) - timedelta(minutes=16)), "it was signed at"),
        (lambda: node_token(now=datetime.now(UTC) + timedelta(minutes=6)), "it was signed at"),
    ],
)
def test_other_tokens_are_rejected(make: Callable[[], str], reason: str) -> None:
    """Made when they are needed: they are valid for minutes."""
    token = make()
    with pytest.raises(credentials.Rejected, match=reason):
        credentials.access_key(token, "c", SECRETS.get)
