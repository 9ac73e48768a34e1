"""The last role of a build: removes what building left."""

from __future__ import annotations

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import NO_KEYS, Assignment, Component, ResolveContext
from validator.plan_document import Hygiene


def _section(_context: ResolveContext, _versions: Assignment, _sources: Sources) -> Hygiene:
    return {}


COMPONENT = Component(
    "hygiene",
    layer="telemetry",
    after=("drain_hook",),
    is_in_every_plan=True,
    keys=NO_KEYS,
    section=Hygiene,
    write=_section,
)
