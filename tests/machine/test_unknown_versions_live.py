"""Versions are built and booted in the local region, without a row in the facts and with their rows.

The recipe names NVIDIA's newest long-term branch, the toolkit that was made for it, and the kernel that the system's
AMIs boot; a copy of this checkout lacks the rows. Each run on two processors without KVM: about seven minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from gpu_ami import process
from gpu_ami.files import data_root

ROOT = data_root()
RECIPE = """\
description: versions that no row of the facts has
flag: unknown
os: ubuntu2404
instance_types: [g6.xlarge]

nvidia_driver: {version: 620.70.06}
cuda: {version: "13.5"}
kernel: {version: "7.0"}
"""
_COPIED = ("gpu_ami", "validator", "onhost", "localregion", "variables", "packer", "playbooks", "roles", "iam")


def copy_of_checkout(copy: Path) -> None:
    """What gpu-ami and the local region read."""
    for name in _COPIED:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copy / path.name)


def without_rows(root: Path) -> None:
    """Removes the driver branches from 615 on, CUDA from 13.4 on, and kernel 7.0."""
    facts = root / "variables" / "facts"
    for name, key, newest in (("nvidia_drivers", "branches", "610"), ("cuda", "releases", "13.3")):
        path = facts / f"{name}.yml"
        table = yaml.load(path.read_text("utf-8"), yaml.BaseLoader)
        rows = table[key]
        kept = list(rows)[: list(rows).index(newest) + 1]
        assert len(kept) < len(rows)
        table[key] = {name: rows[name] for name in kept}
        path.write_text(yaml.safe_dump(table, sort_keys=False), "utf-8")
    path = facts / "operating_systems.yml"
    systems = yaml.load(path.read_text("utf-8"), yaml.BaseLoader)
    systems["ubuntu2404"]["kernels"].remove("7.0")
    path.write_text(yaml.safe_dump(systems, sort_keys=False), "utf-8")


def python_of(copy: Path) -> Path:
    """A virtual environment as this one, in which gpu_ami is the copy."""
    environment = copy / ".venv"
    shutil.copytree(sys.prefix, environment, symlinks=True, copy_function=_linked)
    (packages,) = environment.glob("lib/python3*/site-packages")
    own = [path for path in packages.glob("*.pth") if str(ROOT) in path.read_text("utf-8")]
    assert own, f"{packages}: expected an editable installation of {ROOT}"
    for path in own:
        path.unlink()
        path.write_text(f"{copy}\n", "utf-8")
    return environment / "bin" / "python"


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.machine
@pytest.mark.parametrize(
    ("has_rows", "unverified"),
    [(False, {"nvidia_driver": "620.70.06", "cuda": "13.5", "kernel": "7.0"}), (True, {})],
    ids=["without rows", "with rows"],
)
def test_an_image_of_new_versions_is_built_and_boots(
    has_rows: bool, unverified: dict[str, str], tmp_path: Path
) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    copy_of_checkout(copy)
    if not has_rows:
        without_rows(copy)
    recipe = copy / "variables" / "recipes" / "unknown.yml"
    recipe.write_text(RECIPE, "utf-8")
    out = tmp_path / "out"
    command = [python_of(copy), "-m", "gpu_ami", "rehearse", "--boot", "unknown", "-o", out]
    done = process.run(command, timeout=3000, cwd=copy, check=False)
    assert (out / "unknown" / "rehearsal.json").exists(), f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    plan = json.loads((out / "unknown" / "plan.json").read_text("utf-8"))
    assert plan.get("unverified", {}) == unverified
    row = json.loads((out / "unknown" / "rehearsal.json").read_text("utf-8"))
    assert (done.returncode, row["result"]) == (0, "PASS"), f"{row}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    checks = json.loads((out / "unknown" / "report.json").read_text("utf-8"))["hosts"]
    loaded = [one for host in checks for one in host["checks"] if "loaded_driver" in one["id"]]
    assert loaded and {one["verdict"] for one in loaded} == {"PASS"}
