"""The whole report of `nvidia-smi -q`: one tree of (title, tag, value or children), printed as text or as XML.

The layout is that of the driver: nvsmi_device_v11 to v13; power_readings before R535, instant_power_draw from R570 on;
the fabric from R535 on, with the health fields of the branch.
"""

from __future__ import annotations

from . import driver, query, remaining, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Union

    from .driver import Gpu
    from .readings import Readings

    Tree = list[tuple[str, str, Union[str, "Tree"]]]

NA = "N/A"


def _or_na(value: object, unit: str = "") -> str:
    return NA if value is None else str(value) + (" " + unit if unit else "")


def gpu_tree(gpu: Gpu, now: Readings, version: str, timestamp: str) -> Tree:
    """[(title, tag, value | children)] of one GPU, in the order of the original."""
    facts = query.fields(gpu, now, version, 0, timestamp)

    def fact(name: str) -> str:
        value, unit = facts[name]
        if value == query.DEPRECATED:
            return query.DEPRECATED
        return _or_na(None if value == "[N/A]" else value, unit)

    tree: Tree = [
        ("Product Name", "product_name", gpu.name),
        ("Product Brand", "product_brand", "NVIDIA"),
        ("Product Architecture", "product_architecture", gpu.values.get("architecture", NA)),
        ("Display Mode", "display_mode", query.DEPRECATED if driver.branch(version) >= 580 else fact("display_mode")),
        ("Display Active", "display_active", fact("display_active")),
        ("Persistence Mode", "persistence_mode", fact("persistence_mode")),
        ("Addressing Mode", "addressing_mode", fact("addressing_mode")),
        (
            "MIG Mode",
            "mig_mode",
            [
                ("Current", "current_mig", fact("mig.mode.current")),
                ("Pending", "pending_mig", fact("mig.mode.pending")),
            ],
        ),
        ("MIG Devices", "mig_devices", _mig_devices(gpu, now)),
        ("Accounting Mode", "accounting_mode", fact("accounting.mode")),
        ("Serial Number", "serial", _or_na(gpu.values.get("serial"))),
        ("GPU UUID", "uuid", gpu.uuid),
        ("Minor Number", "minor_number", gpu.values.get("minor", NA)),
        ("VBIOS Version", "vbios_version", fact("vbios_version")),
        (
            "GSP Firmware Version",
            "gsp_firmware_version",
            NA if query.is_volta(gpu) else version,  # the processor came with Turing
        ),
        (
            "GPU Virtualization Mode",
            "gpu_virtualization_mode",
            [("Virtualization Mode", "virtualization_mode", "Pass-Through")],  # as instances of EC2 show it
        ),
        *_resets(version, gpu),
        (
            "PCI",
            "pci",
            [
                *_pci_address(version, fact),
                ("Bus Id", "pci_bus_id", gpu.bus_id),
                (
                    "GPU Link Info",
                    "pci_gpu_link_info",
                    [
                        (
                            "PCIe Generation",
                            "pcie_gen",
                            [
                                ("Max", "max_link_gen", _or_na(now.pcie_gen)),
                                ("Current", "current_link_gen", _or_na(now.pcie_gen)),
                                ("Device Current", "device_current_link_gen", _or_na(now.pcie_gen)),
                                ("Device Max", "max_device_link_gen", _or_na(now.pcie_gen)),
                                ("Host Max", "max_host_link_gen", NA),  # of a GPU that is passed through
                            ],
                        ),
                        (
                            "Link Width",
                            "link_widths",
                            [("Max", "max_link_width", _width(now)), ("Current", "current_link_width", _width(now))],
                        ),
                    ],
                ),
                ("Replays Since Reset", "replay_counter", "0"),
                ("Replay Number Rollovers", "replay_rollover_counter", "0"),
            ],
        ),
        ("Fan Speed", "fan_speed", fact("fan.speed")),
        ("Performance State", "performance_state", "P0"),
        _reasons(version),
        (
            "FB Memory Usage",
            "fb_memory_usage",
            [(part.capitalize(), part, fact("memory." + part)) for part in ("total", "reserved", "used", "free")],
        ),
        ("Compute Mode", "compute_mode", "Default"),
        (
            "Utilization",
            "utilization",
            [(title, tag, fact("utilization." + name)) for title, tag, name in _UTILIZATION],
        ),
        (
            "Encoder Stats",
            "encoder_stats",
            [
                ("Active Sessions", "session_count", fact("encoder.stats.sessionCount")),
                ("Average FPS", "average_fps", fact("encoder.stats.averageFps")),
                ("Average Latency", "average_latency", fact("encoder.stats.averageLatency")),
            ],
        ),
        (
            "ECC Mode",
            "ecc_mode",
            [
                ("Current", "current_ecc", fact("ecc.mode.current")),
                ("Pending", "pending_ecc", fact("ecc.mode.pending")),
            ],
        ),
        (
            "ECC Errors",
            "ecc_errors",
            [
                *((when.capitalize(), when, _ecc(version, gpu, when, fact)) for when in ("volatile", "aggregate")),
                *_repairs(version, gpu, fact),
            ],
        ),
        ("Retired Pages", "retired_pages", _retired(gpu)),
        ("Remapped Rows", "remapped_rows", _remapped(gpu, version)),
        (
            "Temperature",
            "temperature",
            [
                ("GPU Current Temp", "gpu_temp", _or_na(now.temperature_gpu, "C")),
                ("GPU T.Limit Temp", "gpu_temp_tlimit", NA),
                ("Memory Current Temp", "memory_temp", _or_na(now.temperature_memory, "C")),
            ],
        ),
        _power(version, fact),
        ("Clocks", "clocks", _clocks(now.clocks)),
        (
            "Applications Clocks",
            "applications_clocks",
            [
                ("Graphics", "graphics_clock", fact("clocks.applications.graphics")),
                ("Memory", "mem_clock", fact("clocks.applications.memory")),
            ],
        ),
        ("Max Clocks", "max_clocks", _clocks(now.max_clocks)),
        *([("Fabric", "fabric", _fabric(gpu, version))] if driver.branch(version) >= 535 else []),
        ("Processes", "processes", []),
    ]
    return remaining.fill(tree, gpu, version)


