"""Golden files: the recorded hardware of a machine, with which later proofs are compared.

Recording judges nothing. Its report has no check that could pass, so its verdict is always UNPROVEN and no certificate
can follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import __version__
from gpu_ami.cloud import runs
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.files import write_json
from gpu_ami.report import UNPROVEN, HostReport, Report
from validator.probes import Golden, hardware
from validator.results import CheckRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_ami.recipes import PlanDocument
    from validator.transport import Connection, Target

_OWN_FOLDER = Path("site", "golden")  # in the user's folder, beside site/roles and site/facts
_SECONDS = 120.0  # nvidia-smi on a machine whose driver has not been used yet


@dataclass(frozen=True)
class Recording:
    """The hardware of one machine, its golden file, and what differs from the file's previous content."""

    golden: Golden
    path: Path
    changes: Sequence[str]


def see(target: Target, instance_type: str, where: str) -> Golden:
    """Reads the hardware of a machine. MachineError: it cannot be reached, or does not report its hardware.

    instance_type: "" to ask the machine's metadata. where: the place, for the file.
    """
    from validator.transport import ssh

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
        machine = hardware.see(run)
    except hardware.Unseen as reason:
        raise MachineError(
            f"{connection.target.name} ({kind}) does not report its hardware: {reason}",
            hint="record a machine whose driver works",
        ) from reason
    recorded = {"when": runs.as_text(runs.now()), "where": where, "by": f"gpu-ami {__version__}"}
    return Golden(kind, machine, recorded | {"driver": machine.driver})


def _instance_type(run: hardware.Run) -> str:
    from validator.probes import METADATA, metadata_of

    rc, out = run(METADATA)
    try:
        return metadata_of(out)["instance-type"] if rc == 0 else _no_type()
    except ValueError:
        return _no_type()


def _no_type() -> str:
    raise UsageError(
        "the host's instance metadata does not have its instance type", hint="give it with --instance-type TYPE"
    )


def new_folder(shipped: Path = hardware.FOLDER) -> Path:
    """Where a recording goes: variables/golden in a checkout's top-level folder, elsewhere site/golden."""
    return shipped if Path.cwd() == shipped.parents[1] else _OWN_FOLDER


def folders(shipped: Path = hardware.FOLDER) -> tuple[Path, ...]:
    """Where a proof looks for a recording, in this order: the user's folder, if there is one, and what is shipped."""
    return (_OWN_FOLDER, shipped) if _OWN_FOLDER.is_dir() else (shipped,)


def keep(recorded: Golden, folder: Path | None) -> Recording:
    """Writes the golden file. UsageError: simulated hardware must not replace a recording of real hardware.

    folder: None for the one of `new_folder`; the recording then takes the place of a shipped one.
    """
    read = (folder,) if folder else (new_folder(), *folders())
    folder = folder or new_folder()
    path = folder / f"{recorded.instance_type}.json"
    try:
        old = hardware.find_golden(recorded.instance_type, *read)
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint="repair or remove it") from error
    if old is not None and recorded.hardware.simulated and not old.hardware.simulated:
        raise UsageError(
            f"{path}: the hardware of {recorded.instance_type} was recorded on a real machine; this one's is simulated",
            hint="write it to another folder: --golden DIR",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, recorded.to_json())
    return Recording(recorded, path, changes(old, recorded))


def changes(old: Golden | None, recorded: Golden) -> list[str]:
    """What differs from the previous golden file, apart from date and place; a line each."""
    if old is None:
        return []
    before, after = old.to_json(), recorded.to_json()
    keys = ("hardware", "gpus", "links", "nvswitches", "efa_interfaces")
    return [f"{key}: {before[key]} → {after[key]}" for key in keys if before[key] != after[key]]


def against_facts(recorded: Golden, plan: PlanDocument | None) -> list[str]:
    """What differs from the plan's facts, which a proof compares first; a line each. Nothing without a plan."""
    rows = plan["instance_types"] if plan else []
    row = next((row for row in rows if row["name"] == recorded.instance_type), None)
    if row is None or "gpu" not in row:
        return []
    machine = recorded.hardware
    count = [] if len(machine.gpus) == row["gpu_count"] else [f"{len(machine.gpus)} GPUs, facts: {row['gpu_count']}"]
    return [
        *count,
        *hardware.model_differences(machine.gpus, row["gpu"], None),
        *hardware.address_differences((gpu.pci for gpu in machine.gpus), row["gpu"], None),
        *hardware.link_differences(machine, row, None),
    ]


def report(made: Sequence[Recording], plan: PlanDocument | None, run: runs.Run, image: str) -> Report:
    """A report in which nothing was judged: UNPROVEN, always."""
    hosts = tuple(HostReport(recording.golden.instance_type, checks=(_not_judged(recording),)) for recording in made)
    finished = runs.as_text(runs.now())
    simulated = any(recording.golden.hardware.simulated for recording in made)
    return Report(dict(plan) if plan else {}, image, "", "", simulated, run.id, run.started, finished, hosts)


def _not_judged(made: Recording) -> CheckRecord:
    return CheckRecord(
        id="record::hardware",
        role="record",
        tier="T3",
        promise="The machine's hardware was recorded.",
        verdict=UNPROVEN,
        observed=made.golden.to_json(),
        message=f"recorded in {made.path.name}, not judged",
    )


def text(made: Sequence[Recording], differences: Mapping[str, Sequence[str]]) -> str:
    """Renders as text the golden files, what changed, what contradicts the facts, and the verdict."""
    lines = []
    for recording in made:
        kind = "simulated" if recording.golden.hardware.simulated else "real"
        machine = recording.golden.hardware
        switches, interfaces = len(machine.nvswitches), len(machine.efa_interfaces)
        what = f"{len(machine.gpus)} GPUs, {switches} NVSwitches, {interfaces} EFA interfaces"
        lines.append(f"{recording.golden.instance_type}: {what}, {kind} hardware → {recording.path}")
        lines += [f"    changed: {line}" for line in recording.changes]
        lines += [f"    differs from the facts: {line}" for line in differences.get(recording.golden.instance_type, ())]
    return "\n".join([*lines, "", f"{UNPROVEN}: recorded, not judged; no certificate follows from a recording"])
