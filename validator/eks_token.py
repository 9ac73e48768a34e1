"""The bearer token of a caller for an EKS cluster: a signed GetCallerIdentity call of STS, which the API server sends.

Nothing is called here. Source: EKS user guide, `aws eks get-token`; github.com/kubernetes-sigs/aws-iam-authenticator,
pkg/token/token.go (read 2026-11-25): valid for 15 minutes from its signature.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

PREFIX = "k8s-aws-v1."
_RENEW_SECONDS = 600.0
_EXPIRES = 60  # of the signed call; the API server accepts 900 at most


def make(cluster: str, region: str, session: Any) -> str:
    """session: botocore's, with credentials. ValueError: it has none."""
    from botocore.model import ServiceId
    from botocore.signers import RequestSigner

    credentials = session.get_credentials()
    if credentials is None:
        raise ValueError("no AWS credentials for a token")
    host = f"sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    signer = RequestSigner(ServiceId("STS"), region, "sts", "v4", credentials, session.get_component("event_emitter"))
    call = {
        "method": "GET",
        "url": f"https://{host}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(call, region_name=region, expires_in=_EXPIRES, operation_name="")
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def renewed(cluster: str, region: str, session: Callable[[], Any]) -> Callable[[], str]:
    """A token at each call, which is made anew before it ends. session: makes one at the first call."""
    made: dict[str, Any] = {}

    def token() -> str:
        if "session" not in made:
            made["session"] = session()
        if time.monotonic() - made.get("at", float("-inf")) > _RENEW_SECONDS:
            made["token"], made["at"] = make(cluster, region, made["session"]), time.monotonic()
        return str(made["token"])

    return token