def _reasons(version: str) -> tuple[str, str, Tree]:
    """Throttle reasons before R535 (an A10G with 515.105.01)."""
    kind = "event" if driver.branch(version) >= 535 else "throttle"
    rows: Tree = [(title, "clocks_" + kind + "_reason_" + tag, "Not Active") for title, tag in _REASONS]
    return ("Clocks " + kind.capitalize() + " Reasons", "clocks_" + kind + "_reasons", rows)


_REASONS = (
    ("Idle", "gpu_idle"),
    ("Applications Clocks Setting", "applications_clocks_setting"),
    ("SW Power Cap", "sw_power_cap"),
    ("HW Slowdown", "hw_slowdown"),
    ("HW Thermal Slowdown", "hw_thermal_slowdown"),
    ("HW Power Brake Slowdown", "hw_power_brake_slowdown"),
    ("Sync Boost", "sync_boost"),
    ("SW Thermal Slowdown", "sw_thermal_slowdown"),
    ("Display Clock Setting", "display_clocks_setting"),
)
_UTILIZATION = (
    ("Gpu", "gpu_util", "gpu"),
    ("Memory", "memory_util", "memory"),
    ("Encoder", "encoder_util", "encoder"),
    ("Decoder", "decoder_util", "decoder"),
    ("JPEG", "jpeg_util", "jpeg"),
    ("OFA", "ofa_util", "ofa"),
)
_V12_ECC = tuple(
    (place.upper() + " " + kind.capitalize(), place + "_" + kind, place, name)
    for place in ("sram", "dram")
    for kind, name in (("correctable", "corrected"), ("uncorrectable", "uncorrected"))
)
# Output of an H100 with the driver 580.159.04, and of an A100 with 570.148.08.
_SPLIT_ECC = (
    ("SRAM Correctable", "sram_correctable", "sram", "corrected"),
    ("SRAM Uncorrectable Parity", "sram_uncorrectable_parity", "sram", "uncorrected"),
    ("SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", "sram", "uncorrected"),
    ("DRAM Correctable", "dram_correctable", "dram", "corrected"),
    ("DRAM Uncorrectable", "dram_uncorrectable", "dram", "uncorrected"),
)


