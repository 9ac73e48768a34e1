"""Elements of `nvidia-smi -q` that no reader of the project asks for, as the originals print them.

After captures of an A10G and a T4 (515.105.01), an A100 (535.54.03, 570.148.08), an H100 and a B200 (580.105.08), a
GB200 and a GB300 (580.173.02), and an L40S and a T4 (595.91.07): influxdata/telegraf and NVIDIA/k8s-test-infra. An L4
and an H200 (550.90), a V100, an L40S and a GH200 (550.127.05) and an H100 (565.57.01): thamada/gls.
"""

from __future__ import annotations

from . import driver
from .query import DEPRECATED, NO_APPLICATION_CLOCKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from .driver import Gpu

    Tree = list[tuple[str, str, Union[str, "Tree"]]]
    # After which element, the first branch that has it, the first that has not, title, tag, value
    Row = tuple[str, int, int, str, str, Union[str, "Tree"]]

NA = "N/A"
_ALL = 1000


def fill(tree: Tree, gpu: Gpu, version: str) -> Tree:
    """The tree with the remaining elements, each after its neighbour in the original."""
    branch = driver.branch(version)
    for path, first, end, title, tag, value in _rows(gpu, version):
        if first <= branch < end:
            *groups, after = path.split("/")
            place = tree
            for group in groups:
                below = [value for _, name, value in place if name == group]
                place = below[0] if below and isinstance(below[0], list) else place
            at = next((index for index, row in enumerate(place) if row[1] == after), len(place) - 1)
            place.insert(at + 1, (title, tag, value))
    return tree


def _group(*names: tuple[str, str], value: str = NA) -> Tree:
    return [(title, tag, value) for title, tag in names]


