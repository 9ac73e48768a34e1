"""Launches instances, which are terminated at the end of their block, also after an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, Launch, capacity, key_name, log_groups, runs, temporary_keys
from gpu_ami.validate.machines.deadlines import deadlines
from gpu_ami.validate.machines.user_data import user_data

if TYPE_CHECKING:
    from gpu_ami.cloud import Cluster, Run
    from gpu_ami.recipes import PlanDocument


@contextmanager
def launched(
    cloud: Cloud,
    ami: str,
    instance_type: str,
    key: str,
    run: Run,
    tags: Mapping[str, str],
    efa_interfaces: int = 0,
    on_leftover: temporary_keys.Leftover | None = None,
    roles: Sequence[str] = (),
    cancelled: threading.Event | None = None,
    on_attempt: Callable[[capacity.Attempt], object] = lambda _: None,
    cluster: Cluster | None = None,
) -> Iterator[str]:
    """Id of an instance that runs, and is terminated when the block ends. on_leftover: gets the error if that fails.

    roles: the plan's; node families get user data of their own. cancelled: ends the wait for capacity. on_attempt: gets
    each attempt to launch it; one whose capacity EC2 withdraws before it runs is followed by the next. cluster: the one
    that it joins.
    """
    asked = launch_of(cloud, ami, instance_type, key, run, tags, efa_interfaces, roles, cancelled, on_attempt, cluster)
    with launched_together(cloud, asked, run, on_leftover) as instance_ids:
        yield instance_ids[0]


def launch_of(
    cloud: Cloud,
    ami: str,
    instance_type: str,
    key: str,
    run: Run,
    tags: Mapping[str, str],
    efa_interfaces: int = 0,
    roles: Sequence[str] = (),
    cancelled: threading.Event | None = None,
    on_attempt: Callable[[capacity.Attempt], object] = lambda _: None,
    cluster: Cluster | None = None,
) -> Launch:
    """What `launched` asks for: one machine, with the user data of its node family."""
    minutes = int(runs.LIFETIME.total_seconds() // 60)
    text = user_data(minutes, key_name(run.id), roles, log_groups.suffix(cloud.place, run), cluster=cluster)
    pending = deadlines(instance_type, cloud.place).boot_seconds
    return Launch(ami, instance_type, key, tags, text, efa_interfaces, cancelled, pending, on_attempt)


@contextmanager
def launched_together(
    cloud: Cloud, asked: Launch, run: Run, on_leftover: temporary_keys.Leftover | None = None
) -> Iterator[list[str]]:
    """Ids of `asked.count` instances of one call, all of which are terminated when the block ends."""
    instance_ids = cloud.launch_all(asked)
    try:
        yield instance_ids
    finally:
        temporary_keys.clean_up(run, lambda: cloud.terminate(instance_ids), on_leftover)


def efa_interfaces(plan: PlanDocument | None, instance_type: str) -> int:
    """How many EFA interfaces to launch with: the type's where the plan has EFA, else none."""
    if not plan or "efa" not in plan:
        return 0
    return next((row["efa_interfaces"] for row in plan["instance_types"] if row["name"] == instance_type), 0)
