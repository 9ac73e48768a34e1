"""What `gpu-ami sources --build` refuses, reads from DKMS's log, and prints as a row that the rule reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.files import home_dir
from gpu_ami.plan import Plan, make_plan
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe, load_facts
from localregion.region import local_place
from localregion.sandbox import sandbox


def planned(name: str, overrides: list[str] | None = None, home: Path | None = None) -> Plan:
    return make_plan(find_recipe(Path(name)), local_place(home), overrides or [])


def test_a_driver_of_nvidia_s_repository_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="this driver is NVIDIA's") as caught:
        sandbox.require_buildable(planned("debian12-gpu"))
    assert "replicas" in caught.value.hint


def test_a_plan_without_the_driver_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="installs none"):
        sandbox.require_buildable(planned("al2023-neuron"))


def test_it_needs_root(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="sources --build needs root"):
        sandbox.require_buildable(planned("debian12-distribution"))


@pytest.mark.parametrize("error", ["", "too few arguments to function 'pci_resize_resource'"])
def test_the_row_has_what_the_rule_reads(home: Path, error: str) -> None:
    row = sandbox.build_row(planned("debian12-distribution"), "6.1.0-99-cloud-amd64", "debian12", error)
    known: dict[str, Any] = load_facts().distribution_drivers["systems"]["debian12"]["builds"][0]
    assert known.keys() - {"error"} <= row.keys() and row["builds"] is not bool(error)
    assert row.get("error", "") == error and row["flavour"] == "proprietary"


def test_the_compiler_s_first_error_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dkms/nvidia-current/535.261.03/build"
    folder.mkdir(parents=True)
    (folder / "make.log").write_text("CC nv.o\nnv.c:7:3: error: too few arguments\nnv.c:9:3: error: another\n")
    assert sandbox.module_error(tmp_path) == "too few arguments"
    assert sandbox.module_error(tmp_path / "other") == ""


@pytest.fixture(scope="module")
def real_home() -> Path:
    return home_dir()


@pytest.mark.sandbox
@pytest.mark.real
@pytest.mark.parametrize("recipe", ["debian12-distribution", "debian13-distribution"])
def test_the_archive_s_module_builds_on_the_base_image_s_kernel(
    recipe: str, real_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(real_home))
    plan = planned(recipe, ["tuning.network=false"], real_home)
    row = sandbox.try_build(plan, Progress("plain"))
    assert row["builds"] is True and row["driver"] == plan["nvidia_driver"]["version"]
