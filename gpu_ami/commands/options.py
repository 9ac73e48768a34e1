"""Options that the stages share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import check_options
from gpu_ami.errors import UsageError
from gpu_ami.region import AUTO, BUILDERS

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from gpu_ami.build import Layering
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.progress import Progress
    from gpu_ami.release import comparison as comparisons
    from gpu_ami.release import image_description
    from gpu_ami.report import Report
    from gpu_ami.report import certificate as certificates
    from gpu_ami.validate import ProofOptions

_MOST_NODES = 64
LAYERS = ("none", "auto", "all")  # of gpu_ami.build.layering
LOG_GROUPS = ("proof", "production")  # of gpu_ami.cloud.place, which would import the AWS packages for --help
OUT_HELP = "folder of the run's files (default: out/<recipe name>)"
CONDITIONS_HELP = (
    "simulate problems of AWS: aws-like, throttling, no-capacity, … (docs/conditions.md); local region only"
)


def add_out(parser: argparse.ArgumentParser, file: str = "plan.json") -> None:
    text = f"folder with {file} (default: the one under out/)"
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help=text, action=_Out, file=file)
    parser.add_argument("-o", "--out", type=Path, dest="out", help=argparse.SUPPRESS, action=_Out, file=file)


_STAGES = ("build", "validate", "certify")  # those after plan, each with OUT alone


class _Out(argparse.Action):
    """OUT of a stage after plan. `-o OUT`, as plan and prove have it, is a UsageError with the command to give."""

    def __init__(self, *, file: str, **options: Any) -> None:
        super().__init__(**options)
        self._file = file

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """argparse calls this for the argument OUT in any case, before or after that for -o."""
        other: Path | None = getattr(namespace, "out", None)
        if option is None and not hasattr(namespace, "misplaced"):
            namespace.out = values
        elif option is None:
            raise self._refusal(parser.prog, values, namespace.misplaced)
        elif other is not None:
            raise self._refusal(parser.prog, other, values)
        else:
            namespace.misplaced = values

    def _refusal(self, command: str, argument: Path | None, folder: Path) -> UsageError:
        given = f"{argument or ''} -o {folder}".strip()
        expected = f"{given}: expected OUT, the folder with {self._file}, without -o"
        if argument is None:
            return UsageError(expected, hint=f"{command} {folder}")
        if argument.is_dir():
            return UsageError(f"{expected}, got two folders", hint=f"{command} {argument}, or {command} {folder}")
        name = command.split()[-1]
        before = [f"gpu-ami {stage} {folder}" for stage in _STAGES[: _STAGES.index(name)]] if name in _STAGES else []
        steps = ", ".join([f"gpu-ami plan {argument} -o {folder}", *before])
        hint = f"{steps}, then {command} {folder}; gpu-ami prove {argument} -o {folder} does all steps"
        return UsageError(f"{expected}, got a recipe and -o", hint=hint)


def output_folder(text: str) -> Path:
    """The type of -o where a folder is written. argparse.ArgumentTypeError: a file stands there, or above it."""
    path = Path(text)
    existing = next((part for part in (path, *path.parents) if part.exists()), path)
    if existing.exists() and not existing.is_dir():
        where = "" if existing == path else f" ({existing} is a file)"
        raise argparse.ArgumentTypeError(f"{path}: expected a folder, got a file{where}; name another, or remove it")
    return path


def ami_id(text: str) -> str:
    """The type of --ami. argparse.ArgumentTypeError: not an AMI's id."""
    if re.fullmatch(r"ami-[0-9a-z]+", text):
        return text
    more = " (an instance: --host ssh://USER@ADDRESS checks a running machine)" if text.startswith("i-") else ""
    raise argparse.ArgumentTypeError(f"expected an AMI id such as ami-0123456789abcdef0, got {text!r}{more}")


