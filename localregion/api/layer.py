"""The layer before the API that applies conditions to calls.

EC2's lists without what is still unknown: a resource that was created a moment ago is in none of them.

WSGI applications before moto's: calls of Systems Manager and ECS that the region answers itself (JSON 1.1).

WSGI application before moto's: calls of EKS that the region answers itself, and its API servers' token reviews.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from xml.etree import ElementTree

from localregion.api.conditions import Decisions
from localregion.api.permissions import Authorization
from localregion.api.protocol import (
    CREDENTIAL,
    ErrorAnswer,
    ServiceCall,
    call_application,
    read_body,
    read_service_call,
    send,
    unpack,
)
from localregion.backends import ZONE, Refused

if TYPE_CHECKING:
    from localregion.eks import Eks


class JsonLayer:
    """Answers what `answer` knows of calls of these services; every other call is `app`'s.

    answer: gets a call's name, its JSON and its access key; None: it does not know the call. Its errors are Refused.
    """

    def __init__(
        self,
        app: WSGIApplication,
        services: tuple[str, ...],
        answer: Callable[[str, Mapping[str, Any], str], Mapping[str, Any] | None],
    ) -> None:
        self._app, self._services, self._answer = app, services, answer

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        unpack(environ)
        call = read_service_call(environ)
        if call is None or call.service not in self._services:
            return self._app(environ, start_response)
        try:
            answer = self._answer(call.name, call.body, call.access_key)
        except Refused as refusal:
            status, headers, body = ErrorAnswer(refusal.code, refusal.message, refusal.status).encode(call.protocol)
            return send(start_response, status, headers, body)
        if answer is None:
            return self._app(environ, start_response)
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-RequestId", "local")]
        return send(start_response, "200 OK", headers, json.dumps(answer).encode())


# Action → the element whose items are the resources, and the element of an item that names it.
_LISTS = {
    "DescribeImages": ("imagesSet", "imageId"),
    "DescribeInstances": ("instancesSet", "instanceId"),
    "DescribeKeyPairs": ("keySet", "keyName"),
    "DescribeSecurityGroups": ("securityGroupInfo", "groupId"),
}


def without(body: bytes, action: str, is_unknown: Callable[[str], bool]) -> bytes:
    """The answer without the resources that are unknown; a reservation goes with its last instance."""
    if action not in _LISTS:
        return body
    container, name = _LISTS[action]
    root = ElementTree.fromstring(body)
    removed = [_drop(parent, lambda item: is_unknown(_text(item, name))) for parent in _named(root, container)]
    if not any(removed):
        return body
    for reservations in _named(root, "reservationSet"):
        _drop(reservations, lambda item: not any(len(each) for each in _named(item, "instancesSet")))
    ElementTree.register_namespace("", root.tag.partition("}")[0].removeprefix("{"))
    return bytes(ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True))


def _drop(parent: ElementTree.Element, is_dropped: Callable[[ElementTree.Element], bool]) -> int:
    dropped = [item for item in parent if is_dropped(item)]
    for item in dropped:
        parent.remove(item)
    return len(dropped)


def _named(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def _text(item: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in item if child.tag.rpartition("}")[2] == name), "")


# The action that creates a resource → the element of its answer with the id, and the code and message that other calls
# get while the resource is unknown to them.
_CREATED = {
    "RunInstances": ("instanceId", "InvalidInstanceID.NotFound", "The instance ID '{id}' does not exist"),
    "CreateImage": ("imageId", "InvalidAMIID.NotFound", "The image id '[{id}]' does not exist"),
    "CopyImage": ("imageId", "InvalidAMIID.NotFound", "The image id '[{id}]' does not exist"),
    "CreateSecurityGroup": ("groupId", "InvalidGroup.NotFound", "The security group '{id}' does not exist"),
    "ImportKeyPair": ("keyName", "InvalidKeyPair.NotFound", "The key pair '{id}' does not exist"),
}
# Names, unlike ids, are not unique: a placement group may have that of the key pair. Element → what names the resource.
_BY_NAME = {"keyName": "KeyName"}
# EC2 takes these whether it knows the key pair or not.
_OF_ANY_KEY = ("DeleteKeyPair", "ImportKeyPair")
# Where policies are enforced, a call that cannot be judged is refused.
_UNKNOWN_CALL = ErrorAnswer("AccessDeniedException", "the call is not signed, or names no action", 403)


class ConditionsLayer:
    """WSGI application: answers with an error where conditions say so, else passes the call on to `app`.

    authorization: judges every call by the policies of who makes it; None: every call is allowed. zone_of: the zone of
    the subnet that a launch names.
    """

    def __init__(
        self,
        app: WSGIApplication,
        decisions: Decisions,
        clock: Callable[[], float] = time.monotonic,
        authorization: Authorization | None = None,
        zone_of: Callable[[str], str] = lambda _: ZONE,
    ) -> None:
        self._app, self._decisions, self._clock = app, decisions, clock
        self._authorization, self._zone_of_subnet = authorization, zone_of
        self._started = clock()
        self._lock = threading.Lock()
        self._unknown: dict[str, tuple[float, str, str, str]] = {}  # id → until when, code, message, what names it
        self._launched: dict[str, float] = {}  # instance → when

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        unpack(environ)
        call = read_service_call(environ)
        if call is None and self._authorization is None:
            return self._app(environ, start_response)
        error = self._error(call) if call else _UNKNOWN_CALL
        if error:
            self._decisions.count(error.code)
            status, headers, body = error.encode(call.protocol if call else "json")
            return send(start_response, status, headers, body)
        if call is None or call.protocol != "ec2":
            return self._app(environ, start_response)
        return self._pass_ec2(call, environ, start_response)

    def _error(self, call: ServiceCall) -> ErrorAnswer | None:
        due = self._decisions.error(call, self._zone_of(call), self._clock() - self._started)
        if due or self._authorization is None:
            return due or (self._not_found(call) if call.protocol == "ec2" else None)
        # EC2 looks a resource up before it can compare its tags with a policy.
        return (self._not_found(call) if call.protocol == "ec2" else None) or self._authorization.refusal(call)

    def _zone_of(self, call: ServiceCall) -> str:
        names = (value for key, value in call.parameters.items() if key.endswith("SubnetId") and value)
        return self._zone_of_subnet(next(names, ""))

    def _not_found(self, call: ServiceCall) -> ErrorAnswer | None:
        """The error of a call that names a resource which was created a moment ago."""
        if call.action in _OF_ANY_KEY:
            return None
        now = self._clock()
        with self._lock:
            for key, value in call.parameters.items():
                until, code, message, parameter = self._unknown.get(value, (0.0, "", "", ""))
                if now < until and not key.startswith(("Tag", "Filter")) and key.endswith(parameter):
                    return ErrorAnswer(code, message, 400)
        return None

    def _is_unknown(self, name: str) -> bool:
        with self._lock:
            return self._clock() < self._unknown.get(name, (0.0,))[0]

    def _pass_ec2(self, call: ServiceCall, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, headers, body = call_application(self._app, environ)
        if status.startswith("200"):
            body = without(body, call.action, self._is_unknown)
            self._remember(call, body)
            if call.action == "GetConsoleOutput":
                body = self._console(call, body)
        return send(start_response, status, headers, body)

    def _remember(self, call: ServiceCall, body: bytes) -> None:
        if call.action not in _CREATED:
            return
        element, code, message = _CREATED[call.action]
        until = self._clock() + self._decisions.unknown_seconds(call.action)
        with self._lock:
            for name in set(re.findall(rf"<{element}>([^<]+)</{element}>".encode(), body)):
                identity = name.decode()
                self._unknown[identity] = (until, code, message.format(id=identity), _BY_NAME.get(element, ""))
                if call.action == "RunInstances":
                    self._launched[identity] = self._clock()

    def _console(self, call: ServiceCall, body: bytes) -> bytes:
        """EC2 has no console output in the first minutes of an instance."""
        age = self._clock() - self._launched.get(call.parameters.get("InstanceId", ""), float("-inf"))
        if age >= self._decisions.conditions.delays.console:
            return body
        return re.sub(rb"<output>.*?</output>", b"<output></output>", body, flags=re.DOTALL)


_REVIEW = re.compile(r"/gpu-ami/eks/(?P<name>[^/]+)/token-review")
_JSON = [("Content-Type", "application/json"), ("x-amzn-RequestId", "local")]


class EksLayer:
    """Answers what `eks` knows; every other call is `app`'s. eks: makes it at the first call."""

    def __init__(self, app: WSGIApplication, eks: Callable[[], Eks]) -> None:
        self._app, self._eks = app, eks

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "GET")
        review = _REVIEW.fullmatch(path)
        if review:
            answer: dict[str, Any] | None = self._eks().review(review["name"], read_body(environ))
            return send(start_response, "200 OK", _JSON, json.dumps(answer).encode())
        signed = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None or signed["service"] != "eks":
            return self._app(environ, start_response)
        unpack(environ)
        eks = self._eks()
        try:
            answer = eks.answer(method, path, _body(environ, method))
        except Refused as error:
            status, headers, body = ErrorAnswer(error.code, error.message, error.status).encode("rest-json")
            return send(start_response, status, headers, body)
        if answer is None:
            return self._app(environ, start_response)
        return send(start_response, "200 OK", _JSON, json.dumps(answer).encode())


def _body(environ: WSGIEnvironment, method: str) -> dict[str, Any]:
    try:
        document = json.loads(read_body(environ) or b"{}") if method == "POST" else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
