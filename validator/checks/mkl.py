"""The planned Intel MKL is on the loader path."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe
from validator.plan_document import Component, PlanDocument, section
from validator.probes import packages, shared_libraries

pytestmark = [pytest.mark.planned("mkl"), pytest.mark.beside_live]


def version(text: str) -> str:
    """Year and update of MKL's version text ("… Library Version 2020.0.4 Product Build …": 2020.4); "" if none."""
    match = re.search(r"Version (\d+)\.(\d+)(?:\.(\d+))?", text)
    # MKL reports 2020.0.4 for 2020 Update 4, and 2020.0.0 for the first release.
    return f"{match[1]}.{match[3] or match[2]}" if match else ""


@pytest.mark.needs("promise")
def test_library_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The MKL on the loader path reports the planned version, without LD_LIBRARY_PATH."""
    library = shared_libraries.call(host, observe, "libmkl_rt.so", "MKL_Get_Version_String", "char*")
    planned = str(section(plan, "mkl", Component)["version"]).partition("-")[0]
    observe.same(version(str(library.value)), planned, f"MKL_Get_Version_String of {library.file}")


@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, observe: Observe) -> None:
    """The loader path has one MKL. With two, the one that a program loads is undefined."""
    files = shared_libraries.on_path(host, "libmkl_rt.so")
    observe(files, "one file")
    if len(files) != 1:
        observe.fail(f"libmkl_rt.so on the loader path: expected one file, got {', '.join(files) or 'none'}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_package_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed package has exactly the planned version."""
    packages.check_installed(host, plan, "mkl", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_package_is_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The package is held, so a system upgrade does not change MKL."""
    packages.check_held(host, plan, "mkl", observe)
