"""One table of architectures: EC2's names, with those of packages and compilers; nobody else has one."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_ami.recipes.facts.citations import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[2]


def test_names_are_those_of_each_system() -> None:
    assert {name: (row.deb, row.rpm, row.triplet) for name, row in ARCHITECTURES.items()} == {
        "x86_64": ("amd64", "x86_64", "x86_64-linux-gnu"),
        "arm64": ("arm64", "aarch64", "aarch64-linux-gnu"),
    }


def test_no_other_module_has_a_table_of_its_own() -> None:
    table = re.compile(r"[\"']arm64[\"']: [\"'](arm64|aarch64)")
    folders = [ROOT / "gpu_ami", ROOT / "validator"]
    modules = [path for folder in folders for path in folder.rglob("*.py") if "replicas" not in path.parts]
    assert [str(path.relative_to(ROOT)) for path in modules if table.search(path.read_text(encoding="utf-8"))] == []
