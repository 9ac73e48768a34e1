"""Collects evidence of a host, whatever the verdict: logs and states as files, facts and replicas for the report.

No key file, shadow, credential or environment of a process is collected, and what looks like a secret is not kept, in
logs, JSON or the vendor's compressed report (secret_shapes); a program may still have printed one that looks like any
word. Its owner alone can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onhost import support_bundle
from onhost.support_bundle import AGENT, BUG_REPORT, BUG_REPORT_BYTES, BUG_REPORT_SECONDS
from validator import pci, remote, secret_shapes
from validator.results import Replica
from validator.transport import Command, SshError, backend

MATERIALS_FILE = "materials.json"
INODES_FILE = "inodes.json"  # of an image's files: what machines compare (probes/since_image.py)
DIAGNOSIS_FILE = "diagnosis.json"
ROUND_TRIPS_FILE = "round-trips.jsonl"  # where the time of the checks went (bench/bench_proof.py)
FACTS_FILE = "facts.json"  # what a certificate's level depends on, as it was observed
# File of the evidence folder → the command whose output it contains. Each has a time and a size limit.
COMMANDS: Mapping[str, str] = {
    **support_bundle.FILES,
    DIAGNOSIS_FILE: remote.python("diagnose", "--json"),
    "journal.log": "journalctl -b --no-pager -o short-precise | tail -n 20000",
    # What is enabled, masked and changed is links and files here.
    "units.txt": (
        "systemctl list-units --all --no-pager --plain;"
        " find /etc/systemd/system /run/systemd/system -mindepth 1 ! -type d -printf '%p %l\\n' | sort"
    ),
    # Without `dkms status`, which test_dkms_built_for_every_kernel has, and which takes longer than all the rest.
    "nvidia-driver.txt": support_bundle.FILES["nvidia-driver.txt"].removesuffix("; dkms status"),
    "boot-times.txt": "systemd-analyze time",  # journal.log says when each unit was started
    "slow-units.txt": "systemd-analyze blame --no-pager | head -40",
    "unit-files.txt": "systemctl list-unit-files --no-pager",
    # `cloud-init analyze blame -i cloud-init.log` has the times of its modules.
    "cloud-init.log": "cat /var/log/cloud-init.log /var/log/cloud-init-output.log | tail -n 5000",
    "packages.txt": "dpkg-query -W 2>/dev/null || rpm -qa",
    MATERIALS_FILE: remote.python(
        "materials", "--added-modules"
    ),  # of which `gpu-ami certify` makes the bill of materials
    "agent-config.json": f"cat {AGENT}/etc/amazon-cloudwatch-agent.d/*",
    "agent-config.toml": f"cat {AGENT}/etc/amazon-cloudwatch-agent.toml",
}
# Files after a restart. The others have not changed since the first boot, and collecting them would take minutes.
OF_EACH_BOOT = frozenset(
    {"kernel.log", "journal.log", "failed-units.txt", "nvidia-smi.xml", "agent.log", "gpuevent.log", "gpuevent.jsonl"}
    | {"parser.txt", "parser-state.txt"}
)
# Files of a machine with a failed check alone. nvidia-smi.xml has the same of all others; for each of the other two,
# systemd is occupied with every unit of the machine, for seconds where its processor is slow.
OF_A_FAILURE = frozenset({"nvidia-smi.txt", "slow-units.txt", "unit-files.txt"})
# Files of an image that is not booted. The other commands would describe the machine that runs them.
OF_FILES = frozenset({"packages.txt", MATERIALS_FILE, "agent-config.json", "agent-config.toml"})
NOTHING_KEPT: Mapping[str, str] = MappingProxyType({})
_DEADLINE = 60.0
_FACT_CHARACTERS = 500
_MATERIALS_DEADLINE = 240.0  # modinfo reads every kernel module
# The vendor's own report: only if a check has failed.
_NO_BUG_REPORT = 127
BUG_REPORT_COMMAND = remote.with_arguments("bug_report", f"{BUG_REPORT_SECONDS - 20:g}", str(BUG_REPORT_BYTES))
_FACTS: Mapping[str, str] = {
    "kernel": "uname -r",
    "boot_id": "cat /proc/sys/kernel/random/boot_id",
    "architecture": "uname -m",
    "os": ". /etc/os-release && echo $PRETTY_NAME",
    "driver": "modinfo -F version nvidia || modinfo -F version nvidia-current",
    "hardware": pci.KIND,  # a certificate is "certified" only if this is "real"
    "agent": (
        "dpkg-query -W -f '${Version}' amazon-cloudwatch-agent 2>/dev/null"
        " || rpm -q --qf '%{VERSION}' amazon-cloudwatch-agent"
    ),
    "uptime_s": "cut -d' ' -f1 /proc/uptime",
}


@dataclass
class Evidence:
    """Facts and replicas of a host for the report. facts: name → text, "packages" → count, "transport" → counts."""

    facts: dict[str, object] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)


def collect(
    host: Any,
    folder: Path | None,
    *,
    failed: bool,
    restarted: bool = False,
    kept: Mapping[str, str] = NOTHING_KEPT,
    image_files: Path | None = None,
) -> Evidence:
    """Collects facts and replicas of a host and, with a folder, writes logs and states there as files.

    failed: a check of the host failed. restarted: evidence was also collected before the restart, so less is now.
    kept: files that checks have read already, with their content. image_files: evidence of the image's files, which a
    machine without a failed check is not asked for again.
    If the host cannot be reached, the fact "unreachable" and a file of that name have the error.
    """
    evidence = Evidence()
    facts, files = _selected(host, failed, restarted)
    if image_files is not None and not failed and packages_of(image_files):
        files.pop(MATERIALS_FILE, None)
    commands = {name: Command(_FACTS[name], _DEADLINE) for name in facts}
    if not restarted:  # a restart does not change the packages
        commands["replica packages"] = Command(remote.text("replica_packages"), _DEADLINE)
        commands["replicas built"] = Command(remote.text("replica_builds"), _DEADLINE)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS.keys() - files.keys():  # of an earlier run
            (folder / name).unlink(missing_ok=True)
        for name, text in kept.items():
            files.pop(name, None)
            data = text.encode("utf-8", "surrogateescape")
            _write(folder / name, secret_shapes.hidden_file(name, data)[0])
        commands |= {f"file {name}": command for name, command in files.items()}
    try:
        results = _run(host, commands)
    except SshError as fault:
        evidence.facts["unreachable"] = str(fault)
        if folder is not None:
            _write(folder / "unreachable.txt", f"{fault}\n".encode())
        return evidence
    for name in facts:
        rc, out, _ = results[name]
        if rc == 0 and out.strip():
            evidence.facts[name] = _shown(out).strip().splitlines()[0][:_FACT_CHARACTERS]
    if isinstance(host.backend, backend.BatchBackend):
        evidence.facts["transport"] = host.backend.link.cost
    if not restarted:
        packages, built = results["replica packages"][1], results["replicas built"][1]
        evidence.replicas += replicas(_shown(packages), _shown(built))
    if folder is not None:
        for name in files:
            keep_file(folder, name, *results[f"file {name}"])
        if not restarted:
            printed = {
                name: results[f"file {name}"][1].decode(errors="replace") if f"file {name}" in results else ""
                for name in ("boot-times.txt", "journal.log")
            }
            evidence.facts |= boot_facts(printed["boot-times.txt"], printed["journal.log"])
        evidence.facts |= inventory_facts(folder)
        if MATERIALS_FILE in files and (installed := packages_of(folder)):
            evidence.facts["packages"] = len(installed)
        if not restarted:
            text = json.dumps(claims(evidence.facts, evidence.replicas), indent=2)
            _write(folder / FACTS_FILE, f"{text}\n".encode())
        if isinstance(host.backend, backend.BatchBackend):
            _write(folder / ROUND_TRIPS_FILE, round_trips(host.backend.link).encode())
    return evidence


def _shown(out: bytes) -> str:
    return secret_shapes.hidden(out.decode(errors="replace"))


def packages_of(folder: Path) -> list[object]:
    """The installed packages that the materials in a folder of evidence list; none where there are no materials."""
    try:
        materials = json.loads((folder / MATERIALS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    packages = materials.get("packages") if isinstance(materials, dict) else None
    return packages if isinstance(packages, list) else []


_SHOWN_CHARACTERS = 100


def round_trips(link: backend.HostLink) -> str:
    """The batches of commands that a host has answered, as JSON lines.

    began: seconds since 1970. Each command has the seconds that it ran on the host, its beginning, and the checks that
    asked for it: none if it is of the evidence, or answers several commands at once.
    """
    lines = []
    for trip in link.round_trips:
        commands = [
            {
                "seconds": round(seconds, 2),
                "checks": [_check_of(name) for name in link.askers.get(text, ())],
                "command": secret_shapes.hidden(" ".join(text.split()))[:_SHOWN_CHARACTERS],
            }
            for text, seconds in trip.commands
        ]
        lines.append(
            json.dumps({"began": round(trip.began, 3), "seconds": round(trip.seconds, 3), "commands": commands})
        )
    return "".join(f"{line}\n" for line in lines)


def _check_of(node: str) -> str:
    """The id of a check, from pytest's: `validator/checks/compute.py::test_x[ssh://a@b]` → `compute::test_x`."""
    file, _, name = node.partition("::")
    return f"{Path(file).stem}::{name.partition('[')[0]}"


