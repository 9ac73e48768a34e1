"""The command line: parses, calls one command, prints its outcome, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

from gpu_ami import __version__, commands
from gpu_ami.errors import GpuAmiError
from gpu_ami.log import Progress

_EPILOG = """\
the line:      gpu-ami prove variables/recipes/debian12-gpu.yml          everything, on the local region
stage by stage: gpu-ami plan RECIPE; gpu-ami build; gpu-ami validate; gpu-ami certify
on AWS:        gpu-ami prove RECIPE --where aws.yml

exit codes: 0 proven · 1 the image failed a check · 2 recipe or usage · 3 build failed
            4 cloud, network or machine · 5 no capacity · 130 interrupted
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-ami",
        description="Builds GPU AMIs, boots them, proves metrics, log streams and Xid capture, certifies the result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpu-ami {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in commands.NAMES:
        import_module(f"gpu_ami.commands.{name}").register(subparsers)
    for subparser in set(subparsers.choices.values()):
        _common_options(subparser)
    return parser


def _common_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="result as JSON on stdout, progress as JSON lines on stderr")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    group.add_argument("--debug", action="store_true", help="traceback on errors")


def _progress(args: argparse.Namespace) -> Progress:
    if args.quiet:
        return Progress("quiet")
    if args.json:
        return Progress("json")
    watched = sys.stderr.isatty() and not os.environ.get("CI") and not os.environ.get("NO_COLOR")
    return Progress("terminal" if watched else "plain")


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    # SIGTERM and SIGHUP end like Ctrl-C does: through every `finally` that cleans up.
    raise KeyboardInterrupt


def _print(outcome: commands.Outcome, as_json: bool) -> None:
    if as_json and outcome.data is not None:
        print(json.dumps(outcome.data, ensure_ascii=False, indent=2, default=str))
    elif isinstance(outcome.text, str):
        if outcome.text:
            print(outcome.text)
    else:
        for line in outcome.text:
            print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    args = _parser().parse_args(argv)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    try:
        outcome: commands.Outcome = args.execute(args, _progress(args))
        _print(outcome, args.json)
        return outcome.exit_code
    except GpuAmiError as error:
        if args.debug:
            raise
        if args.json:
            print(
                json.dumps({"error": error.message, "details": error.details, "hint": error.hint}, ensure_ascii=False)
            )
        print(f"gpu-ami {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"gpu-ami {args.command}: interrupted; what it had started was ended", file=sys.stderr)
        if again := getattr(args, "again", ""):
            print(f"  → {again}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (the interpreter flushes it at exit)
        return 0


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
