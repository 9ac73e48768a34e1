"""What a boot waits for: the units that still start, with seconds, limits and drop-ins, over SSH or on the console."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from validator.transport import Connection

_ASK_SECONDS, _OWNERS_SECONDS = 20.0, 90.0
_VALUES = "Id,ActiveState,SubState,InactiveExitTimestampMonotonic,TimeoutStartUSec,DropInPaths,FragmentPath"
# Uptime, the jobs of systemd's queue, then the units that start or stop now.
_SCRIPT = (
    "cat /proc/uptime; echo; systemctl list-jobs --no-legend --no-pager | head -n 40; echo; "
    "units=$(systemctl list-units --state=activating,deactivating --plain --no-legend --no-pager | awk '{print $1}'); "
    f'test -z "$units" || systemctl show -p {_VALUES} $units'
)
# The package that has each unit's file: dpkg's database may have the path without /usr.
_OWNERS = (
    '; for unit in $units; do file=$(systemctl show -p FragmentPath --value $unit); test -n "$file" || continue;'
    ' owner=$({ dpkg-query -S "$file" || dpkg-query -S "${file#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1);'
    ' test -n "$owner" || owner=$(rpm -qf --qf \'%{NAME} \' "$file" 2>/dev/null) || owner=;'
    " printf '\\nId=%s\\nPackage=%s\\n' $unit \"${owner%% *}\"; done"
)
# Without a plan: units that roles of gpu-ami install or configure. Others, such as those that wait for the network or
# for metadata, may wait for the place.
_OF_THE_IMAGE = re.compile(
    r"(?:nvidia-|nv-|dcgm|aws-hw-monitor|amazon-cloudwatch-agent|gpu-ami-|neuron|docker\.|containerd\.|kubelet\.|slurm|efa|gdrcopy|"
    r"nvidia\b|hpc-|lustre)"
)
# systemd's words on the console, before release 247 and since (src/core/manager.c); a narrow one cuts the middle out:
# [ ***  ] A start job is running for NVIDIA fabric manager service (3min 4s / 15min)
# [ ***  ] (1 of 2) Job systemd-networkd-wait-online.se…tart running (1min 47s / no limit)
_ON_CONSOLE = re.compile(
    r"(?:A (?:start|stop) job is running for (?P<what>[^\r\n]{1,200}?)|\bJob (?P<unit>[^\s/…]{1,200})\S{0,200} running)"
    r" \((?P<time>[^()\r\n]{1,60})\)"
)
_UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_LOGIN_PROMPT = re.compile(r"^\S+ login: ", re.MULTILINE)


@dataclass(frozen=True)
class Hanging:
    """A unit that has not finished: its systemd states, seconds so far (None: unknown), limit and drop-ins."""

    unit: str
    state: str
    seconds: float | None
    limit: str
    drop_ins: str
    file: str = ""
    package: str = ""  # that has the file; "" where none has, or it was not asked

    def __str__(self) -> str:
        since = f" for {self.seconds:.0f} s" if self.seconds is not None else ""
        limit = f", TimeoutStartSec {self.limit}" if self.limit else ""
        return f"{self.unit}: {self.state}{since}{limit}{f', drop-ins: {self.drop_ins}' if self.drop_ins else ''}"


@dataclass(frozen=True)
class ImageUnits:
    """What tells the image's units from the base AMI's: names of planned packages, and files of roles (both patterns).

    Without any, the names of units decide.
    """

    packages: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Mapping[str, object], roles: Sequence[str], folders: Sequence[Path]) -> Self:
        """Those of a plan. folders: of roles, as footprints are found."""
        from validator import file_account

        try:
            footprints, _ = file_account.load_footprints(folders, roles, file_account.plan_variables(plan))
        except file_account.InvalidRules:  # which the file account reports
            footprints = {}
        packages = {name for footprint in footprints.values() for name in footprint.packages}
        paths = [path for footprint in footprints.values() for rule in footprint.files for path in rule.patterns]
        units = tuple(path for path in paths if "/systemd/system/" in path)
        return cls(frozenset(packages | file_account.planned_names(plan)), units)

    def has(self, unit: Hanging) -> bool:
        """Whether a planned package or a role has the unit's file or one of its drop-ins."""
        if not self.packages and not self.files:
            return _OF_THE_IMAGE.match(unit.unit) is not None
        if any(fnmatch.fnmatchcase(unit.package, name) for name in self.packages):
            return True
        paths = [path for path in (unit.file, *unit.drop_ins.split()) if path]
        return any(fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in self.files)


