"""Clients of boto3 in tests: what is the same for all of them is made once a process.

Most tests make a session and some clients, each of which would read the API's model, make a class of its 800 methods
and register 130 handlers anew: 43 ms of CPU for EC2's, 12 with this. What differs (endpoint, credentials, retries, a
test's own handlers) belongs to a client's instance and its emitter.

Each call of each client is checked by botocore's model (tests/aws_requests.py): moto accepts most that AWS refuses.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import botocore.session
from botocore import client, hooks

from tests import aws_requests


def share() -> None:
    """For the process, before the first session is made."""
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    hooks.EventAliaser._alias_event_name = _alias_event_name
    hooks.accepts_kwargs = _accepts_kwargs
    client.ClientCreator._create_client_class = _client_class


_alias = hooks.EventAliaser._alias_event_name
_aliases: dict[str, str] = {}  # of all that have botocore's own, which are constant
_accepts = functools.cache(hooks.accepts_kwargs)
_create_class = client.ClientCreator._create_client_class
_classes: dict[tuple[str, str, type], Any] = {}


def _alias_event_name(self: Any, event_name: str) -> str:
    if self._event_aliases is not hooks.EVENT_ALIASES:
        return str(_alias(self, event_name))
    if event_name not in _aliases:
        _aliases[event_name] = _alias(self, event_name)
    return _aliases[event_name]


def _accepts_kwargs(handler: Any) -> Any:
    """Of a method by its function, and of closures anew: the cache must not keep the client that they are of."""
    function = getattr(handler, "__func__", handler)
    known = isinstance(function, FunctionType) and function.__closure__ is None
    return _accepts(function) if known else _accepts.__wrapped__(handler)


def _client_class(self: Any, service_name: str, service_model: Any) -> Any:
    key = (service_name, service_model.api_version, type(self))
    if key not in _classes:
        _classes[key] = _checked(_create_class(self, service_name, service_model))
    return _classes[key]


def _checked(made: Any) -> Any:
    """The class, whose calls fail where AWS would refuse their parameters and botocore does not."""
    send = made._make_api_call

    def _make_api_call(self: Any, operation_name: str, api_params: dict[str, Any]) -> Any:
        aws_requests.check_values(self.meta.service_model.operation_model(operation_name), api_params)
        return send(self, operation_name, api_params)

    made._make_api_call = _make_api_call
    return made
