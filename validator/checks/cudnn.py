"""The planned cuDNN is what a program gets, it is made for the planned CUDA, and nothing moves it."""

from __future__ import annotations

from typing import Any

import pytest

from validator import loader, packages
from validator.observe import Observe

pytestmark = pytest.mark.planned("cudnn")


def version(code: int) -> str:
    """cudnnGetVersion in words: 90100 is 9.1.0, and below version 9 8700 is 8.7.0."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code >= 90000 else (
        f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    )  # fmt: skip


def _soname(plan: Any) -> str:
    return f"libcudnn.so.{str(plan['cudnn']['version']).partition('.')[0]}"


def test_library_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """A program finds the planned cuDNN without help, and it is the library itself that says so."""
    found = loader.ask(host, observe, _soname(plan), "cudnnGetVersion", "size")
    observe.same(version(int(found.value)), plan["cudnn"]["version"], f"cudnnGetVersion of {found.file}")


@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, plan: Any, observe: Observe) -> None:
    """The loader knows one cuDNN of this major version: with two, it is a matter of luck which one a program gets."""
    found = loader.on_path(host, _soname(plan))
    observe(found, "one file")
    if len(found) != 1:
        observe.fail(f"{_soname(plan)} on the loader's path: found {', '.join(found) or 'none'}, expected one")


def test_library_is_made_for_the_planned_cuda(host: Any, plan: Any, observe: Observe) -> None:
    """cuDNN was built for the planned CUDA's major version: one for another loads, and fails in the first kernel."""
    wanted = str(plan["cuda"]["version"]).partition(".")[0]
    found = loader.ask(host, observe, _soname(plan), "cudnnGetCudartVersion", "size")
    observe.same(str(int(found.value) // 1000), wanted, f"CUDA major version that {found.file} was built for")


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The packages have exactly the planned versions."""
    packages.check_installed(host, plan, "cudnn", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move cuDNN."""
    packages.check_held(host, plan, "cudnn", observe)
