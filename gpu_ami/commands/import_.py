"""`gpu-ami import`: a former pipeline's Packer template becomes a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

_EPILOG = """\
Reads a Packer template: JSON (or the same keys as YAML), *.pkr.hcl, or a folder of *.pkr.hcl files with their
*.auto.pkrvars.hcl. Variables, {{user `x`}}, {{env `X`}}, var.x and local.x are resolved. Names of the former pipeline
(flag, build_ami, efa_pkg, nvidia_version, cuda_version, …), of amazon-eks-ami (kubernetes_version, source_ami_id,
nvidia_driver_major_version, …) and of amazon-ecs-ami are recognized; so are `latest`, package names, several packages
and .run files. Every key that is dropped (of builders, provisioners, post-processors), everything that was not
recognized and every assumed value is printed, and written into the recipe as a comment. Secrets are reported by name
and never copied: passwords, tokens, keys, values that look like one, user data and the text of scripts. The recipe is
then resolved, which reveals conflicts of the template; exit code 2 if there are any, also with -o -.

examples:
  gpu-ami import nvidia-efa-ml-al2.yml                     variables/recipes/<flag>.yml
  gpu-ami import nvidia-efa-ml-al2.yml -o al2.yml --where-file aws.yml
  gpu-ami import template.json --var-file variables-1.33.json --var-file variables-default.json -o -
  gpu-ami import ecs-ami/ --only amazon-ebs.al2023gpu
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "import",
        help="convert a Packer template (JSON or HCL2) into a recipe",
        description="Converts a Packer template into a recipe.",
        epilog=_EPILOG,
    )
    text = "Packer template: JSON, *.pkr.hcl, or a folder of *.pkr.hcl files"
    parser.add_argument("template", type=Path, metavar="FILE", help=text)
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="recipe to write; - prints it")
    text = "values of variables (JSON or *.pkrvars.hcl), like Packer's -var-file (repeatable; the last one wins)"
    parser.add_argument("--var-file", "-var-file", type=Path, action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("--only", default="", metavar="BUILDER", help="the builder to use: its name, or TYPE.NAME")
    parser.add_argument("--where-file", type=Path, metavar="OUT", help="also write region, network and AMI as a place")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.importer import import_template, place_text, recipe_text
    from gpu_ami.recipes import load_facts, new_recipe_folder

    imported = import_template(args.template, load_facts(), args.var_file, args.only)
    text = recipe_text(imported, args.template)
    out = args.out or new_recipe_folder() / f"{imported.recipe['flag']}.yml"
    is_printed = str(out) == "-"
    written = []
    if not is_printed:
        _write(out, text, args.force)
        written.append(f"{out}: written")
    if args.where_file and imported.place:
        _write(args.where_file, place_text(imported), args.force)
        written.append(f"{args.where_file}: written")
    conflicts = _conflicts_of(text, imported.recipe["flag"]) if is_printed else _conflicts(out)
    resolves = ["It does not resolve yet:", *(f"  {line}" for line in conflicts)] if conflicts else ["It resolves."]
    if is_printed:  # what is printed is the recipe, and stays YAML
        lines = [text.rstrip(), *(f"# {line}" for line in [*written, *resolves])]
    else:
        lines = [*written, *(f"  {remark}" for remark in imported.remarks), *resolves]
    remarks = [_remark(line) for line in imported.remarks]
    data = {"recipe": imported.recipe, "place": imported.place, "remarks": remarks, "conflicts": list(conflicts)}
    return Outcome("\n".join(lines), data, 2 if conflicts else 0)


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


def _conflicts_of(text: str, flag: object) -> tuple[str, ...]:
    """As `_conflicts`, of a recipe that is written nowhere."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, f"{flag}.yml")
        recipe.write_text(text, encoding="utf-8")
        return _conflicts(recipe)


def _conflicts(recipe: Path) -> tuple[str, ...]:
    """What keeps the recipe as imported from resolving."""
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import facts_of, read_recipe, resolve

    try:
        facts = facts_of(recipe)
        resolve(read_recipe(recipe, facts), facts)
    except UsageError as error:
        return error.details or (error.message,)
    return ()
