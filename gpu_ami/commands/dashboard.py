"""`gpu-ami dashboard`: the dashboard of a plan, as CloudWatch's JSON and as a page from what CloudWatch has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress

_EPILOG = """\
Without --page or --watch it writes the body of the CloudWatch dashboard My-GPU-Usage (My-Neuron-Usage of a plan with
Neuron devices), which `gpu-ami telemetry` also puts into its stack. With them it reads the metrics of the last hours
from CloudWatch, on AWS or in the local region, and shows them: the fleet, each instance, events and actions, the
health of the event parsers, and the cost of idle GPUs.

examples:
  gpu-ami dashboard out/gpu -o dashboard.json
  aws cloudwatch put-dashboard --dashboard-name My-GPU-Usage --dashboard-body file://dashboard.json
  gpu-ami dashboard out/gpu --where aws.yml --page gpu.html --hours 12
  gpu-ami dashboard out/gpu --where aws.yml --watch          live, only on http://127.0.0.1; Ctrl-C ends it
  gpu-ami dashboard out/gpu --page gpu.html                  of the running local region
"""
_READ_SECONDS = 30
RETRY_SECONDS = 20.0  # somebody waits for the page


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dashboard", help="show metrics and events of GPUs or Neuron devices, as JSON or a page", epilog=_EPILOG
    )
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json, or its folder")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="file of the JSON (default: dashboard.json)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page of the data in CloudWatch")
    shown.add_argument("--watch", action="store_true", help="serve the page on this machine until Ctrl-C")
    parser.add_argument("--hours", type=float, default=3.0, help="hours that the page shows (default: %(default)g)")
    parser.add_argument("--port", type=int, default=0, help="port of --watch (default: any free port)")
    parser.add_argument("--region", default="us-east-1", help="Region in the JSON (default: %(default)s)")
    options.add_where(parser)
    parser.set_defaults(execute=execute, interrupted="the page is not served any more")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.plan import PLAN_FILE, Plan

    if not 0 < args.hours <= 24 * 14:
        raise UsageError(f"--hours {args.hours:g}: expected more than 0 and at most 336")
    if args.out and (args.page or args.watch):
        raise UsageError("-o names the file of the JSON: not with --page or --watch")
    plan = Plan.load(args.plan / PLAN_FILE if args.plan.is_dir() else args.plan)
    if args.watch:
        return _watch(args, _pages(args, plan, progress, _READ_SECONDS), progress)
    if args.page:
        return _page(args.page, _pages(args, plan, progress, 0))
    return _json(args, plan)


def _json(args: argparse.Namespace, plan: Plan) -> Outcome:
    from gpu_ami.files import write_json
    from gpu_ami.telemetry import dashboard

    path = args.out or Path("dashboard.json")
    body = dashboard.body(plan.document, args.region, stack=dashboard.STACK)
    write_json(path, body)
    return Outcome(f"{path}  {len(body['widgets'])} widgets", {"file": str(path), "widgets": len(body["widgets"])})


def _page(path: Path, make: Callable[[], str]) -> Outcome:
    from gpu_ami.files import write_text

    write_text(path, make())
    return Outcome(str(path), {"file": str(path)})


def _watch(args: argparse.Namespace, make: Callable[[], str], progress: Progress) -> Outcome:
    from gpu_ami.telemetry import page

    make()  # a mistake is an error here, not in the browser
    with page.server(make, args.port, _READ_SECONDS) as server:
        progress.note(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)")
        server.serve_forever()
    return Outcome()


def _pages(args: argparse.Namespace, plan: Plan, progress: Progress, refresh: int) -> Callable[[], str]:
    """Makes the page from what CloudWatch has now. CloudError: CloudWatch did not answer."""
    from gpu_ami.cloud import Cloud
    from gpu_ami.errors import CloudError
    from gpu_ami.telemetry import measurements, page
    from validator.cloudwatch import ApiRefused, CloudWatch

    of_plan = measurements.of_plan(measurements.measured(plan.document))
    place = _place(args.where, progress)
    session = Cloud(place).session()
    cloudwatch = CloudWatch(place.region, endpoint=place.api.endpoint, session=session, retry_seconds=RETRY_SECONDS)

    def make() -> str:
        try:
            with progress.stage(f"read CloudWatch in {place.region}"):
                read = page.read(cloudwatch, of_plan, args.hours)
        except ApiRefused as error:
            raise CloudError(f"CloudWatch did not answer: {error}", code=error.code) from error
        return page.render(read, place.name, refresh)

    return make


def _place(where: Path | None, progress: Progress) -> Any:
    """The place that a file names, else the local region that is up."""
    if where is not None:
        from gpu_ami.cloud import load_place

        return load_place(where)
    from gpu_ami.region import provider

    return provider().hold(progress)