@dataclass(frozen=True)
class Waiting:
    """The units that a boot waits for, the longest first, and systemd's queue."""

    units: tuple[Hanging, ...] = ()
    jobs: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        shown = [f"still starting: {unit}" for unit in self.units]
        waiting = [job for job in self.jobs if not any(unit.unit in job.split() for unit in self.units)]
        return shown + ([f"systemctl list-jobs: {len(waiting)} more wait: {', '.join(waiting[:6])}"] if waiting else [])

    def of_the_image(self, units: ImageUnits) -> Hanging | None:
        """The unit of the image that has waited longest."""
        return next((unit for unit in self.units if units.has(unit)), None)


def read(connection: Connection, *, owners: bool = False) -> Waiting:
    """What the boot waits for now; nothing where the machine does not answer. owners: with the package of each unit."""
    from validator.transport import errors

    try:
        if owners:
            return parse(connection.run(_SCRIPT + _OWNERS, timeout=_OWNERS_SECONDS).text)
        return parse(connection.run(_SCRIPT, timeout=_ASK_SECONDS).text)
    except errors.CommandExpired:
        return read(connection) if owners else Waiting()  # the package database of a busy machine takes long
    except errors.SshError:
        return Waiting()


def parse(printed: str) -> Waiting:
    """The output of the script: uptime, jobs and units, with an empty line between them."""
    uptime_text, _, rest = printed.partition("\n\n")
    jobs_text, _, units_text = rest.partition("\n\n")
    first = uptime_text.split()
    uptime = float(first[0]) if first and re.fullmatch(r"\d+(?:\.\d+)?", first[0]) else None
    jobs = [line.split() for line in jobs_text.splitlines()]
    values: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n\s*\n", units_text.strip()):
        read_values = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if read_values.get("Id"):
            values.setdefault(read_values["Id"], {}).update(read_values)
    units = [_unit(each, uptime) for each in values.values() if "ActiveState" in each]
    units.sort(key=lambda unit: -(unit.seconds or 0))
    return Waiting(tuple(units), tuple(job[1] for job in jobs if len(job) > 1 and job[0].isdigit()))


def _unit(values: dict[str, str], uptime: float | None) -> Hanging:
    since = values.get("InactiveExitTimestampMonotonic", "")
    seconds = None if uptime is None or not since.isdigit() or since == "0" else max(0.0, uptime - int(since) / 1e6)
    limit = values.get("TimeoutStartUSec", "")
    state = f"{values.get('ActiveState')} ({values.get('SubState')})"
    files = values.get("DropInPaths", ""), values.get("FragmentPath", "")
    return Hanging(values["Id"], state, seconds, limit, *files, values.get("Package", ""))


@dataclass(frozen=True)
class ConsoleJob:
    """A job of systemd that the console shows as running: its unit or description, and its time and limit."""

    name: str
    time: str

    @property
    def seconds(self) -> int:
        """How long it has run: "1min 47s / no limit" is 107."""
        spent = self.time.partition("/")[0]
        return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(d|h|min|s)\b", spent))

    def __str__(self) -> str:
        return f"{self.name} ({self.time})"


def on_console(console: str) -> ConsoleJob | None:
    """The job that systemd named last on the console; None where it names none, or the boot went on to its login."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", console)
    jobs = list(_ON_CONSOLE.finditer(text))
    if not jobs or _LOGIN_PROMPT.search(text, jobs[-1].end()):
        return None
    return ConsoleJob(jobs[-1]["what"] or jobs[-1]["unit"], jobs[-1]["time"])