def _is_v13(version: str) -> bool:
    return driver.schema(version) == "v13"


def _pci_address(version: str, fact: Callable[[str], str]) -> Tree:
    """Bus, device and domain; from v13 on without `0x`."""
    rows = (("Bus", "pci_bus", "bus"), ("Device", "pci_device", "device"), ("Domain", "pci_domain", "domain"))
    return [(title, tag, fact("pci." + name)[2 if _is_v13(version) else 0 :]) for title, tag, name in rows]


# Output of a V100 with the driver 550.127.05: single- and double-bit errors by place.
_VOLTA_ECC = (
    ("Device Memory", "device_memory", "0", "0"),
    ("Register File", "register_file", "0", "0"),
    ("L1 Cache", "l1_cache", "0", "0"),
    ("L2 Cache", "l2_cache", "0", "0"),
    ("Texture Memory", "texture_memory", NA, NA),
    ("Texture Shared", "texture_shm", NA, NA),
    ("CBU", "cbu", NA, "0"),
    ("Total", "total", "0", "0"),
)


def _ecc(version: str, gpu: Gpu, when: str, fact: Callable[[str], str]) -> Tree:
    """An A100 with 570.148.08 has parity apart, one with 535.54.03 has not; nor has a T4 with 595.91.07."""
    if query.is_volta(gpu):
        return [
            (title, tag, [(place, name, row[at]) for place, name, *row in _VOLTA_ECC])
            for title, tag, at in (("Single Bit", "single_bit", 0), ("Double Bit", "double_bit", 1))
        ]
    split = driver.branch(version) >= 550 and gpu.values.get("architecture") != "Turing"
    rows = _SPLIT_ECC if split else _V12_ECC
    counters: Tree = [
        (title, tag, fact("ecc.errors." + kind + "." + when + "." + place)) for title, tag, place, kind in rows
    ]
    if split and when == "aggregate":
        known = fact("ecc.errors.uncorrected.aggregate.sram") != NA
        counters.append(("SRAM Threshold Exceeded", "sram_threshold_exceeded", "No" if known else NA))
    return counters


def _retired(gpu: Gpu) -> Tree:
    """From Ampere on pages are not retired; rows are remapped."""
    retires = gpu.values.get("architecture") in ("Volta", "Turing")
    count, pages, flag = ("0", "", "No") if retires else (NA, NA, NA)
    causes = (("Single Bit ECC", "multiple_single_bit_retirement"), ("Double Bit ECC", "double_bit_retirement"))
    rows: Tree = [
        (title, tag, [("Count", "retired_count", count), ("Pages", "retired_pagelist", pages)]) for title, tag in causes
    ]
    rows += [("Pending Page Blacklist", "pending_blacklist", flag), ("Pending Retirement", "pending_retirement", flag)]
    return rows


_REPAIRS = (
    ("Channel Repair Pending", "channel_repair_pending", True),
    ("TPC Repair Pending", "tpc_repair_pending", True),
    ("Unrepairable Memory", "unrepairable_memory", False),
)


