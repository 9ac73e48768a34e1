"""The commands of `gpu-ami`, a module each: `register(subparsers)` declares it, `execute(args, progress)` does it.

A command returns an `Outcome`; only `gpu_ami.cli` prints and exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# In the order of `gpu-ami --help`: the line from recipe to certificate first, then what surrounds it. Commands of the
# region of this machine follow (gpu_ami/region.py).
NAMES = (
    "prove", "plan", "sources", "build", "validate", "observe", "certify", "verify", "publish", "key", "diff",
    "sweep", "attach", "fleet", "launch_template", "image_builder",
    "checks", "faults", "record", "merge", "matrix", "doctor", "init", "recipes", "facts",
    "bump", "import_", "events", "xid", "runbook", "telemetry", "dashboard", "lint_agent",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a command has to say: text for people (or lines as they come), data for `--json`, and the exit code."""

    text: str | Iterable[str] = ""
    data: object = None
    exit_code: int = 0
