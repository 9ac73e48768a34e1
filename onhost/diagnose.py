#!/usr/bin/python3 -sSE
"""gpu-ami-diagnose: what the GPUs, the network cards and the event monitor of this machine report, and what to do.

Reads and changes nothing; --compute also computes on every GPU, beside its jobs. Each probe has a deadline; what does
not answer is named and ends nothing.
Exit codes: 0 nothing asks for an action; 1 something does; 2 wrong arguments, or the bundle cannot be written;
3 nothing that was read asks for an action, but a probe did not answer.
--health prints one line for a scheduler: 0 healthy, 1 drain, 3 unknown (docs/diagnose.md).
"""

import argparse
import contextlib
import csv
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

try:
    # Beside this program on an image; remote.python() sends it along.
    from hwevents import readings  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    try:
        from onhost import readings
    except ImportError:
        readings = None  # type: ignore[assignment, unused-ignore]

SCHEMA = "gpu-ami/diagnosis/1"
SECONDS = 20.0  # of one probe
_COMPUTE_SECONDS = 120.0
NOT_INSTALLED, TIMED_OUT = 127, 124
CORRUPT_INFOROM = 14  # nvidia-smi's (nvmlReturn_t)
AGENT = "/opt/aws/amazon-cloudwatch-agent"
PARSER = "/opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py"
_ROWS = (
    "gpu_name",
    "gpu_bus_id",
    *("remapped_rows." + name for name in ("failure", "pending", "correctable", "uncorrectable")),
)
# Kinds of actions that an event may ask for without anything being wrong with the machine (hwevents/data/actions.csv).
_NO_ACTION = ("none", "monitor", "restart_application")
_SUPPORT = "Open a case with AWS Support with the instance ID and the bundle (gpu-ami-diagnose --bundle FILE.tar.gz)"
DO = {
    "schedule_reboot": "Let the jobs on this GPU finish and reboot the instance; the repair takes effect then",
    "stop_start": "Stop and start the instance, so that EC2 moves it to another host; a reboot stays on the faulty one",
    "driver": "Compare /proc/driver/nvidia/version, `modinfo -F version nvidia` and `nvidia-smi`: install module and "
    "libraries of one version, and reboot so that the module is loaded",
    "isolate": "Take the instance out of service: stop and start it, so that EC2 moves it to another host. " + _SUPPORT,
    "drain": "Stop peer-to-peer jobs on this GPU and start no new job on it",
    "reboot": "Stop the jobs on this GPU and reboot the instance; stop and start it if this comes back",
    "aws_support": _SUPPORT,
    "check_cooling": "AWS cools the host: move jobs away, and stop and start the instance if this stays. " + _SUPPORT,
    "check_link": "Stop all GPU jobs and reboot the instance; stop and start it if the counter rises again",
    "repair_service": "Read `journalctl -u UNIT` and start the unit; until then its events or metrics are not seen",
    "monitor": "Nothing now; compare with a later diagnosis",
    "disk": "Find what fills it (`du -xh --max-depth=2 PLACE | sort -h | tail`; `lsof +L1` for deleted files) and "
    "remove it, or grow the volume; until then jobs, logs and events are lost",
    "network": "Look at `ip route`, `resolvectl status` and /etc/resolv.conf; in the VPC at DHCP options, DNS support, "
    "routes or endpoints, and the security group's outbound rules. Until then metrics, logs and events do not leave "
    "the machine",
    "unknown": "Its state is unknown, not healthy: run gpu-ami-diagnose again as root, and reboot if it stays so",
    "fabric": "Read `journalctl -u nvidia-fabricmanager` and /var/log/fabricmanager.log: CUDA fails with error 802 "
    "until the fabric is complete. Reboot the instance; stop and start it if this comes back",
}
# Reasons of lower clocks that are faults. Others (idle, power cap, locked clocks) belong to normal operation.
_SLOWDOWNS = {
    "hw_slowdown": "action", "hw_thermal_slowdown": "action", "hw_power_brake_slowdown": "action",
    "sw_thermal_slowdown": "watch",
}  # fmt: skip
_LINK_FAILED = "Link recovery failed events"
_EFA_TROUBLE = re.compile(r"_err$|^rx_drops$|^(retrans_timeout|impaired_remote_conn|unresponsive_remote)_events$")
_NO_COUNTER = ("lifespan",)  # a setting; some kernels refuse to show it
Record = Dict[str, Any]
Probe = Callable[["Machine"], Tuple[Any, List["Finding"]]]


class Finding(NamedTuple):
    """level: `action` or `watch`. kind: of the action, as in the parser's catalogue (ec2_action)."""

    level: str
    subject: str
    text: str
    kind: str
    do: str


