"""`gpu-ami prove`: plan, build, validate and certify in one command."""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, check_options
from gpu_ami.commands import options as stages
from gpu_ami.errors import UsageError
from gpu_ami.region import AUTO

if TYPE_CHECKING:
    from gpu_ami.observe import Observation
    from gpu_ami.pipeline import BuildOptions, CertificateOptions
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.region import SessionRequest
    from gpu_ami.validate import ProofOptions

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
    parser.add_argument("-o", "--out", type=stages.output_folder, metavar="OUT", help=stages.OUT_HELP)
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


@dataclass(frozen=True)
class ImageToBuild:
    """The image of a recipe. options: of its build."""

    recipe: Path
    overrides: Sequence[str]
    options: BuildOptions


@dataclass(frozen=True)
class Request:
    """What `prove` is asked for. image: one to build, or the id of an AMI that others built."""

    image: ImageToBuild | str
    out: Path
    session: SessionRequest
    proof: ProofOptions
    certifying: CertificateOptions
    is_dry_run: bool = False


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.report import writer

    request = _request(args, progress)
    opened = pipeline.open_session(request.session, progress)
    image, out, proof, certifying = request.image, request.out, request.proof, request.certifying
    if isinstance(image, str):
        write_plan = functools.partial(_write_plan, request, image, progress)
        report, certificate = pipeline.prove_observed(image, out, opened, proof, certifying, write_plan=write_plan)
    elif request.is_dry_run:
        decided = pipeline.propose(image.recipe, image.overrides, opened, proof, image.options)
        return Outcome(decided.text(), decided.to_json())
    else:
        out_lock.hold(out)
        report, certificate = pipeline.prove(
            image.recipe, image.overrides, out, opened, proof, building=image.options, certifying=certifying
        )
    return Outcome(writer.summary_text(report, certificate, out), certificate.to_json(), report.exit_code)


def _request(args: argparse.Namespace, progress: Progress) -> Request:
    """What the arguments ask for. UsageError: a mistake in them or in the files that they name; nothing is started."""
    stages.check_nodes(args)
    ami = stages.named_ami(args)
    if bool(ami) == bool(args.recipe):
        hint = "gpu-ami prove RECIPE builds an image; gpu-ami prove --ami AMI takes one that others built"
        raise UsageError("expected a recipe, or --ami or --manifest", hint=hint)
    return _observed_request(args, ami) if ami else _built_request(args, progress)


def _built_request(args: argparse.Namespace, progress: Progress) -> Request:
    from gpu_ami import pipeline
    from gpu_ami.recipes import find_recipe
    from gpu_ami.region import SessionRequest

    recipe = find_recipe(args.recipe)
    deadlines = stages.deadlines(args)
    proof = stages.proof_options(args)
    certifying = pipeline.CertificateOptions(stages.signers(args), stages.scans(args), args.waivers)
    agent = stages.agent_package(args, progress)
    overrides = [*pipeline.agent_version(agent), *args.set]
    proof = _narrowed(proof, check_options.Selection.of_image(args), recipe, pipeline.check_recipe(recipe, overrides))
    layered = stages.layers(args)
    # Without either there may be an image that is proven again.
    about_to = layered if args.fresh or layered.mode != "none" else None
    session = SessionRequest(
        args.where, agent, args.conditions, args.log_groups, deadlines, builder=args.builder, layering=about_to
    )
    image = ImageToBuild(recipe, overrides, pipeline.BuildOptions(args.fresh, not args.no_source_check, layered))
    out = args.out or Path("out") / recipe.stem
    return Request(image, out, session, proof, certifying, is_dry_run=args.dry_run)


def _narrowed(proof: ProofOptions, selection: check_options.Selection, recipe: Path, plan: Plan | None) -> ProofOptions:
    """As of `check_options.Selection.narrow`. plan: None: it cannot be made before EC2 is asked."""
    from gpu_ami import pipeline
    from gpu_ami.recipes import site_folder

    if selection.expression is None:
        return proof
    if plan is None:
        site = site_folder(recipe)
        return selection.narrow(proof, site.parent if site else recipe.parent, None)
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as folder:
        plan.write(Path(folder), pipeline.NOWHERE)
        return selection.narrow(proof, Path(folder), plan)


# Options of a build: an AMI that is there is not built.
_OF_BUILDS = ("set", "fresh", "layers", "refresh", "builder", "no_source_check", "agent_package", "dry_run")
_UNSET = {"layers": "none", "builder": AUTO}  # of the others: what is false


def _observed_request(args: argparse.Namespace, ami: str) -> Request:
    from gpu_ami import pipeline
    from gpu_ami.region import SessionRequest

    named = [f"--{name.replace('_', '-')}" for name in _OF_BUILDS if (getattr(args, name) or None) != _UNSET.get(name)]
    if named:
        raise UsageError(f"{', '.join(named)}: for a recipe, not for --ami", hint="the AMI is taken as it is found")
    deadlines = stages.deadlines(args)
    proof = stages.proof_options(args)
    certifying = pipeline.CertificateOptions(stages.signers(args), stages.scans(args), args.waivers)
    session = SessionRequest(args.where, None, args.conditions, args.log_groups, deadlines)
    out = args.out or Path("out") / ami
    proof = check_options.Selection.of_image(args).narrow(proof, out, None)
    return Request(ami, out, session, proof, certifying)


def _write_plan(request: Request, ami: str, progress: Progress, observation: Observation) -> Plan:
    """What was observed, with its findings, and the plan that is made of it."""
    from gpu_ami import observe as observing
    from gpu_ami.commands import observe
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.recipes import load_facts

    facts = load_facts()
    types = observing.instance_types(observation, facts, request.proof.instance_types)
    observe.write(observation, request.out, types, ami)
    for one in observing.findings_of(observation, facts, observing.context_of(observation, facts, types)):
        progress.note(f"{one.level}: {one.text}" + (f" ({one.advice})" if one.advice else ""))
    return Plan.load(request.out / PLAN_FILE)
