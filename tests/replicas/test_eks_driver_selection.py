"""The emulated EKS AMI takes a driver as the original: by its lists, once, and removes the others."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu_ami.recipes import load_facts
from localregion.mirror.table import REPLICAS

ETC = REPLICAS / "eks_nvidia_ami" / "rootfs" / "etc" / "eks"
VARIANT = load_facts().node_families["eks"]["variants"]["nvidia"]
TYPES = load_facts().instance_types["instance_types"]
SMALLEST = {row["family"]: name for name, row in reversed(TYPES.items())}


@pytest.fixture
def selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("resolve", str(ETC / "resolve-nvidia-driver"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("resolve", loader))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    for name, branch in VARIANT["driver_branches"].items():
        (tmp_path / "trees" / name).mkdir(parents=True)
        (tmp_path / "trees" / name / ".version").write_text(f"{branch['version']}\n")
        (tmp_path / "trees" / name / f".tree-{name}").touch()
    (tmp_path / "settings").mkdir()
    for key, value in {"TREES": tmp_path / "trees", "SETTINGS": tmp_path / "settings", "LISTS": ETC}.items():
        monkeypatch.setattr(module, key, str(value))
    return module


def board(folder: Path, description: str, ids: tuple[str, str] = ("0x1af4", "0x1110")) -> None:
    folder.mkdir(parents=True)
    for name, text in {"vendor": ids[0], "device": ids[1], "enable": "0"}.items():
        (folder / name).write_text(f"{text}\n")
    (folder / "resource2").write_bytes(description.encode().ljust(8192, b"\0"))


def boot(selection: Any, tmp_path: Path, instance_type: str, *gpus: str) -> str:
    """Tree, version and flavour that a machine of that type takes; "" if none."""
    system = tmp_path / f"sys-{instance_type}-{len(gpus)}"
    for index, name in enumerate(gpus):
        board(system / "bus/pci/devices" / str(index), f"magic: gpu-ami-board/1\nindex: {index}\nname: {name}\n")
    board(system / "bus/pci/devices/network", "magic: gpu-ami-board/1\nname: x\n", ("0x1d0f", "0xec20"))
    board(system / "bus/pci/devices/shared-memory", "something else")
    (system / "devices/virtual/dmi/id").mkdir(parents=True)
    (system / "devices/virtual/dmi/id/product_name").write_text(f"{instance_type}\n")
    selection.SYS = str(system)
    selection.main()
    current = tmp_path / "trees" / "current"
    if not current.exists():
        return ""
    (mark,) = current.glob(".tree-*")
    return f"{mark.name.removeprefix('.tree-')} {(current / '.driver-flavor').read_text().strip()}"


@pytest.mark.parametrize("name", VARIANT["driver_branches"])
def test_every_family_takes_its_branch(selection: Any, tmp_path: Path, name: str) -> None:
    """The facts say what the lists and the rule select, for each family alone."""
    trees = tmp_path / "trees"
    for family, flavour in VARIANT["driver_branches"][name]["families"].items():
        gpu = TYPES[SMALLEST[family]]["gpu"]["name"]
        for branch, row in VARIANT["driver_branches"].items():
            (trees / branch).mkdir(exist_ok=True)
            (trees / branch / ".version").write_text(f"{row['version']}\n")
            (trees / branch / f".tree-{branch}").touch()
        assert boot(selection, tmp_path, SMALLEST[family], gpu) == f"{name} {flavour}", family
        assert sorted(path.name for path in trees.iterdir()) == ["current"]
        settings = tmp_path / "settings" / "nvidia-disable-gsp.conf"
        assert settings.exists() == (family in VARIANT["without_gsp"]), family
        settings.unlink(missing_ok=True)
        for path in (trees / "current").iterdir():
            path.unlink()
        (trees / "current").rmdir()


def test_machine_without_a_gpu_takes_none(selection: Any, tmp_path: Path) -> None:
    """The builder, so that the image's machines can take any."""
    assert boot(selection, tmp_path, "m6i.2xlarge") == ""
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["lts", "pb"]


def test_what_was_taken_is_kept(selection: Any, tmp_path: Path) -> None:
    """An image made of a machine has its driver, whatever its machines are."""
    assert boot(selection, tmp_path, "p5.48xlarge", *["NVIDIA H100 80GB HBM3"] * 8) == "lts open"
    (tmp_path / "trees" / "current" / ".driver-flavor").unlink()
    rtx = "NVIDIA RTX PRO 4500 Blackwell Server Edition"
    assert boot(selection, tmp_path, "g7.12xlarge", rtx, rtx).startswith("lts ")


def test_every_gpu_must_be_in_the_list(selection: Any, tmp_path: Path) -> None:
    rtx = "NVIDIA RTX PRO 4500 Blackwell Server Edition"
    assert boot(selection, tmp_path, "x.y", "NVIDIA L4", rtx) == "pb open"
