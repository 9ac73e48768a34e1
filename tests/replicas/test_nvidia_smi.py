"""The nvidia-smi replica against a folder that looks like a machine's /proc: forms, fields, exit codes, readings."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as tree
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpu_ami.recipes.facts import load_facts
from localregion.mirror.table import REPLICAS
from localregion.replicas.cloudwatch_agent.cwagent import configuration
from localregion.replicas.cloudwatch_agent.cwagent import gpu as agent_gpu
from localregion.replicas.nvidia_driver.nvidia_smi.smi.cli import main
from localregion.replicas.nvidia_driver.nvidia_smi.smi.driver import CUDA_VERSION, NVLINK

from .conftest import A10G, A100, VERSION

NOW = 1795269000.25
Machine = Callable[..., str]


def smi(root: str, *words: str, own: str = VERSION, now: float = NOW) -> tuple[int, str]:
    out = io.StringIO()
    return main(list(words), root=root, now=lambda: now, out=out, own=own), out.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split(", ") for line in text.splitlines()]


def test_drivers_show_the_cuda_of_their_branch() -> None:
    """nvidia-smi and libcuda of each branch of the facts; an image with both on a newer branch failed its checks."""
    branches = {name: str(row["highest_cuda"]) for name, row in load_facts().nvidia_drivers["branches"].items()}
    assert {name: cuda for name, cuda in branches.items() if int(name) >= 535} == {
        name: cuda for name, cuda in CUDA_VERSION.items() if name in branches
    }
    source = (REPLICAS / "nvidia_driver/driver_files/versions.c").read_text("utf-8")
    table = {branch: f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}" for branch, cuda in
             re.findall(r"{(\d{3}), (\d{5})}", source)}  # fmt: skip
    assert {name: table[name] for name in branches} == branches


def test_list_of_gpus(machine: Machine) -> None:
    assert smi(machine(), "-L") == (
        0,
        "GPU 0: NVIDIA A10G (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
        "GPU 1: NVIDIA A10G (UUID: GPU-00000001-0000-0000-0000-000000000000)\n",
    )


def test_without_a_module_it_prints_what_the_real_one_prints(machine: Machine) -> None:
    transcript = Path(__file__).parents[1] / "transcripts" / "nvidia_smi_without_driver.yml"
    rows = [
        row for row in yaml.safe_load(transcript.read_text(encoding="utf-8")) if row["command"].startswith("nvidia-smi")
    ]
    assert len(rows) == 4
    for row in rows:
        assert smi(machine(loaded=None), *row["command"].split()[1:]) == (row["status"], row["stdout"]), row["command"]


@pytest.mark.parametrize(
    "words", [["-L"], ["-q", "-x"], ["--query-gpu=index", "--format=csv"], ["nvlink", "-s"], ["topo", "-m"], []]
)
def test_without_a_module_it_is_exit_9(machine: Machine, words: list[str]) -> None:
    code, text = smi(machine(loaded=None), *words)
    assert code == 9 and text.startswith(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )


def test_without_a_gpu_it_is_exit_6(machine: Machine) -> None:
    assert smi(machine(count=0), "-q") == (6, "No devices were found\n")


def test_module_of_another_version_is_exit_18(machine: Machine) -> None:
    code, text = smi(machine(loaded="550.144.03"), "-L")
    assert (code, text) == (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163\n",
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--query-gpu=index,foo", "--format=csv"], 2, 'Field "foo" is not a valid field to query.'),
        (["--query-gpu=index"], 2, 'Missing "--format=" switch.'),
        (["--query-gpu=index", "--format=noheader"], 2, 'Missing "csv" in "--format=" switch.'),
        (["--query-gpu=index", "--format=csv,nice"], 2, '"nice" is not a valid format option.'),
        (["--nonsense"], 1, "Invalid combination of input arguments."),
        (["-L", "-i", "7"], 6, "No devices were found"),
        (["-q", "-d", "FOO"], 2, 'Invalid display type: "FOO"'),
        (["nvlink", "-z"], 1, "Invalid combination of input arguments."),
        (["-i"], 1, 'Option "-i" requires a value.'),
    ],
)
def test_wrong_questions(machine: Machine, words: list[str], code: int, said: str) -> None:
    found, text = smi(machine(), *words)
    assert found == code and text.startswith(said)


def test_csv_with_header_and_units(machine: Machine) -> None:
    code, text = smi(machine(), "--query-gpu=index,name,memory.total,clocks.sm,fan.speed,compute_cap", "--format=csv")
    head, first, _ = rows(text)
    assert code == 0
    assert head == ["index", "name", "memory.total [MiB]", "clocks.current.sm [MHz]", "fan.speed [%]", "compute_cap"]
    assert (
        first[:3] == ["0", "NVIDIA A10G", "23028 MiB"] and first[3].endswith(" MHz") and first[4:] == ["[N/A]", "8.6"]
    )


def test_csv_of_one_gpu_without_header_and_units(machine: Machine) -> None:
    fields = "index,pci.bus_id,memory.total,pci.domain"
    assert smi(machine(), f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "00000000:00:1C.0") == (
        0,
        "1, 00000000:00:1C.0, 23028, 0x0000\n",
    )


@pytest.mark.parametrize(
    "wanted", ["1", "GPU-00000001-0000-0000-0000-000000000000", "0000:00:1c.0", "00000000:00:1C.0"]
)
def test_a_gpu_can_be_named_in_every_way(machine: Machine, wanted: str) -> None:
    assert smi(machine(), "--query-gpu=index", "--format=csv,noheader", "-i", wanted) == (0, "1\n")


def test_remapped_rows_and_compute_apps(machine: Machine) -> None:
    root = machine(count=1)
    wanted = "gpu_bus_id,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
    assert smi(root, f"--query-remapped-rows={wanted}", "--format=csv,noheader") == (0, "00000000:00:1B.0, 0, No, No\n")
    assert smi(root, "--query-compute-apps=pid,used_memory", "--format=csv") == (0, "pid, used_gpu_memory [MiB]\n")


def test_xml_has_every_measurement_that_the_agent_reads(machine: Machine) -> None:
    _, text = smi(machine(), "-q", "-x")
    _, gpus = agent_gpu.parse(text.encode(), "1.300071.0")
    assert [dimensions for dimensions, _ in gpus] == [
        {"index": str(index), "name": "NVIDIA A10G", "arch": "Ampere"} for index in range(2)
    ]
    # A data-centre board has no fan of its own.
    assert set(gpus[0][1]) == set(configuration.NVIDIA_MEASUREMENTS) - {"fan_speed"}


def test_boards_without_an_encoder_have_no_encoder_statistics(machine: Machine) -> None:
    _, text = smi(machine(A100, 8), "-q", "-x")
    _, gpus = agent_gpu.parse(text.encode(), "1.300071.0")
    assert len(gpus) == 8
    assert {name for name in configuration.NVIDIA_MEASUREMENTS if name not in gpus[0][1]} == {
        "fan_speed",
        "encoder_stats_session_count",
        "encoder_stats_average_fps",
        "encoder_stats_average_latency",
    }


@pytest.mark.parametrize(("version", "tag"), [("550.163.01", "power_draw"), ("570.172.08", "instant_power_draw")])
def test_power_stands_where_the_branch_has_it(machine: Machine, version: str, tag: str) -> None:
    text = smi(machine(loaded=version), "-q", "-x", own=version)[1]
    root = tree.fromstring(text)
    power = root.find("gpu/gpu_power_readings")
    assert power is not None and [child.tag for child in power if "draw" in child.tag][-1] == tag
    assert root.findtext("driver_version") == version
    assert agent_gpu.parse(text.encode(), "1.300071.0")[1][0][1]["power_draw"] > 0


def test_report_in_text_and_its_sections(machine: Machine) -> None:
    root = machine()
    code, text = smi(root, "-q")
    assert code == 0 and "Attached GPUs                             : 2" in text and "GPU 00000000:00:1C.0" in text
    only = smi(root, "-q", "-d", "MEMORY,TEMPERATURE", "-i", "0")[1]
    assert "FB Memory Usage" in only and "GPU Current Temp" in only and "Product Name" not in only


def test_values_stay_within_the_board_and_move_smoothly(machine: Machine) -> None:
    root = machine(count=1)
    fields = "utilization.gpu,power.draw,temperature.gpu,memory.used,memory.free,memory.reserved,clocks.sm"
    last: list[float] = []
    seen: list[list[float]] = []
    for second in range(0, 3600, 5):
        _, text = smi(root, f"--query-gpu={fields}", "--format=csv,noheader,nounits", now=NOW + second)
        values = [float(cell) for cell in text.split(", ")]
        assert 0 <= values[0] <= 100 and 0 < values[1] <= 300 and 20 <= values[2] <= 90 and 0 < values[6] <= 1710
        assert sum(values[3:6]) == int(A10G["memory_mib"])
        if last:
            assert abs(values[0] - last[0]) <= 5 and abs(values[2] - last[2]) <= 3
        last = values
        seen.append(values)
    assert all(len({values[column] for values in seen}) > 10 for column in (0, 1, 2, 3))
    assert smi(root, f"--query-gpu={fields}", "--format=csv") == smi(root, f"--query-gpu={fields}", "--format=csv")


def test_nvlink_and_topology(machine: Machine) -> None:
    root = machine(A100, 2)
    status = smi(root, "nvlink", "-s")[1]
    assert status.count("25 GB/s") == 24
    errors = smi(root, "nvlink", "-e", "-i", "1")[1]
    assert errors.startswith("GPU 1:") and "\t Link 11: CRC Errors: 0" in errors
    matrix = smi(root, "topo", "-m")[1].splitlines()
    assert matrix[1].split("\t")[:3] == ["GPU0", " X ", "NV12"]


def test_every_gpu_behind_switches_has_links() -> None:
    """A new row of the facts without links would be a machine whose GPUs cannot reach each other."""
    table = load_facts().instance_types["instance_types"]
    models = {row["gpu"]["name"] for row in table.values() if row["nvswitch"]}
    parts = [part for part, _, _ in NVLINK]
    assert len(models) > 5
    assert {model for model in models if not any(part in model for part in parts)} == set()
    source = (REPLICAS / "nvidia_driver" / "driver_files" / "boards.c").read_text()
    listed = re.search(r"linked\[\] = \{(.*?)\};", source, re.DOTALL)
    assert listed and re.findall(r'"([^"]+)", (\d+)', listed[1]) == [(part, str(count)) for part, count, _ in NVLINK]


def test_versions_help_and_summary(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = machine()
    assert "DRIVER version      : 550.163.01" in smi(root, "--version")[1]
    assert "--query-gpu" in smi(root, "-h")[1]
    table = smi(root)[1].splitlines()
    assert "CUDA Version: 12.4" in table[2]
    assert len({len(line) for line in table[1:8]}) == 1
    target = tmp_path_factory.mktemp("out") / "report.xml"
    assert smi(root, "-q", "-x", "-f", str(target)) == (0, "")
    assert tree.parse(target).getroot().findtext("attached_gpus") == "2"


H100 = A100 | {"name": "NVIDIA H100 80GB HBM3", "architecture": "Hopper"}
B200 = A100 | {"name": "NVIDIA B200", "architecture": "Blackwell"}


def fabric(root: str, version: str) -> tuple[str, str, list[str]]:
    """State, status and the names of the health fields that this driver prints."""
    _, text = smi(root, "-q", "-x", own=version)
    (section, *_) = tree.fromstring(text).iter("fabric")
    return section.findtext("state", ""), section.findtext("status", ""), [field.tag for field in section.iter()][1:]


def with_switches(root: str, registered: str | None) -> str:
    (Path(root) / "proc/driver/nvidia-nvswitch/devices/0000:c4:00.0").mkdir(parents=True)
    if registered is not None:
        (Path(root) / "run/nvidia-fabric").mkdir(parents=True)
        (Path(root) / "run/nvidia-fabric/registered").write_text(registered)
    return root


@pytest.mark.parametrize(
    ("model", "registered", "state"),
    [
        (A100, "0\n", ("N/A", "N/A")),  # NVML has a state from Hopper on
        (H100, None, ("In Progress", "Success")),
        (H100, "0\n", ("Completed", "Success")),
        (H100, "an earlier load of the module", ("In Progress", "Success")),
    ],
)
def test_fabric_is_complete_when_the_fabric_manager_has_registered_the_gpus(
    machine: Machine, model: dict[str, str], registered: str | None, state: tuple[str, str]
) -> None:
    root = with_switches(machine(model, 2, "580.105.08"), registered)
    assert fabric(root, "580.105.08")[:2] == state


@pytest.mark.parametrize(("registered", "state"), [(None, "In Progress"), ("0\n", "Completed")])
def test_fabric_of_the_fourth_generation_shows_no_switch(machine: Machine, registered: str | None, state: str) -> None:
    root = machine(B200, 2, "580.105.08")
    if registered is not None:
        (Path(root) / "run/nvidia-fabric").mkdir(parents=True)
        (Path(root) / "run/nvidia-fabric/registered").write_text(registered)
    assert fabric(root, "580.105.08")[:2] == (state, "Success")


def test_single_gpu_has_no_fabric(machine: Machine) -> None:
    assert fabric(machine(H100, 1, "580.105.08"), "580.105.08")[:2] == ("N/A", "N/A")


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("535.309.01", ["state", "status"]),
        ("550.163.01", ["state", "status", "cliqueId", "clusterUuid", "health", "bandwidth"]),
        (
            "570.148.08",
            ["state", "status", "cliqueId", "clusterUuid", "health", "bandwidth", "route_recovery_in_progress",
             "route_unhealthy", "access_timeout_recovery"],
        ),
        (
            "580.105.08",
            ["state", "status", "cliqueId", "clusterUuid", "health", "summary", "bandwidth",
             "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery", "incorrect_configuration"],
        ),
    ],
)  # fmt: skip
def test_fields_of_the_fabric_are_those_of_the_driver(machine: Machine, version: str, fields: list[str]) -> None:
    root = with_switches(machine(B200, 1, version), "0")
    assert fabric(root, version)[2] == fields


@pytest.mark.parametrize(
    ("version", "layout"),
    [("470.82.01", "v11"), ("525.147.05", "v12"), ("570.148.08", "v12"), ("580.65.06", "v13"), ("595.91.07", "v13")],
)
def test_layout_is_that_of_the_driver(machine: Machine, version: str, layout: str) -> None:
    _, text = smi(machine(loaded=version), "-q", "-x", own=version)
    assert text.splitlines()[1] == f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{layout}.dtd">'


def test_power_readings_before_r535_have_their_old_place(machine: Machine) -> None:
    _, text = smi(machine(loaded="525.147.05"), "-q", "-x", own="525.147.05")
    (gpu, *_) = tree.fromstring(text).iter("gpu")
    assert gpu.find("gpu_power_readings") is None and (gpu.findtext("power_readings/power_draw") or "").endswith(" W")


# Tags in the order of an H100 and an H200 with the driver 580.159.04.
HOPPER = {
    "pci": "pci_bus pci_device pci_domain",
    "ecc_errors/volatile": "sram_correctable sram_uncorrectable_parity sram_uncorrectable_secded dram_correctable"
    " dram_uncorrectable",
    "ecc_errors/aggregate": "sram_correctable sram_uncorrectable_parity sram_uncorrectable_secded dram_correctable"
    " dram_uncorrectable sram_threshold_exceeded",
}


def test_layout_13_is_that_of_a_real_board(machine: Machine) -> None:
    version = "580.159.04"
    _, text = smi(machine(H100, 1, version), "-q", "-x", own=version)
    gpu = tree.fromstring(text).find("gpu")
    assert gpu is not None
    assert [gpu.findtext("pci/" + tag) for tag in HOPPER["pci"].split()] == ["00", "1B", "0000"]
    for part, tags in list(HOPPER.items())[1:]:
        assert [child.tag for child in gpu.find(part) or ()] == tags.split()
    assert [child.text for child in gpu.find("encoder_stats") or ()] == ["0", "0", "0"]
    assert gpu.findtext("ecc_errors/aggregate/sram_threshold_exceeded") == "No"
    assert gpu.findtext("remapped_rows/row_remapper_histogram/row_remapper_histogram_max") == "2560 bank(s)"
    assert gpu.findtext("gpu_power_readings/min_power_limit") == "200.00 W"


@pytest.mark.parametrize(
    ("version", "uncorrectable"),
    [
        ("535.309.01", ["sram_uncorrectable"]),
        ("570.148.08", ["sram_uncorrectable_parity", "sram_uncorrectable_secded"]),
    ],
)
def test_layout_12_counts_uncorrectable_errors_in_sram(
    machine: Machine, version: str, uncorrectable: list[str]
) -> None:
    _, text = smi(machine(A100, 1, version), "-q", "-x", own=version)
    gpu = tree.fromstring(text).find("gpu")
    assert gpu is not None
    tags = ["sram_correctable", *uncorrectable, "dram_correctable", "dram_uncorrectable"]
    tags += ["sram_threshold_exceeded"] if len(uncorrectable) == 2 else []
    assert [child.tag for child in gpu.find("ecc_errors/aggregate") or ()] == tags
    assert gpu.findtext("pci/pci_bus") == "0x00" and gpu.findtext("encoder_stats/session_count") == "N/A"


def device_nodes(root: str, *names: str) -> Path:
    folder = Path(root, "dev")
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_it_shows_the_gpus_whose_nodes_it_can_open(machine: Machine) -> None:
    """As in a container with one of two GPUs."""
    root = machine()
    device_nodes(root, "nvidiactl", "nvidia1")
    assert smi(root, "-L")[1] == "GPU 0: NVIDIA A10G (UUID: GPU-00000001-0000-0000-0000-000000000000)\n"


def test_without_nodes_it_finds_no_driver_and_no_gpu(machine: Machine) -> None:
    root = machine()
    folder = device_nodes(root, "nvidiactl")
    assert smi(root) == (6, "No devices were found\n")
    (folder / "nvidiactl").unlink()
    status, text = smi(root)
    assert status == 9 and "couldn't communicate with the NVIDIA driver" in text


@pytest.mark.parametrize(("number", "status", "text"), [(13, 4, "Insufficient Permissions"), (1, 255, "Unknown Error")])
def test_without_access_it_says_what_nvml_says(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int, status: int, text: str
) -> None:
    root = machine()
    device_nodes(root, "nvidiactl", "nvidia0")

    def refuse(path: str, flags: int) -> int:
        raise OSError(number, "refused", path)

    monkeypatch.setattr("os.open", refuse)
    assert smi(root, "-L") == (status, f"Failed to initialize NVML: {text}\n")


def test_without_the_library_it_says_so(machine: Machine) -> None:
    """Where a loader's index is; by its index, or in the folders that a loader always reads."""
    root = machine()
    cache = Path(root, "etc/ld.so.cache")
    cache.parent.mkdir()
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/opt/nvidia/libnvidia-ml.so.1\0")
    for words in (["-L"], ["--version"]):
        status, text = smi(root, *words)
        assert status == 12 and text.startswith("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")
    library = Path(root, "opt/nvidia/libnvidia-ml.so.1")
    library.parent.mkdir(parents=True)
    library.touch()
    assert smi(root, "-L")[0] == 0
    library.rename(library.with_name("elsewhere"))
    usual = Path(root, "usr/lib64/libnvidia-ml.so.1")
    usual.parent.mkdir(parents=True)
    usual.touch()
    assert smi(root, "-L")[0] == 0
