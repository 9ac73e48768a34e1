"""gpu-ami-diagnose: what it finds of GPUs, their driver, links and EFA devices."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gpu_ami.events.reader import parser_module
from gpu_ami.recipes import load_facts
from onhost import diagnose as program
from tests.onhost.diagnosis_bench import ROOT, TRANSCRIPTS, Bench, board, links, of, xml
from tests.replicas.conftest import A100, machine  # noqa: F401  (a fixture)


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
        ({"temperature": "GPU is lost"}, [("action", "unknown: temperature/gpu_temp: GPU is lost", "stop_start")]),
        (
            {"temperature": "GPU requires reset"},  # NVIDIA/open-gpu-kernel-modules#847
            [("action", "unknown: temperature/gpu_temp: GPU requires reset", "reboot")],
        ),
        ({"temperature": "Unknown Error"}, [("action", "unknown: temperature/gpu_temp: Unknown Error", "unknown")]),
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


# nvidia-smi -q in a guest with a part of a GPU (public captures: RTXA6000-24Q with 535.183.06, a GRID V100 with 550).
VGPU = """<log><driver_version>580.178.04</driver_version><gpu id="00000000:00:1E.0">
<product_name>NVIDIA L4-3Q</product_name><product_architecture>Ada Lovelace</product_architecture><uuid>GPU-1</uuid>
<gpu_virtualization_mode><virtualization_mode>VGPU</virtualization_mode></gpu_virtualization_mode>
<vgpu_software_licensed_product><licensed_product_name>NVIDIA RTX Virtual Workstation</licensed_product_name>
<license_status>{licence}</license_status></vgpu_software_licensed_product>
<fan_speed>N/A</fan_speed><clocks_event_reasons>N/A</clocks_event_reasons>
<fb_memory_usage><total>3072 MiB</total><used>47 MiB</used><free>2800 MiB</free></fb_memory_usage>
<utilization><gpu_util>0 %</gpu_util><memory_util>0 %</memory_util></utilization>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile><sram_correctable>N/A</sram_correctable>
<dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors><remapped_rows>N/A</remapped_rows>
<temperature><gpu_temp>N/A</gpu_temp></temperature><gpu_power_readings><power_draw>N/A</power_draw></gpu_power_readings>
<clocks><graphics_clock>210 MHz</graphics_clock><sm_clock>210 MHz</sm_clock><mem_clock>405 MHz</mem_clock></clocks>
<fabric><state>N/A</state><status>N/A</status></fabric></gpu></log>"""


@pytest.mark.parametrize(
    ("licence", "level"),
    [
        ("Licensed (Expiry: N/A)", ""), ("Licensed (Expiry: 2026-7-7 16:1:44 GMT)", ""),
        ("Unlicensed (Unrestricted)", "watch"), ("Unlicensed (Restricted)", "action"), ("Unlicensed", "action"),
    ],
)  # fmt: skip
def test_a_part_of_a_gpu_is_healthy_with_a_licence(bench: Bench, licence: str, level: str) -> None:
    bench.prints("nvidia-smi", VGPU.format(licence=licence))
    found = of(bench.diagnose(), "gpus")
    text = f"the vGPU has no licence: {licence}; without one it is slowed down, and CUDA fails"
    assert found == ([(level, "GPU 00000000:00:1E.0", text, "repair_service")] if level else [])


def test_a_corrupt_inforom_hides_no_value(bench: Bench) -> None:
    """nvidia-smi prints everything, then warns and exits with 14."""
    bench.prints("nvidia-smi", xml({"recovery": "Reset"}) + "\nWARNING: infoROM is corrupted at gpu 0000:00:1B.0\n", 14)
    document = bench.diagnose()
    text = "its infoROM is corrupted; it computes, but a count of errors or a setting may be lost"
    action, warning = of(document, "gpus")
    assert warning == ("watch", "GPU 0000:00:1B.0", text, "aws_support")
    assert action[0] == "action" and "Reset" in action[2]
    bench.prints(
        "nvidia-smi", "NVIDIA H100, 00000000:1C:00.0, No, Yes, 0, 1\nWARNING: infoROM is corrupted at gpu X\n", 14
    )
    (finding,) = of(bench.diagnose(), "remapped_rows")
    assert finding == ("action", "GPU 00000000:1C:00.0", "a row remap is pending", "schedule_reboot")


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
    for action in (
        "Reset",
        "GPU Reset",
        "GPU_RESET",
        "Reboot",
        "Drain and Reset",
        "Drain P2P",
        "DRAIN_P2P",
        "of a later driver",
    ):
        bench.prints("nvidia-smi", xml({"recovery": action}))
        assert [row[3] for row in of(bench.diagnose(), "gpus")] == [advice(recovery_action=action)], action
    kinds = {row.ec2 for row in parser_module("catalogue").Catalogue(policy_path=None).actions.values()}
    assert program.DO.keys() - {"repair_service", "unknown", "fabric", "driver", "disk", "network"} <= kinds


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


def test_gpu_that_cannot_be_initialised_is_a_finding(bench: Bench) -> None:
    """The parser's log is gone and no Xid was printed; the kernel log still has the reason."""
    home = bench.root / "opt/aws/cloudwatch"
    home.mkdir(parents=True)
    (home / "nvidia").symlink_to(ROOT / "onhost/event_parser")
    bench.prints("dmesg", "[1.0] NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)\n")
    [(level, subject, text, kind)] = of(bench.diagnose(), "events")
    assert (level, subject, kind) == ("action", "GPU 0000:4b:00.0", "stop_start")
    assert text == "GPU initialisation RM_INIT_FAILED: The driver cannot initialise the GPU"


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


def test_link_that_does_not_answer_is_no_good_link(bench: Bench) -> None:
    bench.prints(
        "nvidia-smi",
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 1: Replay Errors: GPU is lost\n",
    )
    (finding,) = of(bench.diagnose(), "nvlink")
    assert finding == ("action", "GPU 0", "link counters: Link 1: Replay Errors: GPU is lost", "unknown")


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
        ("Failed to initialize NVML: Driver Not Loaded\n", 9, "driver", "nvidia is not loaded", "dkms status"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
         "Driver is properly installed and present in your system.\n", 12, "driver", "library of NVML", "ldconfig"),
        ("NVIDIA-SMI has failed because you do not have the required permissions to access NVIDIA devices\n", 4,
         "driver", "device nodes", "ls -l /dev/nvidia*"),
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


def test_step_for_a_missing_node_makes_that_node(bench: Bench) -> None:
    """With -u, nvidia-modprobe would replace /dev/nvidia-uvm: tests/replicas/test_nvidia_modprobe.py."""
    board(bench)
    for name in ("nvidia1", "nvidiactl"):
        (bench.root / "dev" / name).unlink()
    found = {one["subject"]: one["do"] for one in bench.diagnose()["findings"] if "device node" in one["text"]}
    assert found.keys() == {"GPU 0000:1c:00.0", "NVIDIA driver"}
    assert found["GPU 0000:1c:00.0"].startswith("Run `nvidia-modprobe -c 1` as root")
    assert found["NVIDIA driver"].startswith("Run `nvidia-modprobe -c 255` as root")


def test_promised_numbers_are_those_of_the_facts() -> None:
    types = load_facts().tables["instance_types"]["instance_types"]
    gpus = {name: row["gpu"] for name, row in types.items() if row.get("gpu")}
    expected = {
        name: gpu["count"]
        for name, gpu in gpus.items()
        if gpu.get("vendor", "nvidia") == "nvidia" and gpu["count"] >= 1
    }
    assert expected == program.PROMISED
