#!/usr/bin/python3 -sSE
"""gpu-ami-diagnose: what the GPUs, the network cards and the event monitor of this machine report, and what to do.

Reads and changes nothing; --compute also computes on every GPU, beside its jobs. Each probe has a deadline; what does
not answer is named and ends nothing.
Exit codes: 0 nothing asks for an action; 1 something does; 2 wrong arguments, or the bundle cannot be written;
3 nothing that was read asks for an action, but a probe did not answer.
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
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

try:
    # Beside this program on an image; remote.python() sends it along.
    from hwevents import readings  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from onhost import readings

SCHEMA = "gpu-ami/diagnosis/1"
SECONDS = 20.0  # of one probe
_COMPUTE_SECONDS = 120.0
NOT_INSTALLED, TIMED_OUT = 127, 124
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
_DO = {
    "schedule_reboot": "Let the jobs on this GPU finish and reboot the instance; the repair takes effect then",
    "isolate": "Take the instance out of service: stop and start it, so that EC2 moves it to another host. " + _SUPPORT,
    "drain": "Stop peer-to-peer jobs on this GPU and start no new job on it",
    "reboot": "Stop the jobs on this GPU and reboot the instance; stop and start it if this comes back",
    "aws_support": _SUPPORT,
    "check_cooling": "AWS cools the host: move jobs away, and stop and start the instance if this stays. " + _SUPPORT,
    "check_link": "Stop all GPU jobs and reboot the instance; stop and start it if the counter rises again",
    "repair_service": "Read `journalctl -u UNIT` and start the unit; until then its events or metrics are not seen",
    "monitor": "Nothing now; compare with a later diagnosis",
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
    """status: `missing` (not installed), `absent` (the machine has no such device), `failed` or `timeout`."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


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
        status, out, _ = execute(command, self.seconds)
        if status == NOT_INSTALLED:
            raise Unanswered("missing", command[0] + " is not installed")
        if status == TIMED_OUT:
            raise Unanswered("timeout", "%s: no answer within %g s" % (" ".join(command), self.seconds))
        if status:
            first = out.decode("utf-8", "replace").strip().partition("\n")[0]
            raise Unanswered("failed", "%s: exit status %d: %s" % (" ".join(command), status, first or "no output"))
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
    return Finding(level, subject, text, kind, _DO[kind])


