"""gpu-ami-diagnose: what it reads of real and simulated tools, what it advises, and what does not answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.events.reader import parser_module
from gpu_ami.recipes import load_facts
from onhost import diagnose as program
from tests.replicas.conftest import A100, machine  # noqa: F401  (a fixture)
from validator.remote import python as remote_python

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
PROGRAM = Path(program.__file__)
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


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


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


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({}, []),
        ({"uncorrectable": "2"}, [("action", "2 uncorrectable ECC errors since the driver was loaded", "reboot")]),
        ({"exceeded": "Yes"}, [("action", "the threshold of uncorrectable SRAM errors is exceeded", "isolate")]),
        ({"thermal": "Active"}, [("action", "clocks are lowered: hw_thermal_slowdown", "check_cooling")]),
        (
            {"thermal": "Active", "kind": "throttle"},  # before R535
            [("action", "clocks are lowered: hw_thermal_slowdown", "check_cooling")],
        ),
        ({"recovery": "Drain P2P"}, [("action", "the driver asks for: Drain P2P", "drain")]),
        ({"temperature": "GPU is lost"}, [("action", "unknown: temperature/gpu_temp: GPU is lost", "unknown")]),
        ({"temperature": ""}, [("action", "unknown: temperature/gpu_temp: no value", "unknown")]),
        ({"temperature": "N/A"}, [("action", "unknown: temperature/gpu_temp: N/A", "unknown")]),
        ({"pending": "ERR!"}, [("action", "unknown: remapped_rows/remapped_row_pending: ERR!", "unknown")]),
        ({"recovery": "Unknown Error"}, [("action", "unknown: gpu_recovery_action: Unknown Error", "unknown")]),
        (
            {"summary": "Unhealthy", "route": "True"},
            [("action", "NVLink fabric: summary: Unhealthy, route_unhealthy: True", "fabric")],
        ),
        ({"fabric": "In Progress"}, [("action", "NVLink fabric: state: In Progress", "fabric")]),
    ],
)
def test_state_of_a_gpu(bench: Bench, gpu: dict[str, str], expected: list[tuple[str, str, str]]) -> None:
    bench.prints("nvidia-smi", xml({}, gpu | {"bus": "1C"}))
    document = bench.diagnose()
    subject = "GPU 00000000:1C:00.0"
    assert of(document, "gpus") == [(level, subject, text, kind) for level, text, kind in expected]
    first, _ = document["probes"]["gpus"]["data"]
    assert (first["driver"], first["temperature"], first["slowdowns"]) == ("580.95.05", "45 C", ["gpu_idle"])
    assert first["ecc"]["volatile"] == {
        "sram_correctable": 3, "sram_uncorrectable_parity": 0, "dram_uncorrectable": 0,
    }  # fmt: skip


LOST_ROW = "00000000:1F:00.0, [GPU is lost]"


def test_remapped_rows(bench: Bench) -> None:
    rows = ["00000000:1B:00.0, No, No, 0, 0", "00000000:1C:00.0, No, Yes, 0, 1", "00000000:1D:00.0, Yes, Yes, 0, 8"]
    bench.prints(
        "nvidia-smi",
        "".join(f"NVIDIA H100, {row}\n" for row in [*rows, "00000000:1E:00.0, [N/A], [N/A], [N/A], [N/A]", LOST_ROW]),
    )
    document = bench.diagnose()
    assert [row["gpu_bus_id"][9:11] for row in document["probes"]["remapped_rows"]["data"]] == [
        "1B",
        "1C",
        "1D",
        "1E",
        "1F",
    ]
    assert of(document, "remapped_rows") == [
        ("action", "GPU 00000000:1C:00.0", "a row remap is pending", "schedule_reboot"),
        ("action", "GPU 00000000:1D:00.0", "a row of memory could not be remapped", "isolate"),
        (
            "action", "GPU 00000000:1F:00.0",
            "whether rows are remapped is unknown: failure [GPU is lost], pending no value", "unknown",
        ),
    ]  # fmt: skip
    assert document["exit_code"] == 1


def advice(**board: str) -> str:
    """What the parser advises for a GPU's state at boot: the kind of action on EC2."""
    _, action = parser_module("details").board_advice(board)
    kind: str = parser_module("catalogue").Catalogue(policy_path=None).action(action).ec2
    return kind


