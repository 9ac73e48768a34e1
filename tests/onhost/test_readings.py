"""One value of a tool: known, absent or unknown, and never a number by mistake."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from onhost import readings

UNKNOWN = (
    "GPU is lost",
    "[GPU is lost]",
    "Unknown Error",
    "ERR!",
    "[Not Found]",
    "Not Found",
    "",
    "perhaps",
    "12,5",
    "0x1f",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_reading_is_no_number(text: str) -> None:
    for read in (readings.read_number, readings.read_flag):
        reading = read(text)
        assert reading.state == readings.UNKNOWN
        with pytest.raises(readings.UnknownValue):
            reading.number()
        with pytest.raises(TypeError):
            bool(reading)
        with pytest.raises(TypeError):
            _ = reading == 0
        assert not reading.is_set() and reading.number_or_none() is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("30 C", 30),
        ("16x", 16),
        ("68.92 W", 68.92),
        ("81559 MiB", 81559),
        ("640 bank(s)", 640),
        ("0 KB/s", 0),
        ("-5 C", -5),
    ],
)
def test_reading_of_a_value(text: str, number: float) -> None:
    assert readings.read_number(text).number() == number


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated"])
def test_what_a_board_does_not_have_is_absent(text: str) -> None:
    assert readings.read_number(text).state == readings.ABSENT
    assert readings.read_number(text).as_unknown().state == readings.UNKNOWN


@pytest.mark.parametrize(
    ("fabric", "faults"),
    [
        ("<state>Completed</state><status>Success</status>", []),
        ("<state>N/A</state><status>N/A</status>", []),
        ("<state>In Progress</state><status>Success</status>", ["state: In Progress"]),
        ("<state>Not Started</state><status>N/A</status>", ["state: Not Started", "status: N/A"]),
        ("<state>Completed</state><status>Unknown Error</status>", ["status: Unknown Error"]),
        ("<state>GPU is lost</state><status>GPU is lost</status>", ["state: GPU is lost", "status: GPU is lost"]),
        ("<state>Completed</state>", ["status: no value"]),
        ("", ["state: no value", "status: no value"]),
    ],
)
def test_fabric(fabric: str, faults: list[str]) -> None:
    assert readings.fabric_faults(ElementTree.fromstring(f"<gpu><fabric>{fabric}</fabric></gpu>")) == faults


@pytest.mark.parametrize(
    ("health", "faults"),
    [
        ("<summary>Healthy</summary><bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy>", []),
        ("<summary>N/A</summary><incorrect_configuration>None</incorrect_configuration>", []),
        (
            "<summary>Unhealthy</summary><route_unhealthy>True</route_unhealthy>",
            ["summary: Unhealthy", "route_unhealthy: True"],
        ),
        (
            "<summary>Limited Capacity</summary><bandwidth>Degraded</bandwidth>",
            ["summary: Limited Capacity", "bandwidth: Degraded"],
        ),
        ("<access_timeout_recovery>True</access_timeout_recovery>", ["access_timeout_recovery: True"]),
        (
            "<incorrect_configuration>Incorrect SystemGuid</incorrect_configuration>",
            ["incorrect_configuration: Incorrect SystemGuid"],
        ),
    ],
)
def test_fabric_health(health: str, faults: list[str]) -> None:
    text = f"<gpu><fabric><state>Completed</state><status>Success</status><health>{health}</health></fabric></gpu>"
    assert readings.fabric_faults(ElementTree.fromstring(text)) == faults


def test_gpu_without_a_fabric_section_has_no_fault() -> None:
    assert readings.fabric_faults(ElementTree.fromstring("<gpu/>")) == []


# A GPU in MIG mode as an A100 with 535.54.03 shows it (telegraf, testdata/a100-sxm4-v12.xml), shortened; H100 and H200
# with 590.48.01 have the same groups.
MIG = """<gpu id="00000000:01:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<product_architecture>Ampere</product_architecture><mig_mode><current_mig>{mode}</current_mig></mig_mode>
<mig_devices><mig_device><index>0</index><ecc_error_count><volatile_count><sram_uncorrectable>{sram}</sram_uncorrectable>
</volatile_count></ecc_error_count></mig_device></mig_devices><uuid>GPU-1</uuid>
<fb_memory_usage><total>81920 MiB</total><used>50 MiB</used><free>80999 MiB</free></fb_memory_usage>
<utilization><gpu_util>N/A</gpu_util><memory_util>N/A</memory_util></utilization>
<remapped_rows>{rows}</remapped_rows><temperature><gpu_temp>27 C</gpu_temp></temperature>
<gpu_power_readings><power_draw>67.03 W</power_draw></gpu_power_readings>
<clocks><graphics_clock>1275 MHz</graphics_clock>
<sm_clock>1275 MHz</sm_clock><mem_clock>1593 MHz</mem_clock></clocks></gpu>"""


@pytest.mark.parametrize(
    ("mode", "rows", "unknown"),
    [
        ("Enabled", "N/A", {}),
        ("Enabled", "Unknown Error", {"remapped_rows": "Unknown Error"}),
        (
            "Disabled",
            "N/A",
            {
                "utilization/gpu_util",
                "utilization/memory_util",
                "remapped_rows/remapped_row_pending",
                "remapped_rows/remapped_row_failure",
            },
        ),
    ],
)
def test_what_mig_mode_excludes_is_not_unknown(mode: str, rows: str, unknown: dict[str, str] | set[str]) -> None:
    found = readings.unknown_values(ElementTree.fromstring(MIG.format(mode=mode, rows=rows, sram=0)))
    assert set(found) == set(unknown), found


# influxdata/telegraf, testdata quadro-p400.xml and gtx-1070-ti.xml: boards without a power sensor, and without ECC.
@pytest.mark.parametrize(
    ("ecc", "draw", "unknown"),
    [
        ("N/A", "N/A", []),
        ("", "N/A", []),
        ("Enabled", "N/A", ["gpu_power_readings/power_draw"]),
        ("N/A", "Unknown Error", ["gpu_power_readings/power_draw"]),
        ("N/A", "", ["gpu_power_readings/instant_power_draw"]),
    ],
)
def test_a_board_without_a_power_sensor_is_not_unknown(ecc: str, draw: str, unknown: list[str]) -> None:
    mode = f"<ecc_mode><current_ecc>{ecc}</current_ecc></ecc_mode>"
    text = (
        MIG.format(mode="Disabled", rows="N/A", sram=0)
        .replace("67.03 W", draw)
        .replace("N/A</gpu_util>", "0 %</gpu_util>")
    )
    gpu = ElementTree.fromstring(text.replace("</uuid>", f"</uuid>{mode}"))
    assert [path for path in readings.unknown_values(gpu) if "power" in path] == unknown


# utkuozdemir/nvidia_gpu_exporter, capture of 610.57.04: the texts of -q; the element of the XML is derived.
@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("<driver_version>580.105.08</driver_version>", "580.105.08"),
        (
            "<driver_version>610.57.04 [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]"
            "</driver_version><kmd_version>610.57.04</kmd_version>",
            "610.57.04",
        ),
        ("<driver_version>610.57.04 [Deprecated; will be removed in CUDA 14.0]</driver_version>", "610.57.04"),
        ("<driver_version>Not Found</driver_version>", ""),
        ("", ""),
    ],
)
def test_driver_version(text: str, version: str) -> None:
    assert readings.driver_version(ElementTree.fromstring(f"<nvidia_smi_log>{text}</nvidia_smi_log>")) == version


@pytest.mark.parametrize(
    ("architecture", "ecc", "required"),
    [
        ("Ampere", "Enabled", True),
        ("Ampere", "Disabled", True),
        ("Blackwell", "Unknown Error", True),
        ("Blackwell", "", True),
        ("Turing", "Enabled", False),
        # influxdata/telegraf, testdata rtx-3060-v12.xml and rtx-3080-v13.xml: no ECC memory, <remapped_rows>N/A</…>.
        ("Ampere", "N/A", False),
        # a0s/nvidia-smi-exporter#1 (430.26), b3rs3rk/gpustat-unraid#19 (460.56): no product_architecture.
        ("", "Enabled", False),
    ],
)
def test_boards_that_must_show_a_row_remapper(architecture: str, ecc: str, required: bool) -> None:
    assert readings.row_remapper(architecture, ecc=ecc) is required


def test_errors_of_a_mig_device_are_named() -> None:
    gpu = ElementTree.fromstring(MIG.format(mode="Enabled", rows="N/A", sram=2))
    assert readings.mig_errors(gpu) == ["MIG device 0: sram_uncorrectable 2"]
    assert readings.mig_errors(ElementTree.fromstring(MIG.format(mode="Enabled", rows="N/A", sram=0))) == []


@pytest.mark.parametrize(
    ("ecc", "expected"),
    [
        ("<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending>", []),
        ("<channel_repair_pending>Yes</channel_repair_pending>", ["schedule_reboot"]),
        ("<tpc_repair_pending>Yes</tpc_repair_pending>", ["schedule_reboot"]),
        ("<unrepairable_memory>Yes</unrepairable_memory>", ["isolate"]),
        ("<unrepairable_memory>N/A</unrepairable_memory>", []),
        ("<bank_remapper_pending>No</bank_remapper_pending>", []),
        ("<bank_remapper_pending>Yes</bank_remapper_pending>", ["schedule_reboot"]),
    ],
)
def test_repairs(ecc: str, expected: list[str]) -> None:
    gpu = ElementTree.fromstring(f"<gpu><ecc_errors>{ecc}</ecc_errors></gpu>")
    assert [kind for kind, _ in readings.repairs(gpu)] == expected


def test_unrepairable_memory_counts_without_any_error() -> None:
    """As four GPUs of a pre-release Rubin board show it with 615.23, all of them: NVIDIA/k8s-test-infra a43e193, test
    data hardware/qx-vrnvl72.xml (2026-09-02). No error was counted, no row is remapped, every bank has its spare rows,
    and gpu_recovery_action is None; DCGM 4.6.0 fails such a GPU by the flag alone, with severity ISOLATE."""
    ecc = "<dram_uncorrectable>0</dram_uncorrectable><channel_repair_pending>No</channel_repair_pending>"
    ecc += "<tpc_repair_pending>No</tpc_repair_pending><unrepairable_memory>Yes</unrepairable_memory>"
    rows = "<remapped_row_unc>0</remapped_row_unc><remapped_row_failure>No</remapped_row_failure>"
    rows += "<row_remapper_histogram_max>12096 bank(s)</row_remapper_histogram_max>"
    text = f"<ecc_errors>{ecc}</ecc_errors><remapped_rows>{rows}</remapped_rows>"
    gpu = ElementTree.fromstring(f"<gpu><gpu_recovery_action>None</gpu_recovery_action>{text}</gpu>")
    assert readings.repairs(gpu) == [("isolate", "its memory cannot be repaired")]
    assert readings.recovery_asked(gpu.findtext("gpu_recovery_action")) == ("", 0)


# Elements that R615 added, of four GPUs of a pre-release Rubin board with 615.23: NVIDIA/k8s-test-infra, test data
# hardware/qx-vrnvl72.xml (2026-09-02). `Disconnected`: nvlink_inband_msg.h, NVLINK_INBAND_FABRIC_HEALTH_MASK_GFM_STATE.
@pytest.mark.parametrize(
    ("state", "faults"), [("Connected", []), ("N/A", []), ("Disconnected", ["gfm_state: Disconnected"])]
)
def test_connection_to_the_manager_of_the_fabric(state: str, faults: list[str]) -> None:
    health = f"<summary>Healthy</summary><partition_assigned>True</partition_assigned><gfm_state>{state}</gfm_state>"
    cliques = "<clique_entry><clique_type>Unicast Pointer</clique_type><clique_id>32766</clique_id></clique_entry>"
    fabric = f"<state>Completed</state><status>Success</status><cliqueId>32766</cliqueId><health>{health}</health>"
    gpu = ElementTree.fromstring(f"<gpu><fabric>{fabric}<cliques>{cliques}</cliques></fabric></gpu>")
    assert readings.fabric_faults(gpu) == faults


@pytest.mark.parametrize(
    ("name", "clique", "partition", "faults"),
    [
        ("NVIDIA B300 SXM6 AC", "0", "N/A", []),
        ("NVIDIA GB200", "32766", "True", []),
        ("NVIDIA GB200", "0", "N/A", ["clique: 0, the GPU is in no partition of the NVLink domain"]),
        ("NVIDIA GB300", "32766", "False", ["partition_assigned: False"]),
    ],
)
def test_partition_of_a_rack(name: str, clique: str, partition: str, faults: list[str]) -> None:
    health = f"<health><partition_assigned>{partition}</partition_assigned></health>"
    fabric = f"<state>Completed</state><status>Success</status><cliqueId>{clique}</cliqueId>{health}"
    gpu = ElementTree.fromstring(f"<gpu><product_name>{name}</product_name><fabric>{fabric}</fabric></gpu>")
    assert readings.fabric_faults(gpu) == faults


def test_fault_of_the_fabric_is_no_unknown_value() -> None:
    fabric = "<fabric><state>Completed</state><status>Insufficient Resources</status></fabric></gpu>"
    gpu = ElementTree.fromstring(MIG.format(mode="Enabled", rows="N/A", sram=0).replace("</gpu>", fabric))
    assert (readings.unknown_values(gpu), readings.fabric_faults(gpu)) == ({}, ["status: Insufficient Resources"])


# Values of a healthy p6-b300.48xlarge with 595.91.07 (public capture, read 2026-11-27); Tx and PLR are composed.
HEALTHY_LINK = (
    ("Tx packets", "1204512"), ("Malformed packet Errors", "0"), ("Tx discards", "0"), ("Effective Errors", "0"),
    ("Effective BER", "15e-255"), ("Symbol BER", "15e-255"), ("FEC Errors - 0", "36140749276"), ("FEC Errors - 1", "7"),
    ("Raw BER Lane 0", "2061"), ("Raw BER Total", "1037"), ("Raw Errors Lane 0", "82"), ("PLR Rcv Codes", "9"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        *((name, value, "") for name, value in HEALTHY_LINK),
        ("Effective BER", "15e-9", "Effective BER: 15e-9, the limit is 1e-12"),
        ("Symbol BER", "1e-13", ""),
        ("Rx Errors", "2", "Rx Errors: 2"),
        ("Replay Errors", "1", "Replay Errors: 1"),
        ("Link recovery failed events", "1", "Link recovery failed events: 1"),
    ],
)
def test_counter_of_a_link(name: str, value: str, fault: str) -> None:
    (counter,) = readings.link_counters(f"GPU 3: NVIDIA B300 SXM6 AC (UUID: GPU-0)\n\t Link 17: {name}: {value}\n")
    assert (counter.gpu, counter.link, counter.name, counter.fault()) == (3, 17, name, fault)


def _states(*gpus: str) -> str:
    return "".join(f"GPU {index}: NVIDIA B200 (UUID: GPU-{index})\n{text}\n" for index, text in enumerate(gpus))


UP = "\n".join(f"\t Link {link}: 53.125 GB/s" for link in range(18))
LINK_5_DOWN = UP.replace("Link 5: 53.125 GB/s", "Link 5: <inactive>")
ALL_DOWN = UP.replace("53.125 GB/s", "<inactive>")
NONE_UP = "NVML: Unable to retrieve NVLink information as all links are inActive"  # leptonai/gpud#1085


@pytest.mark.parametrize(
    ("printed", "faults"),
    [
        (_states(UP, UP), {}),
        (_states(UP, NONE_UP), {1: "0 of 18 NVLinks are active"}),
        (
            _states(LINK_5_DOWN, UP),
            {0: "17 of 18 NVLinks are active: inactive 5"},
        ),
        (_states(NONE_UP, NONE_UP), {}),
        (
            _states("\t Link 0: Rx Errors: 0\n\t Link 1: Rx Errors: 0", "\t Link 0: Rx Errors: 0"),
            {1: "1 of 2 NVLinks are active"},
        ),
        ("", {}),
        # A link of each GPU is down: the NVSwitch to which it leads. A V100 leaves links unused, two boards are no HGX.
        (_states(*[LINK_5_DOWN] * 8), dict.fromkeys(range(8), "17 of 18 NVLinks are active: inactive 5")),
        (_states(*[LINK_5_DOWN] * 2), {}),
        (_states(*[LINK_5_DOWN] * 8).replace("NVIDIA B200", "Tesla V100-SXM2-16GB"), {}),
        (_states(*[NONE_UP] * 8), dict.fromkeys(range(8), "no NVLink is active")),
        (_states(*[ALL_DOWN] * 8), dict.fromkeys(range(8), "0 of 18 NVLinks are active")),
        (_states(*[ALL_DOWN] * 8).replace("NVIDIA B200", "NVIDIA H200 NVL"), {}),
        # One GPU of several in MIG mode, one without NVLink: neither shows links, and neither is a fault.
        (_states(UP, "Nvlink queries are not supported for Devices in MIG mode"), {}),
        (_states("Device does not have or support Nvlink", UP), {}),
    ],
)
def test_inactive_links(printed: str, faults: dict[int, str]) -> None:
    assert readings.inactive_links(printed) == faults


def test_efa_devices_are_those_of_the_driver_efa(tmp_path: Path) -> None:
    for name, driver in {"rdmap16s27": "efa", "ibp198s0f0": "mlx5_core", "odd0": "efa", "rdmap9s0": ""}.items():
        (tmp_path / "sys/class/infiniband" / name / "device").mkdir(parents=True)
        if driver:
            (tmp_path / "sys/class/infiniband" / name / "device/driver").symlink_to(
                f"../../../bus/pci/drivers/{driver}"
            )
    assert readings.efa_devices(str(tmp_path)) == ["odd0", "rdmap16s27", "rdmap9s0"]
    assert readings.efa_devices(str(tmp_path / "none")) == []
