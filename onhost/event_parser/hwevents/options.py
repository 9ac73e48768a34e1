"""Options of the service."""

from __future__ import annotations


class Options:
    """Paths, periods (seconds) and size limits (bytes); `run` sets them from the command line."""

    source = "/dev/kmsg"
    raw_log = "/var/log/gpuevent.log"
    json_log = "/var/log/gpuevent.jsonl"
    state_dir = "/var/lib/gpu-ami/event-parser"
    status_path = "/run/gpu-ami/event-parser.json"
    policy = "/etc/gpu-ami/xid-policy.json"
    nvidia_smi = "/usr/bin/nvidia-smi"
    driver_version = "/proc/driver/nvidia/version"
    kubelet_environment = "/etc/eks/kubelet/environment"
    heartbeat_s = 60.0
    seed_metrics_s = 0.0  # 0: not published
    raw_cap = 64 * 1024 * 1024
    json_cap = 256 * 1024 * 1024
