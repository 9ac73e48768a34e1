"""--query-gpu, --query-remapped-rows, --query-compute-apps: fields, units, CSV."""

from __future__ import annotations

from . import driver, settings
from .driver import Failure

TYPE_CHECKING = False  # importing typing alone is a tenth of the start-up
if TYPE_CHECKING:
    from .driver import Gpu
    from .readings import Readings

    Cell = tuple[object, str]  # value, None where the board has none; unit
    Row = dict[str, Cell]

# Aliases of fields; the header shows the field's own name.
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "pcie.link.gen.gpucurrent": "pcie.link.gen.current",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
}
_ERRORS = ("corrected", "uncorrected")
_WHEN = ("volatile", "aggregate")
_PLACES = ("device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram", "total")
_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sync_boost",
)


# What NVML prints in place of a value that a driver has given up, and the first driver without application clocks:
# captures of H100 and H200 with 590.48.01, an L40S with 595.80, an RTX 2080 with 610.57.04.
DEPRECATED = "Requested functionality has been deprecated"
NO_APPLICATION_CLOCKS = 590
# A GPU in MIG mode has none of these.
_UTILIZATIONS = ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")


def _ecc(gpu: Gpu) -> str:
    return "Enabled" if gpu.values.get("architecture") not in ("Maxwell", "Kepler", "Pascal") else "[N/A]"


def is_volta(gpu: Gpu) -> bool:
    """Without heterogeneous memory management, JPEG decoder and optical flow (a V100 with 550.127.05)."""
    return gpu.values.get("architecture") == "Volta"


def _remaps(gpu: Gpu) -> bool:
    return gpu.values.get("architecture") not in ("Maxwell", "Kepler", "Pascal", "Volta", "Turing")


def _mig(gpu: Gpu, key: str) -> str | None:
    if not settings.divisible(gpu):
        return None
    return "Enabled" if settings.state(gpu).get(key) else "Disabled"


def _place_of(gpu: Gpu) -> dict[str, str]:
    domain, bus, device = gpu.address.split(":")
    return {
        "pci.domain": "0x" + domain.upper(),
        "pci.bus": "0x" + bus.upper(),
        "pci.device": "0x" + device.split(".")[0].upper(),
    }


def fields(gpu: Gpu, now: Readings, version: str, count: int, timestamp: str) -> Row:
    """Field → (value or None, unit) of one GPU."""
    table: Row = {
        "timestamp": (timestamp, ""),
        "driver_version": (version, ""),
        "count": (count, ""),
        "name": (gpu.name, ""),
        "index": (gpu.index, ""),
        "uuid": (gpu.uuid, ""),
        "serial": (gpu.values.get("serial"), ""),
        "pci.bus_id": (gpu.bus_id, ""),
        "vbios_version": (gpu.values.get("vbios"), ""),
        "compute_cap": (gpu.values.get("compute_capability"), ""),
        "pstate": ("P0", ""),
        "persistence_mode": ("Enabled" if settings.persistence(gpu) else "Disabled", ""),
        "compute_mode": ("Default", ""),
        "display_active": ("Disabled", ""),
        "display_mode": ("Enabled", ""),
        "accounting.mode": ("Disabled", ""),
        "gom.current": (None, ""),
        "addressing_mode": (None if is_volta(gpu) else "HMM", ""),
        "mig.mode.current": (_mig(gpu, "mig"), ""),
        "mig.mode.pending": (_mig(gpu, "pending_mig"), ""),
        "pcie.link.gen.current": (now.pcie_gen, ""),
        "pcie.link.gen.max": (now.pcie_gen, ""),
        "pcie.link.gen.gpumax": (now.pcie_gen, ""),
        "pcie.link.gen.hostmax": (now.pcie_gen, ""),
        "pcie.link.width.current": (now.pcie_width, ""),
        "pcie.link.width.max": (now.pcie_width, ""),
        "fan.speed": (None, "%"),
        "utilization.gpu": (now.utilization_gpu, "%"),
        "utilization.memory": (now.utilization_memory, "%"),
        "utilization.encoder": (0, "%"),
        "utilization.decoder": (0, "%"),
        "utilization.jpeg": (None if is_volta(gpu) else 0, "%"),
        "utilization.ofa": (None if is_volta(gpu) else 0, "%"),
        "memory.total": (now.memory_total, "MiB"),
        "memory.reserved": (now.memory_reserved, "MiB"),
        "memory.used": (now.memory_used, "MiB"),
        "memory.free": (now.memory_free, "MiB"),
        "temperature.gpu": (now.temperature_gpu, ""),
        "temperature.gpu.tlimit": (None, ""),
        "temperature.memory": (now.temperature_memory, ""),
        "power.management": ("Enabled", ""),
        "power.draw": (_watts(now.power_draw), "W"),
        "power.draw.average": (_watts(now.power_draw) if _averages(gpu) else None, "W"),
        "power.draw.instant": (_watts(now.power_draw), "W"),
        "encoder.stats.sessionCount": (0 if gpu.counts_encoders else None, ""),
        "encoder.stats.averageFps": (0 if gpu.counts_encoders else None, ""),
        "encoder.stats.averageLatency": (0 if gpu.counts_encoders else None, ""),
        "ecc.mode.current": (_ecc(gpu), ""),
        "ecc.mode.pending": (_ecc(gpu), ""),
        "retired_pages.single_bit_ecc.count": (None, ""),
        "retired_pages.double_bit.count": (None, ""),
        "retired_pages.pending": (None, ""),
        "clocks_event_reasons.supported": ("0x00000000000001FF", ""),
        "clocks_event_reasons.active": ("0x0000000000000000", ""),
        "fabric.state": (gpu.fabric_state(), ""),
        "fabric.status": (gpu.fabric_state() and "Success", ""),
    }
    for name in ("power.max_limit", "power.default_limit"):
        table[name] = (_watts(now.power_limit), "W")
    for name in ("power.limit", "enforced.power.limit"):
        table[name] = (_watts(settings.power_limit(gpu)), "W")
    table["power.min_limit"] = (_watts(_min_watts(gpu, now.power_limit)), "W")
    for name, clock in now.clocks.items():
        table["clocks.current." + name] = (clock, "MHz")
        table["clocks.max." + name] = (now.max_clocks[name], "MHz")
    memory, graphics = settings.application_clocks(gpu)
    given_up = driver.branch(version) >= NO_APPLICATION_CLOCKS
    table["clocks.applications.memory"] = (DEPRECATED if given_up else memory, "MHz")
    table["clocks.applications.graphics"] = (DEPRECATED if given_up else graphics, "MHz")
    for reason in _REASONS:
        table["clocks_event_reasons." + reason] = table["clocks_throttle_reasons." + reason] = ("Not Active", "")
    if settings.mig_enabled(gpu):
        table.update(("utilization." + part, (None, "%")) for part in _UTILIZATIONS)
    for kind in _ERRORS:
        for when in _WHEN:
            for place in _PLACES:
                known = _ecc(gpu) == "Enabled" and place not in (
                    "texture_memory",
                    "cbu",
                    "device_memory",
                    "register_file",
                    "l1_cache",
                )
                table["ecc.errors." + kind + "." + when + "." + place] = (0 if known else None, "")
    table.update((key, (value, "")) for key, value in _place_of(gpu).items())
    return table


