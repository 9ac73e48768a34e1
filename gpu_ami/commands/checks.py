"""`gpu-ami checks`: the ids of all checks, for waivers and -k."""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.errors import UsageError
from validator import tiers, tried_on

if TYPE_CHECKING:
    from gpu_ami.progress import Progress
    from validator.results import CheckRecord

_EPILOG = """\
Lists every check that an image may have; which of them run depends on its plan. Connects to no host.

examples:
  gpu-ami checks                            id, tier and promise of each
  gpu-ami checks --tier T0 --role hygiene
  gpu-ami checks --checks my_checks/        yours too
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("checks", help="list the checks: id, tier, role, promise", epilog=_EPILOG)
    parser.add_argument("--tier", choices=tiers.NAMES, metavar="TIER", help=f"only of this tier: {_tiers()}")
    parser.add_argument("--role", metavar="ROLE", help="only of this role, e.g. nvidia_driver")
    text = "your testinfra files, listed with the built-in checks"
    parser.add_argument("--checks", type=Path, action="append", default=[], metavar="DIR", help=text)
    text = "folder of a site, whose checks/ are listed, too (default: %(default)s)"
    parser.add_argument("--site", type=Path, default=Path("site"), metavar="DIR", help=text)
    parser.set_defaults(execute=execute)


def _tiers() -> str:
    return ", ".join(f"{tier.name} {tier.title}" for tier in tiers.TIERS)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from validator.schema import did_you_mean

    of_site = args.site / "checks"
    own = [of_site] if any(of_site.glob("**/test_*.py")) and of_site not in args.checks else []
    records = list_checks([*args.checks, *own])
    roles = sorted({record.role for record in records})
    if args.role is not None and args.role not in roles:
        hint = f"roles with checks: {', '.join(roles)}"
        raise UsageError(f"no check of role {args.role!r}{did_you_mean(args.role, roles)}", hint=hint)
    chosen = [record for record in records if args.tier in (None, record.tier) and args.role in (None, record.role)]
    rows = [
        {
            "id": record.id,
            "role": record.role,
            "tier": record.tier,
            "needs": record.needs,
            "promise": record.promise,
            "tried_on": kind,
            "tried_with": list(tried),
        }
        for record in chosen
        for kind, tried in [tried_on.tried_with(record.id)]
    ]
    return Outcome(text(chosen), rows)


_NEEDS = {"nothing": "nothing", "observed": "an observed value", "promise": "a promise of a recipe"}


def text(records: Sequence[CheckRecord]) -> str:
    """A line of tier and id for each check, below it the promise, and what its judgement was tried on."""
    lines = []
    for record in records:
        kind, tried = tried_on.tried_with(record.id)
        shown = f"{', '.join(tried[:3])}{f' and {len(tried) - 3} more' if len(tried) > 3 else ''}"
        lines += [
            f"{record.tier}  {record.id}  (needs {_NEEDS[record.needs]})",
            *_wrapped(record.promise),
        ]
        if kind == tried_on.REPLICA:
            why = tried_on.why_no_source(record.id)
            lines += _wrapped(f"tried on replicas alone{f': {why}' if why else ''}")
        elif kind != tried_on.OWN:
            lines.append(f"      tried on {kind}: {shown}")
    return "\n".join([*lines, tried_on.summary(record.id for record in records)])


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 110, initial_indent=" " * 6, subsequent_indent=" " * 6)


def list_checks(folders: Sequence[Path] = ()) -> list[CheckRecord]:
    """Our checks, and those of a user's folders, in pytest's order. UsageError: a folder has none, or is broken."""
    import validator
    from gpu_ami.validate import collect, why_not_collected
    from validator.results import HostResults

    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise UsageError(f"{', '.join(missing)}: no such file or folder")
    own = Path(validator.__file__).parent / "checks"
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as folder:
        results = Path(folder) / "checks.json"
        options = ["--provoke-xid", f"--results={results}"]
        done = collect(options, [own, *folders])
        if done.returncode != 0 or not results.exists():
            names = ", ".join(map(str, folders)) or str(own)
            hint = "a folder holds testinfra files: test_*.py, with functions test_*"
            raise UsageError(f"pytest cannot collect the checks in {names}", details=why_not_collected(done), hint=hint)
        return list(HostResults.load(results).checks)
