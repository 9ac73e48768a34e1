"""`gpu-ami prove`: plan, build, validate and certify in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome
from gpu_ami.commands import options as stages
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.observe import Observation
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress

_EPILOG = """\
Plans, builds, boots the AMI on every instance type, checks it and writes the certificate, all in OUT. An AMI that the
same plan and roles built is reused (--fresh builds again). Ctrl-C terminates everything that was started and keeps the
report of the completed checks; after a kill -9, `gpu-ami sweep` terminates the rest.

examples:
  gpu-ami prove variables/recipes/debian12-gpu.yml
  gpu-ami prove variables/recipes/debian12-gpu.yml --set telemetry.profile=graphics
  gpu-ami prove variables/recipes/debian12-gpu.yml --where aws.yml
  gpu-ami prove variables/recipes/debian12-gpu.yml --where aws.yml --dry-run    machines, cost; launches nothing
  gpu-ami prove variables/recipes/debian12-gpu.yml --restarts none    faster; UNPROVEN, no certificate, exit code 7
  gpu-ami prove variables/recipes/debian12-gpu.yml --instance-type g5.12xlarge    a shard: exit code 0, gpu-ami merge
  gpu-ami prove variables/recipes/debian12-gpu.yml --instance-type g5.12xlarge --nodes 2    two machines together (T4)
  gpu-ami prove variables/recipes/pcluster-3.16-ubuntu2404.yml --instance-type p5.48xlarge --join    one node (TN)

An AMI that others built (docs/observe.md): it is observed first, and judged as it is found.
  gpu-ami prove --ami ami-0123456789abcdef0 --where aws.yml --instance-type g5.12xlarge
  gpu-ami prove --manifest packer-manifest.json --where aws.yml

exit codes: 0 all required checks passed, on the selected instance types · 1 a check failed or is missing
            2 recipe or usage · 3 build failed · 4 cloud, network or machine · 5 no capacity
            7 nothing failed, but checks or restarts were left out on purpose (-k, --restarts, no --provoke-xid)
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("prove", help="plan, build, validate and certify in one command", epilog=_EPILOG)
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="variables/recipes/<image>.yml")
    parser.add_argument("--ami", metavar="AMI", help="prove an AMI that others built, as it is found (docs/observe.md)")
    stages.add_manifest(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help=stages.OUT_HELP)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="override a value of the recipe (repeatable)",
    )
    parser.add_argument("--fresh", action="store_true", help="build again even if this plan has an AMI")
    stages.add_layers(parser)
    stages.add_builder(parser)
    stages.add_no_source_check(parser)
    stages.add_where(parser)
    stages.add_agent_package(parser)
    stages.add_instance_types(parser)
    stages.add_nodes(parser)
    stages.add_join(parser)
    stages.add_max_cost(parser)
    stages.add_log_groups(parser)
    stages.add_deadlines(parser)
    stages.add_checks(parser)
    stages.add_restarts(parser)
    stages.add_sign(parser)
    stages.add_scan(parser)
    parser.add_argument("--conditions", default="", metavar="NAME[:SEED]", help=stages.CONDITIONS_HELP)
    stages.add_dry_run(parser)
    parser.set_defaults(execute=execute, again="the same command again goes on with the stages that were finished")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.recipes import find_recipe
    from gpu_ami.region import SessionRequest
    from gpu_ami.report import writer

    stages.check_nodes(args)
    stages.read_manifest(args)
    if bool(args.ami) == bool(args.recipe):
        hint = "gpu-ami prove RECIPE builds an image; gpu-ami prove --ami AMI takes one that others built"
        raise UsageError("expected a recipe, or --ami or --manifest", hint=hint)
    if args.ami:
        return _prove_observed(args, progress)
    recipe = find_recipe(args.recipe)
    deadlines = stages.deadlines(args)
    asked = stages.proof_options(args)
    signers, scans = stages.signers(args), stages.scans(args)
    agent = stages.agent_package(args, progress)
    overrides = [*pipeline.agent_version(agent), *args.set]
    pipeline.check_recipe(recipe, overrides)
    out = args.out or Path("out") / recipe.stem
    layered = stages.layers(args)
    # Without either there may be an image that is proven again.
    about_to = layered if args.fresh or layered.mode != "none" else None
    request = SessionRequest(
        args.where, agent, args.conditions, args.log_groups, deadlines, builder=args.builder, layering=about_to
    )
    opened = pipeline.open_session(request, progress)
    building = pipeline.BuildOptions(args.fresh, not args.no_source_check, layered)
    certifying = pipeline.CertificateOptions(signers, scans, args.waivers)
    if args.dry_run:
        decided = pipeline.propose(recipe, overrides, opened, asked, building)
        return Outcome(decided.text(), decided.to_json())
    out_lock.hold(out)
    report, certificate = pipeline.prove(
        recipe, overrides, out, opened, asked, building=building, certifying=certifying
    )
    return Outcome(writer.summary_text(report, certificate, out), certificate.to_json(), report.exit_code)


# Options of a build: an AMI that is there is not built.
_OF_BUILDS = (
    ("overrides", "--set"), ("fresh", "--fresh"), ("no_source_check", "--no-source-check"),
    ("agent_package", "--agent-package"), ("dry_run", "--dry-run"),
)  # fmt: skip


def _prove_observed(args: argparse.Namespace, progress: Progress) -> Outcome:
    """An AMI that others built: observed, booted, judged by every check that means something for any image."""
    from gpu_ami import pipeline
    from gpu_ami.commands import observe
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.recipes import load_facts
    from gpu_ami.region import SessionRequest
    from gpu_ami.report import writer

    named = [option for name, option in _OF_BUILDS if getattr(args, "set" if name == "overrides" else name, None)]
    if named:
        raise UsageError(f"{', '.join(named)}: for a recipe, not for --ami", hint="the AMI is taken as it is found")
    deadlines = stages.deadlines(args)
    asked = stages.proof_options(args)
    certifying = pipeline.CertificateOptions(stages.signers(args), stages.scans(args), args.waivers)
    out = args.out or Path("out") / args.ami
    request = SessionRequest(args.where, None, args.conditions, args.log_groups, deadlines)

    def write_plan(observation: Observation) -> Plan:
        from gpu_ami import observe as observing

        facts = load_facts()
        types = observing.instance_types(observation, facts, args.instance_type)
        observe.write(observation, out, types, args.ami)
        found = observing.findings_of(observation, facts, observing.context_of(observation, facts, types))
        for one in found:
            progress.note(f"{one.level}: {one.text}" + (f" ({one.advice})" if one.advice else ""))
        return Plan.load(out / PLAN_FILE)

    opened = pipeline.open_session(request, progress)
    report, certificate = pipeline.prove_observed(args.ami, out, opened, asked, certifying, write_plan=write_plan)
    return Outcome(writer.summary_text(report, certificate, out), certificate.to_json(), report.exit_code)
