"""Runs scripts at notices of interruption and termination, where the recipe asks for it."""

from __future__ import annotations

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import PRESENCE, Assignment, Component, Observed, OwnLog, ResolveContext, file
from validator.plan_document import DrainHook
from validator.schema import Choice, Flag, Integer, Keys, ListOf

# What it can act on; the recipe chooses.
NOTICES = ("spot-interruption", "autoscaling-termination", "rebalance-recommendation", "maintenance-event")


def _section(context: ResolveContext, _versions: Assignment, _sources: Sources) -> DrainHook | None:
    asked = context.values["drain_hook"]
    if not asked["enabled"]:
        return None
    return {
        "notices": [name for name in NOTICES if name in asked["notices"]],
        "timeout_s": asked["timeout_s"],
        "log": asked["log"],
        "log_group": asked["log_group"],
    }


_LOG = OwnLog(
    "/var/log/gpu-ami-drain.jsonl", "/ec2/accelerated/drain", "notices and what the scripts did, as JSON lines"
)

COMPONENT = Component(
    "drain_hook",
    observed=Observed((file("/etc/systemd/system/gpu-ami-drain-hook.service", PRESENCE),)),
    layer="telemetry",
    early={"node": "files"},
    after=("neuron_monitor",),
    keys=Keys(
        {
            "enabled": Flag(),
            "notices": ListOf(Choice(NOTICES)),
            "timeout_s": Integer(1, 7200, "seconds"),
            **_LOG.keys(),
        },
        needed=("enabled", "notices", "timeout_s", *_LOG.keys()),
    ),
    meanings={
        "enabled": "true: a service runs the scripts of `/etc/gpu-ami/drain.d` at notices ([fleet](fleet.md))",
        "notices": "notices that run the scripts; a recommendation or an event does not always lead to an interruption",
        "timeout_s": "seconds for all scripts of a notice together",
        **_LOG.meanings("drain_hook"),
    },
    section=DrainHook,
    write=_section,
    own_log=_LOG,
)
