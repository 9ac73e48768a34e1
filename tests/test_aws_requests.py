"""The stub of a boto3 client refuses what AWS refuses (tests/aws_requests.py)."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws_requests import Checked, operations


@pytest.mark.parametrize(
    ("service", "call", "params", "message"),
    [
        ("ec2", "describe_subnets", {"SubnetIds": "subnet-1"}, "Invalid type for parameter SubnetIds"),
        ("ec2", "describe_subnets", {"Subnets": []}, "Unknown parameter"),
        (
            "ec2",
            "describe_capacity_reservations",
            {"Filters": [{"Name": "capacity-reservation-id", "Values": ["cr-1"]}]},
            "The filter 'capacity-reservation-id' is invalid",
        ),
        ("ec2", "create_placement_group", {"GroupName": "g", "Strategy": "near"}, "expected one of cluster"),
        ("ec2", "describe_instances", {"Filters": [{"Name": "tag:any", "Values": ["x"]}]}, ""),
        ("kms", "list_grants", {"KeyId": "k" * 2049}, "expected at most 2048"),
        ("iam", "get_role", {}, "Missing required parameter"),
    ],
)
def test_a_call_that_aws_refuses_fails(service: str, call: str, params: dict[str, Any], message: str) -> None:
    stub = Checked(service, **{call: {"answer": 1}})
    if not message:
        assert getattr(stub, call)(**params) == {"answer": 1}
        return
    with pytest.raises(AssertionError, match=message):
        getattr(stub, call)(**params)


def test_pages_and_unknown_operations() -> None:
    assert Checked("kms", list_grants=[1, 2]).get_paginator("list_grants").paginate(KeyId="k") == [1, 2]
    with pytest.raises(AssertionError, match="describe_everything"):
        Checked("ec2", describe_everything={})
    with pytest.raises(AttributeError, match="the stub has no answer"):
        Checked("ec2").run_instances  # noqa: B018


SERVICES = ("autoscaling", "cloudwatch", "ec2", "ecs", "eks", "iam", "kms", "logs", "scheduler", "ssm", "sts")
OTHER_NAMES = {"publish", "sign", "verify"}  # common words; KMS's and SNS's operations have no stubs
UNCHECKED = ("SimpleNamespace", "Mock", "MagicMock")
TESTS = Path(__file__).parent


@functools.cache
def names() -> frozenset[str]:
    return frozenset(name for service in SERVICES for name in operations(service)) - OTHER_NAMES


def unchecked(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each stub of an operation whose calls nobody checks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in names():
                    yield node.lineno, target.attr
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in UNCHECKED:
                yield from ((node.lineno, word.arg) for word in node.keywords if word.arg in names())
            if called.endswith("setattr") and len(node.args) == 3 and ast.unparse(node.args[1]).strip("'") in names():
                name = ast.unparse(node.args[1]).strip("'")
                if ast.unparse(node.args[2]).rpartition(".")[2] != name:
                    yield node.lineno, name


def test_no_stub_of_a_client_takes_what_aws_refuses() -> None:
    """A stub is Checked(…), or its methods are: `Checked.of(service, stub)`."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if path == Path(__file__) or names().isdisjoint(re.findall(r"\w+", text)):
            continue
        tree = ast.parse(text)
        found += [f"{path.relative_to(TESTS)}:{line}: {name}" for line, name in unchecked(tree)]
        methods = {
            method.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for method in node.body
            if isinstance(method, ast.FunctionDef) and method.name in names()
        }
        if methods and "Checked.of(" not in text and "from tests.validate.node_services.test_eks import" not in text:
            found.append(f"{path.relative_to(TESTS)}: methods {', '.join(sorted(methods))}")
    assert found == []
