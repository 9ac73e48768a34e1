"""The planned cuDNN is on the loader path, was built for the planned CUDA, and is held."""

from __future__ import annotations

from typing import Any

import pytest

from validator.observe import Observe
from validator.plan_document import Component, Cuda, PlanDocument, section
from validator.probes import packages, shared_libraries

pytestmark = [pytest.mark.planned("cudnn"), pytest.mark.beside_live]


def version(code: int) -> str:
    """The result of cudnnGetVersion as a version: 90100 is 9.1.0, and before version 9 8700 is 8.7.0."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code >= 90000 else (
        f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    )  # fmt: skip


def _planned(plan: PlanDocument) -> str:
    return section(plan, "cudnn", Component)["version"]


def _soname(plan: PlanDocument) -> str:
    return f"libcudnn.so.{_planned(plan).partition('.')[0]}"


@pytest.mark.needs("promise")
def test_library_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The cuDNN on the loader path reports the planned version, without LD_LIBRARY_PATH."""
    library = shared_libraries.call(host, observe, _soname(plan), "cudnnGetVersion", "size")
    observe.same(version(int(library.value)), _planned(plan), f"cudnnGetVersion of {library.file}")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The loader path has one cuDNN of this major version. With two, the one that a program loads is undefined."""
    files = shared_libraries.on_path(host, _soname(plan))
    observe(files, "one file")
    if len(files) != 1:
        observe.fail(f"{_soname(plan)} on the loader path: expected one file, got {', '.join(files) or 'none'}")


@pytest.mark.needs("observed")
def test_every_library_can_be_opened(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """A program opens each of cuDNN's libraries, with the symbol versions that it needs: cuDNN does so itself."""
    major = _soname(plan).rpartition(".")[2]
    shared_libraries.check_opened(host, observe, shared_libraries.names_on_path(host, rf"libcudnn\w*\.so\.{major}"))


@pytest.mark.needs("observed")
def test_library_is_made_for_the_planned_cuda(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """cuDNN was built for the major version of the planned CUDA. Any other fails at the first kernel launch."""
    planned = str(section(plan, "cuda", Cuda)["version"]).partition(".")[0]
    library = shared_libraries.call(host, observe, _soname(plan), "cudnnGetCudartVersion", "size")
    observe.same(str(int(library.value) // 1000), planned, f"CUDA major version that {library.file} was built for")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages have exactly the planned versions."""
    packages.check_installed(host, plan, "cudnn", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change cuDNN."""
    packages.check_held(host, plan, "cudnn", observe)