def require_image(cloud: Cloud, ami: str, architecture: str) -> None:
    """UsageError: the place's region has no such AMI, it cannot be launched, or it is of another architecture.

    Asked before the first key pair and launch, which EC2 would refuse later, after retries.
    """
    image, region = cloud.image(ami), cloud.place.region
    if image is None:
        hint = "correct the id or the region of --where; an AMI of another account must be shared with this one"
        raise UsageError(f"{ami} is not in {region}", hint=hint)
    if (state := image.get("State", "available")) != "available":
        raise UsageError(f"{ami} in {region}: expected state available, got {state}", hint="wait until it is available")
    if architecture and (found := image.get("Architecture", architecture)) != architecture:
        raise UsageError(f"{ami}: the plan is for {architecture}, the AMI is {found}", hint="use the plan of this AMI")
    if image.get("RootDeviceType", "ebs") != "ebs":
        raise UsageError(f"{ami}: expected an EBS-backed AMI, got {image['RootDeviceType']}")


def add_manifest(parser: argparse.ArgumentParser) -> None:
    text = "take the AMI from the manifest of a Packer build (post-processor manifest, any template)"
    parser.add_argument("--manifest", type=Path, metavar="FILE", help=text)


def named_ami(args: argparse.Namespace) -> str | None:
    """The AMI of --ami, or of --manifest in the place's region. UsageError: both, or no such AMI in the manifest."""
    ami: str | None = args.ami
    if args.manifest is None:
        return ami
    if ami:
        raise UsageError("--ami and --manifest exclude each other")
    from gpu_ami.build import ami_of_manifest
    from gpu_ami.cloud import load_place

    return ami_of_manifest(args.manifest, load_place(args.where).region if args.where else "")


def add_identity(parser: argparse.ArgumentParser, text: str = "private key for --host") -> None:
    parser.add_argument("-i", "--identity", type=Path, metavar="KEY", help=text)


def add_known_hosts(parser: argparse.ArgumentParser) -> None:
    text = "file to which the key of an unknown --host is added; default: ~/.ssh/known_hosts, which is only read"
    parser.add_argument("--known-hosts", type=Path, metavar="FILE", help=text)


def check_identity(args: argparse.Namespace) -> None:
    """UsageError: the key that -i names is not there."""
    if args.identity and not args.identity.is_file():
        raise UsageError(f"{args.identity}: no such file", hint="-i takes the private key")


def add_where(
    parser: argparse._ActionsContainer,
    text: str = "file (YAML) with the AWS region and network to use, or `local` (default: the local region)",
) -> None:
    parser.add_argument("--where", type=_place_file, metavar="FILE", help=text)


def _place_file(text: str) -> Path | None:
    """None for the local region, as without --where: a pipeline names its place in one variable."""
    return None if text == "local" else Path(text)


def add_no_source_check(parser: argparse.ArgumentParser) -> None:
    text = "on AWS: do not check the sources of the plan before the build (gpu-ami sources); noted in the certificate"
    parser.add_argument("--no-source-check", action="store_true", help=text)


def add_layers(parser: argparse.ArgumentParser) -> None:
    text = (
        "start from the highest matching layer image (auto), and also create the missing ones (all); default: start"
        " from the base AMI (none) (docs/layers.md)"
    )
    parser.add_argument("--layers", choices=LAYERS, default="none", help=text)
    text = "ignore existing layer images; with --layers all, build all of them again"
    parser.add_argument("--refresh", action="store_true", help=text)


def layers(args: argparse.Namespace) -> Layering:
    """What --layers and --refresh say."""
    from gpu_ami.build import Layering

    return Layering(args.layers, args.refresh)


def add_builder(parser: argparse.ArgumentParser) -> None:
    text = (
        "local region only: where the roles run: in a sandbox on this host (sandbox; needs root), on a booted machine"
        " (machine; takes minutes longer), or in a sandbox if possible (auto, default). The certificate states which"
    )
    parser.add_argument("--builder", choices=BUILDERS, default=AUTO, help=text)