def _rows(gpu: Gpu, version: str) -> list[Row]:
    branch = driver.branch(version)
    architecture = gpu.values.get("architecture", "")
    of_rack = "GB200" in gpu.name or "GB300" in gpu.name
    switched = of_rack or " B200" in gpu.name or " B300" in gpu.name
    linked = "Enabled" if of_rack or "GH200" in gpu.name else "Disabled" if switched or architecture == "Hopper" else NA
    device = "000010DE" if not gpu.values.get("device_id") else gpu.values["device_id"].upper() + "10DE"
    bar = 256 if architecture in ("Turing", "Volta") else 1 << ((gpu.number("memory_mib") or 1) - 1).bit_length()
    modern = architecture not in ("Turing", "Volta", "Ampere")
    kinds = ("_tlimit" if modern else "") + "_threshold"
    thresholds: Tree = [
        ("GPU Shutdown Temp", "gpu_temp_max" + kinds, "-5 C" if modern else "92 C"),
        ("GPU Slowdown Temp", "gpu_temp_slow" + kinds, "-2 C" if modern else "89 C"),
        ("GPU Max Operating Temp", "gpu_temp_max_gpu" + kinds, "0 C" if modern else "85 C"),
        ("GPU Target Temperature", "gpu_target_temperature", NA),
    ]
    clocks = _clocks(gpu, branch)
    graphics = str(gpu.number("clock_graphics_mhz")) + " MHz"
    module = (
        ("Current Power Limit", "current_power_limit"),
        ("Requested Power Limit", "requested_power_limit"),
        ("Default Power Limit", "default_power_limit"),
        ("Min Power Limit", "min_power_limit"),
        ("Max Power Limit", "max_power_limit"),
    )
    drawn = (("Average Power Draw", "average_power_draw"), ("Instantaneous Power Draw", "instant_power_draw"))
    state = DEPRECATED if branch >= 595 else "P0"
    platform = _platform(switched, branch)
    return [
        ("display_mode", 580, _ALL, "Display Attached", "display_attached", "Yes"),
        ("accounting_mode", 0, _ALL, "Accounting Mode Buffer Size", "accounting_mode_buffer_size", "4000"),
        (
            "accounting_mode_buffer_size",
            0,
            _ALL,
            "Driver Model",
            "driver_model",
            _group(("Current", "current_dm"), ("Pending", "pending_dm")),
        ),
        (
            "uuid",
            580,
            _ALL,
            "GPU PDI",
            "pdi",
            "0x" + "".join(part for part in gpu.uuid if part.isalnum())[3:19].lower(),
        ),
        ("vbios_version", 0, _ALL, "MultiGPU Board", "multigpu_board", "No"),
        ("multigpu_board", 0, _ALL, "Board ID", "board_id", "0x" + gpu.bus_id.split(":")[1].lower() + "00"),
        ("board_id", 525, _ALL, "Board Part Number", "board_part_number", NA),
        ("board_part_number" if branch >= 525 else "board_id", 0, _ALL, "GPU Part Number", "gpu_part_number", NA),
        ("gpu_part_number", 525, _ALL, "FRU Part Number", "gpu_fru_part_number", NA),
        ("gpu_fru_part_number", 565, _ALL, "Platform Info", "platformInfo", platform),
        ("gpu_fru_part_number" if branch >= 525 else "gpu_part_number", 0, 565, "Module ID", "gpu_module_id", "0"),
        (
            "platformInfo" if branch >= 565 else "gpu_module_id",
            0,
            _ALL,
            "Inforom Version",
            "inforom_version",
            _group(
                ("Image Version", "img_version"),
                ("OEM Object", "oem_object"),
                ("ECC Object", "ecc_object"),
                ("Power Management Object", "pwr_object"),
            ),
        ),
        (
            "inforom_version",
            550,
            _ALL,
            "Inforom BBX Object Flush",
            "inforom_bbx_flush",
            _group(("Latest Timestamp", "latest_timestamp"), ("Latest Duration", "latest_duration")),
        ),
        (
            "inforom_bbx_flush" if branch >= 550 else "inforom_version",
            0,
            _ALL,
            "GPU Operation Mode",
            "gpu_operation_mode",
            _group(("Current", "current_gom"), ("Pending", "pending_gom")),
        ),
        ("gpu_operation_mode", 550, _ALL, "GPU C2C Mode", "c2c_mode", linked),
        ("gpu_virtualization_mode/virtualization_mode", 0, _ALL, "Host VGPU Mode", "host_vgpu_mode", NA),
        ("gpu_virtualization_mode/host_vgpu_mode", 550, _ALL, "vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", NA),
        (
            "gpu_virtualization_mode",
            570,
            580,
            "GPU Reset Status",
            "gpu_reset_status",
            _group(
                ("Reset Required", "reset_required"),
                ("Drain and Reset Recommended", "drain_and_reset_recommended"),
                value=DEPRECATED,
            ),
        ),
        (
            "gpu_recovery_action" if branch >= 565 else "gpu_virtualization_mode",
            0,
            _ALL,
            "IBMNPU",
            "ibmnpu",
            _group(("Relaxed Ordering Mode", "relaxed_ordering_mode")),
        ),
        ("pci/pci_domain", 550, _ALL, "Base Classcode", "pci_base_class", "3"),
        ("pci/pci_base_class", 550, _ALL, "Sub Classcode", "pci_sub_class", "2"),
        ("pci/pci_sub_class" if branch >= 550 else "pci/pci_domain", 0, _ALL, "Device Id", "pci_device_id", device),
        ("pci/pci_bus_id", 0, _ALL, "Sub System Id", "pci_sub_system_id", "000010DE"),
        (
            "pci/pci_gpu_link_info",
            0,
            _ALL,
            "Bridge Chip",
            "pci_bridge_chip",
            _group(("Type", "bridge_chip_type"), ("Firmware", "bridge_chip_fw")),
        ),
        ("pci/replay_rollover_counter", 0, _ALL, "Tx Throughput", "tx_util", "0 KB/s"),
        ("pci/tx_util", 0, _ALL, "Rx Throughput", "rx_util", "0 KB/s"),
        ("pci/rx_util", 535, _ALL, "Atomic Caps Outbound", "atomic_caps_outbound", NA),
        ("pci/atomic_caps_outbound", 535, _ALL, "Atomic Caps Inbound", "atomic_caps_inbound", NA),
        (
            "clocks_event_reasons",
            580,
            _ALL,
            "Clocks Event Reasons Counters",
            "clocks_event_reasons_counters",
            _group(
                *(
                    ("Counter", "clocks_event_reasons_counters_" + name)
                    for name in (
                        "sw_power_cap",
                        "sync_boost",
                        "sw_therm_slowdown",
                        "hw_therm_slowdown",
                        "hw_power_brake",
                    )
                ),
                value="0 us",
            ),
        ),
        (
            "clocks_event_reasons_counters" if branch >= 580 else "clocks_event_reasons",
            550,
            _ALL,
            "Sparse Operation Mode",
            "sparse_operation_mode",
            "Disabled" if architecture == "Hopper" else NA,
        ),
        (
            "fb_memory_usage",
            0,
            _ALL,
            "BAR1 Memory Usage",
            "bar1_memory_usage",
            # The CPU reads a GH200's memory without the window.
            _group(("Total", "total"), ("Used", "used"), ("Free", "free"))
            if "GH200" in gpu.name
            else [
                ("Total", "total", "%d MiB" % bar),
                ("Used", "used", "1 MiB"),
                ("Free", "free", "%d MiB" % (bar - 1)),
            ],
        ),
        (
            "bar1_memory_usage",
            535,
            _ALL,
            "Conf Compute Protected Memory Usage",
            "cc_protected_memory_usage",
            _group(("Total", "total"), ("Used", "used"), ("Free", "free"), value="0 MiB"),
        ),
        (
            "encoder_stats",
            0,
            _ALL,
            "FBC Stats",
            "fbc_stats",
            _group(
                ("Active Sessions", "session_count"),
                ("Average FPS", "average_fps"),
                ("Average Latency", "average_latency"),
                value="0",
            ),
        ),
        (
            "fbc_stats",
            570,
            _ALL,
            "DRAM Encryption Mode",
            "dram_encryption_mode",
            _group(("Current", "current_dram_encryption"), ("Pending", "pending_dram_encryption")),
        ),
        *(
            [
                (
                    "ecc_errors/aggregate",
                    550,
                    _ALL,
                    "Aggregate Uncorrectable SRAM Sources",
                    "aggregate_uncorrectable_sram_sources",
                    _group(
                        *((name.upper(), "sram_" + name) for name in ("l2", "sm", "microcontroller", "pcie", "other")),
                        value="0",
                    ),
                )
            ]
            if architecture not in ("Turing", "Volta")
            else []
        ),
        ("temperature/gpu_temp_tlimit", 0, _ALL, *thresholds[3]),
        ("temperature/gpu_temp_tlimit", 0, _ALL, *thresholds[2]),
        ("temperature/gpu_temp_tlimit", 0, _ALL, *thresholds[1]),
        ("temperature/gpu_temp_tlimit", 0, _ALL, *thresholds[0]),
        ("temperature/memory_temp", 0, _ALL, "Memory Max Operating Temp", "gpu_temp_max_mem" + kinds, NA),
        (
            "temperature",
            0,
            _ALL,
            "GPU Target Temperature",
            "supported_gpu_target_temp",
            _group(("Min", "gpu_target_temp_min"), ("Max", "gpu_target_temp_max")),
        ),
        ("gpu_power_readings", 570, _ALL, "GPU Memory Power Readings", "gpu_memory_power_readings", _group(*drawn)),
        (
            "gpu_memory_power_readings",
            570,
            _ALL,
            "Module Power Readings",
            "module_power_readings",
            [("Power State", "power_state", state), *_group(*drawn, *module)],
        ),
        (
            "gpu_power_readings",
            550,
            570,
            "GPU Memory Power Readings",
            "gpu_memory_power_readings",
            _group(("Power Draw", "power_draw")),
        ),
        (
            "gpu_memory_power_readings" if branch >= 550 else "gpu_power_readings",
            535,
            570,
            "Module Power Readings",
            "module_power_readings",
            [("Power State", "power_state", "P0"), *_group(("Power Draw", "power_draw"), *module)],
        ),
        ("module_power_readings", 570, _ALL, "Power Smoothing", "power_smoothing", NA),
        (
            "power_smoothing",
            570,
            _ALL,
            "Workload Power Profiles",
            "power_profiles",
            _group(
                ("Requested Profiles", "power_profile_requested_profiles"),
                ("Enforced Profiles", "power_profile_enforced_profiles"),
            ),
        ),
        ("power_profiles", 590, _ALL, "EDPp Multiplier", "edpp_multiplier", NA),
        ("applications_clocks", 0, _ALL, "Default Applications Clocks", "default_applications_clocks", clocks),
        (
            "default_applications_clocks",
            535,
            _ALL,
            "Deferred Clocks",
            "deferred_clocks",
            _group(("Memory", "mem_clock")),
        ),
        (
            "max_clocks",
            0,
            _ALL,
            "Max Customer Boost Clocks",
            "max_customer_boost_clocks",
            [("Graphics", "graphics_clock", graphics)],
        ),
        (
            "max_customer_boost_clocks",
            0,
            _ALL,
            "Clock Policy",
            "clock_policy",
            _group(("Auto Boost", "auto_boost"), ("Auto Boost Default", "auto_boost_default")),
        ),
        ("clock_policy", 510, 580, "Voltage", "voltage", _group(("Graphics", "graphics_volt"))),
        ("processes", 0, _ALL, "Accounted Processes", "accounted_processes", ""),
        ("accounted_processes", 565, _ALL, "Capabilities", "capabilities", [("EGM", "egm", "disabled")]),
    ]


