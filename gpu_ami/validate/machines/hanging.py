"""What a boot waits for: the units that still start, with seconds, limits and drop-ins, over SSH or on the console."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validator.transport import Connection

_ASK_SECONDS = 20.0
_VALUES = "Id,ActiveState,SubState,InactiveExitTimestampMonotonic,TimeoutStartUSec,DropInPaths"
# Uptime, the jobs of systemd's queue, then the units that start or stop now.
_SCRIPT = (
    "cat /proc/uptime; echo; systemctl list-jobs --no-legend --no-pager | head -n 40; echo; "
    "units=$(systemctl list-units --state=activating,deactivating --plain --no-legend --no-pager | awk '{print $1}'); "
    f'test -z "$units" || systemctl show -p {_VALUES} $units'
)
# Units that roles of the image install or configure. Others, such as those that wait for the network or for metadata,
# may wait for the place.
_OF_THE_IMAGE = re.compile(
    r"(?:nvidia-|nv-|dcgm|aws-hw-monitor|amazon-cloudwatch-agent|gpu-ami-|neuron|docker\.|containerd\.|kubelet\.|slurm|efa|gdrcopy|"
    r"nvidia\b|hpc-|lustre)"
)
# systemd's words on the console: [ ***  ] A start job is running for NVIDIA fabric manager service (3min 4s / 15min)
_ON_CONSOLE = re.compile(r"A (?:start|stop) job is running for (?P<what>[^\r\n]{1,200}?) \((?P<time>[^()\r\n]{1,60})\)")


@dataclass(frozen=True)
class Hanging:
    """A unit that has not finished: its systemd states, seconds so far (None: unknown), limit and drop-ins."""

    unit: str
    state: str
    seconds: float | None
    limit: str
    drop_ins: str

    def __str__(self) -> str:
        since = f" for {self.seconds:.0f} s" if self.seconds is not None else ""
        limit = f", TimeoutStartSec {self.limit}" if self.limit else ""
        return f"{self.unit}: {self.state}{since}{limit}{f', drop-ins: {self.drop_ins}' if self.drop_ins else ''}"

    @property
    def is_of_the_image(self) -> bool:
        return _OF_THE_IMAGE.match(self.unit) is not None


@dataclass(frozen=True)
class Waiting:
    """The units that a boot waits for, the longest first, and systemd's queue."""

    units: tuple[Hanging, ...] = ()
    jobs: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        shown = [f"still starting: {unit}" for unit in self.units]
        waiting = [job for job in self.jobs if not any(unit.unit in job.split() for unit in self.units)]
        return shown + ([f"systemctl list-jobs: {len(waiting)} more wait: {', '.join(waiting[:6])}"] if waiting else [])

    @property
    def of_the_image(self) -> Hanging | None:
        """The unit that has waited longest, if a role of the image installs it."""
        return next((unit for unit in self.units if unit.is_of_the_image), None)


def read(connection: Connection) -> Waiting:
    """What the boot waits for now; nothing where the machine does not answer."""
    from validator.transport import errors

    try:
        return parse(connection.run(_SCRIPT, timeout=_ASK_SECONDS).text)
    except errors.SshError:
        return Waiting()


def parse(printed: str) -> Waiting:
    """The output of the script: uptime, jobs and units, with an empty line between them."""
    uptime_text, _, rest = printed.partition("\n\n")
    jobs_text, _, units_text = rest.partition("\n\n")
    first = uptime_text.split()
    uptime = float(first[0]) if first and re.fullmatch(r"\d+(?:\.\d+)?", first[0]) else None
    jobs = [line.split() for line in jobs_text.splitlines()]
    units = []
    for block in re.split(r"\n\s*\n", units_text.strip()):
        values = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            units.append(_unit(values, uptime))
    units.sort(key=lambda unit: -(unit.seconds or 0))
    return Waiting(tuple(units), tuple(job[1] for job in jobs if len(job) > 1 and job[0].isdigit()))


def _unit(values: dict[str, str], uptime: float | None) -> Hanging:
    since = values.get("InactiveExitTimestampMonotonic", "")
    seconds = None if uptime is None or not since.isdigit() or since == "0" else max(0.0, uptime - int(since) / 1e6)
    limit = values.get("TimeoutStartUSec", "")
    state = f"{values.get('ActiveState')} ({values.get('SubState')})"
    return Hanging(values["Id"], state, seconds, limit, values.get("DropInPaths", ""))


def on_console(console: str) -> str:
    """The job that systemd names last on the console, with its time; "" for none."""
    jobs = _ON_CONSOLE.findall(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", console))
    return f"still starting, by its console: {jobs[-1][0]} ({jobs[-1][1]})" if jobs else ""
