"""Errors of a source: it does not serve what a plan expects.

SourceError        2  what the source serves is not what the plan expects: a signature, a digest, a format
├── NotThere       2  the source does not have it
└── Unreachable    4  the source gives no complete answer
"""

from __future__ import annotations

from gpu_ami.errors import GpuAmiError


class SourceError(GpuAmiError):
    """An error of one source; `gpu_ami.sources.survey` collects the errors of all."""

    exit_code = 2
    state = "wrong"


class NotThere(SourceError):
    state = "missing"


class Unreachable(SourceError):
    exit_code = 4
    state = "unreachable"