def test_advice_is_that_of_the_parser(bench: Bench) -> None:
    """One GPU must not get two answers: from its event and from the diagnosis."""
    assert advice(remap_pending="Yes") == "schedule_reboot" and advice(remap_failure="Yes") == "isolate"
    for action in ("Reset", "GPU Reset", "Reboot", "Drain and Reset", "Drain P2P"):
        bench.prints("nvidia-smi", xml({"recovery": action}))
        assert [row[3] for row in of(bench.diagnose(), "gpus")] == [advice(recovery_action=action)], action
    kinds = {row.ec2 for row in parser_module("catalogue").Catalogue(policy_path=None).actions.values()}
    assert program.DO.keys() - {"repair_service", "unknown", "fabric", "driver", "disk", "network"} <= kinds


def links(gpu: str) -> str:
    rows = yaml.safe_load((TRANSCRIPTS / "nvidia_smi_links.yml").read_text())
    return str(next(row["stdout"] for row in rows if row["gpu"] == gpu))


@pytest.mark.parametrize(
    ("gpu", "zero", "risen", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "", "", []),
        (
            "NVIDIA H100 80GB HBM3", "1: CRC Errors: 0", "1: CRC Errors: 7",
            [("watch", "GPU 0 link 1", "CRC Errors: 7", "monitor")],
        ),
        ("NVIDIA B300 SXM6 AC", "", "", []),
        ("NVIDIA B300 SXM6 AC", "Symbol Errors: 0", "Raw BER Total: 1037\n\t Link 0: FEC Errors - 0: 36140749276", []),
        (
            "NVIDIA B300 SXM6 AC", "BER: 15e-255", "BER: 15e-9",
            [("action", "GPU 0 link 0", "Effective BER: 15e-9, the limit is 1e-12", "check_link")],
        ),
        (
            "NVIDIA B300 SXM6 AC", "failed events: 0", "failed events: 2",
            [("action", "GPU 0 link 0", "Link recovery failed events: 2", "check_link")],
        ),
    ],
)  # fmt: skip
def test_links(bench: Bench, gpu: str, zero: str, risen: str, expected: list[Any]) -> None:
    bench.prints("nvidia-smi", links(gpu).replace(zero, risen) if zero else links(gpu))
    document = bench.diagnose()
    assert of(document, "nvlink") == expected
    assert len(document["probes"]["nvlink"]["data"]["GPU 0"]) in (3, 9, 10)


def test_real_nvidia_smi_without_a_driver(bench: Bench) -> None:
    """It prints the transcript on standard output and exits with 9: said, and the other probes answer."""
    [row] = [
        row
        for row in yaml.safe_load((TRANSCRIPTS / "nvidia_smi_without_driver.yml").read_text())
        if row["command"] == "nvidia-smi"
    ]
    bench.prints("nvidia-smi", row["stdout"], row["status"])
    probes = bench.diagnose()["probes"]
    assert probes["gpus"]["status"] == "failed"
    assert probes["gpus"]["why"].startswith(
        "nvidia-smi -q -x: exit status 9: NVIDIA-SMI has failed because it couldn't"
    )
    assert probes["parser"]["status"] == "read"


def test_the_simulated_board(bench: Bench, machine: Callable[..., str]) -> None:  # noqa: F811
    """The nvidia-smi of the local region answers every question of the diagnosis."""
    root = machine(A100, 8)
    bench.beats()
    module = "localregion.replicas.nvidia_driver.nvidia_smi.smi.cli"
    code = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:], root={root!r}, own='550.163.01'))"
    bench.tool("nvidia-smi", f'cd {ROOT} && exec {sys.executable} -c "{code}" "$@"')
    document = bench.diagnose(30)
    data = {name: document["probes"][name]["data"] for name in ("gpus", "remapped_rows", "nvlink")}
    assert [len(rows) for rows in data.values()] == [8, 8, 8]
    assert data["gpus"][0]["ecc"]["volatile"] and len(data["nvlink"]["GPU 7"]) == 3
    assert document["findings"] == []


TWICE = "XID 48: Double Bit ECC Error \u00d7 2, first 2026-11-22T01:02:03Z, last 2026-11-22T01:02:03Z"


def test_events_of_this_boot_ask_for_their_action(bench: Bench) -> None:
    bench.event()
    bench.event()
    bench.event(code=79, name="GPU lost", boot_id="an-earlier-boot")
    bench.event(code=31, ec2_action="restart_application")
    bench.event(code=95, origin="userland")
    document = bench.diagnose()
    assert of(document, "events") == [("action", "GPU 0000:1b:00.0", TWICE, "reboot")]
    read = document["probes"]["events"]["data"]
    assert (read["count"], read["earlier"], len(read["newest"])) == (4, 1, 3)
    assert "xid 95  0000:1b:00.0  critical  reboot: Double Bit ECC Error (drill)" in program.as_text(document)


