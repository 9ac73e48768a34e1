"""The log groups of a proof: removed when its machines have ended, and described in the report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import log_groups, temporary_keys
from validator.plan import LOG_GROUPS

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place, Run
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument

# An agent that is shutting down sends what it still has, and would create its groups again.
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_AFTER_ERROR = 60.0
_POLL_SECONDS = 2.0


@contextmanager
def own_log_groups(
    cloud: Cloud, run: Run, progress: Progress, on_leftover: temporary_keys.Leftover | None = None
) -> Iterator[None]:
    """Removes the log groups of this run's machines after the block, which ends the machines.

    on_leftover: gets the error if that fails; `gpu-ami sweep` then finds them.
    """
    suffix = log_groups.suffix(cloud.place, run)
    seconds = _ENDING_SECONDS_AFTER_ERROR
    try:
        yield
        seconds = _ENDING_SECONDS
    finally:
        if suffix:
            temporary_keys.clean_up(run, lambda: _remove(cloud, run, suffix, progress, seconds), on_leftover)


def _remove(cloud: Cloud, run: Run, suffix: str, progress: Progress, seconds: float) -> None:
    groups = log_groups.of_proofs(cloud, suffix)
    if not groups:
        return
    deadline = time.monotonic() + seconds
    with progress.stage("remove log groups"):
        while cloud.shutting_down(run.id) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for group in log_groups.of_proofs(cloud, suffix):
            log_groups.delete(cloud, group)
    progress.note(f"log groups of this proof removed: {', '.join(groups)}")


def described(plan: PlanDocument | None, place: Place | None, run: Run, *, launched: bool) -> str:
    """A sentence for report and certificate: to which log groups the machines of this proof sent.

    launched: by gpu-ami; a machine that somebody else booted is never reconfigured.
    """
    sections: Mapping[str, Any] = plan or {}
    names = [sections[name][key] for name, keys in LOG_GROUPS.items() if name in sections for key in keys]
    if not launched:
        own = ", ".join(names) or "those of its configuration"
        return f"the host's own ({own}): nothing on it was reconfigured, so injected events went there"
    suffix = log_groups.suffix(place, run) if place else ""
    if not suffix:
        return f"the plan's ({', '.join(names)}): injected events went there"
    return (
        f"the proof's own ({', '.join(f'{name}{suffix}' for name in names)}), removed afterwards: the only change to"
        " the agent, made in its view of the configuration and not in the image's files; metrics kept their namespace"
    )
