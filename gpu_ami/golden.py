"""Golden files: what a machine's hardware was seen to be, kept for later proofs to compare with.

Recording judges nothing. Its report has no check that could pass, so its verdict is UNPROVEN and no certificate can
come from it, whatever was seen.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import __version__, runs
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.report import UNPROVEN, HostReport, Report, write_text
from validator import oracle
from validator.oracle import Golden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from validator.ssh import Connection, Target

_SECONDS = 120.0  # nvidia-smi on a machine whose driver nobody has used yet


@dataclass(frozen=True)
class Recording:
    """What was seen on one machine, where it is kept, and what a reader of the old file should know."""

    golden: Golden
    path: Path
    changes: Sequence[str]


def see(target: Target, instance_type: str, where: str) -> Golden:
    """Goes to a machine and looks. MachineError: it cannot be reached, or does not say what hardware it has.

    instance_type: "" to ask the machine's metadata. where: the place, for the file.
    """
    from validator import ssh

    try:
        connection = ssh.connect(target)
    except ssh.TransportFault as fault:
        raise MachineError(f"{target.name} cannot be reached: {fault}") from fault
    try:
        return look(connection, instance_type, where)
    except ssh.SshError as fault:
        raise MachineError(f"{target.name} stopped answering: {fault}") from fault
    finally:
        connection.close()


def look(connection: Connection, instance_type: str, where: str) -> Golden:
    """The same through an open connection."""

    def run(command: str) -> tuple[int, str]:
        done = connection.run(command, timeout=_SECONDS)
        return done.rc, done.text

    kind = instance_type or _instance_type(run)
    try:
        seen = oracle.see(run)
    except oracle.Unseen as reason:
        raise MachineError(
            f"{connection.target.name} ({kind}) does not say what hardware it has: {reason}",
            hint="record a machine whose driver works",
        ) from reason
    recorded = {"when": runs.as_text(runs.now()), "where": where, "by": f"gpu-ami {__version__}"}
    return Golden(kind, seen, recorded | {"driver": seen.driver})


def _instance_type(run: oracle.Run) -> str:
    from validator.machine import METADATA

    rc, out = run(f"python3 -c {shlex.quote(METADATA)}")
    try:
        return str(json.loads(out)["instance-type"]) if rc == 0 else _no_type()
    except (ValueError, KeyError):
        return _no_type()


def _no_type() -> str:
    raise UsageError("the host's metadata do not say its instance type", hint="--instance-type TYPE says it")


def keep(seen: Golden, folder: Path) -> Recording:
    """Writes the golden file. UsageError: simulated hardware is not to replace what real hardware showed."""
    path = folder / f"{seen.instance_type}.json"
    try:
        old = oracle.find_golden(seen.instance_type, folder)
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint="repair or remove it") from error
    if old is not None and seen.hardware.simulated and not old.hardware.simulated:
        raise UsageError(
            f"{path} was recorded on real hardware; this machine's is simulated",
            hint="--golden DIR keeps this one elsewhere",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(seen.to_json(), ensure_ascii=False, indent=1) + "\n")
    return Recording(seen, path, changes(old, seen))


def changes(old: Golden | None, seen: Golden) -> list[str]:
    """What a golden file says otherwise than the one before it, beside date and place; a line each."""
    if old is None:
        return []
    before, after = old.to_json(), seen.to_json()
    keys = ("hardware", "gpus", "links", "nvswitches", "efa_interfaces")
    return [f"{key}: {before[key]} → {after[key]}" for key in keys if before[key] != after[key]]


def against_facts(seen: Golden, plan: Mapping[str, Any]) -> list[str]:
    """Where what was seen differs from the plan's facts, which come first in every proof; a line each."""
    row = next((one for one in plan.get("instance_types", []) if one["name"] == seen.instance_type), None)
    if row is None or "gpu" not in row:
        return []
    hardware = seen.hardware
    count = [] if len(hardware.gpus) == row["gpu_count"] else [f"{len(hardware.gpus)} GPUs, facts: {row['gpu_count']}"]
    return [
        *count,
        *oracle.model_differences(hardware.gpus, row["gpu"], None),
        *oracle.address_differences((one.pci for one in hardware.gpus), row["gpu"], None),
        *oracle.link_differences(hardware, row, None),
    ]


def report(made: Sequence[Recording], plan: Mapping[str, Any], run: runs.Run, image: str) -> Report:
    """A report in which nothing was judged: UNPROVEN, always."""
    hosts = [HostReport(one.golden.instance_type, checks=[_not_judged(one)]) for one in made]
    finished = runs.as_text(runs.now())
    simulated = any(one.golden.hardware.simulated for one in made)
    return Report(dict(plan), image, "", "", simulated, run.id, run.started, finished, hosts)


def _not_judged(made: Recording) -> dict[str, Any]:
    return {
        "id": "record::hardware", "role": "record", "tier": "T3", "verdict": UNPROVEN,
        "promise": "The machine's hardware was recorded.",
        "observed": made.golden.to_json(), "planned": None,
        "message": f"recorded in {made.path.name}, not judged", "seconds": 0.0, "attempts": 1, "hops": [],
    }  # fmt: skip


def text(made: Sequence[Recording], differences: Mapping[str, Sequence[str]]) -> str:
    """For people: what is kept where, what changed, what contradicts the facts, and the verdict."""
    lines = []
    for one in made:
        kind = "simulated" if one.golden.hardware.simulated else "real"
        seen = one.golden.hardware
        what = f"{len(seen.gpus)} GPUs, {len(seen.nvswitches)} NVSwitches, {len(seen.efa_interfaces)} EFA interfaces"
        lines.append(f"{one.golden.instance_type}: {what}, {kind} hardware → {one.path}")
        lines += [f"    changed: {line}" for line in one.changes]
        lines += [f"    differs from the facts: {line}" for line in differences.get(one.golden.instance_type, ())]
    return "\n".join([*lines, "", f"{UNPROVEN}: recorded, not judged; a recording never makes a certificate"])