def test_gpu_that_cannot_be_initialised_is_a_finding(bench: Bench) -> None:
    """The parser's log is gone and no Xid was printed; the kernel log still has the reason."""
    home = bench.root / "opt/aws/cloudwatch"
    home.mkdir(parents=True)
    (home / "nvidia").symlink_to(ROOT / "onhost/event_parser")
    bench.prints("dmesg", "[1.0] NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)\n")
    [(level, subject, text, kind)] = of(bench.diagnose(), "events")
    assert (level, subject, kind) == ("action", "GPU 0000:4b:00.0", "stop_start")
    assert text == "GPU initialisation RM_INIT_FAILED: The driver cannot initialise the GPU"


def test_events_are_read_where_the_unit_writes_them(bench: Bench) -> None:
    bench.file(
        "/etc/systemd/system/aws-hw-monitor.service.d/paths.conf", "ExecStart=x run --json-log /var/log/own.jsonl\n"
    )
    bench.file("/var/log/own.jsonl", "cut off}\n")
    read = bench.diagnose()["probes"]["events"]["data"]
    assert (read["source"], read["count"]) == ("/var/log/own.jsonl", 0)


def test_without_the_log_the_kernel_is_asked(bench: Bench) -> None:
    """The parser is dead and its log gone: its catalogue still explains what the kernel holds."""
    home = bench.root / "opt/aws/cloudwatch"
    home.mkdir(parents=True)
    (home / "nvidia").symlink_to(ROOT / "onhost/event_parser")
    bench.prints("dmesg", "[1.0] NVRM: Xid (PCI:0000:00:1e): 79, pid=4, name=a, GPU has fallen off the bus.\n")
    document = bench.diagnose()
    assert document["probes"]["events"]["data"]["source"] == "kernel log"
    [(level, subject, text, _)] = of(document, "events")
    assert (level, subject) == ("action", "GPU 0000:00:1e.0") and text.startswith("XID 79: ")


@pytest.mark.parametrize(
    ("shown", "age", "expected"),
    [
        (SERVICE, 3.0, None),
        (SERVICE, 500.0, "the last heartbeat was 500 s ago"),
        (
            SERVICE.replace("running", "dead").replace("=active", "=failed"),
            3.0,
            "aws-hw-monitor.service is failed (dead)",
        ),
    ],
)
def test_parser(bench: Bench, shown: str, age: float, expected: str | None) -> None:
    bench.tool("systemctl", f"printf '{shown}'")
    beat = time.monotonic() - age
    bench.file("/run/gpu-ami/event-parser.json", json.dumps({"heartbeat_monotonic_s": beat, "heartbeat_period_s": 60}))
    found = of(bench.diagnose(), "parser")
    assert found == ([("action", "aws-hw-monitor.service", expected, "repair_service")] if expected else [])


def test_agents_errors_are_shown(bench: Bench) -> None:
    log = "t I! ok\nt E! cannot find credentials\n"
    bench.file("/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log", log)
    assert bench.diagnose()["probes"]["agent"]["data"]["last_errors"] == ["t E! cannot find credentials"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["file_base.json", "file_gpu.json"], None),
        (["ssm_AmazonCloudWatch-linux"], ("action", "the image's was replaced by ssm_AmazonCloudWatch-linux (fetch-")),
        ([], ("action", "the image's was replaced by nothing")),
        (["file_base.json", "ssm_Own"], ("watch", "ssm_Own was added to the image's")),
    ],
)
def test_replaced_configuration_of_the_agent_is_found(
    bench: Bench, parts: list[str], expected: tuple[str, str] | None
) -> None:
    """User data with fetch-config took the image's logs and metrics away (amazon-cloudwatch-agent#1218)."""
    etc = "/opt/aws/amazon-cloudwatch-agent/etc"
    bench.file("/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log", "t I! ok\n")
    bench.file(f"{etc}/gpu-ami/base.json", "{}")
    for part in parts:
        bench.file(f"{etc}/amazon-cloudwatch-agent.d/{part}", "{}")
    found = [row for row in of(bench.diagnose(), "agent") if "configuration" in row[1]]
    assert [(row[0], row[2].startswith(expected[1])) for row in found if expected] == (
        [(expected[0], True)] if expected else []
    )
    assert expected or not found