def claims(facts: Mapping[str, object], replicas: Sequence[Replica]) -> dict[str, object]:
    """What a report says of a host that its certificate's level depends on: kept with the evidence, compared later."""
    names = sorted({f"{entry.package} {entry.version}".strip() for entry in replicas})
    return {"hardware": facts.get("hardware"), "inventory_root": facts.get("inventory_root"), "replicas": names}


# The journal, short-precise: `Nov 27 17:53:20.123456 host systemd[1]: Starting ssh.service - OpenBSD Secure Shell…`;
# before systemd 250 without the unit's name.
_UNIT_LINE = re.compile(
    r"(?m)^(?P<day>[A-Z][a-z]{2} [ \d]\d) (?P<clock>\d\d:\d\d:\d\d\.\d{6}) \S+ systemd\[1\]: "
    r"(?P<what>Starting|Started|Finished) (?P<unit>.+?)(?:\.{3}|\.)?$"
)
_BOOTED = re.compile(r"(?m)^[A-Z][a-z]{2} [ \d]\d \S+ \S+ systemd\[1\]: (Startup finished in .+?)\.?$")
_LONGEST = 5


def boot_facts(analyzed: str, journal: str) -> dict[str, object]:
    """What the report says of the first boot: systemd's own sum (systemd-analyze time), and what took long."""
    facts: dict[str, object] = {}
    first = analyzed.strip().partition("\n")[0]
    logged = _BOOTED.search(journal)  # what systemd wrote when the boot ended
    if first.startswith("Startup finished"):
        facts["boot_time"] = first.strip()
    elif logged:
        facts["boot_time"] = logged[1]
    longest = [f"{unit} {seconds:.1f} s" for unit, seconds in slow_units(journal)[:_LONGEST] if seconds >= 1]
    return facts | ({"slow_units": ", ".join(longest)} if longest else {})


