"""The commands of `gpu-ami`, a module each: `register(subparsers)` declares it, `execute(args, progress)` does it.

A command returns an `Outcome`; only `gpu_ami.cli` prints and exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The groups of `gpu-ami --help`, by what a person wants. Commands of this machine's region follow (gpu_ami/region.py).
GROUPS = {
    "prove an image": ("prove", "observe", "validate", "faults", "record", "merge", "image_builder"),
    "build an image": ("init", "plan", "sources", "build", "bump", "import_", "matrix", "doctor", "sweep"),
    "release an image": ("certify", "verify", "key", "publish", "diff"),
    "operate instances": ("attach", "fleet", "launch_template", "telemetry", "dashboard", "runbook"),
    "look up": ("recipes", "facts", "checks", "events", "xid", "lint_agent"),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


@dataclass(frozen=True)
class Outcome:
    """What a command has to say: text for people (or lines as they come), data for `--json`, and the exit code."""

    text: str | Iterable[str] = ""
    data: object = None
    exit_code: int = 0