def _clocks(gpu: Gpu, branch: int) -> Tree:
    """Default application clocks, which R590 has no more."""
    return [
        (title, tag, DEPRECATED if branch >= NO_APPLICATION_CLOCKS else str(gpu.number(key)) + " MHz")
        for title, tag, key in (
            ("Graphics", "graphics_clock", "clock_graphics_mhz"),
            ("Memory", "mem_clock", "clock_memory_mhz"),
        )
    ]


def _platform(switched: bool, branch: int) -> Tree:
    if branch < 570:  # an H100 with 565.57.01
        return [
            ("Rack Serial Number", "rack_serial_number", NA),
            ("Chassis Physical Slot Number", "chassis_physical_slot_number", NA),
            ("Compute Slot Index", "compute_slot_index", NA),
            ("Node Index", "node_index", NA),
            ("Peer Type", "peer_type", NA),
            ("Module Id", "module_id", "1"),
        ]
    return [
        ("Chassis Serial Number", "chassis_serial_number", NA),
        ("Slot Number", "slot_number", NA),
        ("Tray Index", "tray_index", NA),
        ("Host ID", "host_id", "1" if switched else NA),
        ("Peer Type", "peer_type", "Switch Connected" if switched else NA),
        ("Module Id", "module_id", "1"),
        ("GPU Fabric GUID", "gpu_fabric_guid", "0x0000000000000001" if switched else NA),
    ]
