"""The image's bill of materials, as validator/remote/materials.py writes it, against what the commands list."""

from __future__ import annotations

import json

import pytest

from tests.validator.remote.test_materials import MODINFO
from validator.probes import bill_of_materials as bill
from validator.remote import materials as program

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
