"""The expected files: of a plan's roles, and no pattern covers a whole directory of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.probes import footprints

ROOT = Path(__file__).parents[3]


def declared(recipe: str) -> footprints.Declared:
    plan = json.loads((ROOT / "variables/locks" / f"{recipe}.json").read_text())["plan"]
    return footprints.load([ROOT / "roles"], plan)


def test_the_footprint_of_an_image_is_that_of_its_roles() -> None:
    assert declared("debian12-gpu").has("/etc/profile.d/cuda.sh")
    assert not declared("al2023-neuron").has("/etc/profile.d/cuda.sh")
    assert declared("ubuntu2404-workstation").has("/usr/bin/nvidia-gridd")
    assert not declared("ubuntu2404-graphics").has("/usr/bin/nvidia-gridd")


def test_a_role_without_a_footprint_is_named() -> None:
    plan = json.loads((ROOT / "variables/locks/debian12-gpu.json").read_text())["plan"]
    found = footprints.load([ROOT / "roles"], plan | {"roles": [*plan["roles"], "acme_agent"]})
    assert found.undeclared == ("acme_agent",)


@pytest.mark.parametrize("recipe", ["debian12-gpu", "ubuntu2404-workstation", "al2023-neuron"])
@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/build-helper", "/usr/local/bin/step", "/etc/systemd/system/build.service", "/etc/sudoers.d/build",
        "/etc/ssh/sshd_config.d/99-build.conf", "/etc/profile.d/build.sh", "/etc/ld.so.conf.d/00-build.conf",
        "/etc/sysctl.d/99-build.conf", "/etc/modprobe.d/build.conf", "/etc/udev/rules.d/99-build.rules",
        "/etc/cron.d/build", "/etc/cloud/cloud.cfg.d/99-build.cfg", "/etc/apt/sources.list.d/build.list",
        "/etc/apt/apt.conf.d/99proxy", "/usr/local/share/ca-certificates/build.crt", "/etc/pam.d/build",
    ],
)  # fmt: skip
def test_leftovers_of_the_build_are_never_expected(recipe: str, path: str) -> None:
    assert not declared(recipe).has(path)


def test_known_programs_are_basenames() -> None:
    for names in (footprints.SETUID, footprints.CAPABLE, footprints.LISTENERS):
        assert names and not [name for name in names if "/" in name]
    assert not [name for name in footprints.LISTENERS if len(name) > 15]