def _repairs(version: str, gpu: Gpu, fact: Callable[[str], str]) -> Tree:
    """As 580.95.05 and an RTX PRO 6000 show them. A GB200 with 580.173.02 has unrepairable memory, a B200 with
    580.105.08 has not, an L40S with 595.91.07 has no value of it, and a T4 none of the elements."""
    if gpu.values.get("architecture") in ("Turing", "Volta"):
        return []
    known = "No" if fact("ecc.mode.current") != NA else NA
    late = driver.branch(version) >= 590 or driver.is_of_2026(version)
    return [
        (title, tag, known if early or not gpu.has_encoder else NA)
        for title, tag, early in _REPAIRS
        if (early or late) and driver.branch(version) >= 580
    ]


def _resets(version: str, gpu: Gpu) -> Tree:
    """gpu_reset_status as 535.54.03 shows it; the recovery action takes its place from R570 on. 565.57.01 has both."""
    branch = driver.branch(version)
    action: Tree = [("GPU Recovery Action", "gpu_recovery_action", "None")]
    rows: Tree = [("Reset Required", "reset_required", "No")]
    drain = NA if query.is_volta(gpu) else "No"
    rows += [("Drain and Reset Recommended", "drain_and_reset_recommended", drain)]
    status: Tree = [("GPU Reset Status", "gpu_reset_status", rows)]
    return (status if 535 <= branch < 570 else []) + (action if branch >= 565 else [])


def _width(now: Readings) -> str:
    return NA if now.pcie_width is None else str(now.pcie_width) + "x"


def _clocks(clocks: dict[str, int | None]) -> Tree:
    return [
        (title, tag, _or_na(clocks[name], "MHz"))
        for title, tag, name in (
            ("Graphics", "graphics_clock", "graphics"),
            ("SM", "sm_clock", "sm"),
            ("Memory", "mem_clock", "memory"),
            ("Video", "video_clock", "video"),
        )
    ]


def _power(version: str, fact: Callable[[str], str]) -> tuple[str, str, Tree]:
    if driver.branch(version) < 535:
        limits = (("Power Limit", "power_limit"), ("Enforced Power Limit", "enforced_power_limit"))
        old: Tree = [("Power Management", "power_management", "Supported")]
        old += [("Power Draw", "power_draw", fact("power.draw"))]
        old += [(title, tag, fact("power.limit")) for title, tag in limits]
        return ("Power Readings", "power_readings", [("Power State", "power_state", "P0"), *old, *_power_limits(fact)])
    if driver.branch(version) >= 570:
        drawn = [
            ("Average Power Draw", "average_power_draw", fact("power.draw.average")),
            ("Instantaneous Power Draw", "instant_power_draw", fact("power.draw.instant")),
        ]
    else:
        drawn = [("Power Draw", "power_draw", fact("power.draw"))]
    limits = (("Current Power Limit", "current_power_limit"), ("Requested Power Limit", "requested_power_limit"))
    rows: Tree = [("Power State", "power_state", query.DEPRECATED if driver.branch(version) >= 595 else "P0"), *drawn]
    rows += [(title, tag, fact("power.limit")) for title, tag in limits]
    return ("GPU Power Readings", "gpu_power_readings", [*rows, *_power_limits(fact)])


def _power_limits(fact: Callable[[str], str]) -> Tree:
    return [
        ("Default Power Limit", "default_power_limit", fact("power.default_limit")),
        ("Min Power Limit", "min_power_limit", fact("power.min_limit")),
        ("Max Power Limit", "max_power_limit", fact("power.max_limit")),
    ]


# Health fields → the first branch that prints them, and their values where the fabric works: on a B200, on a GB200. An
# H100 has none (captures of 565.57.01, 570.148.08, 580.105.08, 580.173.02 and 595.91.07), nor an H200 with 550.90.12.
_HEALTH = (
    ("Summary", "summary", 580, "Healthy", "Healthy"),
    ("Bandwidth", "bandwidth", 550, NA, "Full"),
    ("Route Recovery in progress", "route_recovery_in_progress", 565, NA, "False"),
    ("Route Unhealthy", "route_unhealthy", 565, NA, "False"),
    ("Access Timeout Recovery", "access_timeout_recovery", 565, "False", "False"),
    ("Incorrect Configuration", "incorrect_configuration", 580, NA, NA),
    ("Partition Assigned", "partition_assigned", 580, NA, NA),
)


