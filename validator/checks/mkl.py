"""The planned Intel MKL is what a program gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import loader, packages
from validator.observe import Observe

pytestmark = pytest.mark.planned("mkl")


def version(text: str) -> str:
    """Year and update in MKL's own words ("… Library Version 2020.0.4 Product Build …": 2020.4); "" without them."""
    found = re.search(r"Version (\d+)\.(\d+)(?:\.(\d+))?", text)
    # MKL says 2020.0.4 for what Intel calls 2020 Update 4, and 2020.0.0 for the first release.
    return f"{found[1]}.{found[3] or found[2]}" if found else ""


def test_library_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """A program finds the planned MKL without help, and it is the library itself that says so."""
    found = loader.ask(host, observe, "libmkl_rt.so", "MKL_Get_Version_String", "char*")
    wanted = str(plan["mkl"]["version"]).partition("-")[0]
    observe.same(version(str(found.value)), wanted, f"MKL_Get_Version_String of {found.file}")


@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, observe: Observe) -> None:
    """The loader knows one MKL: results differ between two, and programs would not know which they got."""
    found = loader.on_path(host, "libmkl_rt.so")
    observe(found, "one file")
    if len(found) != 1:
        observe.fail(f"libmkl_rt.so on the loader's path: found {', '.join(found) or 'none'}, expected one")


@pytest.mark.tier("T0")
def test_package_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The package has exactly the planned version."""
    packages.check_installed(host, plan, "mkl", observe)


@pytest.mark.tier("T0")
def test_package_is_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move MKL."""
    packages.check_held(host, plan, "mkl", observe)
