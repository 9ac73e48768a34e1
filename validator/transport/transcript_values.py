"""What a transcript.yml says: files, links and outputs of commands, each with its source (docs/transcripts.md).

A file is a list of groups, each of one source; a group is written small, and this module makes of it what a machine
shows: `nvidia-smi -q -x` of values by their paths, sysfs of a list of devices, answers of the package manager.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FILE = "transcript.yml"
_DPKG_FORM = "${Package} ${db:Status-Status} ${Version}\\n"
_RPM_FORM = "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"
# Columns of `nvidia-smi --query-gpu` → their paths in the XML.
_COLUMNS = {
    "uuid": "uuid", "gpu_uuid": "uuid", "name": "product_name", "gpu_name": "product_name",
    "pci.bus_id": "pci/pci_bus_id", "gpu_bus_id": "pci/pci_bus_id", "memory.total": "fb_memory_usage/total",
    "mig.mode.current": "mig_mode/current_mig", "ecc.errors.uncorrected.volatile.total": "query.ecc",
    "serial": "serial", "persistence_mode": "persistence_mode", "compute_cap": "query.compute_cap",
    "power.limit": "gpu_power_readings/current_power_limit",
    "power.default_limit": "gpu_power_readings/default_power_limit",
    "compute_mode": "compute_mode",
    "clocks.applications.memory": "applications_clocks/mem_clock",
    "clocks.applications.graphics": "applications_clocks/graphics_clock",
    "memory.used": "fb_memory_usage/used", "memory.free": "fb_memory_usage/free",
    "utilization.gpu": "utilization/gpu_util", "utilization.memory": "utilization/memory_util",
    "clocks.current.sm": "clocks/sm_clock", "clocks.current.memory": "clocks/mem_clock",
}  # fmt: skip
# Where a document has a value elsewhere: in that of older drivers, or the capture is of the column alone.
_ELSEWHERE = {
    "gpu_power_readings/current_power_limit": ("power_readings/power_limit", "query.power_limit"),
    "gpu_power_readings/default_power_limit": ("power_readings/default_power_limit", "query.power_limit"),
}
_GROUP = frozenset(
    [
        "from",
        "files",
        "links",
        "listed",
        "absent",
        "commands",
        "gpus",
        "topology",
        "nvlink",
        "packages",
        "held",
        "pci",
        "rdma",
        "units",
        "nodes",
        "programs",
        "jobs",
        "cluster",
        "metrics",
        "compute",
    ]
)
_GPU_FOLDERS = ("/sys/bus/pci/devices", "/proc/driver/nvidia/gpus")
_TOP = frozenset(["machine", "shows", "system", "sources", "values", "plan", "composed", "only"])
# Beside the transcripts: named groups of what every machine of a kind has. They count as composed.
COMPOSED = "composed.yml"


class TranscriptError(ValueError):
    """transcript.yml is wrong; the message names file and key."""


@dataclass(frozen=True)
class Output:
    """What a command printed, and its exit status."""

    stdout: str = ""
    status: int = 0
    stderr: str = ""


@dataclass
class Values:
    """machine: the instance type. plan: sections of the plan for it. only: the checks that it is about; none: all.

    origins: each value that the machine shows → whether it is composed; a later group overrides an earlier one.
    """

    machine: str
    shows: str
    system: dict[str, str]
    plan: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    programs: set[str] = field(default_factory=set)
    nodes: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    commands: dict[str, Output] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    packages_complete: bool = False
    held: list[str] | None = None
    units: dict[str, dict[str, str]] = field(default_factory=dict)
    gpus: list[dict[str, Any]] | None = None
    jobs: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    metrics: list[Mapping[str, Any]] = field(default_factory=list)
    compute: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    sources: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: dict[str, bool] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The part of the values that has a source, 0 to 1."""
        return 1 - sum(self.origins.values()) / len(self.origins) if self.origins else 0.0

    @property
    def gpus_sourced(self) -> bool:
        """Whether no value in `nvidia-smi -q -x` is composed."""
        return self.gpus is not None and not self._composed_part("gpu:")

    def _composed_part(self, *beginnings: str) -> bool:
        return any(composed and subject.startswith(beginnings) for subject, composed in self.origins.items())

    def is_composed(self, command: str, paths: list[str]) -> bool:
        """Whether something in the answer to a command was composed. paths: in the command, also with patterns."""
        if command in self.origins:
            return self.origins[command]
        if command.startswith("nvidia-smi"):
            return self._smi_is_composed(command)
        if self.origins.get(command.partition(" ")[0] + " *"):
            return True
        composed = [subject for subject, made in self.origins.items() if made]
        words = set(re.findall(r"[\w.@+-]+", command))
        return any(
            subject in words
            or subject.removesuffix(".service") in words
            or any(self._concerns(path, subject) for path in paths)
            for subject in composed
        )

    def _concerns(self, path: str, subject: str) -> bool:
        """Whether an answer about a path, or a pattern of paths, shows something of a subject."""
        if subject.startswith("entries of "):
            folder = subject.removeprefix("entries of ")
            seen = any(fnmatch.fnmatchcase(known, path) for known in (*self.files, *self.links))
            return path == folder or (path.startswith(f"{folder}/") and ("*" in path or not seen))
        pairs = zip(path.strip("/").split("/"), subject.strip("/").split("/"), strict=False)
        return subject.startswith("/") and all(
            fnmatch.fnmatchcase(one, other) or fnmatch.fnmatchcase(other, one) for one, other in pairs
        )

    def _smi_is_composed(self, command: str) -> bool:
        if command.startswith("nvidia-smi topo"):
            return self._composed_part("topology", "gpu:count")
        if command.startswith("nvidia-smi nvlink"):
            return self._composed_part("nvlink", "gpu:count")
        if command == "nvidia-smi -L":
            return self._composed_part("gpu:product_name", "gpu:mig_devices", "gpu:count")
        if command.startswith("nvidia-smi --query-gpu="):
            columns = command.partition("=")[2].split()[0].split(",")
            paths = [_COLUMNS[column] for column in columns if column in _COLUMNS]
            found = [other for path in paths for other in (path, *_ELSEWHERE.get(path, ()))]
            return any(self.origins.get(f"gpu:{path}") for path in found) or self._composed_part("gpu:count")
        return not self.gpus_sourced

    def output(self, command: str) -> Output | None:
        """The answer to a whole command; None where the transcript has none."""
        if command in self.commands:
            return self.commands[command]
        for known, output in self.commands.items():
            if known.endswith(" *") and command.startswith(known[:-1]):
                return output
        try:
            words = shlex.split(command)
        except ValueError:
            return None
        if not words or re.search(r"[|&;<>()`]|\$\(", re.sub(r"'[^']*'", "", command)):
            return None
        answer = {
            "dpkg-query": self._dpkg, "rpm": self._rpm, "apt-mark": self._held, "systemctl": self._systemctl,
            "nvidia-smi": self._query_gpu, "stat": self._stat,
        }.get(words[0])  # fmt: skip
        return answer(words[1:]) if answer else None

    def _known(self, names: list[str]) -> bool:
        return self.packages_complete or all(name in self.packages for name in names)

    def _dpkg(self, words: list[str]) -> Output | None:
        if words[:2] == ["-W", "-f"] and words[2:3] == [_DPKG_FORM] and self.packages and self._known(words[3:]):
            rows = [f"{name} installed {self.packages[name]}\n" for name in words[3:] if name in self.packages]
            return Output("".join(rows), 0 if len(rows) == len(words[3:]) else 1)
        if words == ["-W", "-f", "${db:Status-Status}", "dpkg"] and self.packages:
            return Output("installed")
        return None

    def _rpm(self, words: list[str]) -> Output | None:
        if words[:2] == ["-q", "--qf"] and words[2:3] == [_RPM_FORM] and self.packages and self._known(words[3:]):
            rows, missing = [], 0
            for name in words[3:]:
                version = self.packages.get(name)
                missing += version is None
                epoch = "" if version and ":" in version else "0:"
                rows.append(f"{name} {epoch}{version}\n" if version else f"package {name} is not installed\n")
            return Output("".join(rows), missing)
        if words == ["-q", "rpm"] and self.packages:
            return Output("rpm\n")
        return None

    def _held(self, words: list[str]) -> Output | None:
        if words == ["showhold"] and self.held is not None:
            return Output("".join(f"{name}\n" for name in self.held))
        return None

    def _systemctl(self, words: list[str]) -> Output | None:
        """is-enabled, is-active, and `show -p A -p B` or `-p A,B`, with or without --value, of known units."""
        state = self.units.get(words[-1] if "." in words[-1] else f"{words[-1]}.service") if len(words) > 1 else None
        if state is None:
            return None
        if words[0] in ("is-enabled", "is-active"):
            value = state.get("UnitFileState" if words[0] == "is-enabled" else "ActiveState")
            if value is None:
                return None
            good = value in ("enabled", "static", "active", "enabled-runtime", "indirect", "alias")
            return Output(f"{value}\n", 0 if good else 1 if words[0] == "is-enabled" else 3)
        if words[0] != "show":
            return None
        names = [name for at, word in enumerate(words) if word == "-p" for name in words[at + 1].split(",")]
        if any(name not in state for name in names):
            return None
        return Output("".join(f"{state[n]}\n" if "--value" in words else f"{n}={state[n]}\n" for n in names))

    def _stat(self, words: list[str]) -> Output | None:
        """`stat -c FORMAT` with %F, %a and %n of device nodes, whose names may be patterns."""
        if words[:1] != ["-c"] or len(words) < 3 or re.search(r"%[^Fan]", words[1]) or "/dev" not in self.listed:
            return None
        lines, missing = [], 0
        for pattern in words[2:]:
            names = [name for name in sorted(self.nodes) if fnmatch.fnmatchcase(name, pattern)]
            missing += not names
            for name in names:
                values = {"%F": "character special file", "%a": self.nodes[name], "%n": name}
                lines.append(re.sub(r"%[Fan]", lambda match, values=values: values[match[0]], words[1]) + "\n")  # type: ignore[misc]
        return Output("".join(lines), 1 if missing else 0)

    def _query_gpu(self, words: list[str]) -> Output | None:
        if self.gpus is None or len(words) != 2 or not words[0].startswith("--query-gpu="):
            return None
        rows = []
        for index, gpu in enumerate(self.gpus):
            cells = []
            for column in words[0].partition("=")[2].split(","):
                path = _COLUMNS.get(column, "")
                value = str(index) if column == "index" else gpu.get(path)
                value = value or next((gpu[other] for other in _ELSEWHERE.get(path, ()) if other in gpu), None)
                if column == "driver_version":
                    value = gpu.get("driver_version")
                if value is None:
                    return None
                is_number = re.fullmatch(r"[\d.]+ (MHz|MiB|W|%)", str(value))
                cells.append(str(value).split()[0] if "nounits" in words[1] and is_number else str(value))
            rows.append(", ".join(cells) + "\n")
        return Output("".join(rows)) if "noheader" in words[1] else None


