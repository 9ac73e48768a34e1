"""The bill of materials as report.html shows it: by kind and origin, from any file that is JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import pipeline
from gpu_ami.report import page_materials
from gpu_ami.report.page_materials import Origin
from tests.release import examples
from tests.report.examples import a_report


def test_components_of_a_real_bill_by_origin(tmp_path: Path) -> None:
    pipeline.certify_stage(examples.write_folder(tmp_path), tmp_path)
    materials = page_materials.load(tmp_path)
    assert materials
    assert materials.packages == [
        Origin("http://deb.debian.org/debian bookworm/main", [("libc6", "2:2.36-9+deb12u10")]),
        Origin("repository not recorded", [("nvidia-utils", "580.1")]),
    ]
    assert materials.modules == [Origin("DKMS module signing key", [("nvidia", "580.1")])]
    assert [(noun, count) for noun, count, _ in materials.kinds] == [("package", 1 + 1), ("kernel module", 1)]
    assert materials.serial.startswith("urn:uuid:")
    page = (tmp_path / "report.html").read_text()
    assert '<a href="bom.cdx.json">' in page and "2 packages" in page


def test_no_bill_is_said(tmp_path: Path) -> None:
    assert page_materials.load(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        {}, {"components": 3, "metadata": []}, {"components": [1, {"type": "library", "properties": [7]}]},
        {"metadata": {"component": {"pedigree": {"ancestors": ["x"]}}}},
    ],
)  # fmt: skip
def test_a_bill_of_another_form_is_no_error(content: object, tmp_path: Path) -> None:
    (tmp_path / page_materials.BOM_FILE).write_text(json.dumps(content))
    materials = page_materials.load(tmp_path)
    assert materials and materials.base == "" and not materials.modules


def test_versions_of_installed_components_and_of_the_kernel() -> None:
    plan = {
        "nvidia_driver": {"version": "580.1"},
        "cuda": {"version": "13.0"},
        "kernel": {"version": "6.1"},
        "node": {},
    }
    assert page_materials.planned_versions(a_report(**plan)) == [("nvidia_driver", "580.1"), ("kernel", "6.1")]
