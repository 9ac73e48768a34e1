"""`gpu-ami init`: a small folder of the user's own, in which every command runs."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Writes a recipe, aws.yml, publish.yml, checks/, waivers.yml, site/, a README and a CI workflow. Existing files
are not overwritten.

examples:
  gpu-ami init my-images && cd my-images && gpu-ami plan my-gpu-image
"""
_STARTER = Path(__file__).resolve().parents[1] / "starter"


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("init", help="create a folder for recipes and checks of your own", epilog=_EPILOG)
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="folder to create, or an existing one without these files"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError

    names = sorted(path.relative_to(_STARTER) for path in _STARTER.rglob("*") if _is_starter_file(path))
    existing = [args.directory / name for name in names if (args.directory / name).exists()]
    if existing:
        listed = ", ".join(map(str, existing))
        raise UsageError(f"not overwritten: {listed}", hint="name another folder, or move these files away")
    try:
        for name in names:
            target = args.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_STARTER / name, target)
    except OSError as error:
        raise UsageError(f"{args.directory}: cannot be written: {error}") from error
    written = [str(args.directory / name) for name in names]
    steps = [
        f"next: cd {args.directory} && gpu-ami plan my-gpu-image",
        "before the first push: gpu-ami plan --lock my-gpu-image, and set GPU_AMI in .github/workflows/ (README.md)",
    ]
    return Outcome("\n".join([*written, "", *steps]), written)


def _is_starter_file(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
