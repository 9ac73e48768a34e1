"""Looks at an instance while it is checked: a machine that is paused, stopped or gone is seen at once, with its reason.

Without it, a check waits for a machine that no longer answers until its own deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError

if TYPE_CHECKING:
    from types import TracebackType

    from mypy_boto3_ec2.type_defs import InstanceTypeDef

    from gpu_ami.cloud import Cloud

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
        self.reason = ""
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
                self.reason = trouble(self._cloud.instance(self._instance_id))
            except GpuAmiError:
                continue
            if self.reason:
                self._on_trouble(self.reason)
                return