def test_efa_counters(bench: Bench) -> None:
    port = "/sys/class/infiniband/rdmap0s6/ports/1"
    counters = {"rx_bytes": "77", "rx_drops": "0", "rdma_read_wr_err": "4", "retrans_bytes": "9", "lifespan": "x"}
    counters["tx_bytes"] = "Input/output error"
    for name, value in counters.items():
        bench.file(f"{port}/hw_counters/{name}", value + "\n")
    bench.file(f"{port}/state", "4: ACTIVE\n")
    bench.file("/sys/class/infiniband/rdmap1s6/ports/1/state", "1: DOWN\n")
    for name in ("rdmap1s6", "rdmap2s6", "ibp198s0f0"):
        bench.file(f"/sys/class/infiniband/{name}/ports/1/hw_counters/rx_bytes", "0\n")
        driver = "mlx5_core" if name.startswith("ibp") else "efa"
        bench.link(f"/sys/class/infiniband/{name}/device/driver", f"../../../../bus/pci/drivers/{driver}")
    bench.file("/sys/class/infiniband/ibp198s0f0/ports/1/state", "2: INIT\n")
    document = bench.diagnose()
    assert document["probes"]["efa"]["data"]["rdmap0s6"] == {
        "state": "4: ACTIVE", "counters": {"rx_bytes": 77, "rx_drops": 0, "rdma_read_wr_err": 4, "retrans_bytes": 9},
    }  # fmt: skip
    assert of(document, "efa") == [
        ("action", "rdmap1s6", "the port is 1: DOWN, expected ACTIVE", "reboot"),
        ("action", "rdmap2s6", "the state of its port is unknown: no value", "unknown"),
        ("watch", "rdmap0s6", "tx_bytes is unknown: Input/output error", "unknown"),
        ("watch", "rdmap0s6", "rdma_read_wr_err: 4", "monitor"),
    ]


def test_a_tool_that_hangs_ends_nothing(bench: Bench) -> None:
    bench.tool("nvidia-smi", "sleep 60")
    bench.event()
    started = time.monotonic()
    document = bench.diagnose(1.0)
    assert time.monotonic() - started < 8
    assert document["probes"]["gpus"] | {"seconds": 0} == {
        "status": "timeout", "why": "nvidia-smi -q -x: no answer within 1 s", "seconds": 0,
    }  # fmt: skip
    assert document["exit_code"] == 1 and of(document, "events")


def test_missing_tools_are_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bench.tools))
    for name in ("systemctl", "df"):
        (bench.tools / name).unlink()
    document = bench.diagnose()
    assert {name: answer["why"] for name, answer in document["probes"].items()} == {
        "driver": "the machine has no NVIDIA GPU", "units": "systemctl is not installed",
        "gpus": "nvidia-smi is not installed", "remapped_rows": "nvidia-smi is not installed",
        "nvlink": "nvidia-smi is not installed", "events": "the event parser is not installed: no events to read",
        "parser": "systemctl is not installed", "agent": "systemctl is not installed",
        "efa": "the instance has no EFA device, or its driver is not loaded", "disk": "df is not installed",
        "network": "the CloudWatch agent is not installed: nothing is sent",
    }  # fmt: skip
    assert document["probes"]["efa"]["status"] == "absent" and document["exit_code"] == 3


def test_nothing_to_do_is_exit_0(bench: Bench) -> None:
    case = 'case "$*" in *-x*) cat {0}/x;; *nvlink*) cat {0}/n;; *) echo "H100, 00000000:1B:00.0, No, No, 0, 0";; esac'
    (bench.tools / "x").write_text(xml({}))
    (bench.tools / "n").write_text(links("NVIDIA H100 80GB HBM3"))
    bench.tool("nvidia-smi", case.format(bench.tools))
    bench.event(ec2_action="none")
    bench.beats()
    document = bench.diagnose()
    assert (document["exit_code"], document["findings"]) == (0, []), document
    assert [answer.get("why") for answer in document["probes"].values() if answer["status"] == "read"] == [None] * 7
    shown = dict(line.split(maxsplit=1) for line in program.as_text(document).partition("Probes:\n")[2].splitlines())
    assert shown["gpus"] == "read     1 GPU, driver 580.95.05"
    assert shown["remapped_rows"] == shown["nvlink"] == "read     1 GPU"
    assert shown["events"] == "read     1 of this boot, 0 of earlier boots (/var/log/gpuevent.jsonl)"


def test_link_that_does_not_answer_is_no_good_link(bench: Bench) -> None:
    bench.prints(
        "nvidia-smi",
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 1: Replay Errors: GPU is lost\n",
    )
    (finding,) = of(bench.diagnose(), "nvlink")
    assert finding == ("action", "GPU 0", "link counters: Link 1: Replay Errors: GPU is lost", "unknown")


def test_silent_parser_and_agent_are_findings(bench: Bench) -> None:
    document = bench.diagnose()
    assert [row[2] for row in of(document, "parser")] == [
        "its heartbeat is unknown: /run/gpu-ami/event-parser.json: No such file or directory"
    ]
    (agent,) = of(document, "agent")
    assert agent[2].endswith("amazon-cloudwatch-agent.log: No such file or directory")


