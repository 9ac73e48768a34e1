"""Recorded transcripts: what a real machine shows, without its names, ids and addresses (docs/transcripts.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import __version__
from gpu_ami.cloud import runs
from gpu_ami.errors import MachineError
from gpu_ami.files import write_text
from validator.transport import TRANSCRIPT_FILE

if TYPE_CHECKING:
    from validator.transport import Connection, Target

_SECONDS = 120.0
# Outputs that checks read, and that change nothing.
COMMANDS = (
    "uname -r", "nvidia-smi -q -x", "nvidia-smi -L", "nvidia-smi topo -m", "nvidia-smi --version",
    "nvidia-smi nvlink -s", "nvidia-smi nvlink -e", "nvidia-ctk --version", "nvidia-ctk cdi list",
    "nv-fabricmanager --version", "nvidia-persistenced --version", "dcgmi --version", "ibv_devices",
    "/opt/amazon/efa/bin/fi_info --version", "/opt/amazon/efa/bin/fi_info -p efa", "ldconfig -p", "dkms status",
    "apt-mark showhold", "/opt/aws/neuron/bin/neuron-ls --json-output",
    "nvidia-smi --query-gpu=index,pci.bus_id,name,memory.total,persistence_mode,power.limit,power.default_limit,"
    "compute_mode --format=csv,noheader,nounits",
)  # fmt: skip
FILES = (
    "/etc/os-release", "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/proc/modules", "/proc/uptime",
    "/proc/driver/nvidia/gpus/*/information", "/sys/bus/pci/devices/*/vendor", "/sys/bus/pci/devices/*/device",
    "/sys/bus/pci/devices/*/class", "/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/device/p2p",
    "/sys/class/infiniband_verbs/*/ibdev", "/sys/module/efa/version", "/sys/module/neuron/version",
    "/sys/module/gdrdrv/version", "/opt/amazon/efa_installed_packages", "/etc/modules-load.d/*.conf",
    "/etc/ld.so.conf.d/*.conf", "/etc/nvidia-imex/nodes_config.cfg", "/etc/docker/daemon.json", "/etc/nccl.conf",
)  # fmt: skip
LINKS = ("/sys/bus/pci/devices/*/driver", "/sys/class/infiniband/*/device/driver", "/usr/local/cuda")
LISTED = (
    "/dev", "/proc/driver/nvidia/gpus", "/sys/bus/pci/devices", "/sys/class/infiniband", "/sys/class/infiniband_verbs",
    "/dev/infiniband", "/etc/modules-load.d", "/etc/cdi", "/var/run/cdi", "/lib/modules",
)  # fmt: skip
UNITS = (
    "nvidia-fabricmanager.service", "nvidia-persistenced.service", "nvidia-imex.service", "nvidia-cdi-refresh.service",
    "nvidia-dcgm.service", "docker.service", "containerd.service", "amazon-cloudwatch-agent.service",
)  # fmt: skip
_PROPERTIES = "ActiveState,SubState,Result,ConditionResult,UnitFileState,NRestarts,ActiveEnterTimestampMonotonic"
_PACKAGES = (
    "dpkg-query -W -f '${Package} ${Version}\\n' 2>/dev/null"
    " || rpm -qa --qf '%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n' | sed 's/ 0:/ /'"
)
_READ = (
    'for f in %s; do [ -f "$f" ] && [ -r "$f" ] && printf "\\001%%s\\n" "$f" && head -c 65536 "$f"; done;'
    ' for l in %s; do [ -L "$l" ] && printf "\\002%%s\\n" "$l" && readlink "$l"; done;'
    ' for d in %s; do [ -d "$d" ] && printf "\\003%%s\\n" "$d"; done;'
    " for n in /dev/nvidia* /dev/neuron* /dev/infiniband/uverbs*; do"
    ' [ -c "$n" ] && printf "\\004%%s\\n" "$n" && stat -c %%a "$n"; done; true'
)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_IDS = (
    (re.compile(r"\b(i|ami|vol|eni|subnet|vpc|sg|snap)-(?:[0-9a-f]{17}|[0-9a-f]{8})\b"), r"\1-0123456789abcdef0"),
    (re.compile(r"(?<![\d.])(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])(?=\s|$|[,;:/)\"'])"), "192.0.2.1"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE), "02:00:00:00:00:01"),
    (re.compile(r"\b(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}\b", re.IGNORECASE), "2001:db8::1"),
    (re.compile(r"\bip-\d+-\d+-\d+-\d+\b"), "ip-192-0-2-1"),
    (re.compile(r"(?<![\w.-])\d{12}(?![\w.-])"), "123456789012"),
    (re.compile(r"(<(?:serial|board_serial|chassis_serial_number|gpu_fabric_guid)>)[^<]*"), r"\g<1>0"),
    (re.compile(r"<process_info>.*?</process_info>\s*", re.DOTALL), ""),
)


@dataclass(frozen=True)
class Scrub:
    """Takes names, ids and addresses out of a text. names: of the machine and its users; a UUID keeps its stand-in."""

    names: tuple[str, ...]
    uuids: dict[str, str]

    def __call__(self, text: str) -> str:
        def known(match: re.Match[str]) -> str:
            return self.uuids.setdefault(match[0].lower(), f"00000000-0000-4000-8000-{len(self.uuids):012d}")

        text = _UUID.sub(known, text)
        for pattern, replaced in _IDS:
            text = pattern.sub(replaced, text)
        for name in self.names:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "host", text)
        return text


def see(target: Target, instance_type: str) -> dict[str, object]:
    """The transcript of a machine, as the content of a transcript.yml. MachineError: it cannot be reached."""
    from validator.transport import ssh

    try:
        connection = ssh.connect(target)
    except ssh.TransportFault as fault:
        raise MachineError(f"{target.name} cannot be reached: {fault}") from fault
    try:
        return look(connection, instance_type)
    except ssh.SshError as fault:
        raise MachineError(f"{target.name} stopped answering: {fault}") from fault
    finally:
        connection.close()


def look(connection: Connection, instance_type: str) -> dict[str, object]:
    """The same through an open connection."""

    def run(command: str) -> tuple[int, str, str]:
        done = connection.run(command, timeout=_SECONDS)
        return done.rc, done.text, done.stderr.decode(errors="replace")

    names = run("hostname; hostname -f; hostname -s; id -un; getent passwd 1000 1001 | cut -d: -f1")[1].split()
    scrub = Scrub(tuple(sorted(set(names) - {"root", "localhost"}, key=len, reverse=True)), {})
    commands: dict[str, object] = {}
    for command in COMMANDS:
        status, out, err = run(command)
        if status not in (126, 127):  # not installed
            output = {"stdout": scrub(out), "status": status, "stderr": scrub(err)}
            commands[command] = scrub(out) if not status and not err else output
    group: dict[str, object] = {"from": "recorded", "commands": commands, "units": dict(_units(run))}
    group |= _read(run(_READ % (" ".join(FILES), " ".join(LINKS), " ".join(LISTED)))[1], scrub)
    rows = [line.split(" ", 1) for line in run(_PACKAGES)[1].splitlines() if " " in line]
    group["packages"] = {"complete": True, **dict(rows)}
    when = runs.as_text(runs.now())[:10]
    return {
        "machine": instance_type or _instance_type(run),
        "shows": "recorded from a machine",
        "system": _system(str(group["files"].get("/etc/os-release", ""))),  # type: ignore[attr-defined]
        "sources": {"recorded": {"source": f"gpu-ami record --transcript, gpu-ami {__version__}", "date": when}},
        "values": [group],
    }


def _instance_type(run: Callable[[str], tuple[int, str, str]]) -> str:
    """Of the instance metadata; "unknown" where it does not answer."""
    from validator.probes import METADATA, metadata_of

    status, out, _ = run(METADATA)
    try:
        return metadata_of(out)["instance-type"] if status == 0 else "unknown"
    except ValueError:
        return "unknown"


def _units(run: Callable[[str], tuple[int, str, str]]) -> Iterable[tuple[str, dict[str, str]]]:
    for unit in UNITS:
        status, out, _ = run(f"systemctl show -p LoadState,{_PROPERTIES} {unit}")
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        if status == 0 and state.pop("LoadState", "") == "loaded":
            yield unit, state


def _read(printed: str, scrub: Scrub) -> dict[str, object]:
    """files, links, listed, absent and nodes in the output of _READ."""
    parts: dict[str, dict[str, str]] = {mark: {} for mark in "\1\2\3\4"}
    for mark, path, text in re.findall(r"([\1-\4])([^\n]*)\n([^\1-\4]*)", printed):
        parts[mark][path] = scrub(text)
    links = {path: target.strip() for path, target in parts["\2"].items()}
    nodes = {path: mode.strip() for path, mode in parts["\4"].items()}
    seen = parts["\1"].keys() | links.keys() | parts["\3"].keys()
    absent = sorted(path for path in (*FILES, *LINKS, *LISTED) if "*" not in path and path not in seen)
    return {"files": parts["\1"], "links": links, "listed": sorted(parts["\3"]), "absent": absent, "nodes": nodes}


def _system(os_release: str) -> Mapping[str, str]:
    rows = dict(line.replace('"', "").split("=", 1) for line in os_release.splitlines() if "=" in line)
    name = rows.get("ID", "unknown")
    family = "debian" if name in ("debian", "ubuntu") or "debian" in rows.get("ID_LIKE", "") else "redhat"
    return {"id": name, "version": rows.get("VERSION_ID", ""), "family": family}


def keep(document: Mapping[str, object], folder: Path) -> Path:
    """Writes folder/transcript.yml."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TRANSCRIPT_FILE, yaml.safe_dump(dict(document), sort_keys=False, width=140, allow_unicode=True))
    return folder / TRANSCRIPT_FILE