# GB200 and GB300 of public captures are in a partition, many in 32766 (leptonai/gpud#1106,
# meta-pytorch/torchcomms#3612; read 2026-11-27).
_RACK = "a5000000-0000-4000-8000-000000000001"


def _fabric(gpu: Gpu, version: str) -> Tree:
    state = gpu.fabric_state()
    done = state == "Completed"
    rows: Tree = [("State", "state", state or NA), ("Status", "status", "Success" if state else NA)]
    of_rack = "GB200" in gpu.name or "GB300" in gpu.name
    if driver.branch(version) >= 550:
        # A board of one machine has clique 0 of no cluster; one of a rack is in a partition of its cluster.
        clique, uuid = ("32766", _RACK) if of_rack else ("0", "00000000-0000-0000-0000-000000000000")
        rows += [("CliqueId", "cliqueId", clique if done else NA)]
        rows += [("ClusterUUID", "clusterUuid", uuid if done else NA)]
    known = done and gpu.values.get("architecture") == "Blackwell"
    health: Tree = [
        (title, tag, (rack if of_rack else board) if known else NA)
        for title, tag, first, board, rack in _HEALTH
        if driver.branch(version) >= first and (tag != "partition_assigned" or driver.is_of_2026(version))
    ]
    return [*rows, ("Health", "health", health)] if health else rows


def _mig_devices(gpu: Gpu, now: Readings) -> str | Tree:
    """As an A100 with 535.54.03 shows them (telegraf's a100-sxm4-v12.xml, read 2026-11-27); memory by slices."""
    names = settings.instances(gpu) if settings.mig_enabled(gpu) else []
    return [("MIG Device", "mig_device", _mig_device(number, name, now)) for number, name in enumerate(names)] or "None"


def _mig_device(number: int, name: str, now: Readings) -> Tree:
    slices = int(name.partition("g.")[0])
    total = int((now.memory_total or 0) * slices / settings.SLICES)
    shared = (
        ("Multiprocessor count", "multiprocessor_count", 14 * slices),
        ("Copy Engine count", "copy_engine_count", slices),
        ("Encoder count", "encoder_count", 0),
        ("Decoder count", "decoder_count", slices // 2),
        ("OFA count", "ofa_count", 0),
        ("JPG count", "jpg_count", 0),
    )
    memory: Tree = [("Total", "total", "%d MiB" % total), ("Reserved", "reserved", "0 MiB")]
    memory += [("Used", "used", "12 MiB"), ("Free", "free", "%d MiB" % (total - 12))]
    volatile: Tree = [("SRAM Uncorrectable", "sram_uncorrectable", "0")]
    return [
        ("Index", "index", str(number)),
        ("GPU Instance ID", "gpu_instance_id", str(number + 1)),
        ("Compute Instance ID", "compute_instance_id", "0"),
        (
            "Device Attributes",
            "device_attributes",
            [("Shared", "shared", [(title, tag, str(count)) for title, tag, count in shared])],
        ),
        ("ECC Errors", "ecc_error_count", [("Volatile", "volatile_count", volatile)]),
        ("FB Memory Usage", "fb_memory_usage", memory),
        (
            "BAR1 Memory Usage",
            "bar1_memory_usage",
            [("Total", "total", "32767 MiB"), ("Used", "used", "0 MiB"), ("Free", "free", "32767 MiB")],
        ),
    ]


def _inactive(title: str, tag: str, version: str) -> Tree:
    is_known = driver.is_of_2026(version)
    return [("Inactive " + title + " Error", "remapped_row_" + tag + "_inactive", "0")] if is_known else []


def _remapped(gpu: Gpu, version: str) -> str | Tree:
    rows = query.remapped_rows(gpu)

    def row(name: str) -> str:
        return _or_na(rows["remapped_rows." + name][0])

    banks = " bank(s)"
    if row("failure") == NA:
        return NA
    return [
        ("Correctable Error", "remapped_row_corr", row("correctable")),
        *_inactive("Correctable", "corr", version),
        ("Uncorrectable Error", "remapped_row_unc", row("uncorrectable")),
        *_inactive("Uncorrectable", "unc", version),
        ("Pending", "remapped_row_pending", row("pending")),
        ("Remapping Failure Occurred", "remapped_row_failure", row("failure")),
        (
            "Bank Remap Availability Histogram",
            "row_remapper_histogram",
            [
                (part.capitalize(), "row_remapper_histogram_" + part, row("histogram." + part) + banks)
                for part in ("max", "high", "partial", "low", "none")
            ],
        ),
    ]


def xml(gpus: list[Gpu], trees: list[Tree], version: str, cuda: str, timestamp: str) -> str:
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_' + driver.schema(version) + '.dtd">',
        "<nvidia_smi_log>",
        "\t<timestamp>" + timestamp + "</timestamp>",
        "\t<driver_version>" + version + "</driver_version>",
        "\t<cuda_version>" + cuda + "</cuda_version>",
        "\t<attached_gpus>" + str(len(gpus)) + "</attached_gpus>",
    ]
    for gpu, tree in zip(gpus, trees):
        lines.append('\t<gpu id="' + gpu.bus_id + '">')
        _xml_lines(tree, "\t\t", lines)
        lines.append("\t</gpu>")
    lines += ["</nvidia_smi_log>", ""]
    return "\n".join(lines) + "\n"


