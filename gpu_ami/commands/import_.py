"""`gpu-ami import`: a former pipeline's Packer template becomes a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

_EPILOG = """\
Reads the `variables` block: region, flag, subnet_id, security_groupids, build_ami, efa_pkg, intel_mkl_version,
nvidia_version, cuda_version, cudnn_version, nccl_version. `latest`, package names, several packages and .run files are
understood. Every key that is dropped (of builders, provisioners, post-processors) and every value that is assumed is
printed, and written into the recipe as a comment. The recipe is then resolved, so that conflicts that the template
always had are seen now; exit code 2 if there are any.

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
    from gpu_ami.recipes import import_template, load_facts, new_recipe_folder, place_text, recipe_text

    imported = import_template(args.template, load_facts())
    text = recipe_text(imported, args.template)
    out = args.out or new_recipe_folder() / f"{imported.recipe['flag']}.yml"
    remarks = [_remark(line) for line in imported.remarks]
    data = {"recipe": imported.recipe, "place": imported.place, "remarks": remarks, "conflicts": []}
    if str(out) == "-":
        return Outcome(text.rstrip(), data)
    _write(out, text, args.force)
    written = [f"{out}: written"]
    if args.where_file and imported.place:
        _write(args.where_file, place_text(imported), args.force)
        written.append(f"{args.where_file}: written")
    conflicts = _conflicts(out)
    resolves = ["It does not resolve yet:", *(f"  {line}" for line in conflicts)] if conflicts else ["It resolves."]
    lines = [*written, *(f"  {remark}" for remark in imported.remarks), *resolves]
    return Outcome("\n".join(lines), data | {"conflicts": list(conflicts)}, 2 if conflicts else 0)


def _remark(line: str) -> dict[str, object]:
    """`region, subnet_id: belong in a --where file` as the keys of the template or recipe and what is said of them."""
    keys, _, message = line.partition(": ")
    return {"keys": keys.split(", "), "message": message}


def _write(path: Path, text: str, force: bool) -> None:
    from gpu_ami.errors import UsageError
    from gpu_ami.files import write_text

    if path.exists() and not force:
        raise UsageError(f"{path}: is there already", hint="--force overwrites it, -o OUT writes elsewhere")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _conflicts(recipe: Path) -> tuple[str, ...]:
    """What keeps the recipe as imported from resolving."""
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import load_facts, read_recipe, resolve

    try:
        resolve(read_recipe(recipe, load_facts()), load_facts())
    except UsageError as error:
        return error.details or (error.message,)
    return ()