class Unanswered(Exception):
    """status: `missing` (not installed), `absent` (the machine has no such device), `failed` or `timeout`.

    findings: what the failure itself says of the machine. printed: by the program that failed.
    """

    def __init__(self, status: str, why: str, findings: Sequence["Finding"] = (), printed: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.findings = findings
        self.printed = printed


class Machine:
    """The machine, or for tests a folder with its files. seconds: deadline of each command."""

    def __init__(self, root: str = "", seconds: float = SECONDS) -> None:
        self.root = root
        self.seconds = seconds

    def text(self, path: str, last: int = 4 << 20) -> str:
        """The last bytes of a file. OSError: it cannot be read."""
        with open(self.root + path, "rb") as file:
            size = os.fstat(file.fileno()).st_size  # 0 for files of /proc and /sys
            file.seek(max(0, size - last))
            return file.read().decode("utf-8", "replace")

    def run(self, *command: str) -> str:
        """Standard output of a program that exits with 0. Unanswered: it is missing, fails or takes too long."""
        status, out, err = execute(command, self.seconds)
        if status == NOT_INSTALLED:
            raise Unanswered("missing", command[0] + " is not installed")
        if status == TIMED_OUT:
            raise Unanswered("timeout", "%s: no answer within %g s" % (" ".join(command), self.seconds))
        if status == CORRUPT_INFOROM and command[0] == "nvidia-smi":  # a warning: it has printed all values
            return (out + err).decode("utf-8", "replace")
        if status:
            first = out.decode("utf-8", "replace").strip().partition("\n")[0]
            why = "%s: exit status %d: %s" % (" ".join(command), status, first or "no output")
            raise Unanswered("failed", why, (), (out + b"\n" + err).decode("utf-8", "replace"))
        return out.decode("utf-8", "replace")


def execute(command: Sequence[str], seconds: float) -> Tuple[int, bytes, bytes]:
    """(exit status, output, errors). 124 after the deadline: a process that hangs in the driver is left behind."""
    path = os.getenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    program = shutil.which(command[0], path=path)
    if program is None:
        return NOT_INSTALLED, b"", b""
    process = subprocess.Popen(
        [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env={"LC_ALL": "C", "PATH": path},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=2)
            return TIMED_OUT, out, err
        return TIMED_OUT, b"", b""
    return process.returncode, out, err


def _finding(level: str, subject: str, text: str, kind: str) -> Finding:
    return Finding(level, subject, text, kind, DO[kind])


def remapped_rows(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Rows of memory that each GPU has replaced, or could not."""
    printed = machine.run("nvidia-smi", "--query-remapped-rows=" + ",".join(_ROWS), "--format=csv,noheader")
    printed = _CORRUPT.sub("", printed)
    names = [name.replace("remapped_rows.", "") for name in _ROWS]
    rows = [dict(zip(names, row)) for row in csv.reader(io.StringIO(printed), skipinitialspace=True) if row]
    if not rows:
        raise Unanswered("failed", "nvidia-smi --query-remapped-rows names no GPU")
    findings = []
    for row in rows:
        subject = "GPU " + row.get("gpu_bus_id", "without an address")
        failure, pending = (readings.read_flag(row.get(name)) for name in ("failure", "pending"))
        if failure.is_set():
            findings.append(_finding("action", subject, "a row of memory could not be remapped", "isolate"))
        elif pending.is_set():
            findings.append(_finding("action", subject, "a row remap is pending", "schedule_reboot"))
        if readings.UNKNOWN in (failure.state, pending.state):
            text = "whether rows are remapped is unknown: failure %s, pending %s" % (failure.shown(), pending.shown())
            findings.append(_finding("action", subject, text, "unknown"))
    return rows, findings


def gpus(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Identity, ECC errors, reasons of lower clocks and recovery action of each GPU."""
    document, findings = _nvidia_smi(machine)
    driver = readings.driver_version(document)
    rows = []  # type: List[Record]
    for gpu in document.iter("gpu"):
        row = {"pci": gpu.get("id", ""), "driver": driver}  # type: Record
        row.update((key, gpu.findtext(name, "")) for key, name in _GPU_FIELDS)
        row["recovery_action"] = row["recovery_action"] or readings.recovery_of(gpu)[0]
        row["ecc"] = {part: _counters(gpu.find("ecc_errors/" + part)) for part in ("volatile", "aggregate")}
        row["slowdowns"] = list(_active(gpu))
        row["unknown"], row["fabric"] = readings.unknown_values(gpu), readings.fabric_faults(gpu)
        rows.append(row)
        findings += _gpu_findings(row, gpu)
    if not rows:
        raise Unanswered("failed", "nvidia-smi -q -x names no GPU", _total_failure("No devices were found"))
    attached = document.findtext("attached_gpus", "")
    if attached.isdigit() and int(attached) != len(rows):
        text = "nvidia-smi counts %s GPUs and shows %d" % (attached, len(rows))
        findings.append(_finding("action", "GPUs", text, "stop_start"))
    return rows, findings + _not_listed(machine, [row["pci"] for row in rows])


# nvidia-smi prints this after the values and exits with 14 (GPU Operator, troubleshooting; microsoft/pai#3756).
_CORRUPT = re.compile(r"^WARNING: infoROM is corrupted at gpu (\S+).*\n?", re.MULTILINE)


def _nvidia_smi(machine: Machine) -> Tuple[ElementTree.Element, List[Finding]]:
    """The document of nvidia-smi -q -x, with its warnings.

    Unanswered, with a finding, for what it says when it can read no GPU.
    """
    try:
        printed = machine.run("nvidia-smi", "-q", "-x")
    except Unanswered as error:
        raise Unanswered(error.status, str(error), _total_failure(error.printed)) from None
    corrupt = "its infoROM is corrupted; it computes, but a count of errors or a setting may be lost"
    warnings = [
        _finding("watch", "GPU " + match.group(1), corrupt, "aws_support") for match in _CORRUPT.finditer(printed)
    ]
    try:
        return ElementTree.fromstring(_CORRUPT.sub("", printed)), warnings
    except ElementTree.ParseError as error:
        first = printed.strip().partition("\n")[0]
        why = "nvidia-smi -q -x: no XML: %s: %s" % (error, first)
        raise Unanswered("failed", why, _total_failure(printed)) from None


# What nvidia-smi says when it can read no GPU, or not all: pattern → (kind, what it means, what to do).
_TOTAL_FAILURES = (
    (r"[Dd]river/library version mismatch", "driver",
     "the loaded kernel module and the driver's libraries have different versions",
     "Reboot the instance so that the installed module is loaded. If it comes back, install module and libraries of "
     "one version (`modinfo -F version nvidia`; `ldconfig -p | grep libnvidia-ml`)"),
    (r"(?:couldn't|could not) communicate with the NVIDIA driver|Driver Not Loaded", "driver",
     "the kernel module nvidia is not loaded",
     "Look why with `modprobe nvidia` and `dmesg | grep -iE 'nvidia|NVRM'`; after a kernel update build it for this "
     "kernel (`dkms status`, kernel headers), then reboot"),
    (r"No devices were found", "stop_start",
     "the driver is loaded and can use no GPU",
     "Read `dmesg | grep NVRM`: where it says `requires use of the NVIDIA open kernel modules`, install those. "
     "Otherwise stop and start the instance, so that EC2 moves it to another host"),
    (r"Unable to determine the device handle|GPU is lost|has fallen off the bus", "stop_start",
     "a GPU is lost",
     "Stop and start the instance, so that EC2 moves it to another host; a reboot stays on the faulty one"),
    (r"find libnvidia-ml\.so|loading shared libraries: libnvidia-ml", "driver",
     "the library of NVML is missing, or no folder of the loader has it",
     "Look at `ldconfig -p | grep libnvidia-ml`: run `ldconfig`, else install the driver's libraries in the version of "
     "the loaded module (/proc/driver/nvidia/version)"),
    (r"Insufficient [Pp]ermissions|required permissions|NVML: Unknown Error", "driver",
     "NVML may not open the device nodes of the GPUs",
     "Look at `ls -l /dev/nvidia*`; restart a container (after `systemctl daemon-reload` it lost its devices), else "
     "run `nvidia-modprobe -c 255 -c 0`"),
    (r"Failed to initialize NVML|NVIDIA-SMI has failed", "driver",
     "NVML cannot be initialised",
     "Look at `dmesg | grep -iE 'nvidia|NVRM'` and `ldconfig -p | grep libnvidia-ml`, and reboot"),
)  # fmt: skip


def _total_failure(printed: str) -> List[Finding]:
    for pattern, kind, what, do in _TOTAL_FAILURES:
        match = re.search(r"[^\n]*(?:%s)[^\n]*" % pattern, printed)
        if match:
            return [Finding("action", "NVIDIA driver", "%s: %s" % (what, match.group().strip()[:200]), kind, do)]
    return []


def _not_listed(machine: Machine, listed: Sequence[str]) -> List[Finding]:
    """GPUs on the PCI bus that nvidia-smi does not list."""
    known = {_address(pci) for pci in listed}
    missing = [pci for pci in pci_gpus(machine) if _address(pci) not in known]
    return [
        _finding("action", "GPU " + pci, "it is on the PCI bus, and nvidia-smi does not list it", "stop_start")
        for pci in missing
    ]


def _address(pci: str) -> str:
    """00000000:10:1C.0 and 0000:10:1c.0 are the same."""
    domain, _, rest = pci.lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest) if re.match(r"[0-9a-f]{4,8}$", domain) else pci.lower()


def pci_gpus(machine: Machine) -> List[str]:
    """Addresses of NVIDIA's GPUs on the PCI bus; empty where the bus shows none."""
    base, found = "/sys/bus/pci/devices", []
    for name in sorted(os.listdir(machine.root + base)) if os.path.isdir(machine.root + base) else []:
        vendor, kind = (_text_or_none(machine, "%s/%s/%s" % (base, name, file)) or "" for file in ("vendor", "class"))
        if vendor.strip() == "0x10de" and kind.strip()[:6] in ("0x0300", "0x0302"):
            found.append(name)
    return found


# GPUs that EC2 promises of each instance type (variables/facts/instance_types.yml).
PROMISED = {
    "p2.xlarge": 1, "p2.8xlarge": 8, "p2.16xlarge": 16, "p3.2xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8,
    "p3dn.24xlarge": 8, "p4d.24xlarge": 8, "p4de.24xlarge": 8, "p5.4xlarge": 1, "p5.48xlarge": 8, "p5e.48xlarge":
    8, "p5en.48xlarge": 8, "p6-b200.48xlarge": 8, "p6-b300.48xlarge": 8, "p6e-gb200.36xlarge": 4, "g2.2xlarge": 1,
    "g2.8xlarge": 4, "g3.4xlarge": 1, "g3.8xlarge": 2, "g3.16xlarge": 4, "g3s.xlarge": 1, "g4dn.xlarge": 1,
    "g4dn.2xlarge": 1, "g4dn.4xlarge": 1, "g4dn.8xlarge": 1, "g4dn.12xlarge": 4, "g4dn.16xlarge": 1, "g4dn.metal":
    8, "g5.xlarge": 1, "g5.2xlarge": 1, "g5.4xlarge": 1, "g5.8xlarge": 1, "g5.12xlarge": 4, "g5.16xlarge": 1,
    "g5.24xlarge": 4, "g5.48xlarge": 8, "g5g.xlarge": 1, "g5g.2xlarge": 1, "g5g.4xlarge": 1, "g5g.8xlarge": 1,
    "g5g.16xlarge": 2, "g5g.metal": 2, "g6.xlarge": 1, "g6.2xlarge": 1, "g6.4xlarge": 1, "g6.8xlarge": 1,
    "g6.12xlarge": 4, "g6.16xlarge": 1, "g6.24xlarge": 4, "g6.48xlarge": 8, "g6e.xlarge": 1, "g6e.2xlarge": 1,
    "g6e.4xlarge": 1, "g6e.8xlarge": 1, "g6e.12xlarge": 4, "g6e.16xlarge": 1, "g6e.24xlarge": 4, "g6e.48xlarge":
    8, "g6f.large": 1, "g6f.xlarge": 1, "g6f.2xlarge": 1, "g6f.4xlarge": 1, "gr6f.4xlarge": 1,
    "gr6.4xlarge": 1, "gr6.8xlarge": 1, "g7.2xlarge": 1, "g7.4xlarge": 1, "g7.8xlarge": 1, "g7.12xlarge": 2,
    "g7.24xlarge": 4, "g7.48xlarge": 8, "g7e.2xlarge": 1, "g7e.4xlarge": 1, "g7e.8xlarge": 1, "g7e.12xlarge": 2,
    "g7e.24xlarge": 4, "g7e.48xlarge": 8,
}  # fmt: skip


def driver(machine: Machine) -> Tuple[Any, List[Finding]]:
    """The kernel module that is loaded, on disk and expected by the libraries; device nodes; GPUs of bus and driver."""
    bus = pci_gpus(machine)
    promised = PROMISED.get(identity(machine)["instance_type"])
    version = _text_or_none(machine, "/proc/driver/nvidia/version") or ""
    loaded = re.search(r"Kernel Module(?: for \S+)?\s+(\d{3}\.[\d.]+)", version)
    if not (bus or promised or version):
        raise Unanswered("absent", "the machine has no NVIDIA GPU")
    on_disk = _on_disk(machine)
    libraries = _library_versions(machine)
    state = {
        "loaded": loaded.group(1) if loaded else "", "on_disk": on_disk, "libraries": libraries, "bus": bus,
        "promised": promised,
    }  # type: Record  # fmt: skip
    findings = []  # type: List[Finding]
    if not version:
        if bus or promised:
            findings += _total_failure("couldn't communicate with the NVIDIA driver: /proc/driver/nvidia is missing")
    elif loaded:
        others = sorted({other for other in [on_disk, *libraries] if other and other != loaded.group(1)})
        if others:
            text = "the loaded kernel module is %s; on disk: %s; libraries: %s" % (
                loaded.group(1), on_disk or "unknown", ", ".join(libraries) or "unknown",
            )  # fmt: skip
            findings.append(_finding("action", "NVIDIA driver", text, "driver"))
    driven, minors = _driven(machine)
    state["driven"] = driven
    findings += _counts(bus, driven, promised, bool(version))
    findings += _nodes(machine, minors) if version else []
    return state, findings


def _on_disk(machine: Machine) -> str:
    """The version of the module that the next boot loads; "" where it is not known."""
    try:
        printed = machine.run("modinfo", "-F", "version", "nvidia").strip()
    except Unanswered:
        return ""
    return printed if re.match(r"\d{3}\.[\d.]+$", printed) else ""


def _library_versions(machine: Machine) -> List[str]:
    """Versions of libnvidia-ml in the folders of the system, by the names of its files."""
    found = set()
    for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"):
        for name in os.listdir(machine.root + folder) if os.path.isdir(machine.root + folder) else []:
            match = re.match(r"libnvidia-ml\.so\.(\d{3}\.[\d.]+)$", name)
            if match:
                found.add(match.group(1))
    return sorted(found)


def _driven(machine: Machine) -> Tuple[List[str], Dict[str, str]]:
    """GPUs that the driver has in /proc, and their minor numbers."""
    base, minors = "/proc/driver/nvidia/gpus", {}  # type: str, Dict[str, str]
    names = sorted(os.listdir(machine.root + base)) if os.path.isdir(machine.root + base) else []
    for name in names:
        text = _text_or_none(machine, "%s/%s/information" % (base, name)) or ""
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if minor:
            minors[name] = minor.group(1)
    return names, minors


def _counts(bus: List[str], driven: List[str], promised: Optional[int], is_loaded: bool) -> Iterator[Finding]:
    seen = bus or driven
    if promised and seen and len(seen) < promised:
        text = "the machine shows %d of the %d that its instance type has" % (len(seen), promised)
        yield _finding("action", "GPUs", text, "stop_start")
    known = {_address(pci) for pci in driven}
    for pci in bus if is_loaded else ():
        if _address(pci) not in known:
            yield _finding(
                "action", "GPU " + pci, "it is on the PCI bus, and the driver does not have it", "stop_start"
            )


def _nodes(machine: Machine, minors: Dict[str, str]) -> Iterator[Finding]:
    """Device nodes that programs open. nvidia-modprobe makes them; it runs at the first use of a GPU as root."""
    wanted = [("/dev/nvidia" + minor, "GPU " + pci) for pci, minor in sorted(minors.items())]
    if wanted:
        wanted.append(("/dev/nvidiactl", "NVIDIA driver"))
    for path, subject in wanted:
        if not os.path.exists(machine.root + path):
            # Not with -u: it then replaces /dev/nvidia-uvm by one of that number (NVIDIA/nvidia-modprobe 610.43.03).
            number = path[len("/dev/nvidia") :]
            do = "Run `nvidia-modprobe -c %s` as root, or restart nvidia-persistenced; until then it cannot be used"
            do %= number if number.isdigit() else "255"
            yield Finding("action", subject, "the device node %s is missing" % path, "driver", do)


_UNITS = (
    "nvidia-fabricmanager.service", "nvidia-persistenced.service", "nvidia-imex.service", "nvidia-dcgm.service",
    "nvidia-cdi-refresh.service", "nvidia-mps.service", "nvidia-powerd.service", "nvidia_gpu_settings_service.service",
    "nvidia-gridd.service",
)  # fmt: skip
_UNIT_VALUES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,Type,ConditionResult,StateChangeTimestampMonotonic,"
    "TimeoutStartUSec,NRestarts"
)


def units(machine: Machine) -> Tuple[Any, List[Finding]]:
    """The services of the driver's stack that are installed: failed, still starting, or enabled and not running."""
    try:
        printed = machine.run("systemctl", "show", "-p", _UNIT_VALUES, *_UNITS)
    except Unanswered as error:
        if error.status != "failed":
            raise
        if not os.path.isdir(machine.root + "/run/systemd/system"):
            raise Unanswered("absent", "systemd does not run here") from None
        raise Unanswered("failed", "systemctl show%s" % str(error)[str(error).rfind(": exit") :]) from None
    states, findings = {}, []  # type: Dict[str, Record], List[Finding]
    for block in re.split(r"\n\s*\n", printed):
        state = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)  # type: Record
        if state.get("LoadState") in ("loaded", "masked") and state.get("Id") in _UNITS:
            states[state["Id"]] = state
    # The persistence daemon by another name, in DLAMIs: the second of the two fails (aws-parallelcluster#5448).
    of_dlami = states.get("nvidia_gpu_settings_service.service", {}).get("ActiveState") == "active"
    for unit, state in states.items():
        text = _trouble_of_unit(state)
        if text and of_dlami and unit == "nvidia-persistenced.service":
            text += "; nvidia_gpu_settings_service.service of the DLAMI runs the daemon already: disable one of the two"
        if text:
            kind = "fabric" if "fabricmanager" in unit else "repair_service"
            findings.append(Finding("action", unit, text, kind, DO[kind].replace("UNIT", unit)))
    if not states:
        raise Unanswered("absent", "none of the services of the driver's stack is installed")
    return states, findings