def add_agent_package(parser: argparse.ArgumentParser) -> None:
    text = "local region only: install this amazon-cloudwatch-agent.deb of AWS, or `download` it, instead of a replica"
    parser.add_argument("--agent-package", type=Path, metavar="FILE", help=text)


def agent_package(args: argparse.Namespace, progress: Progress) -> Path | None:
    """The file that --agent-package names, fetched and verified first where it says `download`."""
    package: Path | None = args.agent_package
    if package != Path("download"):
        return package
    from gpu_ami.recipes import load_facts
    from gpu_ami.region import provider

    return provider().download_agent(load_facts().cloudwatch_agent, progress)


def add_checks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checks",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of your own testinfra checks, run in addition (repeatable)",
    )
    text = (
        "YAML list of waived checks; keys of each: check (an id that `gpu-ami checks` lists; * allowed after ::),"
        " reason, owner, expires (last day, 2027-01-31); optional scope: {image: …, instance_type: …} (docs/checks.md)"
    )
    parser.add_argument("--waivers", type=Path, metavar="FILE", help=text)
    text = "run only checks whose names match, as pytest's -k ('efa and not version'); no restarts unless --restarts"
    parser.add_argument("-k", dest="select", metavar="EXPRESSION", help=text)
    text = "cause a real fault on an idle GPU of each machine and trace its Xid; harmless to the board (docs/proof.md)"
    parser.add_argument("--provoke-xid", action="store_true", help=text)
    text = "explain every file (file account) on each operating system, also on running machines (docs/file-account.md)"
    parser.add_argument("--account-files", action="store_true", help=text)
    add_golden(parser)


def add_golden(
    parser: argparse.ArgumentParser,
    text: str = "folder of recorded hardware (gpu-ami record); default: site/golden, then gpu-ami's own",
) -> None:
    parser.add_argument("--golden", type=Path, metavar="DIR", help=text)


INSTANCE_TYPES_HELP = "boot only on this instance type of the plan (repeatable)"


def add_instance_types(parser: argparse.ArgumentParser, text: str = INSTANCE_TYPES_HELP) -> None:
    parser.add_argument("--instance-type", action="append", default=[], metavar="TYPE", help=text)


NODES_HELP = (
    "launch this many machines of one instance type together, in one placement group, and check that they work together"
    " over EFA or TCP (tier T4; docs/nodes.md)"
)


def add_nodes(parser: argparse.ArgumentParser, text: str = NODES_HELP) -> None:
    parser.add_argument("--nodes", type=_nodes, default=1, metavar="N", help=text)


