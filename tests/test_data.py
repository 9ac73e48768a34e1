"""Where the project's data lies, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami import data
from gpu_ami.errors import UsageError

CHECKOUT = Path(__file__).resolve().parents[1]


def test_data_of_a_checkout_are_its_top_level_folders() -> None:
    assert data.data_root() == CHECKOUT
    assert data.data_dir("variables", "recipes") == CHECKOUT / "variables" / "recipes"


def installed(root: Path) -> Path:
    package = root / "site-packages" / "gpu_ami"
    package.mkdir(parents=True)
    return package


def test_data_of_a_wheel_lie_in_the_package(tmp_path: Path) -> None:
    package = installed(tmp_path)
    for folder in (package / "_data", package.parent):  # another distribution may install a folder called packer
        for name in ("packer", "variables"):
            (folder / name).mkdir(parents=True)
    assert data.data_root(package) == package / "_data"


def test_incomplete_installation_names_the_folders_searched(tmp_path: Path) -> None:
    package = installed(tmp_path)
    with pytest.raises(UsageError) as caught:
        data.data_root(package)
    assert str(package / "_data") in str(caught.value) and str(package.parent) in str(caught.value)
    assert "reinstall" in caught.value.hint
