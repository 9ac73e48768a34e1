"""Parses Xid and SXid lines of the kernel into events; the plan's section is the recipe's."""

from __future__ import annotations

from gpu_ami.recipes.rules import PRESENCE, Component, Observed, file
from validator.plan_document import EventParser
from validator.schema import Integer, Keys, Text

_FILE = Text("/var/log/gpuevent.log", r"/[\w./+-]+")

COMPONENT = Component(
    "event_parser",
    observed=Observed((file("/opt/aws/cloudwatch/nvidia/hwevents/main.py", PRESENCE),)),
    layer="telemetry",
    early={"kernel": "boot_loader", "node": "files"},
    after=("cloudwatch_agent",),
    is_in_every_plan=True,
    keys=Keys(
        {
            "raw_log": _FILE,
            "json_log": _FILE,
            "log_buf_len": Text("4M", r"\d+[KMG]?"),
            "seed_metrics_s": Integer(1, 3600, "seconds"),
        },
        needed=("raw_log", "json_log"),
    ),
    meanings={
        "raw_log": "file with the kernel's Xid and SXid lines",
        "json_log": "file with the events as JSON lines",
        "log_buf_len": "size of the kernel's log buffer",
        "seed_metrics_s": "seconds between points of `AcceleratorMetrics` and `EFAMetrics`; default: not published",
    },
    section=EventParser,
)