def _trouble_of_unit(state: Record) -> str:
    active, is_oneshot = state.get("ActiveState"), state.get("Type") == "oneshot"
    if active == "failed":
        return "it failed (%s)" % (state.get("Result") or "unknown result")
    if active == "activating":
        since = state.get("StateChangeTimestampMonotonic", "")
        seconds = time.monotonic() - int(since) / 1e6 if since.isdigit() and since != "0" else None
        limit = state.get("TimeoutStartUSec", "")
        return "it is still starting%s (%s%s)" % (
            "" if seconds is None or seconds < 0 else ", for %.0f s" % seconds, state.get("SubState"),
            ", limit " + limit if limit else "",
        )  # fmt: skip
    skipped = state.get("ConditionResult") == "no" or state.get("Result") == "exec-condition"  # systemd.exec(5)
    if state.get("LoadState") == "masked" or skipped or is_oneshot:
        return ""
    if active == "inactive" and state.get("UnitFileState") == "enabled":
        return "it is enabled and not running"
    return ""


_LICENCE = (
    "Read `journalctl -u nvidia-gridd` and start the unit; where there is none, install NVIDIA's GRID driver of AWS's "
    "bucket, whose licence is part of the instance's price"
)
_GPU_FIELDS = (
    ("name", "product_name"), ("uuid", "uuid"), ("serial", "serial"), ("temperature", "temperature/gpu_temp"),
    ("recovery_action", "gpu_recovery_action"),
)  # fmt: skip


def _counters(element: Optional[ElementTree.Element]) -> Dict[str, int]:
    """Error counters by name; GPUs before Turing have double_bit/total and the like."""
    found = {}  # type: Dict[str, int]
    for part in element.iter() if element is not None else ():
        if part.text and part.text.strip().isdigit():
            found[part.tag] = found.get(part.tag, 0) + int(part.text)
    double = element.findtext("double_bit/total", "") if element is not None else ""
    if double.isdigit():
        found = {"double_bit": int(double)}
    return found


def _active(gpu: ElementTree.Element) -> Iterator[str]:
    """Reasons that lower the clocks now; drivers before R535 call them throttle reasons."""
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.findall(group + "/*"):
            if (reason.text or "").strip() == "Active":
                yield re.sub(r"^clocks_(event|throttle)_reason_", "", reason.tag)


