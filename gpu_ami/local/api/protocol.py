"""AWS's wire protocols: which service and action a request calls, and how an error is answered.

query       EC2, STS, IAM: a form with `Action`, errors as XML (EC2 wraps them in its own element)
json        CloudWatch, Logs, SSM, KMS: `X-Amz-Target`, errors as JSON with `__type`
Source: https://smithy.io/2.0/aws/protocols/ (awsQuery, ec2Query, awsJson1_1), read 2026-11-22.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl
from wsgiref.types import WSGIApplication, WSGIEnvironment
from xml.sax.saxutils import escape

_CREDENTIAL = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/(?P<service>[^/]+)/aws4_request")
_SERVICES = {"monitoring": "cloudwatch"}  # the name that a request is signed for → IAM's prefix of its actions


@dataclass(frozen=True)
class ServiceCall:
    """One request: `service` is IAM's prefix (ec2, cloudwatch, logs, …); parameters: of a query, flat; else none."""

    service: str
    action: str
    protocol: str  # "ec2", "query" or "json"
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As IAM writes it: `ec2:RunInstances`."""
        return f"{self.service}:{self.action}"


@dataclass(frozen=True)
class ErrorAnswer:
    """An error as AWS answers it."""

    code: str
    message: str
    status: int

    def encode(self, protocol: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Status line, headers and body."""
        if protocol == "json":
            body, kind = json.dumps({"__type": self.code, "message": self.message}), "application/x-amz-json-1.1"
        else:
            error = f"<Code>{self.code}</Code><Message>{escape(self.message)}</Message>"
            wrapped = {
                "ec2": f"<Response><Errors><Error>{error}</Error></Errors><RequestID>local</RequestID></Response>",
                "query": f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error>"
                "<RequestId>local</RequestId></ErrorResponse>",
            }
            body, kind = f"<?xml version='1.0' encoding='UTF-8'?>{wrapped[protocol]}", "text/xml"
        status = f"{self.status} {HTTPStatus(self.status).phrase}"
        return status, [("Content-Type", kind), ("x-amzn-RequestId", "local")], body.encode()


def call_application(app: WSGIApplication, environ: WSGIEnvironment) -> tuple[str, list[tuple[str, str]], bytes]:
    """An application's answer to a request: status line, headers and body."""
    status, headers = "", list[tuple[str, str]]()

    def start_response(
        line: str, fields: list[tuple[str, str]], _exc_info: object = None, /
    ) -> Callable[[bytes], object]:
        nonlocal status, headers
        status, headers = line, fields
        return lambda _: None

    chunks = app(environ, start_response)
    try:
        body = b"".join(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close:
            close()
    return status, headers, body


def read_service_call(environ: WSGIEnvironment) -> ServiceCall | None:
    """The call in a request; None if it is not signed for a service. The body can be read again afterwards."""
    signed = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if signed is None:
        return None
    service = _SERVICES.get(signed["service"], signed["service"])
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return ServiceCall(service, target.rpartition(".")[2], "json")
    query = environ.get("QUERY_STRING", "")
    if environ.get("REQUEST_METHOD") == "POST":
        raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(raw)
        query = raw.decode(errors="replace")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    action = parameters.get("Action")
    return ServiceCall(service, action, "ec2" if service == "ec2" else "query", parameters) if action else None


def unpack(environ: WSGIEnvironment) -> None:
    """Replaces a gzipped body by its content: the vendor's agent sends metrics so, and moto reads none."""
    if environ.get("HTTP_CONTENT_ENCODING", "").lower() != "gzip":
        return
    packed = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        raw = packed  # not gzip: the service's own answer says what is wrong with it
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(raw), str(len(raw))
    del environ["HTTP_CONTENT_ENCODING"]
