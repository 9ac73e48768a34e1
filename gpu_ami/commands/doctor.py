"""`gpu-ami doctor`: what is missing on this machine and how to install it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.build import Packer
    from gpu_ami.cloud import Place
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.region import Prerequisite

_EPILOG = """\
Exit code 0: nothing is missing; 2: something is missing, and the output names the packages to install. What only
recipes of another architecture than this machine's need is named, too, and does not count (`absent`). `packer` is the
program of $PACKER, or the first in PATH, with its version and plugins.

With --where the place on AWS is checked: credentials, permissions, subnet, routes, security groups, instance profile
and KMS key, and whether the keys let images be shared as the release policy says; with RECIPE also the source AMI,
and quotas, zones and architecture of its instance types. Nothing is launched. Exit code 2: the place or the recipe is
wrong; 4: AWS refused a call; warnings do not count.

examples:
  gpu-ami doctor
  gpu-ami doctor --where aws.yml variables/recipes/debian12-gpu.yml
  gpu-ami doctor --where aws.yml variables/recipes/debian12-gpu.yml --instance-type p4d.24xlarge --nodes 2    together
  gpu-ami doctor --where aws.yml variables/recipes/ecs-al2023-gpu.yml --join gpu-nodes    as nodes of this cluster
  PACKER=/opt/packer/packer gpu-ami doctor
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor", help="show what is missing on this machine, and how to install it", epilog=_EPILOG
    )
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="recipe to check at the place")
    parser.add_argument("--where", type=Path, metavar="FILE", help="check this place on AWS (YAML)")
    options.add_instance_types(parser, "with --where and RECIPE: check only this instance type (repeatable)")
    text = "with --where: check it for N machines that work together: quotas, traffic between them"
    options.add_nodes(parser, text)
    text = "with --where and RECIPE: check the cluster that machines of this image join with --join"
    options.add_join(parser, text)
    text = "with --where: check whether an image built there can be published so (default: publish.yml, if it is here)"
    parser.add_argument("--policy", type=Path, metavar="FILE", help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    if args.where:
        return _place(args)
    if args.join is not None:
        raise UsageError("--join is of a place", hint="gpu-ami doctor --where aws.yml RECIPE --join CLUSTER")
    if args.nodes > 1:
        raise UsageError("--nodes is of a place", hint="gpu-ami doctor --where aws.yml RECIPE --nodes 2")
    if args.instance_type:
        hint = "gpu-ami doctor --where aws.yml RECIPE --instance-type TYPE"
        raise UsageError("--instance-type is of a place", hint=hint)
    if args.policy:
        raise UsageError("--policy is of a place", hint="gpu-ami doctor --where aws.yml --policy publish.yml")
    if args.recipe:
        raise UsageError("doctor takes RECIPE together with --where", hint="gpu-ami doctor --where aws.yml RECIPE")
    from dataclasses import asdict

    from gpu_ami.region import provider

    local = provider()
    findings = [_packer() if each.name == "packer" else each for each in local.prerequisites()] + [_facts()]
    lines = [f"{_state(each):7} {each.name:24} {each.found}" for each in findings]
    missing = [each for each in findings if not each.ok]
    lines += ["", *(f"{each.name} ({each.needed_for}): {each.remedy}" for each in missing)] if missing else []
    exit_code = 2 if any(each.is_always_needed for each in missing) else 0
    packages = local.missing_packages(findings)
    lines += ["", f"install all: sudo apt-get install --no-install-recommends {' '.join(packages)}"] if packages else []
    return Outcome("\n".join(lines), [asdict(each) for each in findings], exit_code)


def _state(finding: Prerequisite) -> str:
    if finding.ok:
        return "ok"
    return "MISSING" if finding.is_always_needed else "absent"


def _place(args: argparse.Namespace) -> Outcome:
    """What a preflight finds at the place of a --where file."""
    from dataclasses import asdict

    from gpu_ami.cloud import Cloud, load_place, preflight
    from gpu_ami.plan import resolve_source_ami
    from gpu_ami.publish import policy, sharing

    asked = {"--join CLUSTER": args.join is not None, "--instance-type TYPE": bool(args.instance_type)}
    for option in (option for option, given in asked.items() if given and not args.recipe):
        message = f"{option.partition(' ')[0]} is of an image"
        raise UsageError(message, hint=f"gpu-ami doctor --where aws.yml RECIPE {option}")
    place = load_place(args.where)
    plan = _plan(args, place) if args.recipe else None
    cloud = Cloud(place)
    findings = preflight.examine(
        cloud, plan, resolve_source_ami, args.nodes, join=args.join, sets_imds_v2=_sets_imds_v2
    )
    image = plan["image"] if plan else ""
    findings += (
        sharing.examine(place, policy.load_policy(args.policy, image))
        if args.policy
        else sharing.examine_default(place, image)
    )
    findings.append(preflight.ok("facts", _facts(plan).found))
    lines = [*map(str, findings), "", preflight.summary(findings)]
    return Outcome("\n".join(lines), [asdict(finding) for finding in findings], preflight.exit_code(findings))


def _plan(args: argparse.Namespace, place: Place) -> PlanDocument:
    """The recipe's plan, with the instance types that are to be examined. UsageError: what a run would refuse."""
    from typing import cast

    from gpu_ami.plan import make_plan
    from gpu_ami.recipes import find_recipe
    from gpu_ami.validate import cluster, image_proof, machine_group

    plan = make_plan(find_recipe(args.recipe), place).document
    cluster.require_name(plan, args.join, place)
    cluster.require_program(plan, args.join)
    chosen = image_proof.choose_types(plan, args.instance_type)
    machine_group.require(plan, place, chosen, args.nodes)
    rows = [row for row in plan["instance_types"] if row["name"] in chosen]
    return cast("PlanDocument", {**plan, "instance_types": rows})


def _sets_imds_v2() -> bool:
    """Whether the installed Packer launches builders with IMDSv2. That none is there is `doctor`'s own finding."""
    from gpu_ami.build import packer
    from gpu_ami.errors import GpuAmiError

    try:
        return packer.Packer.find().has_plugins
    except GpuAmiError:
        return True


def _facts(plan: PlanDocument | None = None) -> Prerequisite:
    """The age of the facts: of a plan's rows, or of all."""
    import datetime

    from gpu_ami.recipes import load_facts
    from gpu_ami.recipes.facts import fact_queries
    from gpu_ami.region import Prerequisite

    rows = plan["sources"] if plan else [row for _, row in load_facts().rows()]
    shown = fact_queries.age((str(row["date"]) for row in rows), datetime.date.today())
    return Prerequisite("facts", True, shown, "gpu-ami facts refresh", "every build")


def _packer() -> Prerequisite:
    """The Packer that builds use: its program, version and plugins."""
    from gpu_ami.build import packer
    from gpu_ami.errors import GpuAmiError
    from gpu_ami.files import data_dir
    from gpu_ami.region import Prerequisite

    try:
        used = packer.Packer.find()
        version, plugins = ".".join(map(str, used.version)), tuple(used.plugins() if used.has_plugins else ())
        missing = used.missing_plugins(data_dir("packer")) if used.has_plugins else []
        shown = f"{used.program} {version}, {_plugins(used, plugins, missing)}"
    except GpuAmiError as error:
        return Prerequisite("packer", False, error.message, error.hint or "apt-get install packer", "every build")
    program = str(used.program)
    return Prerequisite("packer", True, shown, "apt-get install packer", "every build", program, version, plugins)


def _plugins(used: Packer, plugins: Sequence[str], missing: Sequence[str]) -> str:
    if not used.has_plugins:
        return "plugins built in"
    shown = f"plugins {', '.join(plugins)}" if plugins else "no plugins"
    downloaded = f" (`packer init` downloads {', '.join(missing)} before a build)"
    return shown + (downloaded if missing else "")