def slow_units(journal: str) -> list[tuple[str, float]]:
    """(unit, seconds from `Starting` to `Started` or `Finished`) of a journal, the longest first.

    `systemd-analyze blame` asks systemd about every unit, which takes seconds of an emulated processor. A unit without
    a time of its own (a target, a socket) is left out, and one during which the clock was set back.
    """
    started: dict[str, float] = {}
    took: dict[str, float] = {}
    for match in _UNIT_LINE.finditer(journal):
        hours, minutes, seconds = match["clock"].split(":")
        at = int(match["day"][4:]) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        unit = match["unit"].partition(" - ")[0]
        if match["what"] == "Starting":
            started[unit] = at
        elif unit in started and at >= started[unit]:
            took.setdefault(unit, at - started.pop(unit))
    return sorted(took.items(), key=lambda entry: -entry[1])


def inventory_facts(folder: Path) -> dict[str, object]:
    """What the report has of an inventory that the file account left in the folder: its root, to prove single paths."""
    path = folder / "inventory.jsonl.gz"
    if not path.is_file():
        return {}
    from validator import file_account  # the file account was taken: it is loaded already

    inventory = file_account.read(path.read_bytes())
    return {"inventory_root": file_account.merkle_root(inventory), "inventory_entries": len(inventory.entries)}


