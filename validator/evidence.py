"""What is kept of a host whatever the verdict: logs and states as files, replicas and facts for the report.

Secrets are never among it: no key files, no shadow, no credentials, and no environment of any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validator import oracle
from validator.backend import BatchBackend, ImageBackend
from validator.results import FAIL, Results
from validator.shell import Command
from validator.ssh import SshError

AGENT = "/opt/aws/amazon-cloudwatch-agent"
# File of the evidence folder → the command whose output it holds. Each is bounded in time and in size.
COMMANDS: Mapping[str, str] = {
    "kernel.log": "dmesg --time-format=iso 2>/dev/null || dmesg",
    "journal.log": "journalctl -b --no-pager -o short-precise | tail -n 20000",
    "units.txt": "systemctl list-units --all --no-pager --plain; systemctl list-unit-files --no-pager",
    "failed-units.txt": "systemctl list-units --failed --plain --no-legend --no-pager",
    "boot-times.txt": "systemd-analyze time; systemd-analyze blame --no-pager | head -40; cloud-init analyze blame",
    "cloud-init.log": "cat /var/log/cloud-init.log /var/log/cloud-init-output.log | tail -n 5000",
    "packages.txt": "dpkg-query -W 2>/dev/null || rpm -qa",
    "nvidia-smi.txt": "nvidia-smi -q",
    "nvidia-smi.xml": "nvidia-smi -q -x",
    "nvidia-driver.txt": "cat /proc/driver/nvidia/version; modinfo nvidia; dkms status",
    "pci.txt": "lspci -nnk 2>/dev/null || grep -H . /sys/bus/pci/devices/*/uevent",
    "agent.log": f"tail -n 5000 {AGENT}/logs/amazon-cloudwatch-agent.log",
    "agent-config.json": f"cat {AGENT}/etc/amazon-cloudwatch-agent.d/*",
    "agent-config.toml": f"cat {AGENT}/etc/amazon-cloudwatch-agent.toml",
    "gpuevent.log": "tail -n 5000 /var/log/gpuevent.log",
    "gpuevent.jsonl": "tail -n 5000 /var/log/gpuevent.jsonl",
    "parser.txt": "systemctl status --no-pager -l aws-hw-monitor.service; systemctl show aws-hw-monitor.service",
    "parser-state.txt": "tail -n +1 /run/gpu-ami/event-parser.json /var/lib/gpu-ami/event-parser/* 2>&1",
    "memory.txt": "free -m; df -h; ps -eo pid,user,stat,rss,etime,comm",
}
# Of a boot that is not the first: what the others hold has not changed since, and a restart shall not cost minutes.
OF_EACH_BOOT = frozenset(
    {"kernel.log", "journal.log", "failed-units.txt", "nvidia-smi.xml", "agent.log", "gpuevent.log", "gpuevent.jsonl"}
    | {"parser.txt", "parser-state.txt"}
)
# Of an image whose kernel does not run: the others would tell of the machine that looks at it.
OF_FILES = frozenset({"packages.txt", "agent-config.json", "agent-config.toml"})
_DEADLINE = 60.0
# The vendor's own report takes a minute and more, and may hang with the board: only where a check has failed.
BUG_REPORT = "nvidia-bug-report.log.gz"
BUG_REPORT_SECONDS = 180.0
BUG_REPORT_BYTES = 16 << 20
_NO_BUG_REPORT = 127
_BUG_REPORT = (
    f"command -v nvidia-bug-report.sh >/dev/null || exit {_NO_BUG_REPORT}; d=$(mktemp -d) && cd $d || exit 1;"
    " trap 'rm -rf $d' EXIT;"
    f" timeout -k 5 {BUG_REPORT_SECONDS - 20:g} nvidia-bug-report.sh --safe-mode --output-file $d/report.log >out 2>&1;"
    f" r=$?; cat report.log* 2>/dev/null | head -c {BUG_REPORT_BYTES};"
    " tail -n 5 out >&2; wc -c report.log* >&2; exit $r"
)
_FACTS: Mapping[str, str] = {
    "kernel": "uname -r",
    "boot_id": "cat /proc/sys/kernel/random/boot_id",
    "architecture": "uname -m",
    "os": ". /etc/os-release && echo $PRETTY_NAME",
    "driver": "modinfo -F version nvidia",
    "hardware": oracle.KIND,  # a certificate is "certified" only where this says "real"
    "agent": (
        "dpkg-query -W -f '${Version}' amazon-cloudwatch-agent 2>/dev/null"
        " || rpm -q --qf '%{VERSION}' amazon-cloudwatch-agent"
    ),
    "uptime_s": "cut -d' ' -f1 /proc/uptime",
}
_REPLICA_FORMAT = "${Gpu-Ami-Replica}\\t${Package}\\t${Version}\\t${binary:Summary}\\t${db:Status-Status}\\n"
# An .rpm has no field of its own for it; its vendor says so.
_REPLICA_RPM_FORMAT = "%{VENDOR}\\t%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{SUMMARY}\\n"
_REPLICA_RPMS = f"rpm -qa --qf '{_REPLICA_RPM_FORMAT}' | sed -n 's/^gpu-ami replica\\t/yes\\t/p'"
_REPLICA_PACKAGES = (
    f"{{ dpkg-query -W -f '{_REPLICA_FORMAT}'; {_REPLICA_RPMS}; }} 2>/dev/null"
    " | sed '/\\tconfig-files$/d' | grep -i '^yes'"
)

# What no package lists: kernel modules, and what was built from a git repository.
_REPLICA_BUILT = (
    "for m in nvidia efa neuron gdrdrv lustre; do d=$(modinfo -F description $m 2>/dev/null) &&"
    ' printf "%s (kernel module)\\t%s\\t%s\\n" "$m" "$(modinfo -F version $m)" "$d"; done;'
    ' f=/opt/amazon/ofi-nccl/lib/libnccl-net.so; d=$(grep -a -o -m 1 "gpu-ami replica of aws-ofi-nccl [0-9.]*" $f) &&'
    ' printf "%s\\t%s\\t%s\\n" $f "${d##* }" "$d"'
)


def finish(host: Any, results: Results, folder: Path | None, *, restarted: bool = False) -> None:
    """Fills facts and replicas and, with a folder, keeps the evidence. A host that is gone leaves a note instead."""
    facts, files = _wanted(host, results, restarted)
    commands = {name: Command(_FACTS[name], _DEADLINE) for name in facts}
    if not restarted:  # no package comes or goes by a restart
        commands["replica packages"] = Command(_REPLICA_PACKAGES, _DEADLINE)
        commands["replicas built"] = Command(_REPLICA_BUILT, _DEADLINE)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        commands |= {f"file {name}": command for name, command in files.items()}
    try:
        answers = _ask(host, commands)
    except SshError as fault:
        results.facts["unreachable"] = str(fault)
        if folder is not None:
            (folder / "unreachable.txt").write_text(f"{fault}\n", encoding="utf-8")
        return
    for name in facts:
        rc, out, _ = answers[name]
        if rc == 0 and out.strip():
            results.facts[name] = out.decode(errors="replace").strip().splitlines()[0]
    if isinstance(host.backend, BatchBackend):
        results.facts["transport"] = host.backend.link.cost
    if not restarted:
        packages, built = answers["replica packages"][1], answers["replicas built"][1]
        results.replicas += replicas(packages.decode(), built.decode())
    if folder is not None:
        for name in files:
            _keep(folder, name, *answers[f"file {name}"])


def _wanted(host: Any, results: Results, restarted: bool) -> tuple[list[str], dict[str, Command]]:
    """Facts and files that are asked for: after a restart few, of an image's files those that need no kernel."""
    failed = any(check.verdict == FAIL for check in results.checks.values())
    names, facts = set(COMMANDS), list(_FACTS)
    if isinstance(host.backend, ImageBackend):
        names, facts = set(OF_FILES), ["os", "agent"]
    elif restarted:
        names, facts = names if failed else set(OF_EACH_BOOT), ["kernel", "boot_id", "driver"]
    files = {name: Command(text, _DEADLINE) for name, text in COMMANDS.items() if name in names}
    if failed and not isinstance(host.backend, ImageBackend):
        files[BUG_REPORT] = Command(_BUG_REPORT, BUG_REPORT_SECONDS)
    return facts, files


