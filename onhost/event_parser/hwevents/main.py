"""The program on the image: `run` (the service), `status`, `parse FILE`, `explain CODE`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import List, Optional

from . import VERSION

_FIRST_SXID = 10000


def _parser() -> argparse.ArgumentParser:
    from .options import Options

    parser = argparse.ArgumentParser(prog="aws-hwaccel-event-parser.py", description="Captures NVIDIA Xid and SXid events from the kernel log.")
    parser.add_argument("--version", action="version", version=VERSION)
    verbs = parser.add_subparsers(dest="verb")
    run = verbs.add_parser("run", help="run the service: /dev/kmsg to the two log files (default)")
    run.add_argument("--source", default=Options.source, help="kernel log (default: %(default)s), or fd:N, an open socket of records")
    run.add_argument("--raw-log", default=Options.raw_log, help="default: %(default)s")
    run.add_argument("--json-log", default=Options.json_log, help="default: %(default)s")
    run.add_argument("--state-dir", default=Options.state_dir, help="folder of the checkpoint (default: %(default)s)")
    run.add_argument("--status-path", default=Options.status_path, help="default: %(default)s")
    run.add_argument("--policy", default=Options.policy, help="severities and actions of your own (default: %(default)s)")
    run.add_argument("--nvidia-smi", default=Options.nvidia_smi, help="default: %(default)s")
    run.add_argument("--heartbeat", dest="heartbeat_s", type=float, default=Options.heartbeat_s, metavar="SECONDS")
    seed = "publish the former system's AcceleratorMetrics and EFAMetrics with this period (default: not)"
    run.add_argument("--seed-metrics", dest="seed_metrics_s", type=float, default=Options.seed_metrics_s, metavar="SECONDS", help=seed)
    status = verbs.add_parser("status", help="print the status of the running service as JSON; exit code 1 if it is not alive")
    status.add_argument("--status-path", default=Options.status_path)
    parse = verbs.add_parser("parse", help="print the events of a log file (- is standard input), one JSON object for each event")
    parse.add_argument("file")
    parse.add_argument("--policy", default=Options.policy)
    explain = verbs.add_parser("explain", help="print the catalogue's row of an Xid, or of an SXid (five digits)")
    explain.add_argument("code", type=int)
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    """Returns the exit code. Without a verb it runs the service, as the script of the former system did."""
    words = sys.argv[1:] if arguments is None else arguments
    args = _parser().parse_args(words or ["run"])
    return {"run": _run, "status": _status, "parse": _parse, "explain": _explain}[args.verb or "run"](args)


def _run(args: argparse.Namespace) -> int:
    from .kmsg import Source
    from .options import Options
    from .service import Service

    options = Options()
    for name, value in vars(args).items():
        setattr(options, name, value)
    try:
        source = Source(int(args.source[3:])) if args.source.startswith("fd:") else None
        service = Service(options, source)
    except OSError as error:
        print("cannot start: %s: %s" % (error.filename or options.source, error.strerror), file=sys.stderr)
        return 1
    service.run()
    return 0


def _status(args: argparse.Namespace) -> int:
    try:
        with open(args.status_path, encoding="ascii") as file:
            status = json.load(file)
    except (OSError, ValueError) as error:
        print(json.dumps({"alive": False, "why": "no status: %s" % error}))
        return 1
    age = time.monotonic() - status["heartbeat_monotonic_s"]
    status["heartbeat_age_s"] = round(age, 3)
    status["alive"] = -1.0 < age < 2 * status["heartbeat_period_s"] + 10
    print(json.dumps(status))
    return 0 if status["alive"] else 1


def _parse(args: argparse.Namespace) -> int:
    from .textlog import parse_stream

    stream = sys.stdin.buffer if args.file == "-" else open(args.file, "rb")
    with stream:
        for event in parse_stream(stream, policy=args.policy):
            sys.stdout.write(json.dumps(event) + "\n")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from .catalogue import Catalogue

    catalogue = Catalogue()
    row = catalogue.explain_sxid(args.code) if args.code >= _FIRST_SXID else catalogue.explain(args.code)
    print(json.dumps(row or {"code": args.code, "name": "not in the catalogue"}, indent=1))
    return 0 if row else 1