def _nodes(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= _MOST_NODES:
        message = f"expected a number from 2 to {_MOST_NODES}, got {text!r} (without --nodes, one machine is checked)"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def check_nodes(args: argparse.Namespace) -> None:
    """UsageError: --nodes or --join with an option that it excludes."""
    for name, asked in (("--nodes", args.nodes > 1), ("--join", args.join is not None)):
        if asked and args.select:
            hint = "leave out -k: checks of nodes run after all others, with no selection"
            raise UsageError(f"{name} and -k exclude each other", hint=hint)


JOIN_HELP = (
    "also join the machines to a cluster and check them as its nodes (tier TN; docs/nodes.md). Without CLUSTER: that"
    " of `cluster` in the --where file, else (ECS) one that is created for the proof. ParallelCluster takes no CLUSTER:"
    " the machines form a Slurm cluster"
)


_NO_NAME = object()  # argparse would convert a text, and "" is no name of a cluster


class _Join(argparse.Action):
    """`--join` alone is "", not asked for is None."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, __: str | None = None) -> None:
        setattr(namespace, self.dest, "" if values is _NO_NAME else values)


def add_join(parser: argparse.ArgumentParser, text: str = JOIN_HELP) -> None:
    parser.add_argument("--join", metavar="CLUSTER", nargs="?", const=_NO_NAME, type=_cluster, action=_Join, help=text)


def _cluster(text: str) -> str:
    from gpu_ami.cloud import place

    if not re.fullmatch(place.CLUSTER_PATTERN, text):
        raise argparse.ArgumentTypeError(f"expected the name of a cluster, such as gpu-nodes, got {text!r}")
    return text


def add_max_cost(parser: argparse.ArgumentParser) -> None:
    text = (
        "limit of the run's cost: a run that is expected to cost more is refused (exit code 2), one whose machines have"
        " cost it is stopped. On AWS, an instance type whose price is not known is refused, too; none: no limit"
    )
    parser.add_argument("--max-cost", type=dollars, metavar="USD|none", help=text)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    text = "print what would be proven: machines, cluster, restarts, cost; build and launch nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)


def dollars(text: str) -> float:
    """`none` is no limit, said expressly."""
    if text == "none":
        return float("inf")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:  # also refuses nan and inf
        raise argparse.ArgumentTypeError(f"expected US dollars, such as 25 or 7.50, or none, got {text!r}")
    return value


def add_log_groups(parser: argparse.ArgumentParser) -> None:
    text = (
        "where the machines send logs. proof (default): to log groups <group>-proof/<run>, which are removed"
        " afterwards; production: to the plan's log groups, where injected Xids may raise alarms"
    )
    parser.add_argument("--log-groups", choices=LOG_GROUPS, help=text)


def add_deadlines(parser: argparse.ArgumentParser) -> None:
    text = (
        "a deadline: boot=1500, stop=… or arrival=… (of data in CloudWatch); overrides the --where file's (repeatable)"
    )
    parser.add_argument("--deadline", action="append", default=[], metavar="NAME=SECONDS", help=text)


def deadlines(args: argparse.Namespace) -> dict[str, int]:
    """The values of --deadline, as a place's `deadlines`. UsageError names every mistake."""
    if not args.deadline:
        return {}
    from gpu_ami.validate.machines import parse_deadlines

    return parse_deadlines(args.deadline)


def add_restarts(parser: argparse.ArgumentParser) -> None:
    text = "restart each machine and repeat checks: reboot,stop-start (default), one of them, or none"
    parser.add_argument("--restarts", metavar="LIST", help=text)


def restarts(args: argparse.Namespace) -> tuple[str, ...]:
    """The restarts of --restarts; default: both. UsageError: an unknown name."""
    from gpu_ami.validate import RESTARTS, parse

    if args.restarts is None:
        return () if getattr(args, "select", None) else RESTARTS
    return parse(args.restarts)


def proof_options(args: argparse.Namespace) -> ProofOptions:
    """What the arguments of a command that proves an AMI ask for.

    UsageError as of `check_options.validator_options` and `restarts`.
    """
    from gpu_ami.validate import ProofOptions

    return ProofOptions(
        instance_types=args.instance_type,
        checks=args.checks,
        validator_options=check_options.validator_options(args),
        restarts=restarts(args),
        max_cost=args.max_cost,
        nodes=args.nodes,
        join=args.join,
    )


def seconds(text: str) -> float:
    """A deadline in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:  # also refuses nan
        raise argparse.ArgumentTypeError(f"expected seconds, from more than 0 to 86400, got {text!r}")
    return value


def add_sign(parser: argparse.ArgumentParser, what: str = "certificate") -> None:
    text = f"sign the {what} with this private key file (gpu-ami key new) or awskms:///ID (repeatable)"
    parser.add_argument("--sign", action="append", default=[], metavar="KEY", help=text)


def add_report_keys(parser: argparse.ArgumentParser) -> None:
    """Whose reports are accepted: those of jobs that signed them (validate --sign)."""
    text = "public key (PEM) or awskms:///ID of the job that made the report (repeatable); also those of --sign"
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help=text)
    text = "keys of such jobs (YAML): keys: [{name, file or kms, expires}]"
    parser.add_argument("--trust", type=Path, metavar="FILE", help=text)


def report_origin(
    args: argparse.Namespace, report: Report, folder: Path, signers: Sequence[Signer]
) -> certificates.ReportOrigin:
    """Who made the report in a folder, by --key, --trust, --sign and this machine's key. UsageError: of a key."""
    from gpu_ami.release import keys, report_signature

    trusted = keys.trusted(args.key, args.trust, _place_of_keys(args)) if args.key or args.trust else []
    return report_signature.examine(report, folder, trusted, signers)


def add_before(parser: argparse.ArgumentParser) -> None:
    text = "show in report.html how the image differs from this one: a folder, plan.json, report.json or AMI id"
    parser.add_argument("--before", metavar="IMAGE", help=text)


def image_before(args: argparse.Namespace, cloud: Cloud | None) -> image_description.ImageDescription | None:
    """The image of --before, read before anything is written. UsageError: nothing is known of it; CloudError."""
    if not args.before:
        return None
    from gpu_ami.release import image_description

    return image_description.describe(args.before, cloud)


def comparison(before: image_description.ImageDescription | None, out: Path) -> comparisons.Comparison | None:
    """How the image of a report in a folder differs from the one before."""
    if before is None:
        return None
    from gpu_ami.release import comparison as comparisons
    from gpu_ami.release import image_description

    return comparisons.compare(before, image_description.describe(str(out)))


def add_scan(parser: argparse.ArgumentParser) -> None:
    text = (
        "run a scanner on the bill of materials, e.g. 'grype sbom:{sbom} --fail-on high' (no shell, repeatable): an"
        " exit code other than 0 fails the check scan::PROGRAM, which --waivers can accept (docs/release.md)"
    )
    parser.add_argument("--scan", action="append", default=[], metavar="COMMAND", help=text)


def scans(args: argparse.Namespace) -> list[list[str]]:
    """The command lines of --scan. UsageError: one without {sbom}."""
    if not args.scan:
        return []
    from gpu_ami.release import scan

    return [scan.parse(command) for command in args.scan]


def signers(args: argparse.Namespace) -> list[Signer]:
    """The keys of --sign, loaded before anything is done. UsageError, CloudError: one cannot sign."""
    if not args.sign:
        return []
    from gpu_ami.release import keys

    place = _place_of_keys(args) if any(key.startswith(keys.KMS_SCHEME) for key in args.sign) else None
    return [keys.load_signer(key, place) for key in args.sign]


def _place_of_keys(args: argparse.Namespace) -> Place | None:
    """Where KMS is; None without --where, and in the local region."""
    from gpu_ami.cloud import load_place

    return load_place(args.where) if args.where else None


def existing_plan(out: Path | None) -> Path:
    """The folder to go on from: the one named, or the only one under out/ that has a plan."""
    if out:
        _require_folder(out)
        return out
    plans = sorted(Path("out").glob("*/plan.json"))
    if len(plans) == 1:
        return plans[0].parent
    if not plans:
        raise UsageError("there is no plan under out/", hint="gpu-ami plan RECIPE makes one; or name its folder")
    raise UsageError(
        f"there are {len(plans)} plans under out/", hint=f"name one: {', '.join(str(plan.parent) for plan in plans)}"
    )


def _require_folder(out: Path) -> None:
    """UsageError: a file, the recipe of an image, or nothing. A folder that is not there would be made for its lock."""
    if _is_recipe(out):
        hint = f"gpu-ami plan {out} writes out/{out.stem}, which is to be named; gpu-ami prove {out} does all steps"
        raise UsageError(f"{out}: a recipe, expected a folder with plan.json", hint=hint)
    if out.is_file():
        raise UsageError(f"{out}: a file, expected a folder with plan.json", hint=f"name the folder: {out.parent}")
    if not out.is_dir():
        raise UsageError(f"{out}: no such folder", hint=f"gpu-ami plan RECIPE -o {out} writes it")


def _is_recipe(path: Path) -> bool:
    from gpu_ami.recipes import find_recipe

    if path.is_dir():
        return False
    if path.is_file():
        return path.suffix in (".yml", ".yaml")
    try:
        return find_recipe(path).is_file()
    except UsageError:
        return False
