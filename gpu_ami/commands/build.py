"""`gpu-ami build`: plan.json → AMI."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Reads OUT/plan.json and writes OUT/build.json, OUT/packer-manifest.json and OUT/build.log. An AMI that the same plan and
the same roles made in the same place is used again. By hand: packer build -var-file=OUT/packer.pkrvars.json packer/

examples:
  gpu-ami build                                  the only plan under out/, in the local region
  gpu-ami build out/debian12-gpu --where aws.yml
  gpu-ami build --layers all                     also creates layer images, which --layers auto uses later
  gpu-ami build --explain                        existing layer images and changes; builds nothing
"""
_AGAIN = "the same command builds it again; with --layers all it goes on after the last layer that was finished"


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("build", help="build the AMI of a plan (Packer and Ansible)", epilog=_EPILOG)
    options.add_out(parser)
    options.add_where(parser)
    options.add_agent_package(parser)
    options.add_no_source_check(parser)
    options.add_layers(parser)
    options.add_builder(parser)
    text = "show the layers of the plan, which of them have an image, and what changed since the last build; no build"
    parser.add_argument("--explain", action="store_true", help=text)
    parser.add_argument("--fresh", action="store_true", help="build again even if this plan has an AMI")
    parser.set_defaults(execute=execute, again=_AGAIN)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami import pipeline
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.region import SessionRequest

    out = options.existing_plan(args.out)
    out_lock.hold(out)
    plan = Plan.load(out / PLAN_FILE)
    agent = options.agent_package(args, progress)
    layered = options.layers(args)
    builds = not args.explain and (args.fresh or not pipeline.was_built(plan, out))
    about_to = layered if builds else None
    request = SessionRequest(args.where, agent, builder=args.builder, layering=about_to)
    with pipeline.open_session(request, progress) as session:
        if args.explain:
            states = pipeline.explain_layers(plan, out, session)
            return Outcome("\n".join(state.text for state in states), [asdict(state) for state in states])
        made = pipeline.build_stage(
            plan,
            out,
            session,
            fresh=args.fresh,
            source_check=not args.no_source_check,
            layered=layered,
        )
    return Outcome(f"{made.ami} in {made.region} ({made.place}) → {out}/build.json", asdict(made))