def _keep(folder: Path, name: str, rc: int, out: bytes, err: bytes) -> None:
    said = b"" if rc == 0 and out else b"\n[ended with %d] " % rc + err
    if name != BUG_REPORT:
        (folder / name).write_bytes(out + said)
    elif rc != _NO_BUG_REPORT:  # not where there is no such script
        if out:
            (folder / name).write_bytes(out)
        if said or len(out) >= BUG_REPORT_BYTES:  # what is said of a compressed file stands beside it
            cut = b"cut at %d bytes\n" % BUG_REPORT_BYTES if len(out) >= BUG_REPORT_BYTES else b""
            (folder / f"{name}.txt").write_bytes(cut + said.lstrip() + (err if not said else b""))


def _ask(host: Any, commands: Mapping[str, Command]) -> dict[str, tuple[int, bytes, bytes]]:
    if isinstance(host.backend, BatchBackend):
        answers, _ = host.backend.link.execute(list(commands.values()), root=True)
        return {name: (answer.rc, answer.stdout, answer.stderr) for name, answer in zip(commands, answers, strict=True)}
    ran = {name: host.run(command.text) for name, command in commands.items()}
    return {name: (done.rc, done.stdout_bytes, done.stderr_bytes) for name, done in ran.items()}


def replicas(packages: str, built: str) -> list[dict[str, str]]:
    """Replica packages, from their table, and replica modules and libraries: name, version and description a line."""
    found = []
    for line in packages.splitlines():
        _, package, version, summary = (*line.split("\t"), "", "", "")[:4]
        found.append({"package": package, "version": version, "what": summary})
    for line in built.splitlines():
        name, version, description = (*line.split("\t"), "", "")[:3]
        if "gpu-ami replica" in description:
            found.append({"package": name, "version": version.strip(), "what": description.strip()})
    return found
