"""Where this machine keeps what outlives a run: the local region's state and the register of runs."""

from __future__ import annotations

import os
from pathlib import Path


def home_dir() -> Path:
    """`$GPU_AMI_HOME`, else `$XDG_STATE_HOME/gpu-ami`, else `~/.local/state/gpu-ami`; made private to its owner."""
    named = os.environ.get("GPU_AMI_HOME")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    home = Path(named) if named else Path(state) / "gpu-ami"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home.resolve()
