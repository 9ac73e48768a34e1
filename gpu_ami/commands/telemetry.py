"""`gpu-ami telemetry`: the CloudFormation templates and the dashboard of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Writes into DIR, from the plan's measurements, namespace, log groups and instance types:
  telemetry.yml         one stack per Region: role and instance profile, the agent's configuration (SSM parameter), log
                        groups, metric filters, alarms of GPU events, SNS topics, the dashboard My-GPU-Usage-REGION
  instance-alarms.yml   one stack per instance: agent silent, GPU missing, clocks throttled, row remap pending, …
  fleet-alarms.yml      one stack per Region: alarms for instances that come and go, as in an Auto Scaling group
  lab.yml               for tests: all resources with a network and two instances; namespace CWAgentGPU
  site-alarms.yml       one stack per Region: the alarms of the site (site/alarms.yml), if it has any
  dashboard.json        only the dashboard, for aws cloudwatch put-dashboard

examples:
  gpu-ami telemetry out/al2023-compute/plan.json -o telemetry/
  aws cloudformation deploy --stack-name gpu-telemetry --template-file telemetry/telemetry.yml \\
      --capabilities CAPABILITY_NAMED_IAM --parameter-overrides PageEmail=oncall@example.com
  aws cloudformation delete-stack --stack-name gpu-telemetry        removes all of it

For a plan with Neuron devices:
  telemetry.yml                 as above, with the dashboard My-Neuron-Usage-REGION
  neuron-alarms.yml             one stack per Region: alarms of all instances
  neuron-instance-alarm.yml     one stack per instance: neuron-monitor, event parser or agent sends no data

docs/telemetry.md: installing, what each alarm means, removing.
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "telemetry", help="write CloudFormation templates: alarms, dashboard, role", epilog=_EPILOG
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json, or its folder")
    parser.add_argument(
        "-o", "--out", type=options.output_folder, required=True, metavar="DIR", help="folder to write to"
    )
    parser.add_argument("--region", default="us-east-1", help="Region of dashboard.json (default: %(default)s)")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.plan import PLAN_FILE, SITE_FOLDER, Plan
    from gpu_ami.recipes import ALARMS_FILE, read_site_alarms
    from gpu_ami.telemetry import templates

    path = args.plan / PLAN_FILE if args.plan.is_dir() else args.plan
    plan = Plan.load(path)
    of_site = read_site_alarms(path.parent / SITE_FOLDER / ALARMS_FILE)
    written = [str(path) for path in templates.write(plan.document, args.region, args.out, of_site)]
    return Outcome("\n".join(written), {"image": plan.image, "files": written})
