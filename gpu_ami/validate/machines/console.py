"""What EC2 shows of an instance: its console, kept as evidence and judged, and its state while it is checked."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import write_text
from gpu_ami.report import FAIL, PASS, UNPROVEN
from validator import secret_shapes
from validator.probes import PANIC
from validator.results import CheckRecord

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from mypy_boto3_ec2.type_defs import InstanceTypeDef

    from gpu_ami.cloud import Cloud

CONSOLE_FILE = "console.log"
_NO_PANIC = "no kernel panic, no oops"
# Written by cloud-init's module keys-to-console; a console may have a prefix or a carriage return on each line.
_HOST_KEYS = re.compile(r"BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS", re.DOTALL)
# cloud-init's own words (22.4 to 25.1): its last message ("Datasource DataSourceNone"), its stages, and those of
# cc_ssh_authkey_fingerprints.
_NO_DATASOURCE = re.compile(
    r"DataSourceNone\b|Used fallback datasource|No instance datasource found[^\r\n]*"
    r"|Can not apply stage [^\r\n]*no datasource[^\r\n]*|Did not find any data source[^\r\n]*"
)
_KEYS_OF = re.compile(r"Authorized keys from \S+ for user (\S+?)[+\s]")
_NO_KEYS = re.compile(r"no authorized SSH keys fingerprints found for user (?P<user>[\w-]+)")
_KEY_LINE = re.compile(r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-\S+) [A-Za-z0-9+/=]+")


def keep(cloud: Cloud, instance_id: str, folder: Path, after: str = "") -> CheckRecord:
    """Writes console.log into the folder and judges it; where it cannot be read, both say why."""
    try:
        console, error = cloud.console(instance_id), ""
    except GpuAmiError as refused:
        console, error = "", f"the console could not be read: {refused}"
    try:
        write_text(folder / CONSOLE_FILE, error or secret_shapes.hidden(console))
    except OSError as full:
        error = error or f"{folder / CONSOLE_FILE}: {full.strerror}"
    return judge(console, error, after)


def contradicts(console: str, host_key: str) -> bool:
    """Whether the console shows a host key of this one's type, and not this one (`TYPE BASE64`)."""
    blocks = _HOST_KEYS.findall(console)
    shown = _KEY_LINE.findall(blocks[-1]) if blocks else []
    kind, key = host_key.split()[:2]
    return any(line.startswith(f"{kind} ") for line in shown) and f"{kind} {key}" not in shown


def login_hint(console: str, user: str) -> str:
    """Why nobody can log in although the machine answers, where cloud-init says so on the console; "" else."""
    none = _NO_DATASOURCE.search(console)
    if none:
        return (
            f"cloud-init found no datasource (console: {none[0]!r}), so it installed no key and ran no user data:"
            " look at its datasource_list, at the network during the boot, and at whether the metadata service is on"
        )
    users = dict.fromkeys(_KEYS_OF.findall(console))
    if users and user not in users:
        return f"cloud-init installed the key for {', '.join(users)}, not for {user}: is the plan's ssh_user the AMI's?"
    no_key = _NO_KEYS.search(console)
    if no_key and user not in users:
        return f"cloud-init got no key from the metadata service for {no_key['user']} (console: {no_key[0]!r})"
    return ""


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


POLL_SECONDS = 5.0
_LOST = ("stopping", "stopped", "shutting-down", "terminated")


def trouble(instance: InstanceTypeDef) -> str:
    """Why an instance that should run cannot be checked; "" if nothing is wrong. instance: as DescribeInstances has it.

    A running instance with a state reason of the server's (`Server.…`) does not run: the local region reports a machine
    that is paused because the host's disk is full in this way.
    """
    state = str(instance["State"]["Name"])
    reason = instance.get("StateReason") or {}
    message = str(reason.get("Message") or reason.get("Code") or "no reason given")
    name = f"instance {instance.get('InstanceId', '')}".strip()
    if state in _LOST:
        return f"{name} is {state}: {message}"
    if state == "running" and str(reason.get("Code", "")).startswith("Server."):
        return f"{name} does not run: {message}"
    return ""


class Watch:
    """Within the block, calls `on_trouble` once with the reason when the instance no longer runs.

    A poll that AWS refuses or throttles says nothing about the machine and is repeated.
    """

    def __init__(self, cloud: Cloud, instance_id: str, on_trouble: Callable[[str], object]) -> None:
        self.reason, self.code = "", ""  # of a machine that is lost; the code of its StateReason
        self._cloud, self._instance_id, self._on_trouble = cloud, instance_id, on_trouble
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"watch {instance_id}", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()

    def _poll(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                instance = self._cloud.instance(self._instance_id)
            except GpuAmiError:
                continue
            self.code = str((instance.get("StateReason") or {}).get("Code") or "")
            self.reason = trouble(instance)
            if self.reason:
                self._on_trouble(self.reason)
                return