def load(folder: Path) -> Values:
    """Reads folder/transcript.yml. TranscriptError: it cannot be read, or has a key that nobody reads."""
    path = folder / FILE
    document = _document(path)
    if not isinstance(document, dict) or not {"machine", "shows", "sources", "values"} <= document.keys() <= _TOP:
        raise TranscriptError(f"{path}: expected machine, shows, sources, values; allowed: {', '.join(sorted(_TOP))}")
    values = Values(
        document["machine"], document["shows"], document.get("system", {}), document.get("plan", {}),
        sources=document["sources"], only=tuple(document.get("only", ())),
    )  # fmt: skip
    made = _Made(values)
    named = document.get("composed", [])
    pieces = _document(folder.parent / COMPOSED) if named else {}
    values.sources = values.sources | {COMPOSED: {"composed": "what every machine of this kind has"}}
    groups = [{"from": COMPOSED, **pieces[name]} for name in named] + document["values"]
    for number, group in enumerate(groups, 1 - len(named)):
        unknown = group.keys() - _GROUP
        if unknown or group.get("from") not in values.sources:
            what = f"unknown key {', '.join(sorted(unknown))}" if unknown else f"unknown source {group.get('from')!r}"
            raise TranscriptError(f"{path}: values {number}: {what}")
        made.add(group)
    made.finish()
    return values