def remapped_rows(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Rows of memory that each GPU has replaced, or could not."""
    printed = machine.run("nvidia-smi", "--query-remapped-rows=" + ",".join(_ROWS), "--format=csv,noheader")
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
    try:
        document = ElementTree.fromstring(machine.run("nvidia-smi", "-q", "-x"))
    except ElementTree.ParseError as error:
        raise Unanswered("failed", "nvidia-smi -q -x: no XML: %s" % error) from None
    driver = document.findtext("driver_version", "")
    rows, findings = [], []  # type: List[Record], List[Finding]
    for gpu in document.iter("gpu"):
        row = {"pci": gpu.get("id", ""), "driver": driver}  # type: Record
        row.update((key, gpu.findtext(name, "")) for key, name in _GPU_FIELDS)
        row["recovery_action"] = row["recovery_action"] or gpu.findtext("recovery_action", "")
        row["ecc"] = {part: _counters(gpu.find("ecc_errors/" + part)) for part in ("volatile", "aggregate")}
        row["slowdowns"] = list(_active(gpu))
        row["unknown"], row["fabric"] = readings.unknown_values(gpu), readings.fabric_faults(gpu)
        rows.append(row)
        findings += _gpu_findings(row, gpu)
    if not rows:
        raise Unanswered("failed", "nvidia-smi -q -x names no GPU")
    return rows, findings


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
        yield _finding("action", subject, "unknown: " + readings.shown_unknown(row["unknown"]), "unknown")
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
    for reason in row["slowdowns"]:
        if reason in _SLOWDOWNS:
            yield _finding(_SLOWDOWNS[reason], subject, "clocks are lowered: " + reason, "check_cooling")
    asked = readings.read_word(row["recovery_action"])
    if asked.state == readings.KNOWN and asked.text != "None":
        kind = "drain" if row["recovery_action"] == "Drain P2P" else "reboot"
        yield _finding("action", subject, "the driver asks for: " + row["recovery_action"], kind)


def nvlink(machine: Machine) -> Tuple[Any, List[Finding]]:
    """Error counters of the NVLinks since the driver was loaded. Single recovered errors belong to normal operation."""
    data, findings = {}, []  # type: Dict[str, Dict[str, int]], List[Finding]
    printed = machine.run("nvidia-smi", "nvlink", "-e")
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
    try:
        source = json_log(machine)
        lines = machine.text(source).splitlines()
    except OSError:
        if not os.access(machine.root + PARSER, os.R_OK):
            raise Unanswered("missing", "the event parser is not installed: no events to read") from None
        source = "kernel log"
        lines = machine.run("sh", "-c", "dmesg | python3 -sSE %s parse -" % (machine.root + PARSER)).splitlines()
    read = [event for event in map(_document, lines) if event.get("kind") in _EVENT_KINDS]
    current = [event for event in read if event.get("boot_id") in (None, boot)]
    findings = {}
    for event in current:
        action = str(event.get("ec2_action"))
        if action not in _NO_ACTION and event.get("origin") != "userland":
            pci = str(event.get("pci") or "")
            subject = pci or "Neuron" if event["kind"] == "neuron" else "GPU " + (pci or "of unknown address")
            text = "%s %s: %s" % (_EVENT_KINDS[event["kind"]], event.get("code"), event.get("name"))
            text += "; likely cause: %s" % event["likely_cause"] if event.get("likely_cause") else ""
            findings[subject, text] = Finding("action", subject, text, action, str(event.get("ec2_meaning")))
    newest = [{name: event.get(name) for name in _EVENT_FIELDS} for event in current[-20:]]
    counts = {"count": len(current), "earlier": len(read) - len(current)}
    return dict(counts, source=source, newest=newest), list(findings.values())


_EVENT_KINDS = {
    "xid": "XID", "sxid": "SXID", "gpu_lost": "GPU_LOST", "neuron": "NEURON", "gpu_init_failed": "GPU initialisation",
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
    return state, [Finding("action", unit, text, "repair_service", _DO["repair_service"].replace("UNIT", unit))]


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
            do = _DO["repair_service"].replace("UNIT", unit)
            findings.append(Finding("action", unit, "the last heartbeat was %.0f s ago" % age, "repair_service", do))
    elif not findings:
        text = "its heartbeat is unknown: /run/gpu-ami/event-parser.json: %s" % status.get(
            "unread", "no heartbeat in it"
        )
        findings.append(Finding("action", unit, text, "repair_service", _DO["repair_service"].replace("UNIT", unit)))
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


def _reading(machine: Machine, path: str) -> readings.Reading:
    return readings.read_number(_text_or_none(machine, path))


def _text_or_none(machine: Machine, path: str) -> Optional[str]:
    try:
        return machine.text(path)
    except OSError:
        return None


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
    return rows, list(_compute_findings(rows))


def _compute_findings(rows: List[Record]) -> Iterator[Finding]:
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
    "gpus": gpus, "remapped_rows": remapped_rows, "nvlink": nvlink, "events": events, "parser": parser, "agent": agent,
    "efa": efa,
}  # type: Dict[str, Probe]  # fmt: skip


def _ask(machine: Machine, probe: Probe, into: Record) -> None:
    started = time.monotonic()
    try:
        data, findings = probe(machine)
        into.update(status="read", data=data, findings=findings)
        into.pop("why", None)  # of the answer that it had not given yet
    except Unanswered as error:
        into.update(status=error.status, why=str(error))
    except Exception as error:  # a probe that fails must not hide the others
        into.update(status="failed", why="%s: %s" % (type(error).__name__, error))
    into["seconds"] = round(time.monotonic() - started, 2)


def diagnose(machine: Machine, computes: bool = False) -> Record:
    """The document of `--json`: every probe with its answer, and the findings."""
    probes = dict(PROBES, compute=compute) if computes else PROBES
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
        lines.append("  %(time)s  %(kind)s %(code)s  %(pci)s  %(severity)s  %(ec2_action)s: %(name)s" % event + drill)
    return "\n".join(lines) + "\n"


def _summary(name: str, data: Any) -> str:
    if name == "gpus":
        return "%s, driver %s" % (_counted(data, "GPU"), data[0]["driver"])
    if name in ("remapped_rows", "nvlink"):
        # nvidia-smi nvlink prints nothing where no link is active: an H100 and an H200 passed through alone.
        return _counted(data, "GPU") if data else "no active link"
    if name == "events":
        return "%(count)d of this boot, %(earlier)d of earlier boots (%(source)s)" % data
    if name == "compute":
        return "computed on " + _counted(data[1:], "GPU")
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
    args = options.parse_args(arguments)
    machine = Machine(seconds=args.seconds)
    document = diagnose(machine, args.compute)
    sys.stdout.write(json.dumps(document) + "\n" if args.json else as_text(document))
    sys.stdout.flush()
    if args.bundle and not _write_bundle(args.bundle, document, machine.seconds):
        return 2
    return int(document["exit_code"])


if __name__ == "__main__":
    raise SystemExit(main())
