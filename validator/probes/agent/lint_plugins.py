"""The linter's rules for the agent's system plugins (cpu, disk, mem, …): measurements that the agent knows.

Source: amazon-cloudwatch-agent v1.300071.0, translator/translate/metrics/config/registered_metrics.go
(Registered_Metrics_Linux) and translator/config/schema.json (basicMetricDefinition).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from validator.probes.agent.findings import ERROR, Finding, not_an_object, seconds, suggestion

_CPU_STATES = (
    "active", "guest", "guest_nice", "idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user",
)  # fmt: skip
_VOLUME = (
    "total_read_ops", "total_write_ops", "total_read_bytes", "total_write_bytes", "total_read_time",
    "total_write_time", "performance_exceeded_iops", "performance_exceeded_tp", "volume_queue_length",
)  # fmt: skip
_EBS = (
    "total_read_ops", "total_write_ops", "total_read_bytes", "total_write_bytes", "total_read_time",
    "total_write_time", "volume_performance_exceeded_iops", "volume_performance_exceeded_tp",
    "ec2_instance_performance_exceeded_iops", "ec2_instance_performance_exceeded_tp", "volume_queue_length",
)  # fmt: skip
MEASUREMENTS: Mapping[str, Collection[str]] = {
    "cpu": (*(f"time_{state}" for state in _CPU_STATES), *(f"usage_{state}" for state in _CPU_STATES)),
    "disk": ("free", "inodes_free", "inodes_total", "inodes_used", "total", "used", "used_percent"),
    "diskio": (
        "iops_in_progress", "io_time", "reads", "read_bytes", "read_time", "writes", "write_bytes", "write_time",
        *(f"ebs_{name}" for name in _EBS), *(f"instance_store_{name}" for name in _VOLUME),
    ),
    "mem": (
        "active", "available", "available_percent", "buffered", "cached", "free", "inactive", "shared", "total", "used",
        "used_percent",
    ),
    "net": (
        "bytes_sent", "bytes_recv", "drop_in", "drop_out", "err_in", "err_out", "packets_sent", "packets_recv",
    ),
    "netstat": (
        "tcp_close", "tcp_close_wait", "tcp_closing", "tcp_established", "tcp_fin_wait1", "tcp_fin_wait2",
        "tcp_last_ack", "tcp_listen", "tcp_none", "tcp_syn_sent", "tcp_syn_recv", "tcp_time_wait", "udp_socket",
    ),
    "processes": (
        "blocked", "dead", "idle", "paging", "running", "sleeping", "stopped", "total", "total_threads", "wait",
        "zombies",
    ),
    "swap": ("free", "used", "used_percent"),
}  # fmt: skip


# Dimensions of each plugin's own. None: those of what a program sends, or of a file.
_DIMENSIONS: Mapping[str, Collection[str] | None] = {
    "cpu": ("cpu",), "disk": ("path", "device", "fstype"), "diskio": ("name", "VolumeId", "InstanceStoreId"),
    "mem": (), "net": ("interface",), "netstat": (), "processes": (), "swap": (),
    "nvidia_gpu": ("index", "name", "arch"), "ethtool": ("driver", "interface"),
    "procstat": ("exe", "pid", "pid_file", "pattern", "process_name", "user"),
}  # fmt: skip


def dimensions_by_plugin(plugins: Mapping[str, object], appended: object) -> dict[str, set[str] | None]:
    """Plugin → the dimensions that its metrics have; None where the configuration does not tell.

    append_dimensions of a plugin are added to those of all.
    """
    shared = {"host", *(appended if isinstance(appended, dict) else ())}
    found: dict[str, set[str] | None] = {}
    for name, plugin in plugins.items():
        own = _DIMENSIONS.get(name)
        entries = plugin if isinstance(plugin, list) else [plugin]
        added = [entry.get("append_dimensions") for entry in entries if isinstance(entry, dict)]
        further = {key for one in added if isinstance(one, dict) for key in one}
        found[name] = None if own is None else {*own, *shared, *further}
    return found


def plugin_findings(plugins: Mapping[str, object]) -> Iterator[Finding]:
    """Findings of the system plugins among those of metrics_collected."""
    for name in MEASUREMENTS.keys() & plugins.keys():
        plugin, where = plugins[name], f"metrics.metrics_collected.{name}"
        if isinstance(plugin, dict):
            yield from seconds(plugin, "metrics_collection_interval", where)
            yield from measurements(plugin, name, MEASUREMENTS[name], where, prefix=f"{name}_")
        else:
            yield not_an_object(where, plugin)


def measurements(
    plugin: Mapping[str, object], name: str, known: Collection[str], where: str, prefix: str
) -> Iterator[Finding]:
    """Findings of `measurement`. prefix: of the published names, which the agent takes too (mem_used_percent)."""
    entries = plugin.get("measurement")
    if not isinstance(entries, list) or not entries:
        yield Finding(ERROR, f"{where}.measurement", "missing or empty: the agent rejects the plugin")
        return
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
    for index, entry in enumerate(names):
        path, measurement = f"{where}.measurement[{index}]", str(entry).removeprefix(prefix)
        if measurement not in known:
            yield Finding(
                ERROR, path, f"{entry!r} is not a measurement of {name}{suggestion(measurement, sorted(known))}"
            )
        if entry in names[:index]:
            yield Finding(ERROR, path, f"duplicate measurement {entry!r}")