def _selected(host: Any, failed: bool, restarted: bool) -> tuple[list[str], dict[str, Command]]:
    """The facts and files to collect: few after a restart; of an image's files those that need no running kernel."""
    names, facts = set(COMMANDS) - (frozenset() if failed else OF_A_FAILURE), list(_FACTS)
    if isinstance(host.backend, backend.ImageBackend):
        names, facts = {*OF_FILES, INODES_FILE}, ["os", "agent"]
    elif restarted:
        names, facts = names if failed else set(OF_EACH_BOOT), ["kernel", "boot_id", "driver"]
    deadlines = {MATERIALS_FILE: _MATERIALS_DEADLINE}
    texts = dict(COMMANDS)
    if isinstance(host.backend, backend.ImageBackend):  # no emulated processor: modinfo reads every module in seconds
        texts[MATERIALS_FILE] = remote.python("materials")
        texts[INODES_FILE] = remote.text("image_inodes")
    files = {name: Command(text, deadlines.get(name, _DEADLINE)) for name, text in texts.items() if name in names}
    if failed and not isinstance(host.backend, backend.ImageBackend):
        files[BUG_REPORT] = Command(BUG_REPORT_COMMAND, BUG_REPORT_SECONDS)
    return facts, files


def keep_file(folder: Path, name: str, rc: int, out: bytes, err: bytes) -> None:
    """Writes what a command of the evidence printed, without what looks like a secret."""
    error = b"" if rc == 0 and out else b"\n[exit status %d] " % rc + err
    if name != BUG_REPORT:
        _write(folder / name, secret_shapes.hidden_file(name, out + error)[0])
    elif rc != _NO_BUG_REPORT:  # the driver has no such script
        report, note = secret_shapes.hidden_file(name, out)
        if report:
            _write(folder / name, report)
        if error or note or len(out) >= BUG_REPORT_BYTES:  # the file is compressed, so notes go to a file beside it
            cut = b"truncated at %d bytes\n" % BUG_REPORT_BYTES if len(out) >= BUG_REPORT_BYTES else b""
            notes = cut + note.encode() + b"\n" * bool(note) + error.lstrip() + (err if not error else b"")
            _write(folder / f"{name}.txt", secret_shapes.hidden_bytes(notes))


def _write(path: Path, data: bytes) -> None:
    """Replaces a file. The folder may be one that somebody sent: a link of theirs is replaced, not followed."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _run(host: Any, commands: Mapping[str, Command]) -> dict[str, tuple[int, bytes, bytes]]:
    if isinstance(host.backend, backend.BatchBackend):
        answers, _ = host.backend.link.execute(list(commands.values()), root=True)
        return {name: (answer.rc, answer.stdout, answer.stderr) for name, answer in zip(commands, answers, strict=True)}
    ran = {name: host.run(command.text) for name, command in commands.items()}
    return {name: (done.rc, done.stdout_bytes, done.stderr_bytes) for name, done in ran.items()}


def replicas(packages: str, built: str) -> list[Replica]:
    """Replica packages, and replica modules and libraries (lines of name, version and description)."""
    entries = []
    for line in packages.splitlines():
        _, package, version, summary = (*line.split("\t"), "", "", "")[:4]
        entries.append(Replica(package, version, summary))
    for line in built.splitlines():
        name, version, description = (*line.split("\t"), "", "")[:3]
        if "gpu-ami replica" in description:
            entries.append(Replica(name, version.strip(), description.strip()))
    return entries
