"""`gpu-ami matrix`: the jobs of a pipeline, as its CI system reads them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.errors import counted

if TYPE_CHECKING:
    from gpu_ami.plan import AffectedImage
    from gpu_ami.progress import Progress

_EPILOG = """\
An image is built in one job; each of its instance types (a shard) is proven in its own job, and `gpu-ami merge`
joins them into one certificate. With --since, only images that the change affects are listed: their recipe resolves to
other values than the lock of that commit (of the common ancestor with HEAD), or a file of their roles, of the template
or of their site has changed. An image of which only checks have changed is proven again but not built.

formats:
  text         a line for each image with its reasons
  json         {"images": […], "shards": […]}; also what --json prints
  markdown     a table, and what changes in each image's plan: for a comment on a pull request
  github       lines for $GITHUB_OUTPUT: images=…, shards=…, any=true or false (docs/ci.md)
  gitlab       the hidden jobs .gpu-ami-images and .gpu-ami-shards with parallel: matrix
  codebuild    a buildspec's batch: build-list, one build for each shard

examples:
  gpu-ami matrix                                                every recipe
  gpu-ami matrix --since origin/main                            what this branch affects
  gpu-ami matrix --since "$BASE" --format markdown > comment.md
  gpu-ami matrix --since "$BASE" --format github >> "$GITHUB_OUTPUT"
  gpu-ami matrix debian12-gpu --format gitlab > matrix.yml
"""
_MOST_CHANGES = 40  # of an image, in Markdown; --format json has all
FORMATS = ("text", "json", "markdown", "github", "gitlab", "codebuild")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "matrix",
        help="list the CI jobs of the images that a change affects",
        description="Lists the images that a change affects, and a job for each of their instance types.",
        epilog=_EPILOG,
    )
    parser.add_argument("recipe", type=Path, nargs="*", metavar="RECIPE", help="recipes or images; default: all")
    parser.add_argument("--since", default="", metavar="COMMIT", help="only what has changed since this git commit")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.plan import affected
    from gpu_ami.recipes import all_recipes, find_recipe

    recipes = [find_recipe(recipe) for recipe in args.recipe] or all_recipes()
    images = affected(recipes, args.since)
    data = {"images": [_plain(image) for image in images], "shards": shards(images)}
    writers = {
        "text": _text,
        "json": _json,
        "markdown": _markdown,
        "github": _github,
        "gitlab": _gitlab,
        "codebuild": _codebuild,
    }
    return Outcome(writers[args.format](images), data)


def shards(images: Sequence[AffectedImage]) -> list[dict[str, str]]:
    """A proof on one instance type each: its image, recipe and instance type."""
    return [
        {"image": image.image, "recipe": image.recipe, "instance_type": name}
        for image in images
        for name in image.instance_types
    ]


def _text(images: Sequence[AffectedImage]) -> str:
    lines = []
    for image in images:
        lines.append(
            f"{image.image}: {'build and prove' if image.build else 'prove'} on {', '.join(image.instance_types)}"
        )
        lines += [f"    {reason}" for reason in image.reasons]
    return "\n".join([*lines, f"{counted(len(images), 'image')}, {counted(len(shards(images)), 'shard')}"])


def _json(images: Sequence[AffectedImage]) -> str:
    data = {"images": [_plain(image) for image in images], "shards": shards(images)}
    return json.dumps(data, indent=2, ensure_ascii=False)


def _plain(image: AffectedImage) -> dict[str, Any]:
    changes = [{"path": change.path, "before": change.locked, "now": change.planned} for change in image.changes]
    return asdict(image) | {"reasons": list(image.reasons), "changes": changes}


def _markdown(images: Sequence[AffectedImage]) -> str:
    """For a comment on a pull request, which GitHub limits to 65,536 characters."""
    from gpu_ami.report import templating

    counts = f"{counted(len(images), 'image')} affected, {counted(len(shards(images)), 'proof')}"
    return templating.render("matrix.md.j2", images=images, counts=counts, most=_MOST_CHANGES).rstrip()


def _github(images: Sequence[AffectedImage]) -> str:
    """Lines of $GITHUB_OUTPUT; `strategy.matrix` takes `fromJSON` of the first two, unless they are empty."""
    rows = [{"image": image.image, "recipe": image.recipe, "build": image.build} for image in images]
    lines = {"images": {"include": rows}, "shards": {"include": shards(images)}, "any": bool(images)}
    return "\n".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in lines.items())


def _gitlab(images: Sequence[AffectedImage]) -> str:
    """Hidden jobs that the user's jobs extend. GitLab refuses an empty matrix: without an image, a job that says so."""
    import yaml

    if not images:
        empty = {"no-image-affected": {"script": ["echo 'no image is affected by this change'"]}}
        return yaml.safe_dump(empty, sort_keys=False).rstrip()
    rows = [{"IMAGE": image.image, "RECIPE": image.recipe, "BUILD": str(image.build).lower()} for image in images]
    proofs = [
        {"IMAGE": image.image, "RECIPE": image.recipe, "INSTANCE_TYPE": list(image.instance_types)} for image in images
    ]
    jobs = {".gpu-ami-images": {"parallel": {"matrix": rows}}, ".gpu-ami-shards": {"parallel": {"matrix": proofs}}}
    return yaml.safe_dump(jobs, sort_keys=False).rstrip()


def _codebuild(images: Sequence[AffectedImage]) -> str:
    """The batch section of a buildspec; identifiers are letters, digits and underscores."""
    import yaml

    builds = [
        {
            "identifier": re.sub(r"\W", "_", f"{row['image']}_{row['instance_type']}"),
            "env": {"variables": {key.upper(): value for key, value in row.items()}},
        }
        for row in shards(images)
    ]
    return yaml.safe_dump({"batch": {"fast-fail": False, "build-list": builds}}, sort_keys=False).rstrip()