def _averages(gpu: Gpu) -> bool:
    """Whether it averages its power: an A100 with 570.148.08 and a T4 with 595.91.07 do not, an L40S does."""
    return gpu.values.get("architecture") not in ("Volta", "Turing") and "A100" not in gpu.name


def _watts(value: float | None) -> str | None:
    return None if value is None else format(value, ".2f")


def remapped_rows(gpu: Gpu) -> Row:
    known = _remaps(gpu) and not settings.mig_enabled(gpu)
    return {
        "gpu_name": (gpu.name, ""),
        "gpu_bus_id": (gpu.bus_id, ""),
        "gpu_serial": (gpu.values.get("serial"), ""),
        "gpu_uuid": (gpu.uuid, ""),
        "remapped_rows.correctable": (0 if known else None, ""),
        "remapped_rows.uncorrectable": (0 if known else None, ""),
        "remapped_rows.pending": ("No" if known else None, ""),
        "remapped_rows.failure": ("No" if known else None, ""),
        # In MIG mode too (H100 and H200 with 590.48.01).
        "remapped_rows.histogram.max": (_banks(gpu) if _remaps(gpu) else None, ""),
        **{
            "remapped_rows.histogram." + part: (0 if _remaps(gpu) else None, "")
            for part in ("high", "partial", "low", "none")
        },
    }


# As captures show them; of other boards not verified.
_BANKS = {"H100 80GB HBM3": 2560, "H200": 3072, "GB300": 5952, "GB200": 3968, "B200": 3840}
_MIN_WATTS = {**dict.fromkeys(_BANKS, 200.0), "A100": 100.0, "A10G": 100.0, "L40S": 100.0, "T4": 60.0}


def _banks(gpu: Gpu) -> int:
    known = next((banks for part, banks in _BANKS.items() if part in gpu.name), None)
    return known or (640 if gpu.nvlink else 192)


def _min_watts(gpu: Gpu, limit: float | None) -> float | None:
    known = next((watts for part, watts in _MIN_WATTS.items() if part in gpu.name), None)
    return known if limit is not None and known is not None else limit and limit / 3


# No process runs on these boards, so only the header is printed.
COMPUTE_APPS: Row = {
    name: (None, "MiB" if name == "used_gpu_memory" else "")
    for name in (
        "timestamp",
        "gpu_name",
        "gpu_bus_id",
        "gpu_serial",
        "gpu_uuid",
        "pid",
        "process_name",
        "used_gpu_memory",
    )
}
COMPUTE_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}


def csv(names: list[str], known: Row, rows: list[Row], form: list[str], aliases: dict[str, str]) -> str:
    """CSV text. known: {field: (any value, unit)}; rows: the same a GPU; form: the words after --format=."""
    if "csv" not in form:
        raise Failure('Missing "csv" in "--format=" switch.\n', 2)
    for word in form:
        if word not in ("csv", "noheader", "nounits"):
            raise Failure('"' + word + '" is not a valid format option.\n', 2)
    chosen = [aliases.get(name, name) for name in names]
    for field, name in zip(names, chosen):
        if name not in known:
            raise Failure('Field "' + field + '" is not a valid field to query.\n', 2)
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(name + (" [" + known[name][1] + "]" if known[name][1] else "") for name in chosen))
    for row in rows:
        lines.append(", ".join(_cell(row[name], "nounits" not in form) for name in chosen))
    return "\n".join(lines) + "\n"


def _cell(pair: Cell, with_unit: bool) -> str:
    value, unit = pair
    if value is None:
        return "[N/A]"
    if value == DEPRECATED:
        return "[" + DEPRECATED + "]"
    return str(value) + (" " + unit if unit and with_unit else "")
