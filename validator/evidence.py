"""What is kept of a host whatever the verdict: logs and states as files, replicas and facts for the report.

Secrets are never among it: no key files, no shadow, no credentials, and no environment of any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validator.backend import BatchBackend
from validator.results import Results
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
_DEADLINE = 60.0
_FACTS: Mapping[str, str] = {
    "kernel": "uname -r",
    "boot_id": "cat /proc/sys/kernel/random/boot_id",
    "architecture": "uname -m",
    "os": ". /etc/os-release && echo $PRETTY_NAME",
    "driver": "modinfo -F version nvidia",
    "agent": (
        "dpkg-query -W -f '${Version}' amazon-cloudwatch-agent 2>/dev/null"
        " || rpm -q --qf '%{VERSION}' amazon-cloudwatch-agent"
    ),
    "uptime_s": "cut -d' ' -f1 /proc/uptime",
}
_REPLICA_FORMAT = "${Gpu-Ami-Replica}\\t${Package}\\t${Version}\\t${binary:Summary}\\n"
_REPLICA_PACKAGES = f"dpkg-query -W -f '{_REPLICA_FORMAT}' | grep -i '^yes'"

_REPLICA_MODULE = "modinfo -F description nvidia; modinfo -F version nvidia"


def finish(host: Any, results: Results, folder: Path | None) -> None:
    """Fills facts and replicas and, with a folder, keeps the evidence. A host that is gone leaves a note instead."""
    commands = dict(_FACTS) | {"replica packages": _REPLICA_PACKAGES, "replica module": _REPLICA_MODULE}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        commands |= {f"file {name}": command for name, command in COMMANDS.items()}
    try:
        answers = _ask(host, commands)
    except SshError as fault:
        results.facts["unreachable"] = str(fault)
        if folder is not None:
            (folder / "unreachable.txt").write_text(f"{fault}\n", encoding="utf-8")
        return
    for name in _FACTS:
        rc, out, _ = answers[name]
        if rc == 0 and out.strip():
            results.facts[name] = out.decode(errors="replace").strip().splitlines()[0]
    if isinstance(host.backend, BatchBackend):
        results.facts["transport"] = host.backend.link.cost
    results.replicas += replicas(answers["replica packages"][1].decode(), answers["replica module"][1].decode())
    if folder is not None:
        for name in COMMANDS:
            rc, out, err = answers[f"file {name}"]
            said = b"" if rc == 0 and out else b"\n[ended with %d] " % rc + err
            (folder / name).write_bytes(out + said)


def _ask(host: Any, commands: Mapping[str, str]) -> dict[str, tuple[int, bytes, bytes]]:
    if isinstance(host.backend, BatchBackend):
        batch = [Command(text, _DEADLINE) for text in commands.values()]
        answers, _ = host.backend.link.execute(batch, root=True)
        return {name: (answer.rc, answer.stdout, answer.stderr) for name, answer in zip(commands, answers, strict=True)}
    ran = {name: host.run(text) for name, text in commands.items()}
    return {name: (done.rc, done.stdout_bytes, done.stderr_bytes) for name, done in ran.items()}


def replicas(packages: str, module: str) -> list[dict[str, str]]:
    """Replica packages and the replica module, from dpkg-query's table and modinfo's two lines."""
    found = []
    for line in packages.splitlines():
        _, package, version, summary = (*line.split("\t"), "", "", "")[:4]
        found.append({"package": package, "version": version, "what": summary})
    description, _, version = module.strip().partition("\n")
    if "gpu-ami replica" in description:
        found.append({"package": "nvidia (kernel module)", "version": version.strip(), "what": description.strip()})
    return found
