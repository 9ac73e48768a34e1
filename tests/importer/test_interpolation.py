"""`{{user `x`}}` and `{{env `X`}}`."""

from __future__ import annotations

import pytest

from gpu_ami.importer.interpolation import UserVariables, is_resolved, refers_to_variable, variables_in

VALUES = {
    "a": "1", "b": "{{user `a`}}-{{ user \"a\" }}", "none": None, "loop": "{{user `loop`}}", "list": ["{{user `a`}}"],
    "env": "{{env `IMPORT_X`}}", "through": "{{user `env`}}",
}  # fmt: skip


@pytest.mark.parametrize(
    "raw, value",
    [
        ("{{user `a`}}", "1"),
        ("{{ user 'a' }}", "1"),
        ("{{user `b`}}", "1-1"),
        ("x-{{user `b`}}", "x-1-1"),
        ("{{user `none`}}", None),
        ("x{{user `none`}}", "x"),
        ("{{user `missing`}}", None),
        ("{{user `loop`}}", None),
        ("{{user `env`}}", "of the environment"),
        ({"k": ["{{user `a`}}", 2, True]}, {"k": ["1", 2, True]}),
        ("{{timestamp}}", "{{timestamp}}"),
    ],
)
def test_resolved_value(raw: object, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_X", "of the environment")
    assert UserVariables(VALUES).resolved(raw) == value


def test_variables_that_come_from_the_environment_are_known() -> None:
    user = UserVariables(VALUES)
    for name in VALUES:
        user.value(name)
    assert user.environment == {"env": {"IMPORT_X"}, "through": {"IMPORT_X"}}


def test_what_refers_to_variables() -> None:
    assert refers_to_variable("{{user `a`}}") and refers_to_variable("${var.a}") and refers_to_variable(["${var.a}"])
    assert not refers_to_variable("x{{user `a`}}") and not refers_to_variable([]) and not refers_to_variable(3)
    assert variables_in({"x": ["{{user `a`}}", "${lower(var.b)}-${var.c}"]}) == {"a", "b", "c"}
    assert is_resolved("x") and is_resolved(None) and not is_resolved("{{timestamp}}") and not is_resolved("${uuid()}")