def test_sent_to_a_host_it_brings_its_reader(tmp_path: Path) -> None:
    """A host without the event parser has no module hwevents."""
    command = remote_python("diagnose", "--json", "--seconds", "5")
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    assert json.loads(done.stdout)["probes"]["gpus"]["status"] in ("missing", "failed"), done.stderr


def installed(folder: Path) -> Path:
    """The programs as the role installs them: in one folder, with a link to the command on the path."""
    names = yaml.safe_load((ROOT / "roles/event_parser/vars/main.yml").read_text())["__event_parser_diagnose"]
    home = folder / "home"
    home.mkdir()
    for source, name in names.items():
        (home / name).write_bytes((PROGRAM.parent / source).read_bytes())
    shutil.copytree(ROOT / "onhost/event_parser/hwevents", home / "hwevents")
    (folder / "gpu-ami-diagnose").symlink_to(home / "gpu-ami-diagnose")
    return folder / "gpu-ami-diagnose"


def test_the_command_as_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-sSE", installed(tmp_path), "--seconds", "5", "--bundle", tmp_path / "b.tar.gz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 3) and "Probes:\n" in done.stdout, done.stderr
    assert f"bundle: {tmp_path}/b.tar.gz\n" in done.stderr and "nvidia-bug-report.log.gz: not installed" in done.stderr
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 2 and "the bundle cannot be written: [Errno 17] File exists" in again.stderr


def test_the_installed_command_computes(tmp_path: Path) -> None:
    """Without a driver the finding is the loader's error, and what to do."""
    command = [sys.executable, "-sSE", installed(tmp_path), "--seconds", "5", "--compute", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    document = json.loads(done.stdout)
    assert document["probes"]["compute"]["status"] == "read", document["probes"]["compute"]
    ((level, subject, text, kind),) = of(document, "compute")
    assert (level, subject, kind) == ("action", "CUDA", "repair_service")
    assert text.startswith("start: dlopen: libcuda.so.1: cannot open shared object file")
    (tmp_path / "home/compute_probe.py").unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["probes"]["compute"]["status"] == "missing"


WRONG = {"byte": 4, "expected": "0x1", "got": "0x2"}


def test_findings_of_what_gpus_compute() -> None:
    error = {"what": "cuInit", "call": "cuInit", "name": "CUDA_ERROR_UNKNOWN", "meaning": "nvidia-uvm is not loaded"}
    peers = [{"index": 1, "error": None, "wrong": WRONG}, {"index": 2, "error": error}]
    rows = [
        {"kind": "machine", "error": error, "unfinished": {"why": "no end", "step": "GPU 1: open"}},
        {
            "kind": "gpu",
            "index": 0,
            "pci": "0000:00:1b.0",
            "error": None,
            "wrong": WRONG,
            "pattern_wrong": WRONG,
            "peers": peers,
        },
        {"kind": "gpu", "index": 1, "error": error, "peers": []},
    ]
    found = [(one.subject, one.text, one.kind) for one in program.compute_findings(rows)]
    said = "cuInit: cuInit: CUDA_ERROR_UNKNOWN: nvidia-uvm is not loaded"
    assert found == [
        ("CUDA", said, "repair_service"),
        ("CUDA", "no end; its last step: GPU 1: open", "reboot"),
        ("GPU 0000:00:1b.0", "a result is wrong at byte 4: expected 0x1, got 0x2", "isolate"),
        ("GPU 0000:00:1b.0", "what memory holds is wrong at byte 4: expected 0x1, got 0x2", "isolate"),
        ("GPU 0000:00:1b.0 to GPU 1", "a copy is wrong at byte 4", "isolate"),
        ("GPU 0000:00:1b.0 to GPU 2", said, "repair_service"),
        ("GPU 1", said, "repair_service"),
    ]


def test_help_has_the_exit_codes() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "Exit codes: 0 nothing asks for an action" in done.stdout


def test_arguments_that_are_wrong_are_exit_2() -> None:
    assert subprocess.run([sys.executable, PROGRAM, "--nonsense"], capture_output=True, timeout=30).returncode == 2


@pytest.mark.parametrize("name", ["diagnose.py", "compute_probe.py", "support_bundle.py"])
def test_runs_on_python_3_7(name: str) -> None:
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--violations", "-t=3.7-", PROGRAM.with_name(name)]
    done = subprocess.run(vermin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_changes_nothing(bench: Bench) -> None:
    """Read-only: the machine's files are as before, with their times."""
    bench.event()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bench.root.rglob("*")}
    bench.diagnose()
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bench.root.rglob("*")}
    assert os.access(bench.root, os.W_OK)


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


def test_healthy_machine_has_no_finding(bench: Bench) -> None:
    board(bench)
    document = bench.diagnose()
    assert (document["findings"], document["exit_code"]) == ([], 0), document
    assert program.health(document)[0] == program.HEALTHY


