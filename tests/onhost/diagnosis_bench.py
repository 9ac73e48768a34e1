"""A machine of files and small tools, which gpu-ami-diagnose examines."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from onhost import diagnose as program

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
BOOT = "11111111-2222-3333-4444-555555555555"
GPU = """<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA H100</product_name><uuid>GPU-{bus}</uuid>
<ecc_errors><volatile><sram_correctable>3</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<dram_uncorrectable>{uncorrectable}</dram_uncorrectable></volatile>
<aggregate><dram_uncorrectable>9</dram_uncorrectable><sram_threshold_exceeded>{exceeded}</sram_threshold_exceeded></aggregate>
</ecc_errors><clocks_{kind}_reasons><clocks_{kind}_reason_gpu_idle>Active</clocks_{kind}_reason_gpu_idle>
<clocks_{kind}_reason_hw_thermal_slowdown>{thermal}</clocks_{kind}_reason_hw_thermal_slowdown></clocks_{kind}_reasons>
<temperature><gpu_temp>{temperature}</gpu_temp></temperature><gpu_recovery_action>{recovery}</gpu_recovery_action>
<product_architecture>Hopper</product_architecture>
<utilization><gpu_util>0 %</gpu_util><memory_util>0 %</memory_util></utilization>
<fb_memory_usage><total>81559 MiB</total><used>0 MiB</used><free>81079 MiB</free></fb_memory_usage>
<clocks><graphics_clock>345 MHz</graphics_clock><sm_clock>345 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
<gpu_power_readings><average_power_draw>N/A</average_power_draw>
<instant_power_draw>68.92 W</instant_power_draw></gpu_power_readings>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<fabric><state>{fabric}</state><status>Success</status><health><summary>{summary}</summary><bandwidth>N/A</bandwidth>
<route_unhealthy>{route}</route_unhealthy></health></fabric><power_smoothing>Insufficient Permissions</power_smoothing>
<processes><process_info><process_name>Not Found</process_name></process_info></processes></gpu>"""
HEALTHY = {
    "bus": "1B",
    "uncorrectable": "0",
    "exceeded": "No",
    "kind": "event",
    "thermal": "Not Active",
    "recovery": "None",
    "temperature": "45 C",
    "pending": "No",
    "fabric": "Completed",
    "summary": "Healthy",
    "route": "False",
}
SERVICE = "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=5\nNRestarts=0\n"
# df -k --output=target,size,avail,itotal,iavail of a Debian 12 machine with a volume of 40 GiB.
DF = """Mounted on 1K-blocks    Avail   Inodes    IFree
/           {:>10} {:>8} {:>8} {:>8}
/            40955460 38489712 2621440 2591842
/run           200884   200412  251104   250677
/dev/shm      1004412  1004412  251103   251102
"""
HEALTHY_DISK = (40955460, 38489712, 2621440, 2591842)


class Bench:
    """A folder with a machine's files and tools of its own, and the diagnosis of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tools = folder / "root", folder / "bin"
        self.tools.mkdir()
        monkeypatch.setenv("PATH", f"{self.tools}:/usr/bin:/bin")
        self.file("/proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.tool("systemctl", f"printf '{SERVICE}'")
        self.prints("df", DF.format(*HEALTHY_DISK))

    def file(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, path: str, target: str) -> None:
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def tool(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def prints(self, name: str, text: str, status: int = 0) -> None:
        """A tool that prints this text."""
        (self.tools / f"{name}.txt").write_text(text)
        self.tool(name, f"cat {self.tools}/{name}.txt; exit {status}")

    def event(self, **fields: Any) -> None:
        row = {
            "time": "2026-11-22T01:02:03Z", "kind": "xid", "code": 48, "name": "Double Bit ECC Error",
            "severity": "critical", "ec2_action": "reboot", "ec2_meaning": "Stop the jobs", "origin": "kernel",
            "pci": "0000:1b:00.0", "boot_id": BOOT,
        } | fields  # fmt: skip
        path = self.root / "var/log/gpuevent.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def beats(self) -> None:
        """The parser and the agent write what they should."""
        beat = {"heartbeat_monotonic_s": time.monotonic(), "heartbeat_period_s": 60}
        self.file("/run/gpu-ami/event-parser.json", json.dumps(beat))
        self.file("/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log", "t I! ok\n")

    def diagnose(self, seconds: float = 10.0) -> dict[str, Any]:
        return program.diagnose(program.Machine(str(self.root), seconds))


def of(document: dict[str, Any], probe: str) -> list[tuple[str, str, str, str]]:
    """Findings of one probe: level, subject, text, kind of action."""
    found = [one for one in document["findings"] if one["probe"] == probe]
    return [(one["level"], one["subject"], one["text"], one["kind"]) for one in found]


def xml(*gpus: dict[str, str]) -> str:
    return (
        "<log><driver_version>580.95.05</driver_version>"
        + "".join(GPU.format(**HEALTHY | gpu) for gpu in gpus)
        + "</log>"
    )


def links(gpu: str) -> str:
    rows = yaml.safe_load((TRANSCRIPTS / "nvidia_smi_links.yml").read_text())
    return str(next(row["stdout"] for row in rows if row["gpu"] == gpu))


def board(bench: Bench, count: int = 2, promised: str = "") -> None:
    """A machine with GPUs that work: bus, driver, device nodes, nvidia-smi, module on disk."""
    bench.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n")
    bench.file("/usr/lib64/libnvidia-ml.so.580.95.05", "")
    bench.prints("modinfo", "580.95.05\n")
    bench.file("/sys/class/dmi/id/product_name", promised + "\n")
    buses = [f"{0x1B + number:02X}" for number in range(count)]
    for minor, bus in enumerate(buses):
        pci = f"0000:{bus.lower()}:00.0"
        bench.file(f"/sys/bus/pci/devices/{pci}/vendor", "0x10de\n")
        bench.file(f"/sys/bus/pci/devices/{pci}/class", "0x030200\n")
        bench.file(f"/proc/driver/nvidia/gpus/{pci}/information", f"Model: H100\nDevice Minor: \t {minor}\n")
        bench.file(f"/dev/nvidia{minor}", "")
    bench.file("/dev/nvidiactl", "")
    case = 'case "$*" in *-x*) cat {0}/x;; *nvlink*) cat {0}/n;; *) cat {0}/r;; esac'
    (bench.tools / "x").write_text(xml(*({"bus": bus} for bus in buses)))
    (bench.tools / "n").write_text("")
    (bench.tools / "r").write_text("".join(f"H100, 00000000:{bus}:00.0, No, No, 0, 0\n" for bus in buses))
    bench.tool("nvidia-smi", case.format(bench.tools))
    bench.tool("systemctl", f"case \"$*\" in *fabricmanager*) cat {bench.tools}/units;; *) printf '{SERVICE}';; esac")
    (bench.tools / "units").write_text(unit("nvidia-fabricmanager.service"))
    bench.event(ec2_action="none")
    bench.beats()


def unit(name: str, **changes: str) -> str:
    state = {
        "Id": name, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled",
        "Result": "success", "Type": "forking", "ConditionResult": "yes", "TimeoutStartUSec": "15min",
    } | changes  # fmt: skip
    return "".join(f"{key}={value}\n" for key, value in state.items()) + "\n"
