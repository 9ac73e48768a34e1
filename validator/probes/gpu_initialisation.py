"""GPUs that the driver could not initialise, by the kernel log of a boot."""

from __future__ import annotations

import re

# The event parser's grammar (roles/event_parser/files/hwevents/initialisation.py) has the sources.
_FAILED = re.compile(
    r"NVRM: .*(?:RmInitAdapter failed!|rm_init_adapter(?:\(\d+\))? failed\b|\bis already lost\b"
    r"|Cannot initialize GSP firmware RM"
    r"|is not supported by|requires? use of the NVIDIA open)"
    r"|nvidia: probe of \S+ failed with error|nvidia \S+: probe with driver nvidia failed with error"
)


def failures(kernel_log: str) -> list[str]:
    """The lines that say so, in order, each text once: every nvidia-smi tries such a GPU again."""
    lines = [line.strip() for line in kernel_log.splitlines() if _FAILED.match(line.strip())]
    return list(dict.fromkeys(lines))