def _document(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError) as error:
        raise TranscriptError(f"{path}: {error}") from error
    return document if isinstance(document, dict) else {}


class _Made:
    """Makes files and outputs of the groups, in their order; a later group overrides an earlier one."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.gpu: dict[str, Any] = {"common": {}, "each": [], "count": 0}
        self.topology = ""
        self.nvlink: dict[str, Any] = {}

    def add(self, group: Mapping[str, Any]) -> None:
        values, source = self.values, str(group["from"])
        composed = "composed" in values.sources[source]
        values.origins.update((subject, composed) for subject in _subjects(group))
        for key in ("files", "links"):
            getattr(values, key).update(group.get(key, {}))
        values.listed.update(group.get("listed", ()))
        values.absent += group.get("absent", ())
        for command, output in group.get("commands", {}).items():
            values.commands[command] = _output(output)
        self._packages(group)
        values.jobs.update(group.get("jobs", {}))
        values.cluster.update(group.get("cluster", {}))
        values.metrics += group.get("metrics", ())
        values.compute.update(group.get("compute", {}))
        for unit, state in group.get("units", {}).items():
            values.units.setdefault(unit, {}).update({key: str(value) for key, value in state.items()})
        for row in group.get("pci", ()):
            self._pci(row)
        for name, driver in group.get("rdma", {}).items():
            self._rdma(name, driver)
        for node, mode in dict(group.get("nodes", {})).items():
            values.links[node], values.nodes[node] = "/dev/null", str(mode)
        for program in group.get("programs", ()):
            values.files.setdefault(program, "")
            values.programs.add(program)
        if "gpus" in group:
            self._gpus(group["gpus"])
        self.topology = group.get("topology", self.topology)
        self.nvlink.update(group.get("nvlink", {}))

    def _packages(self, group: Mapping[str, Any]) -> None:
        packages = dict(group.get("packages", {}))
        self.values.packages_complete |= bool(packages.pop("complete", False))
        self.values.packages.update(packages)
        if "held" in group:
            self.values.held = list(group["held"])

    def _pci(self, row: str) -> None:
        """`address vendor device class [driver]` as sysfs."""
        address, vendor, device, kind, *driver = row.split()
        folder = f"/sys/bus/pci/devices/{address}"
        self.values.listed.update(("/sys/bus/pci/devices", folder))
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            self.values.files[f"{folder}/{name}"] = f"{text}\n"
        if driver:
            self.values.listed.add(f"/sys/bus/pci/drivers/{driver[0]}")
            self.values.links[f"{folder}/driver"] = f"../../drivers/{driver[0]}"

    def _rdma(self, name: str, driver: str) -> None:
        number = len([path for path in self.values.files if path.startswith("/sys/class/infiniband_verbs/")])
        self.values.listed.update(("/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband"))
        self.values.listed.add(f"/sys/bus/pci/drivers/{driver}")
        self.values.links[f"/sys/class/infiniband/{name}/device/driver"] = f"/sys/bus/pci/drivers/{driver}"
        self.values.files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"{name}\n"
        self.values.links[f"/dev/infiniband/uverbs{number}"] = "/dev/null"

    def _gpus(self, gpus: Mapping[str, Any]) -> None:
        self.gpu["common"].update(gpus.get("common", {}))
        for number, own in enumerate(gpus.get("each", ())):
            if number == len(self.gpu["each"]):
                self.gpu["each"].append({})
            self.gpu["each"][number].update(own)
        self.gpu.update({key: value for key, value in gpus.items() if key not in ("common", "each")})

    def finish(self) -> None:
        driver = str(self.gpu.get("driver", ""))
        for path, text in self.values.files.items():
            self.values.files[path] = text.replace("{driver}", driver)
        for command, output in self.values.commands.items():
            self.values.commands[command] = replace(output, stdout=output.stdout.replace("{driver}", driver))
        count = int(self.gpu.get("count") or len(self.gpu["each"]))
        if not count:
            return
        each = self.gpu["each"] + [{}] * (count - len(self.gpu["each"]))
        version = {"driver_version": driver} if driver else {}
        self.values.gpus = [
            {**_defaults(number), **version, **self.gpu["common"], **own} for number, own in enumerate(each)
        ]
        for number, gpu in enumerate(self.values.gpus):
            address = str(gpu["pci/pci_bus_id"])[4:].lower()
            if "pci/pci_bus_id" not in {**self.gpu["common"], **each[number]}:
                self.values.origins |= {f"{folder}/{address}": True for folder in _GPU_FOLDERS}
            if "pci_id" in self.gpu:
                self._pci(f"{address} 0x10de 0x{self.gpu['pci_id']} 0x030200 nvidia")
            if self.gpu.get("proc"):
                self.values.listed.add("/proc/driver/nvidia/gpus")
                model = f"Model: \t\t {gpu.get('product_name')}\nGPU UUID: \t {gpu['uuid']}\n"
                information = f"/proc/driver/nvidia/gpus/{address}/information"
                self.values.files[information] = f"{model}Device Minor: \t {number}\n"
                self.values.links[f"/dev/nvidia{number}"] = "/dev/null"
                self.values.nodes[f"/dev/nvidia{number}"] = "666"
        for command, text in (
            ("nvidia-smi -q -x", self._xml()),
            ("nvidia-smi -L", self._list()),
            ("nvidia-smi topo -m", self._matrix()),
            ("nvidia-smi nvlink -s", self._links("status")),
            ("nvidia-smi nvlink -e", self._links("counters")),
        ):
            if text and command not in self.values.commands:
                self.values.commands[command] = Output(text)

    def _xml(self) -> str:
        lines = ['<?xml version="1.0" ?>']
        if "layout" in self.gpu:
            lines.append(f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{self.gpu["layout"]}.dtd">')
        lines.append("<nvidia_smi_log>")
        lines += [f"<driver_version>{self.gpu['driver']}</driver_version>"] if "driver" in self.gpu else []
        lines += [f"<cuda_version>{self.gpu['cuda']}</cuda_version>"] if "cuda" in self.gpu else []
        gpus = self.values.gpus or []
        lines.append(f"<attached_gpus>{self.gpu.get('attached', len(gpus))}</attached_gpus>")
        for gpu in gpus:
            tree: dict[str, Any] = {}
            for path, value in gpu.items():
                if not path.startswith(("query.", "driver_version")):
                    _put(tree, path.split("/"), value)
            lines += [f'<gpu id="{gpu["pci/pci_bus_id"]}">', *_elements(tree), "</gpu>"]
        return "\n".join([*lines, "</nvidia_smi_log>", ""])

    def _list(self) -> str:
        lines = []
        for index, gpu in enumerate(self.values.gpus or []):
            lines.append(f"GPU {index}: {gpu.get('product_name', '')} (UUID: {gpu['uuid']})")
            for number, mig in enumerate(gpu.get("mig_devices") or ()):
                if isinstance(mig, dict) and "profile" in mig:
                    lines.append(f"  MIG {mig['profile']:<11} Device {number:2}: (UUID: {mig['uuid']})")
        return "".join(f"{line}\n" for line in lines)

    def _matrix(self) -> str:
        if not self.topology:
            return ""
        names = [f"GPU{index}" for index in range(len(self.values.gpus or ()))]
        lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
        for name in names:
            cells = [" X " if name == other else self.topology for other in names]
            lines.append("\t".join([name, *cells, "0-47", "0"]))
        return "\n".join([*lines, "", "Legend:", ""])

    def _links(self, what: str) -> str:
        if not self.nvlink or (what == "counters" and "counters" not in self.nvlink):
            return ""
        lines = []
        for index, gpu in enumerate(self.values.gpus or ()):
            lines.append(f"GPU {index}: {gpu.get('product_name', '')} (UUID: {gpu['uuid']})")
            down = self.nvlink.get("inactive", {}).get(index, [])
            if down == "all":
                lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
                continue
            for link in range(self.nvlink["links"]):
                if what == "status":
                    lines.append(f"\t Link {link}: {'<inactive>' if link in down else self.nvlink['speed'] + ' GB/s'}")
                else:
                    lines += [f"\t Link {link}: {name}: {value}" for name, value in self.nvlink["counters"].items()]
        return "\n".join([*lines, ""])


def _output(written: Any) -> Output:
    if isinstance(written, str):
        return Output(written)
    return Output(str(written.get("stdout", "")), int(written.get("status", 0)), str(written.get("stderr", "")))


def _defaults(number: int) -> dict[str, Any]:
    """Address and UUID of a GPU for which the transcript has none."""
    return {"pci/pci_bus_id": f"00000000:{number + 16:02X}:00.0", "uuid": f"GPU-{number:08d}"}


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        below = tree.get(name)
        tree = tree.setdefault(name, {}) if isinstance(below, dict) or below is None else {}
    tree[path[-1]] = value


def _elements(tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"<{name}>"
            yield from _elements(value)
            yield f"</{name}>"
        elif isinstance(value, list):  # mig_devices
            yield f"<{name}>"
            for number, item in enumerate(value):
                own: dict[str, Any] = {"index": number}
                for path, part in item.items():
                    if path not in ("profile", "uuid"):
                        _put(own, path.split("/"), part)
                yield f"<{name.removesuffix('s')}>"
                yield from _elements(own)
                yield f"</{name.removesuffix('s')}>"
            yield f"</{name}>"
        else:
            text = str(value).replace("&", "&amp;").replace("<", "&lt;")
            yield f"<{name}>{text}</{name}>"


def _subjects(group: Mapping[str, Any]) -> Iterator[str]:
    """What a group gives: each value once, in words by which an answer's origin is found."""
    for key in ("files", "links", "commands", "nodes", "absent", "programs"):
        yield from group.get(key, ())
    yield from (f"entries of {folder}" for folder in group.get("listed", ()))
    yield from (name for name in group.get("packages", ()) if name != "complete")
    yield from (unit for unit in group.get("units", ()))
    yield from (f"job {name}" for name in group.get("jobs", ()))
    yield from (f"cluster {name}" for name in group.get("cluster", ()))
    yield from (f"metrics {row['dimensions']}" for row in group.get("metrics", ()))
    yield from (f"compute {place}" for place in group.get("compute", ()))
    yield from (f"/sys/bus/pci/devices/{row.split()[0]}" for row in group.get("pci", ()))
    yield from (f"/sys/class/infiniband/{name}" for name in group.get("rdma", ()))
    if "held" in group:
        yield "apt-mark showhold"
    if "topology" in group:
        yield "topology"
    yield from (f"nvlink:{name}" for name in group.get("nvlink", ()))
    gpus = group.get("gpus", {})
    yield from (f"gpu:{path}" for part in (gpus.get("common", {}), *gpus.get("each", ())) for path in part)
    yield from (f"gpu:{key}" for key in ("driver", "cuda", "count", "attached", "layout") if key in gpus)
    if gpus.get("proc"):
        yield "/proc/driver/nvidia/gpus"
