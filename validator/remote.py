"""Programs of onhost/ as commands for a host. onhost/__init__.py lists them."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

import onhost

PROGRAMS = Path(onhost.__file__).parent


@functools.cache
def text(name: str) -> str:
    """The shell program NAME.sh as it is sent, without comment lines and indentation."""
    lines = (line.strip() for line in (PROGRAMS / f"{name}.sh").read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


# Programs that import another module, which a host does not have.
_NEEDS = {"diagnose": ("readings",), "observation": ("materials", "shippers")}
# Programs that start another one, whose text they have as a constant.
_STARTS = {"container_probe": "compute_probe"}


def source(name: str) -> str:
    """The program NAME.py, for a node that keeps it as a file while it is needed."""
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def python(name: str, *arguments: str) -> str:
    """The program NAME.py as a command: the host's own python3 reads it from standard input, with its modules."""
    return f"python3 -IS - {shlex.join(arguments)} <<'END_OF_PROGRAM'\n{program(name)}END_OF_PROGRAM"


@functools.cache
def program(name: str) -> str:
    """The program NAME.py with the modules that it needs, as one text."""
    text = "".join(_module(needed) for needed in _NEEDS.get(name, ()))
    if started := _STARTS.get(name):
        text += f"{started.upper()} = {source(started)!r}\n"
    return text + source(name)


def _module(name: str) -> str:
    """Lines that make hwevents.NAME importable."""
    return (
        "import sys, types\n"
        "hwevents = sys.modules.setdefault('hwevents', types.ModuleType('hwevents'))\n"
        f"hwevents.{name} = sys.modules['hwevents.{name}'] = types.ModuleType('hwevents.{name}')\n"
        f"exec(compile({source(name)!r}, '{name}.py', 'exec'), hwevents.{name}.__dict__)\n"
    )


def with_arguments(name: str, *arguments: str) -> str:
    """The shell program NAME.sh with its positional parameters set."""
    return f"set -- {shlex.join(arguments)}\n{text(name)}"
