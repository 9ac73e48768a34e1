"""Calls of boto3 clients and of their stubs, checked by botocore's model: names, types, values, filters and bounds.

A stub that takes `**_` answers a call that AWS refuses, such as one with a filter that the operation does not have.
moto does the same, so calls of real clients are checked, too (tests/aws_clients.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape
from botocore.validate import ParamValidator

from localregion.api import protocol

# Enumerations that grow: a value that is newer than the model is one all the same.
_GROWING = ("InstanceType", "Region", "RuleName", "ResourceType", "VolumeType")


def mistakes(operation: OperationModel, params: dict[str, Any]) -> Iterator[str]:
    """What AWS would refuse of a call's parameters, and botocore does not."""
    if operation.input_shape is not None:
        yield from _of_value(operation.input_shape, params, operation.name)
    if operation.service_model.service_name == "ec2":
        known = protocol.filters(operation.name)
        for row in params.get("Filters") or ():
            name = row.get("Name", "")
            if known and name not in known and not (name.startswith("tag:") and "tag:*" in known):
                yield f"{operation.name}: The filter '{name}' is invalid"


def _of_value(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if isinstance(shape, StructureShape) and isinstance(value, dict):
        for name, member in value.items():
            if name in shape.members:
                yield from _of_value(shape.members[name], member, f"{where}.{name}")
    elif isinstance(shape, ListShape) and isinstance(value, (list, tuple)):
        yield from _too_many(shape, len(value), where)
        for index, member in enumerate(value):
            yield from _of_value(shape.member, member, f"{where}[{index}]")
    elif isinstance(shape, MapShape) and isinstance(value, dict):
        for key, member in value.items():
            yield from _of_value(shape.value, member, f"{where}.{key}")
    elif isinstance(value, str):
        allowed = getattr(shape, "enum", None)
        if allowed and value not in allowed and not shape.name.endswith(_GROWING):
            yield f"{where}: expected one of {', '.join(allowed)}, got {value!r}"
        yield from _too_many(shape, len(value), where)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from _too_many(shape, value, where)


def _too_many(shape: Shape, size: int, where: str) -> Iterator[str]:
    most = shape.metadata.get("max")
    if most is not None and size > most:
        yield f"{where}: expected at most {most}, got {size}"


@functools.cache
def operations(service: str) -> dict[str, OperationModel]:
    """Method of a client → its operation."""
    model = botocore.session.get_session().get_service_model(service)
    return {xform_name(name): model.operation_model(name) for name in model.operation_names}


def check_call(service: str, method: str, params: dict[str, Any]) -> None:
    """Fails where AWS would refuse a call of a boto3 client's method with these parameters."""
    operation = operations(service)[method]
    report = ParamValidator().validate(params, operation.input_shape)
    assert not report.has_errors(), f"{method}: {report.generate_report()}"
    check_values(operation, params)


def check_values(operation: OperationModel, params: dict[str, Any]) -> None:
    """The part of it that botocore does not check itself before it sends a request."""
    wrong = [] if operation.name in _allowed else list(mistakes(operation, params))
    assert wrong == [], wrong


_allowed: set[str] = set()


@contextmanager
def refused_by_aws(operation: str) -> Iterator[None]:
    """Lets a test make calls of an operation that AWS refuses, to see what the local region answers."""
    _allowed.add(operation)
    try:
        yield
    finally:
        _allowed.discard(operation)


class Checked:
    """A stub of a boto3 client: `Checked("ec2", describe_subnets={"Subnets": []})`.

    An operation's answer is a value or a function of the call's parameters; of a paginator, a list of pages. Each call
    is checked by the service's model, and one that has no answer fails.
    """

    def __init__(self, service: str, /, **answers: Any) -> None:
        unknown = answers.keys() - operations(service).keys() - {"exceptions"}
        assert not unknown, f"{service} has no {unknown}"
        self._service, self._answers = service, answers
        self.exceptions = answers.get("exceptions")
        self.meta = SimpleNamespace(partition="aws")

    @classmethod
    def of(cls, service: str, stub: object) -> Checked:
        """Answers of an object's methods with the names of operations."""
        names = operations(service).keys() & set(dir(stub))
        return cls(service, **{name: getattr(stub, name) for name in names})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in self._answers:
            raise AttributeError(f"{self._service}.{name}: the stub has no answer")
        return functools.partial(self._call, name)

    def get_paginator(self, name: str) -> Any:
        return _Paginator(functools.partial(self._call, name))

    def _call(self, name: str, /, **params: Any) -> Any:
        check_call(self._service, name, params)
        answer = self._answers[name]
        return answer(**params) if callable(answer) else answer


class _Paginator:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def paginate(self, **params: Any) -> Any:
        params.pop("PaginationConfig", None)
        answer = self._call(**params)
        return answer if isinstance(answer, list) else [answer]
