"""Exit codes of the errors that a user can meet, and how a message looks."""

from __future__ import annotations

import re

import pytest

from gpu_ami import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ImageFailed, 1),
        (errors.UsageError, 2),
        (errors.MissingTool, 2),
        (errors.BuildError, 3),
        (errors.CloudError, 4),
        (errors.MachineError, 4),
        (errors.CapacityError, 5),
    ],
)
def test_exit_code_of_each_error(kind: type[errors.GpuAmiError], code: int) -> None:
    assert kind("x").exit_code == code


def test_message_details_and_hint_stand_below_each_other() -> None:
    error = errors.CloudError("launching x: Throttling", details=["Rate exceeded"], hint="wait", code="Throttling")
    assert str(error) == "launching x: Throttling\n  Rate exceeded\n  → wait"
    assert error.code == "Throttling"
    assert str(errors.UsageError("recipe.yml: no such file")) == "recipe.yml: no such file"


def test_the_tree_of_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = set(re.findall(r"^[│ ]*[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE))
    assert drawn == {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.GpuAmiError)
    } - {"GpuAmiError"}
