"""Values of HCL2 expressions."""

from __future__ import annotations

import hcl2
import pytest

from gpu_ami.importer.hcl2_values import Evaluator, NotUnderstood

KNOWN = {"a": "x", "n": 3, "list": ["p", "q"], "map": {"k": "v"}, "empty": "", "none": None}


def lookup(scope: str, name: str) -> object:
    if scope != "var" or name not in KNOWN:
        raise NotUnderstood(f"{scope}.{name}")
    return KNOWN[name]


def evaluated(expression: str) -> tuple[object, list[str]]:
    evaluator = Evaluator(lookup)
    node = hcl2.parses(f"v = {expression}\n").body.children[0].expression
    return evaluator.value(node), evaluator.not_understood


@pytest.mark.parametrize(
    "expression, value",
    [
        ('"text"', "text"), ("12", 12), ("-1", -1), ("true", True), ("null", None), ('["a", 1]', ["a", 1]),
        ('{ k = "v", "q" = 2 }', {"k": "v", "q": 2}), ('"${var.a}-${var.n}"', "x-3"), ("var.a", "x"),
        ('"${var.list}"', ["p", "q"]), ("var.list[1]", "q"), ('var.map["k"]', "v"), ("var.map.k", "v"),
        ('var.a == "x" ? 1 : 2', 1), ('var.empty == "" ? null : var.empty', None), ("!(var.n > 2)", False),
        ('coalesce(var.empty, "d-${var.a}")', "d-x"), ('compact(split(",", ""))', []), ('lower("AB")', "ab"),
        ('join("-", var.list)', "p-q"), ('replace("a.b", ".", "-")', "a-b"),
        ('merge(var.map, { z = 1 })', {"k": "v", "z": 1}),
        ("var.n + 1", 4), ('"a\\"b\\n"', 'a"b\n'), ('"$${var.a}"', "${var.a}"), ('"${var.none}"', None),
        ('"x${var.none}"', "x"), ("concat(var.list, [1])", ["p", "q", 1]), ("tostring(true)", "true"),
    ],
)  # fmt: skip
def test_value(expression: str, value: object) -> None:
    assert evaluated(expression) == (value, [])


@pytest.mark.parametrize(
    "expression, value, what",
    [
        ('templatefile("a", {})', '${templatefile("a", {})}', "the function templatefile"),
        ("var.missing", "${var.missing}", "var.missing"),
        ('"x-${timestamp()}"', "x-${timestamp()}", "the function timestamp"),
        ("[for x in var.list : x]", None, "a for expression"),
        ("var.list[*].id", None, "a splat expression"),
        ('lower("${uuidv4()}")', None, "the function uuidv4"),
        ("var.list[7]", "${var.list[7]}", "an attribute or index that is not there"),
        ("data.amazon-ami.x.id", None, "data.amazon-ami"),
        ("var.a + 1", None, "the operator + between these values"),
    ],
)
def test_what_is_not_understood_is_named_and_left(expression: str, value: object, what: str) -> None:
    found, not_understood = evaluated(expression)
    assert not_understood == [what]
    assert found == value if value is not None else str(found).startswith("${")


def test_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_X", "y")
    evaluator = Evaluator(lookup)
    assert evaluator.value(hcl2.parses('v = env("IMPORT_X")\n').body.children[0].expression) == "y"
    assert evaluator.environment == {"IMPORT_X"}
