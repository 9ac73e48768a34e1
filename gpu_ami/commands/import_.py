"""`gpu-ami import`: a former pipeline's Packer template becomes a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu_ami.commands import Outcome
from gpu_ami.log import Progress

_EPILOG = """\
Reads the `variables` block: region, flag, subnet_id, security_groupids, build_ami, efa_pkg, intel_mkl_version,
nvidia_version, cuda_version, cudnn_version, nccl_version. `latest`, package names, several packages and .run files are
understood. What a recipe has no place for is said, and nothing is guessed. The recipe is then resolved, so that
conflicts that the template always had are seen now.

examples:
  gpu-ami import nvidia-efa-ml-al2.yml                     variables/recipes/<flag>.yml
  gpu-ami import nvidia-efa-ml-al2.yml -o al2.yml --where-file aws.yml
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "import",
        help="make a recipe of a Packer JSON template",
        description="Makes a recipe of the variables of a Packer JSON template.",
        epilog=_EPILOG,
    )
    parser.add_argument("template", type=Path, metavar="FILE", help="Packer JSON template with a `variables` block")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="recipe to write; - prints it")
    parser.add_argument("--where-file", type=Path, metavar="OUT", help="also write region, network and AMI as a place")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.importer import import_template, place_text, recipe_text
    from gpu_ami.recipes.facts import VARIABLES, load_facts

    found = import_template(args.template, load_facts())
    text = recipe_text(found, args.template)
    out = args.out or VARIABLES / "recipes" / f"{found.recipe['flag']}.yml"
    data = {"recipe": found.recipe, "place": found.place, "remarks": found.remarks}
    if str(out) == "-":
        return Outcome(text.rstrip(), data)
    _write(out, text, args.force)
    written = [f"{out}: written"]
    if args.where_file and found.place:
        _write(args.where_file, place_text(found), args.force)
        written.append(f"{args.where_file}: written")
    return Outcome("\n".join([*written, *(f"  {one}" for one in found.remarks), *_judged(out)]), data)


def _write(path: Path, text: str, force: bool) -> None:
    from gpu_ami.errors import UsageError

    if path.exists() and not force:
        raise UsageError(f"{path}: is there already", hint="--force overwrites it, -o OUT writes elsewhere")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _judged(recipe: Path) -> list[str]:
    """What the recipe as imported still has against it."""
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes.facts import load_facts
    from gpu_ami.recipes.layers import read_recipe
    from gpu_ami.recipes.resolve import resolve

    try:
        resolve(read_recipe(recipe, load_facts()), load_facts())
    except UsageError as error:
        return ["It does not resolve yet:", *(f"  {line}" for line in error.details)]
    return ["It resolves."]
