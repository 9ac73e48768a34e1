"""The expected files: of a plan's roles, and no pattern covers a whole directory of settings.

The image's bill of materials, as onhost/materials.py writes it, against what the commands list.
Which packages of a plan an upgrade must leave alone, and a change as a person reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onhost import materials as program
from tests.onhost.test_materials import MODINFO
from tests.validator.checks.conftest import PLAN
from validator.plan import as_plan
from validator.probes import bill_of_materials as bill
from validator.probes import footprints, system_upgrade
from validator.probes.system_upgrade import Change

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


PACKAGES = "installed\tlibc6\t2:2.36-9\tamd64\nunpacked\tnvidia-smi\t580.1-1\tamd64\n"
MODULES = "/lib/modules/6.1/updates/dkms/nvidia-uvm.ko.xz\n/lib/modules/6.1/kernel/drivers/net/ena.ko\n"


def document() -> str:
    rows = (("libc6", "2:2.36-9"), ("nvidia-smi", "580.1-1"))
    packages = [
        {"name": name, "version": version, "architecture": "amd64", "kind": "deb", "repository": ""}
        for name, version in rows
    ]
    modules = program.parse_modules(MODINFO.replace("/lib/modules", "/usr/lib/modules"), "")
    found = {"os": "debian", "os_version": "12", "packages": packages, "modules": modules}
    return json.dumps(program.bom(found))


def test_the_same_is_no_difference() -> None:
    assert bill.differences(bill.listed(document()), bill.installed(PACKAGES, MODULES)) == []


@pytest.mark.parametrize(
    ("packages", "modules", "line"),
    [
        (PACKAGES + "installed\tnmap\t7\tamd64\n", MODULES, "package nmap 7 amd64: installed, not in the bill"),
        (
            PACKAGES,
            MODULES + "/lib/modules/6.1/extra/x.ko\n",
            "module /lib/modules/6.1/extra/x.ko: installed, not in the bill",
        ),
        (
            "installed\tlibc6\t2:2.36-9\tamd64\n",
            MODULES,
            "package nvidia-smi 580.1-1 amd64: in the bill, not installed",
        ),
    ],
)
def test_a_difference_is_named(packages: str, modules: str, line: str) -> None:
    assert bill.differences(bill.listed(document()), bill.installed(packages, modules)) == [line]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"components": [{"type": "library"}]}'])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(bill.InvalidBill):
        bill.listed(text)


KERNEL = {"package": "linux-image-aws", "hold": ["linux-aws", "linux-image-aws"], "version": "6.8", "headers": "x"}


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({"nvidia_driver": {"package": "kmod", "packages": {"smi": "1", "libcuda": "1"}}}, {"kmod", "smi", "libcuda"}),
        ({"nvidia_driver": {"provided_by": "ami", "package": "kmod"}}, set()),
        ({"cloudwatch_agent": {"version": "1"}}, {"amazon-cloudwatch-agent"}),
        ({"efa": {"version": "1"}, "kernel": KERNEL}, set()),
    ],
)
def test_planned_packages(sections: dict[str, Any], names: set[str]) -> None:
    assert system_upgrade.planned(as_plan(PLAN | sections | {"roles": sorted(sections)})) == names


def test_kernel_counts_where_a_role_installs_it() -> None:
    plan = PLAN | {"kernel": KERNEL}
    assert system_upgrade.kernel(as_plan(plan | {"roles": ["kernel"]})) == ["linux-aws", "linux-image-aws"]
    assert system_upgrade.kernel(as_plan(plan | {"roles": []})) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change("dkms", "3.0", "3.4", "nvidia"), "dkms 3.0 → 3.4 from nvidia"),
        (Change("linux", "", "6.1", ""), "linux (new) 6.1"),
        (Change("kmod", "1", "", ""), "kmod 1 (removed)"),
    ],
)
def test_change_is_readable(change: Change, text: str) -> None:
    assert str(change) == text
