"""`gpu-ami doctor`: what is missing on this machine and how to get it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
Exit 0: nothing is missing; 2: something is, and the output says what to install. On Debian `make setup` installs all.
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="what is missing on this machine, and how to get it", epilog=_EPILOG)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami import doctor
    from gpu_ami.home import home_dir

    found = doctor.examine(home_dir())
    lines = [f"{'ok     ' if one.ok else 'MISSING'} {one.name:24} {one.found}" for one in found]
    wrong = [one for one in found if not one.ok]
    lines += ["", *(f"{one.name} ({one.needed_for}): {one.remedy}" for one in wrong)] if wrong else []
    packages = doctor.missing_packages(found)
    lines += ["", f"in one go: sudo apt-get install --no-install-recommends {' '.join(packages)}"] if packages else []
    return Outcome("\n".join(lines), [asdict(one) for one in found], 2 if wrong else 0)
