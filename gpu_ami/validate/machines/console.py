"""The console of an instance: kept as evidence, and the one check that needs no shell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError
from gpu_ami.report import FAIL, PASS, UNPROVEN
from validator.probes import PANIC
from validator.results import CheckRecord

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.cloud import Cloud

CONSOLE_FILE = "console.log"
_NO_PANIC = "no kernel panic, no oops"
# Written by cloud-init's module keys-to-console; a console may have a prefix or a carriage return on each line.
_HOST_KEYS = re.compile(r"BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS", re.DOTALL)
_KEY_LINE = re.compile(r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-\S+) [A-Za-z0-9+/=]+")


def keep(cloud: Cloud, instance_id: str, folder: Path, after: str = "") -> CheckRecord:
    """Writes console.log into the folder and judges it; where it cannot be read, both say why."""
    try:
        console, error = cloud.console(instance_id), ""
    except GpuAmiError as refused:
        console, error = "", f"the console could not be read: {refused}"
    try:
        (folder / CONSOLE_FILE).write_text(error or console, encoding="utf-8", errors="backslashreplace")
    except OSError as full:
        error = error or f"{folder / CONSOLE_FILE}: {full.strerror}"
    return judge(console, error, after)


def contradicts(console: str, host_key: str) -> bool:
    """Whether the console shows a host key of this one's type, and not this one (`TYPE BASE64`)."""
    blocks = _HOST_KEYS.findall(console)
    shown = _KEY_LINE.findall(blocks[-1]) if blocks else []
    kind, key = host_key.split()[:2]
    return any(line.startswith(f"{kind} ") for line in shown) and f"{kind} {key}" not in shown


def judge(console: str, error: str = "", after: str = "") -> CheckRecord:
    """The check of a console. One that is empty or cannot be read proves nothing. after: the restart before it."""
    panic = PANIC.search(console)
    has_kernel_lines = "[" in console  # a kernel's lines carry timestamps; EC2 may need minutes to show any
    if panic:
        verdict, message = FAIL, f"the console shows {panic.group(0)!r}"
    elif error or not has_kernel_lines:
        verdict, message = UNPROVEN, error or "the console was empty: nothing to judge"
    else:
        verdict, message = PASS, ""
    return CheckRecord(
        id=f"boot::test_console_shows_no_panic{f'@{after}' if after else ''}",
        role="boot",
        tier="T1",
        promise=f"{f'After {after}: ' if after else ''}The kernel's console shows no panic and no oops.",
        verdict=verdict,
        observed=panic.group(0) if panic else f"{len(console.splitlines())} lines without a panic",
        planned=_NO_PANIC,
        message=message,
        after=after,
    )
