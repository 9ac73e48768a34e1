"""`gpu-ami doctor`: what is missing on this machine and how to install it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.build import Packer
    from gpu_ami.local.prerequisites import Finding
    from gpu_ami.progress import Progress

_EPILOG = """\
Exit code 0: nothing is missing; 2: something is missing, and the output names the packages to install. `packer` is the
program that $PACKER names, or the first on the PATH, with its version and plugins.

With --where the place on AWS is examined: credentials, permissions, subnet, routes, security groups, instance profile
and KMS key; with RECIPE also the source AMI, and quotas, zones and architecture of its instance types. Nothing is
launched. Exit code 2: the place or the recipe is wrong; 4: AWS refuses something; warnings do not count.

  gpu-ami doctor
  gpu-ami doctor --where aws.yml variables/recipes/debian12-gpu.yml
  PACKER=/opt/packer/packer gpu-ami doctor
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor", help="show what is missing on this machine, and how to install it", epilog=_EPILOG
    )
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="recipe to examine at the place")
    parser.add_argument("--where", type=Path, metavar="FILE", help="examine this place on AWS (YAML)")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if args.where:
        return _place(args.where, args.recipe)
    if args.recipe:
        raise UsageError("doctor takes RECIPE together with --where", hint="gpu-ami doctor --where aws.yml RECIPE")
    from dataclasses import asdict

    from gpu_ami.files import home_dir
    from gpu_ami.local import prerequisites

    found = [_packer() if one.name == "packer" else one for one in prerequisites.examine(home_dir())]
    lines = [f"{'ok     ' if one.ok else 'MISSING'} {one.name:24} {one.found}" for one in found]
    wrong = [one for one in found if not one.ok]
    lines += ["", *(f"{one.name} ({one.needed_for}): {one.remedy}" for one in wrong)] if wrong else []
    packages = prerequisites.missing_packages(found)
    lines += ["", f"install all: sudo apt-get install --no-install-recommends {' '.join(packages)}"] if packages else []
    return Outcome("\n".join(lines), [asdict(one) for one in found], 2 if wrong else 0)


def _place(where: Path, recipe: Path | None) -> Outcome:
    """What a preflight finds at the place of a --where file."""
    from dataclasses import asdict

    from gpu_ami.cloud import Cloud, load_place, preflight
    from gpu_ami.plan import make_plan, resolve_source_ami
    from gpu_ami.recipes import find_recipe

    place = load_place(where)
    plan = make_plan(find_recipe(recipe), place).document if recipe else None
    findings = preflight.examine(Cloud(place), plan, resolve_source_ami)
    lines = [*map(str, findings), "", preflight.summary(findings)]
    return Outcome("\n".join(lines), [asdict(finding) for finding in findings], preflight.exit_code(findings))


def _packer() -> Finding:
    """The Packer that builds use: its program, version and plugins."""
    from gpu_ami.build import packer
    from gpu_ami.errors import GpuAmiError
    from gpu_ami.local.prerequisites import Finding

    try:
        used = packer.Packer.find()
        shown = f"{used.program} {'.'.join(map(str, used.version))}, {_plugins(used)}"
    except GpuAmiError as error:
        return Finding("packer", False, error.message, error.hint or "apt-get install packer", "every build")
    return Finding("packer", True, shown, "apt-get install packer", "every build")


def _plugins(used: Packer) -> str:
    if not used.has_plugins:
        return "plugins built in"
    names = used.plugins()
    return f"plugins {', '.join(names)}" if names else "no plugins (`packer init` downloads them before a build)"