def _xml_lines(tree: Tree, indent: str, lines: list[str]) -> None:
    for _title, tag, value in tree:
        if isinstance(value, list):
            lines.append(indent + "<" + tag + ">")
            _xml_lines(value, indent + "\t", lines)
            lines.append(indent + "</" + tag + ">")
        else:
            lines.append(indent + "<" + tag + ">" + _escaped(value) + "</" + tag + ">")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(gpus: list[Gpu], trees: list[Tree], version: str, cuda: str, timestamp: str, count: int) -> str:
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line("Timestamp", timestamp, 0),
        _line("Driver Version", version, 0),
        _line("CUDA Version", cuda, 0),
        "",
        _line("Attached GPUs", str(count), 0),
    ]
    for gpu, tree in zip(gpus, trees):
        lines.append("GPU " + gpu.bus_id)
        _text_lines(tree, 4, lines)
        lines.append("")
    return "\n".join(lines) + "\n"


def _line(title: str, value: str, indent: int) -> str:
    return (" " * indent + title).ljust(42) + ": " + value


def _text_lines(tree: Tree, indent: int, lines: list[str]) -> None:
    for title, _tag, value in tree:
        if isinstance(value, list) and value:
            lines.append(" " * indent + title)
            _text_lines(value, indent + 4, lines)
        else:
            lines.append(_line(title, "None" if isinstance(value, list) else value, indent))


# -d: what each word keeps of the report.
SECTIONS = {
    "MEMORY": ("fb_memory_usage",),
    "UTILIZATION": ("utilization", "encoder_stats"),
    "ECC": ("ecc_mode", "ecc_errors"),
    "TEMPERATURE": ("temperature",),
    "POWER": ("gpu_power_readings", "power_readings"),
    "CLOCK": ("clocks", "applications_clocks", "max_clocks"),
    "COMPUTE": ("compute_mode",),
    "PIDS": ("processes",),
    "PERFORMANCE": ("performance_state", "clocks_event_reasons", "clocks_throttle_reasons"),
    "ROW_REMAPPER": ("remapped_rows",),
    "ENCODER_STATS": ("encoder_stats",),
    "FABRIC": ("fabric",),
}