@pytest.mark.parametrize(
    ("printed", "status", "kind", "text", "step"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.1\n", 18, "driver",
         "different versions", "Reboot the instance so that the installed module is loaded"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest", 9,
         "driver", "the kernel module nvidia is not loaded", "dkms status"),
        ("No devices were found\n", 6, "stop_start", "can use no GPU", "open kernel modules"),
        ("No devices were found\n", 0, "stop_start", "can use no GPU", "Otherwise stop and start"),
        ("Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error\n", 255, "stop_start",
         "a GPU is lost", "Stop and start the instance"),
        ("Failed to initialize NVML: Unknown Error\n", 255, "driver", "device nodes", "ls -l /dev/nvidia*"),
    ],
)  # fmt: skip
def test_total_failure_of_nvidia_smi_is_a_finding_with_a_step(
    bench: Bench, printed: str, status: int, kind: str, text: str, step: str
) -> None:
    board(bench)
    bench.prints("nvidia-smi", printed, status)
    document = bench.diagnose()
    finding = next(one for one in document["findings"] if one["probe"] == "gpus")
    assert (finding["level"], finding["kind"]) == ("action", kind) and text in finding["text"] and step in finding["do"]
    assert document["exit_code"] == 1
    code, line = program.health(document)
    assert code == program.DRAIN and line.startswith("drain: ") and text in line


def _change(bench: Bench, what: str) -> None:
    if what == "node":
        (bench.root / "dev/nvidia1").unlink()
    elif what == "module":
        shutil.rmtree(bench.root / "proc/driver")
    elif what == "disk":
        bench.prints("modinfo", "590.1.2\n")
    elif what == "library":
        bench.file("/usr/lib64/libnvidia-ml.so.590.1.2", "")
    elif what == "not listed":
        (bench.tools / "x").write_text(xml({"bus": "1B"}))
    elif what == "not driven":
        shutil.rmtree(bench.root / "proc/driver/nvidia/gpus/0000:1c:00.0")
    elif what == "promised":
        bench.file("/sys/class/dmi/id/product_name", "p5.48xlarge\n")
    elif what == "attached":
        text = xml({"bus": "1B"}, {"bus": "1C"}).replace("<gpu ", "<attached_gpus>3</attached_gpus><gpu ", 1)
        (bench.tools / "x").write_text(text)


@pytest.mark.parametrize(
    ("what", "subject", "text", "kind"),
    [
        ("node", "GPU 0000:1c:00.0", "the device node /dev/nvidia1 is missing", "driver"),
        ("module", "NVIDIA driver", "the kernel module nvidia is not loaded", "driver"),
        ("disk", "NVIDIA driver", "module is 580.95.05; on disk: 590.1.2; libraries: 580.95.05", "driver"),
        ("library", "NVIDIA driver", "libraries: 580.95.05, 590.1.2", "driver"),
        ("not listed", "GPU 0000:1c:00.0", "it is on the PCI bus, and nvidia-smi does not list it", "stop_start"),
        ("not driven", "GPU 0000:1c:00.0", "it is on the PCI bus, and the driver does not have it", "stop_start"),
        ("promised", "GPUs", "the machine shows 2 of the 8 that its instance type has", "stop_start"),
        ("attached", "GPUs", "nvidia-smi counts 3 GPUs and shows 2", "stop_start"),
    ],
)  # fmt: skip
def test_installation_and_number_of_gpus(bench: Bench, what: str, subject: str, text: str, kind: str) -> None:
    board(bench)
    _change(bench, what)
    found = [(one["subject"], one["kind"]) for one in bench.diagnose()["findings"] if text in one["text"]]
    assert (subject, kind) in found


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("nvidia-fabricmanager.service", {"ActiveState": "activating", "SubState": "start-pre"},
         "it is still starting (start-pre, limit 15min)"),
        ("nvidia-persistenced.service", {"ActiveState": "failed", "Result": "exit-code"}, "it failed (exit-code)"),
        ("nvidia-fabricmanager.service", {"ActiveState": "inactive"}, "it is enabled and not running"),
        ("nvidia-imex.service", {"ActiveState": "inactive", "ConditionResult": "no"}, ""),
        ("nvidia-cdi-refresh.service", {"ActiveState": "inactive", "Type": "oneshot"}, ""),
        ("nvidia-cdi-refresh.service", {"ActiveState": "failed", "Result": "timeout"}, "it failed (timeout)"),
        ("nvidia-persistenced.service", {"LoadState": "not-found", "ActiveState": "inactive"}, ""),
    ],
)  # fmt: skip
def test_units_of_the_stack(bench: Bench, name: str, changes: dict[str, str], text: str) -> None:
    board(bench)
    (bench.tools / "units").write_text(unit(name, **changes))
    found = [(one["subject"], one["text"]) for one in bench.diagnose()["findings"] if one["probe"] == "units"]
    assert found == ([(name, text)] if text else [])


