"""`gpu-ami prove`: the whole line in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
plan → build → boot on every instance type → proof → certificate, all in OUT. What is there already and still fits is
used again (--fresh builds anew). Ctrl-C ends everything that was started; after a kill -9, `gpu-ami sweep` does.

  gpu-ami prove variables/recipes/debian12-gpu.yml
  gpu-ami prove variables/recipes/debian12-gpu.yml --set telemetry.profile=graphics
  gpu-ami prove variables/recipes/debian12-gpu.yml --where aws.yml
  gpu-ami prove variables/recipes/debian12-gpu.yml --restarts none    quicker, and never green
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("prove", help="from a recipe to a certificate, in one go", epilog=_EPILOG)
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="variables/recipes/<image>.yml")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help=stages.OUT_HELP)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="override a value of the recipe (repeatable)",
    )
    parser.add_argument("--fresh", action="store_true", help="build anew even if this plan has an AMI")
    stages.add_where(parser)
    stages.add_agent_package(parser)
    stages.add_instance_types(parser)
    stages.add_checks(parser)
    stages.add_restarts(parser)
    parser.set_defaults(execute=execute, again="the same command again goes on with the stages that were finished")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import line, report

    options = stages.validator_options(args)
    ask = line.Ask(args.instance_type, args.checks, options, stages.restarts(args))
    agent = stages.agent_package(args, progress)
    overrides = [*line.agent_version(agent), *args.set]
    line.check_recipe(args.recipe, overrides)
    out = args.out or Path("out") / args.recipe.stem
    with line.standing(args.where, progress, agent) as at:
        plan = line.plan_stage(args.recipe, overrides, out, at)
        made = line.build_stage(plan, out, at, fresh=args.fresh)
        found = line.validate_stage(plan, made.ami, out, at, ask)
    drawn = line.certify_stage(found, out)
    return Outcome(line.verdict_text(found, drawn, out), drawn.content, report.EXIT_CODES[found.verdict])
