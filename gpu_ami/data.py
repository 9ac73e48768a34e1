"""The project's data: packer/, playbooks/, roles/, variables/, iam/ and ansible.cfg.

In a checkout these are top-level folders; a wheel has them in `gpu_ami/_data/` (pyproject.toml, "sources").
"""

from __future__ import annotations

from pathlib import Path

from gpu_ami.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def data_root(package: Path = _PACKAGE) -> Path:
    """The folder that holds packer/, playbooks/, roles/, variables/ and ansible.cfg. `package` is gpu_ami's own folder.

    UsageError: the installation is incomplete; the message names the folders that were searched.
    """
    installed, checkout = package / "_data", package.parent
    for root in (installed, checkout):
        if (root / "packer").is_dir() and (root / "variables").is_dir():
            return root
    raise UsageError(
        f"packer/ and variables/ not found; searched {installed} and {checkout}",
        hint="reinstall gpu-ami; in a checkout of the project: pip install -e .",
    )


def data_dir(*names: str) -> Path:
    """A folder or file of the project's data: data_dir("variables", "recipes")."""
    return data_root().joinpath(*names)
