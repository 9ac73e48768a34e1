"""AWS's wire protocols: which service and action a request calls, and how an error is answered.

query       EC2, STS, IAM: a form with `Action`, errors as XML (EC2 wraps them in its own element)
json        CloudWatch, Logs, SSM, KMS: `X-Amz-Target`, errors as JSON with `__type`
rest-json   EventBridge Scheduler: method and path, errors as JSON with the header `x-amzn-ErrorType`
Source: https://smithy.io/2.0/aws/protocols/ (awsQuery, ec2Query, awsJson1_1, restJson1), read 2026-11-22.

What a request to EC2 may name, by botocore's model: filters, and the values of enumerated parameters.

botocore checks names and types of parameters before it sends a request, but neither filters nor values, and moto
accepts most of them: a filter that EC2 does not have would be found on a real account alone. The names of an
operation's filters are in the model's documentation. Wording of the refusals: EC2 API reference, "Error codes".
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from xml.sax.saxutils import escape

CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/\d{8}/[^/]+/(?P<service>[^/]+)/aws4_request")
_SERVICES = {"monitoring": "cloudwatch"}  # the name that a request is signed for → IAM's prefix of its actions
_SCHEDULE = re.compile(r"/schedules/(?P<Name>[^/]+)")
_SCHEDULE_ACTIONS = {
    "POST": "CreateSchedule",
    "DELETE": "DeleteSchedule",
    "GET": "GetSchedule",
    "PUT": "UpdateSchedule",
}


@dataclass(frozen=True)
class ServiceCall:
    """One request: `service` is IAM's prefix (ec2, cloudwatch, logs, …).

    parameters: of a query, flat; of JSON, what is text at its top level. body: the JSON. access_key: who signed it.
    """

    service: str
    action: str
    protocol: str  # "ec2", "query", "json" or "rest-json"
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict, compare=False)
    access_key: str = field(default="", compare=False)

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
        if protocol.endswith("json"):
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
        headers = [("Content-Type", kind), ("x-amzn-RequestId", "local"), ("x-amzn-ErrorType", self.code)]
        return status, headers, body.encode()


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
    signed = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if signed is None:
        return None
    service, key = _SERVICES.get(signed["service"], signed["service"]), signed["key"]
    raw = b""
    if environ.get("REQUEST_METHOD", "GET") != "GET":
        raw = read_body(environ)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        body = _read_json(raw)
        return ServiceCall(service, target.rpartition(".")[2], "json", _texts(body), body, key)
    schedule = _SCHEDULE.fullmatch(environ.get("PATH_INFO", "")) if service == "scheduler" else None
    if schedule:
        body = _read_json(raw)
        action = _SCHEDULE_ACTIONS.get(environ["REQUEST_METHOD"], "")
        return ServiceCall(service, action, "rest-json", {**_texts(body), **schedule.groupdict()}, body, key)
    query = raw.decode(errors="replace") if raw else environ.get("QUERY_STRING", "")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    named = parameters.get("Action")
    protocol = "ec2" if service == "ec2" else "query"
    return ServiceCall(service, named, protocol, parameters, access_key=key) if named else None


def read_body(environ: WSGIEnvironment) -> bytes:
    """A request's body, which can be read again afterwards."""
    raw = bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
    environ["wsgi.input"] = io.BytesIO(raw)
    return raw


def send(start_response: StartResponse, status: str, headers: list[tuple[str, str]], body: bytes) -> list[bytes]:
    """Answers with a body, whose length replaces the headers' own."""
    kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
    start_response(status, [*kept, ("Content-Length", str(len(body)))])
    return [body]


def _read_json(raw: bytes) -> dict[str, Any]:
    """A JSON object; what is not one is refused by the service itself."""
    try:
        document = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _texts(body: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in body.items() if isinstance(value, str)}


def unpack(environ: WSGIEnvironment) -> None:
    """Replaces a gzipped body by its content: the vendor's agent sends metrics so, and moto reads none."""
    if environ.get("HTTP_CONTENT_ENCODING", "").lower() != "gzip":
        return
    packed = read_body(environ)
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        raw = packed  # not gzip: the service's own answer says what is wrong with it
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(raw), str(len(raw))
    del environ["HTTP_CONTENT_ENCODING"]


# A filter stands at the start of an entry of the list; values that it may have are in a list inside the entry.
_FILTER = re.compile(r"<li>\s*<p>\s*<code>([^<]+)</code>")


@functools.cache
def _model() -> Mapping[str, Any]:
    from botocore.loaders import Loader

    return Loader().load_service_model("ec2", "service-2")  # type: ignore[no-any-return]


def _members(operation: str) -> Mapping[str, Any]:
    model = _model()
    shape = model["operations"].get(operation, {}).get("input", {}).get("shape")
    return model["shapes"][shape].get("members", {}) if shape else {}


@functools.cache
def filters(operation: str) -> frozenset[str]:
    """Names of an operation's filters; `tag:*` for `tag:<key>`. Empty: the model lists none."""
    text = _members(operation).get("Filters", {}).get("documentation", "")
    names = _FILTER.findall(_outermost(text))
    return frozenset("tag:*" if name.startswith("tag:") or name == "tag" else name.strip() for name in names)


def _outermost(text: str) -> str:
    """The documentation of filters without the lists of their values."""
    depth, kept = 0, []
    for part in re.split(r"(</?ul>)", text):
        depth += {"<ul>": 1, "</ul>": -1}.get(part, 0)
        if depth <= 1:
            kept.append(part)
    return "".join(kept)


def mistakes(operation: str, parameters: Mapping[str, str]) -> Iterator[str]:
    """EC2's message for each filter that it does not have and each value that is not of its enumeration.

    parameters: flat, as in the query protocol (`Filter.1.Name`, `InstanceType`).
    """
    known = filters(operation)
    for key, value in parameters.items():
        if known and re.fullmatch(r"Filter\.\d+\.Name", key):
            if value not in known and not (value.startswith("tag:") and "tag:*" in known):
                yield f"The filter '{value}' is invalid"
        elif value not in _enumerations(operation).get(key, {value}):
            yield f"Value ({value}) for parameter {key} is invalid."


@functools.cache
def _enumerations(operation: str) -> Mapping[str, frozenset[str]]:
    """Parameter of the query → its values, of those that are enumerated."""
    shapes = _model()["shapes"]
    rows: dict[str, frozenset[str]] = {}
    for name, member in _members(operation).items():
        values = shapes[member["shape"]].get("enum")
        # An instance type or a region that is newer than the model is one all the same.
        if values and member["shape"] != "InstanceType":
            sent = member.get("queryName") or member.get("locationName") or name
            rows[sent[:1].upper() + sent[1:]] = frozenset(values)
    return rows