def _gpu_findings(row: Record, gpu: ElementTree.Element) -> Iterator[Finding]:
    subject = "GPU " + row["pci"]
    if row["unknown"]:
        text = "unknown: " + readings.shown_unknown(row["unknown"])
        yield _finding("action", subject, text, _kind_of_unknown(row["unknown"].values()))
    elif row["fabric"]:
        yield _finding("action", subject, "NVLink fabric: " + ", ".join(row["fabric"]), "fabric")
    errors = sum(n for name, n in row["ecc"]["volatile"].items() if "uncorrectable" in name or name == "double_bit")
    if errors:
        yield _finding("action", subject, "%d uncorrectable ECC errors since the driver was loaded" % errors, "reboot")
    if gpu.findtext("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes":
        yield _finding("action", subject, "the threshold of uncorrectable SRAM errors is exceeded", "isolate")
    if "Yes" in (gpu.findtext("retired_pages/pending_" + name) for name in ("retirement", "blacklist")):
        yield _finding("action", subject, "a page retirement is pending", "schedule_reboot")
    for text in readings.mig_errors(gpu):
        yield _finding("action", subject, text + " errors since the driver was loaded", "reboot")
    for kind, text in readings.repairs(gpu):
        yield _finding("action", subject, text, kind)
    licence = gpu.findtext("vgpu_software_licensed_product/license_status")
    if readings.is_vgpu(gpu) and licence is not None and not licence.strip().startswith("Licensed"):
        level = "watch" if licence.strip() == "Unlicensed (Unrestricted)" else "action"  # for its first minutes
        text = "the vGPU has no licence: %s; without one it is slowed down, and CUDA fails" % (licence.strip() or "?")
        yield Finding(level, subject, text, "repair_service", _LICENCE)
    for reason in row["slowdowns"]:
        if reason in _SLOWDOWNS:
            yield _finding(_SLOWDOWNS[reason], subject, "clocks are lowered: " + reason, "check_cooling")
    asked, number = readings.recovery_of(gpu)
    if asked:
        kind = {3: "drain", -1: "aws_support"}.get(number, "reboot")
        yield _finding("action", subject, "the driver asks for: " + asked, kind)


def _kind_of_unknown(texts: Iterable[str]) -> str:
    """What NVML's errors in place of values ask for: an event of the same loss gives the same advice."""
    shown = " ".join(texts).lower()
    if "gpu is lost" in shown:
        return "stop_start"
    return "reboot" if "requires reset" in shown or "reset required" in shown else "unknown"


def nvlink(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Error counters of the NVLinks since the driver was loaded. Single recovered errors belong to normal operation."""
    data, findings = {}, []  # type: Dict[str, Dict[str, int]], List[Finding]
    printed = _CORRUPT.sub("", machine.run("nvidia-smi", "nvlink", "-e"))
    for line in printed.splitlines():
        heading = re.match(r"GPU (\d+): ", line)
        if heading:
            data.setdefault("GPU " + heading.group(1), {})
        elif readings.is_error(line):
            subject = next(reversed(list(data)), "NVLink")
            findings.append(_finding("action", subject, "link counters: " + line.strip(), "unknown"))
    for counter in readings.link_counters(printed):
        gpu = "GPU %d" % counter.gpu
        subject, fault = "%s link %d" % (gpu, counter.link), counter.fault()
        if counter.value is not None:
            data[gpu][counter.name] = data[gpu].get(counter.name, 0) + counter.value
        if counter.is_unknown():
            text = "link counters: Link %d: %s: %s" % (counter.link, counter.name, counter.text)
            findings.append(_finding("action", gpu, text, "unknown"))
        elif fault:
            failed = counter.name == _LINK_FAILED or counter.value is None
            level, kind = ("action", "check_link") if failed else ("watch", "monitor")
            findings.append(_finding(level, subject, fault, kind))
    states = ""
    with contextlib.suppress(Unanswered):
        states = machine.run("nvidia-smi", "nvlink", "-s")
    for number, text in readings.inactive_links(states or printed).items():
        findings.append(_finding("action", "GPU %d" % number, text, "check_link"))
    return data, findings


def events(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Events of this boot with the action of the parser's catalogue: from its log, else from the kernel's."""
    boot = machine.text("/proc/sys/kernel/random/boot_id").strip()
    skipped = 0
    try:
        source = json_log(machine)
        skipped = max(0, os.path.getsize(machine.root + source) - EVENT_BYTES)
        lines = machine.text(source, EVENT_BYTES).splitlines()
    except OSError:
        if not os.access(machine.root + PARSER, os.R_OK):
            raise Unanswered("missing", "the event parser is not installed: no events to read") from None
        source = "kernel log"
        lines = machine.run("sh", "-c", "dmesg | python3 -sSE %s parse -" % (machine.root + PARSER)).splitlines()
    read = [event for event in map(_document, lines) if event.get("kind") in _EVENT_KINDS]
    current = [event for event in read if event.get("boot_id") in (None, boot)]
    findings = {}
    times = {}  # type: Dict[Tuple[str, str], List[str]]
    groups = {}  # type: Dict[Tuple[Any, ...], Record]
    for event in current:
        key = (event.get("kind"), event.get("code"), event.get("pci"), event.get("origin"))
        group = groups.setdefault(key, dict({name: event.get(name) for name in _EVENT_FIELDS}, count=0))
        group.update(count=group["count"] + 1, last=event.get("time"))
        action = str(event.get("ec2_action"))
        if action not in _NO_ACTION and event.get("origin") != "userland":
            pci = str(event.get("pci") or "")
            subject = pci or "Neuron" if event["kind"] == "neuron" else "GPU " + (pci or "of unknown address")
            text = "%s %s: %s" % (_EVENT_KINDS[event["kind"]], event.get("code"), event.get("name"))
            text += "; likely cause: %s" % event["likely_cause"] if event.get("likely_cause") else ""
            if event["kind"] == "stack_error":
                subject = "driver's stack"
            times.setdefault((subject, text), []).append(str(event.get("time")))
            findings[subject, text] = Finding("action", subject, text, action, str(event.get("ec2_meaning")))
    counts = {"count": len(current), "earlier": len(read) - len(current), "bytes_not_read": skipped}
    listed = [found._replace(text=found.text + _how_often(times[key])) for key, found in findings.items()]
    if skipped:
        text = "only the last %d MiB of %s were read: %d MiB before may hold what came first" % (
            EVENT_BYTES >> 20, source, (skipped >> 20) + 1,
        )  # fmt: skip
        listed.append(_finding("watch", "event log", text, "monitor"))
    return dict(counts, source=source, newest=list(groups.values())[-20:]), listed


# A storm of 6,000 events takes 6 MB; the parser's log is rotated at 64 MiB.
EVENT_BYTES = 64 << 20


def _how_often(times: List[str]) -> str:
    """The first cause is listed first, as the events came."""
    return " \u00d7 %s, first %s, last %s" % ("{:,}".format(len(times)), times[0], times[-1]) if len(times) > 1 else ""


_EVENT_KINDS = {
    "xid": "XID", "sxid": "SXID", "gpu_lost": "GPU_LOST", "neuron": "NEURON", "gpu_init_failed": "GPU initialisation",
    "stack_error": "driver's stack",
}  # fmt: skip
_EVENT_FIELDS = (
    "time", "kind", "code", "name", "severity", "action", "ec2_action", "ec2_meaning", "origin", "pci", "message",
)  # fmt: skip


def json_log(machine: Machine) -> str:
    """Path of the parser's JSON log: that of the unit's drop-in."""
    try:
        dropin = machine.text("/etc/systemd/system/aws-hw-monitor.service.d/paths.conf")
    except OSError:
        return "/var/log/gpuevent.jsonl"
    named = re.findall(r"--json-log (\S+)", dropin)
    return named[-1] if named else "/var/log/gpuevent.jsonl"


def _document(line: str) -> Record:
    try:
        document = json.loads(line)
    except ValueError:
        return {}  # the first line may be cut off
    return document if isinstance(document, dict) else {}


def _service(machine: Machine, unit: str) -> Tuple[Record, List[Finding]]:
    names = "LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts"
    shown = machine.run("systemctl", "show", "-p", names, unit)
    state = dict(line.partition("=")[::2] for line in shown.splitlines())  # type: Record
    if state.get("LoadState") == "not-found":
        raise Unanswered("missing", unit + " is not installed")
    if (state.get("ActiveState"), state.get("SubState")) == ("active", "running"):
        return state, []
    text = "%s is %s (%s)" % (unit, state.get("ActiveState"), state.get("SubState"))
    return state, [Finding("action", unit, text, "repair_service", DO["repair_service"].replace("UNIT", unit))]


def parser(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Whether the event parser runs and writes its heartbeat."""
    unit = "aws-hw-monitor.service"
    state, findings = _service(machine, unit)
    try:
        status = _document(machine.text("/run/gpu-ami/event-parser.json"))
    except OSError as error:
        status = {"unread": error.strerror}
    names = ("records_lost", "events", "drills", "sink_errors", "policy_errors")
    state.update((name, status.get(name)) for name in names)
    if "heartbeat_monotonic_s" in status:
        state["heartbeat_age_s"] = age = round(time.monotonic() - float(status["heartbeat_monotonic_s"]), 1)
        if age > 2 * float(status.get("heartbeat_period_s", 60)) + 10 and not findings:
            do = DO["repair_service"].replace("UNIT", unit)
            findings.append(Finding("action", unit, "the last heartbeat was %.0f s ago" % age, "repair_service", do))
    elif not findings:
        text = "its heartbeat is unknown: /run/gpu-ami/event-parser.json: %s" % status.get(
            "unread", "no heartbeat in it"
        )
        findings.append(Finding("action", unit, text, "repair_service", DO["repair_service"].replace("UNIT", unit)))
    return state, findings


def agent(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Whether the CloudWatch agent runs, and the last errors of its log."""
    state, findings = _service(machine, "amazon-cloudwatch-agent.service")
    log = AGENT + "/logs/amazon-cloudwatch-agent.log"
    try:
        lines = machine.text(log, 1 << 16).splitlines()
        state["last_errors"] = [line[:300] for line in lines if " E! " in line][-3:]
    except OSError as error:
        findings.append(_finding("watch", "CloudWatch agent", "%s: %s" % (log, error.strerror), "unknown"))
    return state, findings + _configuration(machine, state)


def _configuration(machine: Machine, state: Record) -> List[Finding]:
    """Whether user data or a person replaced the image's configuration, or added to it."""
    base, folder = AGENT + "/etc/gpu-ami/base.json", machine.root + AGENT + "/etc/amazon-cloudwatch-agent.d"
    if not os.path.isfile(machine.root + base):
        return []  # not an image of ours
    parts = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    others = [name for name in parts if name not in ("file_base.json", "file_gpu.json") and not name.endswith(".tmp")]
    state["configuration"] = parts
    subject = "CloudWatch agent's configuration"
    if "file_base.json" not in parts:
        text = "the image's was replaced by %s (fetch-config removes it; append-config keeps it)" % (
            ", ".join(others) or "nothing"
        )
        do = "amazon-cloudwatch-agent-ctl -a append-config -m ec2 -s -c file:" + base
        return [Finding("action", subject, text, "repair_service", do)]
    if others:
        return [_finding("watch", subject, "%s was added to the image's" % ", ".join(others), "monitor")]
    return []


def efa(machine: Machine) -> Tuple[Any, List[Finding]]:
    """State and hardware counters of each EFA device, since its driver was loaded."""
    base, rows, findings = "/sys/class/infiniband", {}, []  # type: str, Dict[str, Record], List[Finding]
    for device in readings.efa_devices(machine.root):
        port = "%s/%s/ports/1" % (base, device)
        counters = {}  # type: Dict[str, int]
        for folder in (port + "/hw_counters", "%s/%s/hw_counters" % (base, device)):
            names = sorted(os.listdir(machine.root + folder)) if os.path.isdir(machine.root + folder) else []
            for name in names:
                reading = _reading(machine, folder + "/" + name)
                if reading.state == readings.KNOWN:
                    counters[name] = int(reading.number())
                elif name not in _NO_COUNTER:
                    text = "%s is unknown: %s" % (name, reading.shown())
                    findings.append(_finding("watch", device, text, "unknown"))
        state = readings.read_word(_text_or_none(machine, port + "/state"))
        rows[device] = {"state": state.text, "counters": counters}
        if not counters:
            findings.append(_finding("watch", device, "it has no counters", "unknown"))
        if state.state != readings.KNOWN:
            text = "the state of its port is unknown: " + state.shown()
            findings.append(_finding("action", device, text, "unknown"))
        elif "ACTIVE" not in state.text:
            findings.append(_finding("action", device, "the port is " + state.text + ", expected ACTIVE", "reboot"))
        for name, value in counters.items():
            if value and _EFA_TROUBLE.search(name):
                findings.append(_finding("watch", device, "%s: %d" % (name, value), "monitor"))
    if not rows:
        raise Unanswered("absent", "the instance has no EFA device, or its driver is not loaded")
    return rows, findings


def _reading(machine: Machine, path: str) -> "readings.Reading":
    return readings.read_number(_text_or_none(machine, path))


def _text_or_none(machine: Machine, path: str) -> Optional[str]:
    try:
        return machine.text(path)
    except OSError:
        return None


# Where jobs and services write.
_WRITTEN = ("/tmp", "/var/tmp", "/var/log", "/var/lib", "/home", "/run", "/dev/shm")
_GIB = 1 << 20  # in KiB, the unit of df -k


def disk(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Space, inodes and read-only state of the file systems in which jobs and services write."""
    places = [machine.root + place for place in _WRITTEN if os.path.isdir(machine.root + place)]
    printed = machine.run("df", "-k", "--output=target,size,avail,itotal,iavail", *places)
    mounts = _text_or_none(machine, "/proc/mounts") or ""
    read_only = {row[1] for row in map(str.split, mounts.splitlines()) if len(row) > 3 and "ro" in row[3].split(",")}
    rows, findings = {}, []  # type: Dict[str, Record], List[Finding]
    for line in printed.splitlines()[1:]:
        target, *numbers = line.rsplit(None, 4)
        if len(numbers) < 4 or target.strip() in rows:
            continue
        size, free, inodes, free_inodes = (int(number) if number.isdigit() else 0 for number in numbers)
        row = {
            "kib": size, "free_kib": free, "inodes": inodes, "free_inodes": free_inodes,
            "read_only": target.strip() in read_only,
        }  # type: Record  # fmt: skip
        rows[target.strip()] = row
        findings += _disk_findings(target.strip(), row)
    if not rows:
        raise Unanswered("failed", "df names no file system")
    return rows, findings


def _disk_findings(target: str, row: Record) -> Iterator[Finding]:
    if row["read_only"]:
        do = "Read `dmesg | grep -iE 'remount|I/O error|EXT4-fs|XFS'`: the kernel stops writing after errors of the "
        do += "volume. Check the EBS volume's status, and stop and start the instance"
        yield Finding("action", target, "the file system is mounted read-only", "disk", do)
    do = DO["disk"].replace("PLACE", target)
    for free, size, least, what in (
        (row["free_kib"], row["kib"], _GIB, "free space: %s of %s MiB"),
        (row["free_inodes"], row["inodes"], 1 << 20, "free inodes: %s of %s"),
    ):
        unit = 1024 if "MiB" in what else 1
        text = what % ("{:,}".format(free // unit), "{:,}".format(size // unit))
        if size and free < min(size // 100, least):
            yield Finding("action", target, "the file system is full; " + text, "disk", do)
        elif size and free < min(size // 20, 10 * least):
            yield Finding("watch", target, "the file system is nearly full; " + text, "disk", do)


# Opens a connection and closes it, after a mark that it began: a process of its own, because a name server that does
# not answer blocks for minutes.
_CONNECT = (
    "import os, socket, sys; os.write(1, b'.'); "
    "socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()"
)


def network(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Whether the CloudWatch agent's endpoint has an address and takes a connection, and what is missing if not."""
    host, port = endpoint_of(machine)
    servers = re.findall(r"(?m)^\s*nameserver\s+(\S+)", _text_or_none(machine, "/etc/resolv.conf") or "")
    has_route = _has_default_route(machine)
    state = {"endpoint": "%s:%d" % (host, port), "name_servers": servers, "default_route": has_route}  # type: Record
    words = [sys.executable, "-IS", "-c", _CONNECT, host, str(port), "5"]
    status, out, err = execute(words, machine.seconds)
    if status == TIMED_OUT and not out:
        raise Unanswered("timeout", "connecting did not begin within %g s: the machine is busy" % machine.seconds)
    if status:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        why = (
            "no answer" if status == TIMED_OUT or not lines else re.sub(r"^[\w.]+: (\[Errno -?\d+\] )?", "", lines[-1])
        )
        is_address = ":" in host or host.replace(".", "").isdigit()
        missing = [] if servers or is_address else ["no name server in /etc/resolv.conf"]
        missing += [] if has_route else ["no default route"]
        text = "; ".join(["%s cannot be reached: %s" % (state["endpoint"], why)] + missing)
        return state, [_finding("action", "network", text, "network")]
    return state, []


def endpoint_of(machine: Machine) -> Tuple[str, int]:
    """Host and port to which the CloudWatch agent sends: of its proxy or endpoint_override, else CloudWatch's."""
    if not os.path.isdir(machine.root + AGENT):
        raise Unanswered("absent", "the CloudWatch agent is not installed: nothing is sent")
    settings = _document(_text_or_none(machine, AGENT + "/etc/env-config.json") or "")
    folder, parts = AGENT + "/etc/amazon-cloudwatch-agent.d", []  # type: str, List[Record]
    for name in sorted(os.listdir(machine.root + folder)) if os.path.isdir(machine.root + folder) else []:
        parts.append(_document(_text_or_none(machine, "%s/%s" % (folder, name)) or ""))
    places = [part.get(section) for section in ("metrics", "logs") for part in parts]
    urls = [str(settings.get("HTTPS_PROXY") or settings.get("https_proxy") or "")]
    urls += [str(place.get("endpoint_override") or "") for place in places if isinstance(place, dict)]
    for url in urls:
        match = re.match(
            r"(https?)://(?:[^/@]*@)?(\[[^]]+\]|[^/:]+)(?::(\d+))?", url if "://" in url else "https://" + url
        )
        if url and match:
            return match.group(2).strip("[]"), int(match.group(3) or (443 if match.group(1) == "https" else 80))
    found = _document(_text_or_none(machine, "/run/cloud-init/instance-data.json") or "").get("v1") or {}
    if not found.get("region"):
        raise Unanswered("absent", "the region is unknown: /run/cloud-init/instance-data.json")
    domain = "amazonaws.com.cn" if str(found["region"]).startswith("cn-") else "amazonaws.com"
    return "monitoring.%s.%s" % (found["region"], domain), 443


def _has_default_route(machine: Machine) -> bool:
    """Of IPv4 or IPv6."""
    of4 = (row.split() for row in (_text_or_none(machine, "/proc/net/route") or "").splitlines()[1:])
    of6 = (row.split() for row in (_text_or_none(machine, "/proc/net/ipv6_route") or "").splitlines())
    return any(len(row) > 7 and row[1] == row[7] == "00000000" for row in of4) or any(
        len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo" for row in of6
    )


def compute(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Computes on every GPU; its program lies beside this one."""
    program = os.path.join(os.path.dirname(os.path.realpath(globals().get("__file__", ""))), "compute_probe.py")
    if not os.access(program, os.R_OK):
        raise Unanswered("missing", program + " is not installed")
    migs = re.findall(
        r"\(UUID: (MIG-[^)]+)\)", execute(["nvidia-smi", "-L"], machine.seconds)[1].decode("utf-8", "replace")
    )
    words = ["--seconds", "%g" % _COMPUTE_SECONDS, "--mig", ",".join(migs)]
    status, out, err = execute([sys.executable, "-IS", program, *words], _COMPUTE_SECONDS + 20)
    rows = [_document(line) for line in out.decode("utf-8", "replace").splitlines()]
    if not rows or rows[0].get("kind") != "machine":
        raise Unanswered("failed", "exit status %d: %s" % (status, err.decode("utf-8", "replace").strip()[-200:]))
    return rows, list(compute_findings(rows))


def compute_findings(rows: List[Record]) -> Iterator[Finding]:
    machine, gpus = rows[0], rows[1:]
    if machine["error"]:
        yield _cuda_error("CUDA", machine["error"])
    if machine["unfinished"]:
        yield _finding("action", "CUDA", "%(why)s; its last step: %(step)s" % machine["unfinished"], "reboot")
    for gpu in gpus:
        subject = "GPU " + gpu.get("pci", str(gpu["index"]))
        if gpu["error"]:
            yield _cuda_error(subject, gpu["error"])
        for name, what in (("wrong", "a result"), ("pattern_wrong", "what memory holds")):
            if gpu.get(name):
                text = "%s is wrong at byte %%(byte)s: expected %%(expected)s, got %%(got)s" % what
                yield _finding("action", subject, text % gpu[name], "isolate")
        for peer in gpu["peers"]:
            pair = "%s to GPU %d" % (subject, peer["index"])
            if peer["error"]:
                yield _cuda_error(pair, peer["error"])
            elif peer.get("wrong"):
                yield _finding("action", pair, "a copy is wrong at byte %(byte)s" % peer["wrong"], "isolate")


def _cuda_error(subject: str, error: Record) -> Finding:
    text = "%(what)s: %(call)s: %(name)s: %(meaning)s" % error
    do = "Mend what the error names, and compute again (gpu-ami-diagnose --compute)"
    return Finding("action", subject, text, "repair_service", do)


PROBES = {
    "driver": driver, "units": units, "gpus": gpus, "remapped_rows": remapped_rows, "nvlink": nvlink,
    "events": events, "parser": parser, "agent": agent, "efa": efa, "disk": disk, "network": network,
}  # type: Dict[str, Probe]  # fmt: skip


def _ask(machine: Machine, probe: Probe, into: Record) -> None:
    started = time.monotonic()
    try:
        data, findings = probe(machine)
        into.update(status="read", data=data, findings=findings)
        into.pop("why", None)  # of the answer that it had not given yet
    except Unanswered as error:
        into.update(status=error.status, why=str(error), findings=list(error.findings))
    except Exception as error:  # a probe that fails must not hide the others
        into.update(status="failed", why="%s: %s" % (type(error).__name__, error))
    into["seconds"] = round(time.monotonic() - started, 2)


def diagnose(machine: Machine, computes: bool = False, names: Sequence[str] = ()) -> Record:
    """The document of `--json`: every probe with its answer, and the findings. names: of the probes; none: all."""
    asked = {name: PROBES[name] for name in names or PROBES}
    probes = dict(asked, compute=compute) if computes else asked
    answers = {name: {"status": "timeout", "why": "no answer"} for name in probes}  # type: Dict[str, Record]
    threads = [
        threading.Thread(target=_ask, args=(machine, probe, answers[name]), daemon=True)
        for name, probe in probes.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + machine.seconds + 5 + (_COMPUTE_SECONDS + 20 if computes else 0)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found = [dict(one._asdict(), probe=name) for name in probes for one in answers[name].pop("findings", ())]
    found.sort(key=lambda one: one["level"])
    unanswered = any(answer["status"] in ("missing", "failed", "timeout") for answer in answers.values())
    return {
        "schema": SCHEMA, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "root": os.geteuid() == 0,
        "machine": identity(machine), "findings": found, "probes": answers,
        "exit_code": 1 if any(one["level"] == "action" for one in found) else 3 if unanswered else 0,
    }  # fmt: skip


def identity(machine: Machine) -> Dict[str, str]:
    """Instance id and type (Nitro's DMI, else cloud-init), kernel, boot and uptime; "" for what cannot be read."""
    paths = {
        "instance_id": ("/sys/class/dmi/id/board_asset_tag", "/var/lib/cloud/data/instance-id"),
        "instance_type": ("/sys/class/dmi/id/product_name",), "kernel": ("/proc/sys/kernel/osrelease",),
        "boot_id": ("/proc/sys/kernel/random/boot_id",), "uptime_s": ("/proc/uptime",),
    }  # fmt: skip
    found = {}
    for name, candidates in paths.items():
        found[name] = ""
        for path in candidates:
            with contextlib.suppress(OSError):
                value = (machine.text(path).split() or [""])[0]
                if name != "instance_id" or value.startswith("i-"):
                    found[name] = found[name] or value
    return found


# Probes of --health: what says whether jobs can run. The event parser, the CloudWatch agent and its way out do not.
HEALTH_PROBES = ("driver", "units", "gpus", "remapped_rows", "nvlink", "efa", "events", "disk")
# Kinds of findings with which a machine takes no new job. schedule_reboot waits for the end of its jobs anyway.
DRAINS = (
    "reboot", "stop_start", "isolate", "drain", "fabric", "driver", "check_link", "check_cooling", "schedule_reboot",
    "update_driver", "repair_service", "disk",
)  # fmt: skip
HEALTHY, DRAIN, UNKNOWN = 0, 1, 3


def health(document: Record, ignored: Sequence[str] = (), unknown_drains: bool = False) -> Tuple[int, str]:
    """(exit code, one line) of a diagnosis. ignored: kinds that do not drain here."""
    machine, answers = document["machine"], document["probes"]
    bad = [one for one in document["findings"] if one["level"] == "action"]
    drains = [one for one in bad if one["kind"] in DRAINS and one["kind"] not in ignored]
    has_gpu = answers.get("driver", {}).get("status") != "absent"
    unknown = ["%s: %s" % (one["subject"], one["text"]) for one in bad if one["kind"] in ("unknown", "aws_support")]
    unknown += [
        "%s: %s" % (name, answer.get("why"))
        for name, answer in answers.items()
        if answer["status"] in ("failed", "timeout") or (answer["status"] == "missing" and name == "gpus" and has_gpu)
    ]
    head = " ".join(part for part in (machine["instance_id"], machine["instance_type"]) if part)
    if drains:
        code, word, says = DRAIN, "drain", ["%(subject)s: %(text)s (%(kind)s)" % one for one in drains]
    elif unknown:
        code, word, says = (DRAIN if unknown_drains else UNKNOWN), "unknown", unknown
    else:
        counted = answers.get("gpus", {}).get("data")
        code, word, says = HEALTHY, "healthy", [_summary("gpus", counted) if counted else "no GPU"]
    more = "; %d more" % (len(says) - 1) if len(says) > 1 else ""
    line = "%s: %s%s%s" % (word, head + ": " if head else "", says[0], more)
    return code, "".join(one if one.isprintable() else "?" for one in line)[:400]


def as_text(document: Record) -> str:
    """The diagnosis as text."""
    machine = document["machine"]
    lines = ["%(instance_id)s %(instance_type)s, kernel %(kernel)s, boot %(boot_id)s" % machine]
    if not document["root"]:
        lines.append("not run as root: the kernel log and the parser's files may be missing below")
    lines.append("Findings: %d" % len(document["findings"]))
    for one in document["findings"]:
        lines += ["  %-6s  %s: %s" % (one["level"], one["subject"], one["text"]), "          %(kind)s: %(do)s" % one]
    lines.append("Probes:")
    for name, answer in document["probes"].items():
        what = answer.get("why") or _summary(name, answer["data"])
        lines.append("  %-13s  %-7s  %s" % (name, answer["status"], what))
    read = document["probes"]["events"].get("data") or {"newest": []}
    for event in read["newest"]:
        drill = " (drill)" if event["origin"] == "userland" else ""
        often = "  \u00d7 {:,}".format(event["count"]) if event.get("count", 1) > 1 else ""
        shown = "  %(time)s  %(kind)s %(code)s  %(pci)s  %(severity)s  %(ec2_action)s: %(name)s" % event
        lines.append(shown + often + drill)
    return "\n".join(lines) + "\n"


def _summary(name: str, data: Any) -> str:
    if name == "driver":
        return "loaded %s, on disk %s, libraries %s" % (
            data["loaded"] or "nothing", data["on_disk"] or "unknown", ", ".join(data["libraries"]) or "unknown",
        )  # fmt: skip
    if name == "units":
        return ", ".join("%s %s" % (unit.replace(".service", ""), one["ActiveState"]) for unit, one in data.items())
    if name == "gpus":
        return "%s, driver %s" % (_counted(data, "GPU"), data[0]["driver"])
    if name in ("remapped_rows", "nvlink"):
        # nvidia-smi nvlink prints nothing where no link is active: an H100 and an H200 passed through alone.
        return _counted(data, "GPU") if data else "no active link"
    if name == "events":
        return "%(count)d of this boot, %(earlier)d of earlier boots (%(source)s)" % data
    if name == "compute":
        return "computed on " + _counted(data[1:], "GPU")
    if name == "disk":
        return _counted(data, "file system")
    if name == "network":
        return "%(endpoint)s, default route: %(default_route)s" % data
    if name in ("parser", "agent"):
        return "%s (%s), %s restarts" % (data.get("ActiveState"), data.get("SubState"), data.get("NRestarts"))
    return _counted(data, "device")


def _counted(data: Any, what: str) -> str:
    return "%d %s%s" % (len(data), what, "" if len(data) == 1 else "s")


def _write_bundle(path: str, document: Record, seconds: float) -> bool:
    """Says what the bundle lacks; False if it cannot be written. Its program lies beside this one."""
    sys.dont_write_bytecode = True
    documents = {"diagnosis.json": json.dumps(document, indent=1), "diagnosis.txt": as_text(document)}
    try:
        support_bundle = importlib.import_module("support_bundle")
        missing = support_bundle.write(path, documents, execute, seconds)
    except (ImportError, OSError) as error:
        sys.stderr.write("%s: the bundle cannot be written: %s\n" % (path, error))
        return False
    sys.stderr.write("bundle: %s%s\n" % (path, "".join("\n  incomplete: " + line for line in missing)))
    return True


# A copy of readings.py, for a machine on which this file is alone: python3 - < diagnose.py. A test compares them.
_READINGS = r'''
"""One value that a tool printed: known, one that the board does not have, or unknown. It is never a number by mistake.

nvidia-smi prints NVML's error in place of the value (nvmlErrorString: `GPU is lost`, `Unknown Error`, `Not Found`, …),
in brackets in a table, and exits with 0. A missing, empty or unparsable value is unknown as well. Python 3.7, standard
library alone: the event parser, gpu-ami-diagnose and the checks all read through this module.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Optional, Union

KNOWN, ABSENT, UNKNOWN = "known", "absent", "unknown"
# The board or its mode does not have it: NVML_ERROR_NOT_SUPPORTED, and fields that NVIDIA has given up.
_ABSENT = re.compile(r"n/a|not supported|not applicable|requested functionality has been deprecated", re.IGNORECASE)
# Texts of nvmlErrorString (nvml.h), and what nvidia-smi's tables print for them.
_ERROR = re.compile(
    r"(gpu is lost|unknown( error)?|err!?|error|failed|timeout|time ?d out|uninitialized|invalid argument|no data"
    r"|(nvml shared library |function |gpu )?not found|gpu requires reset|reset required|driver not loaded"
    r"|insufficient (permissions|size|memory|resources|external power)|memory error|interrupt request issue"
    r"|(driver/library|argument) version mismatch|in use by another client|infoROM is corrupted|corrupted infoROM"
    r"|operating system blocked the request|gpu access blocked by the operating system|unable to determine\b.*)\W*",
    re.IGNORECASE,
)
# A number with at most one unit: `30 C`, `16x`, `565.11 W`, `40960 MiB`, `640 bank(s)`, `0 KB/s`.
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s?(?:%|x|[A-Za-z]+(?:/s|\(s\))?)?")
# `--query-remapped-rows` prints 0 and 1 for pending and failure, the XML No and Yes.
_FLAGS = {
    "yes": True, "true": True, "enabled": True, "active": True, "1": True,
    "no": False, "false": False, "disabled": False, "not active": False, "0": False,
}  # fmt: skip
# Architectures whose GPUs have no row remapper (NVIDIA, GPU memory error management: it begins with Ampere).
_ECC = "ecc_mode/current_ecc"
_WITHOUT_ROW_REMAPPER = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
# Names of processes may be any text, also `[Not Found]`, which nvidia-smi prints for those of containers.
FREE_TEXT = ("processes", "accounted_processes", "supported_clocks")


class UnknownValue(Exception):
    """A value was used that is not known."""


class Reading:
    """text: as printed, "" where nothing was. state: KNOWN, ABSENT or UNKNOWN. Only a known one has a value."""

    __slots__ = ("_value", "state", "text")

    def __init__(self, text: str, state: str, value: Union[float, bool, str, None] = None) -> None:
        self.text, self.state, self._value = text, state, value

    @property
    def value(self) -> Union[float, bool, str, None]:
        """UnknownValue: the value is absent or unknown."""
        if self.state != KNOWN:
            raise UnknownValue(self.shown())
        return self._value

    def number(self) -> float:
        """UnknownValue: it is not a known number."""
        if self.state != KNOWN or isinstance(self._value, (str, bool)) or self._value is None:
            raise UnknownValue(self.shown())
        return self._value

    def number_or_none(self) -> Optional[float]:
        return self.number() if self.state == KNOWN else None

    def is_set(self) -> bool:
        """Whether a flag is known and set."""
        return self.state == KNOWN and self._value is True

    def shown(self) -> str:
        return self.text or "no value"

    def as_unknown(self) -> Reading:
        """The same where the board has it: an absent value is unknown then."""
        return self if self.state == KNOWN else Reading(self.text, UNKNOWN)

    def __bool__(self) -> bool:
        raise TypeError("a Reading is no truth value: ask for its state, is_set() or number()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reading):
            raise TypeError("a Reading is compared by its value, not with %r" % (other,))
        return (self.text, self.state, self._value) == (other.text, other.state, other._value)

    def __hash__(self) -> int:
        return hash((self.text, self.state))

    def __repr__(self) -> str:
        return "Reading(%r, %s)" % (self.text, self.state)


def _read(printed: Optional[str], parse: Callable[[str], Union[float, bool, str, None]]) -> Reading:
    text = (printed or "").strip()[:120]
    bare = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
    if not bare or is_error(bare):
        return Reading(text, UNKNOWN)
    if _ABSENT.fullmatch(bare):
        return Reading(text, ABSENT)
    value = parse(bare)
    return Reading(text, UNKNOWN) if value is None else Reading(text, KNOWN, value)


def read_number(printed: Optional[str]) -> Reading:
    """A number with or without its unit: of XML, of a table, of sysfs. None: it is missing."""
    return _read(printed, _number)


def _number(text: str) -> Optional[float]:
    match = _NUMBER.fullmatch(text)
    return float(match.group(1)) if match else None


def read_flag(printed: Optional[str]) -> Reading:
    """Yes or No, True or False, Enabled or Disabled, Active or Not Active, 1 or 0."""
    return _read(printed, lambda text: _FLAGS.get(text.lower()))


def read_word(printed: Optional[str]) -> Reading:
    """A text that is neither an error nor N/A."""
    return _read(printed, lambda text: text)


def is_error(printed: str) -> bool:
    """Whether a tool printed an error in place of a value."""
    text = printed.strip()
    bare = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
    return _ERROR.fullmatch(bare) is not None


def row_remapper(architecture: str, virtualization: str = "", ecc: str = "") -> bool:
    """Whether a GPU must show a row remapper: from Ampere on, with ECC memory, and not through a vGPU.

    architecture: "" of drivers up to R470 (public captures with 418.43, 430.26, 460.56). ecc: N/A without ECC memory.
    """
    if read_word(ecc).state == ABSENT or virtualization.upper() == "VGPU":
        return False
    return architecture not in ("",) + _WITHOUT_ROW_REMAPPER


_POWER = ("power_readings/power_draw", "gpu_power_readings/power_draw", "gpu_power_readings/instant_power_draw")
# What every GPU of a data centre has, passed through to the machine. Of groups, one path is enough.
_REQUIRED = (
    (("product_name",), read_word),
    (("uuid",), read_word),
    (("temperature/gpu_temp",), read_number),
    (("fb_memory_usage/total",), read_number),
    (("fb_memory_usage/used",), read_number),
    (("fb_memory_usage/free",), read_number),
    (("clocks/graphics_clock",), read_number),
    (("clocks/sm_clock",), read_number),
    (("clocks/mem_clock",), read_number),
    (_POWER, read_number),
)
_UTILIZATION = ((("utilization/gpu_util",), read_number), (("utilization/memory_util",), read_number))
_REMAPPED = (
    (("remapped_rows/remapped_row_pending",), read_flag),
    (("remapped_rows/remapped_row_failure",), read_flag),
)
# Answers of a fabric that works. Others are faults: `In Progress`, `Unhealthy`, `Limited Capacity`, `Degraded`, `True`.
_FABRIC_GOOD = {
    "state": ("completed",), "status": ("success",), "summary": ("healthy",), "bandwidth": ("full",),
    "route_recovery_in_progress": ("false",), "route_unhealthy": ("false",), "access_timeout_recovery": ("false",),
    "incorrect_configuration": ("none",), "partition_assigned": ("true", "yes"), "gfm_state": ("connected",),
}  # fmt: skip
# Parts of an NVLink domain of several machines, whose GPUs have a clique other than 0: GB200 and GB300 in UltraServers.
_MULTI_NODE = re.compile(r"\bGB[23]00\b")
# Repairs and verdicts of the driver that are `Yes` on a GPU that needs an action (nvidia-smi of R580 to R615, most in
# group ecc_errors; NVML's nvmlDeviceGetRepairStatus, nvmlDeviceGetUnrepairableMemoryFlag): element → (kind of the
# action, what it says). DCGM fails a GPU with unrepairable memory, whatever its counters show (DCGM_FR_FAULTY_MEMORY,
# DCGM_ERROR_ISOLATE: modules/health/DcgmHealthWatch.cpp, dcgm_errors.c of 4.6.0, 2026-07-06).
REPAIRS = {
    "channel_repair_pending": ("schedule_reboot", "the repair of a memory channel is pending"),
    "tpc_repair_pending": ("schedule_reboot", "the repair of a TPC is pending"),
    "unrepairable_memory": ("isolate", "its memory cannot be repaired"),
    "bank_remapper_pending": ("schedule_reboot", "the remapping of a memory bank is pending"),
}

# What nvidia-smi prints as gpu_recovery_action from R565 on, as recovery_asked compares it; numbers of NVML's
# nvmlDeviceGpuRecoveryAction_t.
_RECOVERY = {
    "none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4,
}  # fmt: skip
# The generation of the port above the GPU: `Unknown Error` in a machine whose virtual PCI bus has no ports (eight
# healthy V100 at 00:04.0 to 00:0B.0, driver 550.127.05).
OF_THE_HOST = "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen"


def unknown_values(gpu: Any) -> dict[str, str]:
    """Path → text of each value of a <gpu> that is unknown: errors anywhere, and what each board has and this lacks.

    gpu: an ElementTree element. What its mode excludes (`excluded_by_mode`) is not required.
    """
    unknown = dict(_errors(gpu, ""))
    required = list(_REQUIRED) + list(_UTILIZATION)
    if row_remapper((gpu.findtext("product_architecture") or "").strip(), ecc=gpu.findtext(_ECC) or ""):
        required += _REMAPPED
    for paths, read in required:
        if any(excluded_by_mode(gpu, path) for path in paths):
            continue
        readings = {path: read(gpu.findtext(path)) for path in paths}
        if paths is _POWER and _measures_no_power(gpu, readings.values()):
            continue
        covered = any(path == found or path.startswith(found + "/") for path in paths for found in unknown)
        if not covered and not any(reading.state == KNOWN for reading in readings.values()):
            shown = next((path for path, reading in readings.items() if reading.text), paths[-1])
            unknown[shown] = readings[shown].text
    return unknown


def _measures_no_power(gpu: Any, draws: Iterable[Reading]) -> bool:
    """Whether a board has no sensor of its power: a display board, without ECC memory (Quadro P400, GTX 1070 Ti)."""
    absent, ecc = [reading for reading in draws if reading.text], gpu.findtext(_ECC)
    if ecc is None or read_word(ecc).state == KNOWN:
        return False
    return bool(absent) and all(reading.state == ABSENT for reading in absent)


def driver_version(document: Any) -> str:
    """The driver's version in a document of nvidia-smi; "" where it has none.

    R610 follows it with `[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]`.
    """
    for name in ("kmd_version", "driver_version"):
        words = (document.findtext(name) or "").split()
        if words and words[0][:1].isdigit():
            return str(words[0])
    return ""


def mig_enabled(gpu: Any) -> bool:
    """Whether a <gpu> is in MIG mode now."""
    return read_flag(gpu.findtext("mig_mode/current_mig")).is_set()


def is_vgpu(gpu: Any) -> bool:
    """Whether a <gpu> is a part of a board, in the machine that has the part."""
    return (gpu.findtext("gpu_virtualization_mode/virtualization_mode") or "").strip().upper() == "VGPU"


def excluded_by_mode(gpu: Any, path: str) -> bool:
    """Whether a healthy <gpu> prints `N/A` for a value, or for the group that has it, because of its mode.

    MIG: `<remapped_rows>N/A</remapped_rows>`, no utilization, and memory of its MIG devices alone (public captures: an
    A100 with 535.54.03, H100 and H200 with 590.48.01). A vGPU shows its names alone. An error in place of a value is
    unknown in any mode.
    """
    if is_vgpu(gpu):
        return path not in ("product_name", "uuid")
    return mig_enabled(gpu) and path.startswith(_ABSENT_UNDER_MIG)


_ABSENT_UNDER_MIG = ("utilization/", "remapped_rows/", "fb_memory_usage/used", "fb_memory_usage/free")


def mig_errors(gpu: Any) -> list[str]:
    """Uncorrectable errors that the driver counted for a MIG device, which the counters of the GPU may not have."""
    found = []
    for device in gpu.findall("mig_devices/mig_device"):
        for element in device.iter():
            if "uncorrectable" not in element.tag:
                continue
            reading = read_number(element.text)
            if reading.state == KNOWN and reading.number() > 0:
                name = "MIG device %s" % (device.findtext("index") or "?").strip()
                found.append("%s: %s %d" % (name, element.tag, reading.number()))
    return found


def repairs(gpu: Any) -> list[tuple[str, str]]:
    """(kind of the action, what it says) of each repair that a <gpu> waits for, or that is not possible."""
    found = [REPAIRS[part.tag] for part in gpu.iter() if part.tag in REPAIRS and read_flag(part.text).is_set()]
    return list(dict.fromkeys(found))


def recovery_asked(action: Optional[str], reset: Optional[str] = None, drain: Optional[str] = None) -> tuple[str, int]:
    """(what the driver asks for, its number, -1 for a label of a later driver); ("", 0) where it asks for nothing.

    action: gpu_recovery_action. Before R565: the flags reset_required and drain_and_reset_recommended.
    """
    reading = read_word(action)
    if reading.state == KNOWN:
        word = re.sub(r"[\s_]+", " ", reading.text).lower()
        number = _RECOVERY.get(word[: -len(" required")] if word.endswith(" required") else word, -1)
        return (reading.text, number) if number else ("", 0)
    if read_flag(reset).is_set():
        return "Reset", 1
    return ("Drain and Reset", 4) if read_flag(drain).is_set() else ("", 0)


def recovery_of(gpu: Any) -> tuple[str, int]:
    """`recovery_asked` of a <gpu>."""
    flags = [gpu.findtext("gpu_reset_status/" + name) for name in ("reset_required", "drain_and_reset_recommended")]
    return recovery_asked(gpu.findtext("gpu_recovery_action") or gpu.findtext("recovery_action"), *flags)


def _errors(element: Any, path: str) -> Iterator[tuple[str, str]]:
    for child in element:
        name = path + child.tag
        if child.tag in FREE_TEXT or name in ("fabric", OF_THE_HOST):
            continue  # fabric_faults reads the former: `Unknown Error` is an answer of the fabric there
        # What only root may read (power_smoothing of a B200) says nothing of the GPU.
        if child.text and is_error(child.text) and child.text.strip() != "Insufficient Permissions":
            yield name, child.text.strip()
        yield from _errors(child, name + "/")


def shown_unknown(unknown: Mapping[str, str]) -> str:
    """The unknown values in a sentence: `29 values, the first temperature/gpu_temp: GPU is lost`."""
    first, text = next(iter(unknown.items()))
    count = "%d values, the first " % len(unknown) if len(unknown) > 1 else ""
    return "%s%s: %s" % (count, first, text or "no value")


def fabric_state(gpu: Any) -> Reading:
    """`Completed`, `In Progress`, `Not Started`. Absent: no fabric, or a GPU before Hopper (NVML has none)."""
    return read_word(gpu.findtext("fabric/state"))


def fabric_faults(gpu: Any) -> list[str]:
    """What is wrong with a GPU's place in the NVLink fabric; nothing where its state is absent."""
    if fabric_state(gpu).state == ABSENT or gpu.find("fabric") is None:
        return []
    faults = []
    for name, good in _FABRIC_GOOD.items():
        path = "fabric/" + name if name in ("state", "status") else "fabric/health/" + name
        element = gpu.find(path)
        if element is None and name not in ("state", "status"):
            continue  # a driver that does not know it yet
        reading = read_word(None if element is None else element.text)
        if reading.state == ABSENT and name not in ("state", "status"):
            continue
        if reading.state != KNOWN or reading.text.lower() not in good:
            faults.append("%s: %s" % (name, reading.shown()))
    if not faults and _MULTI_NODE.search(gpu.findtext("product_name") or ""):
        clique = next(
            (gpu.findtext("fabric/" + name) for name in _CLIQUES if gpu.find("fabric/" + name) is not None), None
        )
        if read_number(clique).state == KNOWN and read_number(clique).number() == 0:
            faults.append("clique: 0, the GPU is in no partition of the NVLink domain")
    return faults


_CLIQUES = ("cliqueId", "clique_id")

# Counters of `nvidia-smi nvlink -e` that count errors: those of NVLink 2 to 4, and of NVLink 5 (R570 to R595). All
# others are traffic, corrected code words (FEC) or raw values of the lanes, which rise on healthy links.
_LINK_ERRORS = frozenset(
    ("replay errors", "recovery errors", "crc errors", "crc flit errors", "crc data errors", "ecc errors")
    + ("malformed packet errors", "buffer overrun errors", "rx errors", "rx remote errors", "rx general errors")
    + ("local link integrity errors", "tx discards", "effective errors", "symbol errors")
    + ("link recovery successful events", "link recovery failed events", "total link recovery events")
)
# Errors in a bit that are left after correction. NVIDIA's limit for its links (ibdiagnet, --ber_thresh: 10^-12).
_LINK_BER, BER_LIMIT = ("effective ber", "symbol ber"), 1e-12
_LINK_LINE = re.compile(r"^\s*Link (\d+): (?:([A-Za-z][^:]*): )?(\S.*?)\s*$")
_LINK_HEADING = re.compile(r"^GPU (\d+): ")
# In place of its links: `Nvlink queries are not supported for Devices in MIG mode` (H100 and H200 with 590.48.01),
# `Device does not have or support Nvlink` (L40S with 595.80; public captures of nvidia_gpu_exporter).
_NO_LINKS = re.compile(r"not supported for devices in MIG mode|not have or support nvlink", re.IGNORECASE)


class LinkCounter:
    """A line of `nvidia-smi nvlink -e`: GPU and link by index, the counter's name, and what was printed."""

    __slots__ = ("gpu", "link", "name", "text")

    def __init__(self, gpu: int, link: int, name: str, text: str) -> None:
        self.gpu, self.link, self.name, self.text = gpu, link, name, text

    @property
    def value(self) -> Optional[int]:
        """None: not a whole number, as bit error rates and errors."""
        return int(self.text) if self.text.isdigit() else None

    def is_unknown(self) -> bool:
        return is_error(self.text)

    def fault(self) -> str:
        """What a healthy link does not show; "" for a good value, for traffic and for raw values of the lanes."""
        name = self.name.lower()
        if name in _LINK_BER:
            try:
                rate = float(self.text)
            except ValueError:
                return ""
            return "%s: %s, the limit is %g" % (self.name, self.text, BER_LIMIT) if rate > BER_LIMIT else ""
        return "%s: %s" % (self.name, self.text) if name in _LINK_ERRORS and self.value else ""


def link_counters(printed: str) -> list[LinkCounter]:
    """The counters in the output of `nvidia-smi nvlink -e`."""
    gpu, found = None, []  # type: Optional[int], list[LinkCounter]
    for line in printed.splitlines():
        heading, row = _LINK_HEADING.match(line), _LINK_LINE.match(line)
        if heading:
            gpu = int(heading.group(1))
        elif row and row.group(2) and gpu is not None:
            found.append(LinkCounter(gpu, int(row.group(1)), row.group(2).strip(), row.group(3)))
    return found


# GPUs all of whose links lead to NVSwitches: SXM boards. Others leave links unused (V100, bridges between two boards).
_ON_NVSWITCH = re.compile(r"A100-SXM4|H100 80GB HBM3|H200(?! NVL)|B[23]00|GB[23]00")
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_OF_A_MACHINE = 4  # GPUs of a machine with NVSwitches, at least; EC2 has one alone without any (p5.4xlarge)


def inactive_links(*printed: str) -> dict[int, str]:
    """GPU → what is missing, of `nvidia-smi nvlink -s` or `-e`: links that are inactive, or fewer than other GPUs have.

    Links that are inactive on all GPUs alike are a fault where all lead to NVSwitches: a switch is missing. Else they
    are none, and neither is a machine without an active link.
    """
    active, headed, switched = {}, set(), set()  # type: dict[int, set[int]], set[int], set[int]
    inactive = {}  # type: dict[int, set[int]]
    for text in printed:
        gpu = None  # type: Optional[int]
        for line in text.splitlines():
            heading, row = _LINK_HEADING.match(line), _LINK_LINE.match(line)
            if heading:
                gpu = int(heading.group(1))
                headed.add(gpu)
                if _ON_NVSWITCH.search(line):
                    switched.add(gpu)
            elif gpu is not None and _NO_LINKS.search(line):
                headed.discard(gpu)
            elif gpu is not None and _ALL_INACTIVE.search(line):
                inactive.setdefault(gpu, set())
            elif row and gpu is not None:
                down = row.group(3).strip("<>").lower() == "inactive"
                (inactive if down else active).setdefault(gpu, set()).add(int(row.group(1)))
    for gpu, links in inactive.items():
        active.get(gpu, set()).difference_update(links)
    most = max([len(links) for links in active.values()] or [0])
    is_whole = len(headed & switched) >= _OF_A_MACHINE
    faults = {}
    for gpu in sorted(headed):
        count, down = len(active.get(gpu, ())), sorted(inactive.get(gpu, ()))
        of_switch = is_whole and gpu in switched and gpu in inactive
        if count < most or of_switch:
            named = ": inactive %s" % ", ".join(map(str, down)) if down and count else ""
            total = max(most, count + len(down))
            faults[gpu] = "%d of %d NVLinks are active%s" % (count, total, named) if total else "no NVLink is active"
    return faults


def is_efa(name: str, driver: str) -> bool:
    """Whether an RDMA device is an EFA. driver: the target of its link device/driver, "" where there is none.

    P6 instances have ConnectX bridges in the same directory (ibp…, driver mlx5_core), over which the fabric manager
    reaches the NVSwitches: public captures of a p6-b200.48xlarge and a p6-b300.48xlarge. Without the link the name
    decides: rdma-core's rdma_rename calls InfiniBand devices ibp…, RoCE devices rocep…, and EFAs rdmap….
    """
    if not driver.strip():
        return re.match(r"(rdmap|efa_)\d", name) is not None
    return driver.strip().rstrip("/").rpartition("/")[2] == "efa"


def efa_devices(root: str = "") -> list[str]:
    """Names in /sys/class/infiniband of the devices that are EFAs, sorted."""
    folder = os.path.join(root or "/", "sys/class/infiniband")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        try:
            driver = os.readlink(os.path.join(folder, name, "device/driver"))
        except OSError:
            driver = ""
        if is_efa(name, driver):
            found.append(name)
    return found
'''
if readings is None:
    readings = types.ModuleType("readings")
    exec(compile(_READINGS, "readings.py", "exec"), readings.__dict__)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Returns the exit code."""
    options = argparse.ArgumentParser(
        prog="gpu-ami-diagnose", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", action="store_true", help="print one JSON document")
    text = "also compute on every GPU and compare every result: takes 256 MiB of each and up to two minutes"
    options.add_argument("--compute", action="store_true", help=text)
    options.add_argument("--seconds", type=float, default=SECONDS, help="deadline of each probe (default: %(default)s)")
    text = "also write what AWS Support asks for: diagnosis, logs, NVIDIA's bug report; needs root and takes minutes"
    options.add_argument("--bundle", metavar="FILE.tar.gz", help=text)
    text = "print one line for a scheduler; exit with 0 (healthy), 1 (drain) or 3 (unknown); takes seconds"
    options.add_argument("--health", action="store_true", help=text)
    text = "with --health: a kind of finding that does not drain, for example schedule_reboot (repeatable)"
    options.add_argument("--ignore", action="append", default=[], choices=DRAINS, metavar="KIND", help=text)
    text = "with --health: exit with 1 also where the state is unknown"
    options.add_argument("--unknown-drains", action="store_true", help=text)
    args = options.parse_args(arguments)
    machine = Machine(seconds=args.seconds)
    if args.health:
        code, line = health(diagnose(machine, args.compute, HEALTH_PROBES), args.ignore, args.unknown_drains)
        sys.stdout.write(line + "\n")
        return code
    document = diagnose(machine, args.compute)
    sys.stdout.write(json.dumps(document) + "\n" if args.json else as_text(document))
    sys.stdout.flush()
    if args.bundle and not _write_bundle(args.bundle, document, machine.seconds):
        return 2
    return int(document["exit_code"])


if __name__ == "__main__":
    raise SystemExit(main())