def test_second_persistence_daemon_of_a_dlami_is_named(bench: Bench) -> None:
    board(bench)
    both = unit("nvidia-persistenced.service", ActiveState="failed", Result="exit-code")
    (bench.tools / "units").write_text(both + unit("nvidia_gpu_settings_service.service"))
    [text] = [one["text"] for one in bench.diagnose()["findings"] if one["probe"] == "units"]
    assert text.startswith("it failed (exit-code); nvidia_gpu_settings_service.service of the DLAMI runs the daemon")


def test_storm_does_not_hide_what_came_first(bench: Bench) -> None:
    board(bench)
    bench.event(code=48, time="2026-11-22T01:00:00Z", pci="0000:1b:00.0")
    for number in range(6000):
        when = f"2026-11-22T02:{number // 100:02d}:00Z"
        bench.event(code=95, name="Uncontained", time=when, pci="0000:1c:00.0", message="x" * 800)
    document = bench.diagnose(30)
    first, second = (one["text"] for one in document["findings"] if one["probe"] == "events")
    assert first == "XID 48: Double Bit ECC Error"
    assert second == "XID 95: Uncontained \u00d7 6,000, first 2026-11-22T02:00:00Z, last 2026-11-22T02:59:00Z"
    assert program.as_text(document).count("xid 95") == 1 and "\u00d7 6,000" in program.as_text(document)


def test_events_before_the_budget_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    board(bench)
    monkeypatch.setattr(program, "EVENT_BYTES", 1000)
    for _ in range(20):
        bench.event(code=95)
    texts = [one["text"] for one in bench.diagnose()["findings"]]
    assert any("only the last 0 MiB" in text and "may hold what came first" in text for text in texts)


@pytest.mark.parametrize(
    ("changes", "words", "code", "line"),
    [
        ({}, (), 0, "healthy: 2 GPUs, driver 580.95.05"),
        ({"pending": "Yes"}, (), 1, "drain: GPU 00000000:1B:00.0: a row remap is pending (schedule_reboot)"),
        ({"pending": "Yes"}, ("schedule_reboot",), 0, "healthy: 2 GPUs, driver 580.95.05"),
        ({"temperature": "Unknown Error"}, (), 3, "unknown: GPU 00000000:1B:00.0: unknown: temperature/gpu_temp"),
    ],
)  # fmt: skip
def test_health_is_a_line_and_an_exit_code(
    bench: Bench, changes: dict[str, str], words: tuple[str, ...], code: int, line: str
) -> None:
    board(bench)
    (bench.tools / "x").write_text(xml({"bus": "1B"} | changes, {"bus": "1C"}))
    if "pending" in changes:
        (bench.tools / "r").write_text("H100, 00000000:1B:00.0, No, Yes, 0, 0\n")
    document = program.diagnose(program.Machine(str(bench.root), 10), names=program.HEALTH_PROBES)
    assert "parser" not in document["probes"] and "agent" not in document["probes"]
    found, shown = program.health(document, words)
    assert found == code and shown.startswith(line) and "\n" not in shown
    assert program.health(document, words, unknown_drains=True)[0] == (1 if code == 3 else code)


def test_the_file_alone_runs(tmp_path: Path) -> None:
    """python3 - < diagnose.py, on a machine without roles."""
    with PROGRAM.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-I", "-", "--json", "--seconds", "5"], stdin=source, capture_output=True, timeout=60,
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 1, 3) and json.loads(done.stdout)["schema"] == "gpu-ami/diagnosis/1", done.stderr
    assert b"Traceback" not in done.stderr


def test_the_copy_of_the_readings_is_current(update_golden: bool) -> None:
    """diagnose.py runs alone; --update-golden copies readings.py into it."""
    text = PROGRAM.read_text(encoding="utf-8")
    head, rest = text.split("_READINGS = r'''\n", 1)
    copy, tail = rest.split("'''\n", 1)
    current = (PROGRAM.parent / "readings.py").read_text(encoding="utf-8")
    if update_golden and copy != current:
        PROGRAM.write_text(f"{head}_READINGS = r'''\n{current}'''\n{tail}", encoding="utf-8")
    assert copy == current or update_golden


def test_promised_numbers_are_those_of_the_facts() -> None:
    types = load_facts().tables["instance_types"]["instance_types"]
    gpus = {name: row["gpu"] for name, row in types.items() if row.get("gpu")}
    expected = {
        name: gpu["count"]
        for name, gpu in gpus.items()
        if gpu.get("vendor", "nvidia") == "nvidia" and gpu["count"] >= 1
    }
    assert expected == program.PROMISED


