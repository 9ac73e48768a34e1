"""`gpu-ami lint-agent FILE…`: what is wrong with a CloudWatch agent configuration, before an instance tries it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
Stricter than AWS's schema: plugin and measurement names, placeholders, dimensions that exist, retention periods.
Exit 0: nothing wrong (warnings are shown); 1: an error, the agent would refuse it or silently not do it.

  gpu-ami lint-agent config.json
  gpu-ami lint-agent config.json --writes /var/log/gpuevent.log --writes /var/log/gpuevent.jsonl
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("lint-agent", help="check a CloudWatch agent configuration", epilog=_EPILOG)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="configuration of the agent, JSON")
    parser.add_argument(
        "--writes",
        action="append",
        metavar="PATH",
        help="a log that something on the image writes; any other is an error",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from validator.agent_lint import ERROR, lint

    found = [(path, finding) for path in args.files for finding in lint(_read(path), files=args.writes)]
    lines = [f"{path}: {finding}" for path, finding in found] or [f"{len(args.files)} file(s): nothing to complain of"]
    wrong = any(finding.severity == ERROR for _, finding in found)
    data = [asdict(finding) | {"file": str(path)} for path, finding in found]
    return Outcome("\n".join(lines), data, 1 if wrong else 0)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint="lint-agent reads the agent's JSON configuration") from error
