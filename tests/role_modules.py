"""Modules of the programs that roles install, imported as on an image: beside the event parser's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from gpu_ami.events.reader import parser_module


def role_module(files: Path, name: str) -> ModuleType:
    """A module below a role's `files`, which may use the parser's: "drain_hook.notices"."""
    for module in ("notify", "sinks"):
        parser_module(module)
    if str(files) not in sys.path:
        sys.path.append(str(files))
    return importlib.import_module(name)