@pytest.mark.parametrize(
    ("numbers", "mounts", "expected"),
    [
        (HEALTHY_DISK, "/dev/vda1 / ext4 rw,relatime,errors=remount-ro 0 0\n", []),
        (
            (40955460, 0, 2621440, 2591842), "",
            [("action", "/", "the file system is full; free space: 0 of 39,995 MiB")],
        ),
        (
            (2 << 30, 3 << 20, 0, 0), "",
            [("watch", "/", "the file system is nearly full; free space: 3,072 of 2,097,152 MiB")],
        ),
        ((2 << 30, 30 << 20, 0, 0), "", []),  # 1.5 % of 2 TiB are 30 GiB
        (
            (40955460, 38489712, 2621440, 12), "",
            [("action", "/", "the file system is full; free inodes: 12 of 2,621,440")],
        ),
        (HEALTHY_DISK, "/dev/vda1 / ext4 ro,relatime 0 0\n", [("action", "/", "the file system is mounted read-only")]),
        (("-", "-", "-", "-"), "", []),
    ],
)  # fmt: skip
def test_disk_without_room_is_a_finding(bench: Bench, numbers: Any, mounts: str, expected: list[Any]) -> None:
    board(bench)
    bench.file("/tmp/x", "")
    bench.file("/proc/mounts", mounts)
    bench.prints("df", DF.format(*numbers))
    document = bench.diagnose()
    found = [one for one in document["findings"] if one["probe"] == "disk"]
    assert [(one["level"], one["subject"], one["text"]) for one in found] == expected
    assert all("`du -xh" in one["do"] or "volume" in one["do"] for one in found)
    code, _ = program.health(program.diagnose(program.Machine(str(bench.root), 10), names=program.HEALTH_PROBES))
    assert code == (program.DRAIN if any(level == "action" for level, _, _ in expected) else program.HEALTHY)


AGENT_D = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens5\t00000000\t01001FAC\t0003\t0\t0\t512\t00000000\t0\t0\t0
"""


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("url", "resolv", "routes", "expected"),
    [
        ("http://127.0.0.1:{port}", "nameserver 169.254.169.253\n", ROUTES, ""),
        ("http://127.0.0.1:{port}", "", "", ""),  # an address needs neither
        (
            "http://127.0.0.1:1", "nameserver 169.254.169.253\n", ROUTES,
            "127.0.0.1:1 cannot be reached: Connection refused",
        ),
        (
            "https://logs.invalid", "# removed\n", "",
            "logs.invalid:443 cannot be reached: {resolution}; no name server in /etc/resolv.conf; no default route",
        ),
    ],
)  # fmt: skip
def test_network_of_the_agent(bench: Bench, listener: int, url: str, resolv: str, routes: str, expected: str) -> None:
    board(bench)
    bench.file(f"{AGENT_D}/file_base.json", json.dumps({"logs": {"endpoint_override": url.format(port=listener)}}))
    bench.file("/etc/resolv.conf", resolv)
    bench.file("/proc/net/route", routes)
    document = bench.diagnose()
    [text, *more] = [text for _, _, text, _ in of(document, "network")] or [""]
    for reason in ("Temporary failure in name resolution", "Name or service not known"):
        text = text.replace(reason, "{resolution}")
    assert (text, more) == (expected, []) and document["probes"]["network"]["status"] == "read"
    assert document["exit_code"] == (1 if expected else 0)


def test_busy_machine_has_no_broken_network(bench: Bench) -> None:
    bench.file(f"{AGENT_D}/file_base.json", json.dumps({"logs": {"endpoint_override": "http://127.0.0.1:1"}}))
    with pytest.raises(program.Unanswered, match="the machine is busy") as error:
        program.network(program.Machine(str(bench.root), 0.001))
    assert error.value.status == "timeout"


def test_endpoint_of_the_agent_is_the_proxy_s_or_the_region_s(bench: Bench) -> None:
    asked = program.Machine(str(bench.root), 10)
    bench.file("/run/cloud-init/instance-data.json", json.dumps({"v1": {"region": "cn-north-1"}}))
    bench.file(f"{AGENT_D}/file_base.json", "{}")
    assert program.endpoint_of(asked) == ("monitoring.cn-north-1.amazonaws.com.cn", 443)
    proxy = {"HTTPS_PROXY": "http://user:word@proxy.example:3128"}
    bench.file("/opt/aws/amazon-cloudwatch-agent/etc/env-config.json", json.dumps(proxy))
    assert program.endpoint_of(asked) == ("proxy.example", 3128)
