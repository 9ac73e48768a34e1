"""cpu, mem and disk, as far as images use them: totals, no per-core or per-device dimensions for cpu."""

from __future__ import annotations

import os

# Pseudo file systems, which have no disk space.
_IGNORED = {
    "autofs",
    "bpf",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
}

Sample = list[tuple[dict[str, str], dict[str, float]]]


class Cpu:
    """Shares of the time since the last sample, in percent; empty for the first one."""

    def __init__(self) -> None:
        self._last: list[int] | None = None

    def sample(self, section: dict[str, object]) -> Sample:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        last, self._last = self._last, ticks
        if last is None or sum(ticks) == sum(last):
            return []
        total = sum(ticks) - sum(last)
        share = [100.0 * (now - before) / total for now, before in zip(ticks, last)]
        values = {"usage_user": share[0], "usage_system": share[2], "usage_idle": share[3], "usage_iowait": share[4]}
        return [({"cpu": "cpu-total"}, values | {"usage_active": 100.0 - share[3] - share[4]})]


def memory(section: dict[str, object]) -> Sample:
    with open("/proc/meminfo", encoding="ascii") as file:
        rows = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in file}
    total, available, free = rows["MemTotal"], rows["MemAvailable"], rows["MemFree"]
    used = total - available
    values = {
        "total": float(total),
        "available": float(available),
        "free": float(free),
        "used": float(used),
        "used_percent": 100.0 * used / total,
        "available_percent": 100.0 * available / total,
    }
    return [({}, values)]


def disk(section: dict[str, object]) -> Sample:
    resources = section.get("resources", ["*"])
    ignored = _IGNORED | set(section.get("ignore_file_system_types", []))  # type: ignore[call-overload]
    rows = []
    with open("/proc/mounts", encoding="utf-8") as file:
        mounts = [line.split()[:3] for line in file]
    for device, path, kind in mounts:
        if kind in ignored or (resources != ["*"] and path not in resources):  # type: ignore[operator]
            continue
        state = os.statvfs(path)
        total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
        used = total - state.f_bfree * state.f_frsize
        if total:
            dimensions = {"path": path, "device": device.rpartition("/")[2], "fstype": kind}
            percent = 100.0 * used / max(1, used + free)
            rows.append(
                (dimensions, {"total": float(total), "free": float(free), "used": float(used), "used_percent": percent})
            )
    return rows
