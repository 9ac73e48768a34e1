"""The agent's main program: translates the configuration, checks that it can start, collects until SIGTERM."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from typing import Protocol

from . import HOME, configuration, gpu, version
from .aws import Service
from .configuration import Section, get_number, get_section, get_text
from .journal import Journal
from .metadata import Metadata, Unavailable

PARTS = HOME + "/etc/amazon-cloudwatch-agent.d"


def main() -> int:
    journal = Journal(HOME + "/logs/amazon-cloudwatch-agent.log")
    try:
        config = configuration.load_folder(PARTS)
    except configuration.Refused as error:
        for mistake in error.mistakes:
            journal.error(mistake)
        return _fail(journal, "Configuration validation first phase failed")
    if not config.get("metrics") and not config.get("logs"):
        return _fail(
            journal,
            f"no metrics and no logs are configured in {PARTS}; run amazon-cloudwatch-agent-ctl -a fetch-config",
        )
    if "nvidia_gpu" in get_section(config, "metrics", "metrics_collected"):
        refusal = gpu.check_rights()
        if refusal:
            return _fail(journal, f"Error running agent: plugin nvidia_smi cannot be started: {refusal}")
    write_translation(config, HOME + "/etc")
    try:
        _become(get_text(get_section(config, "agent"), "run_as_user", "root"))
    except (KeyError, OSError) as error:
        return _fail(journal, f"agent.run_as_user: {error}")
    machine = {"aarch64": "arm64"}.get(platform.machine(), "amd64")
    journal.info(f"Starting AmazonCloudWatchAgent CWAgent/{version()} (gpu-ami replica; linux; {machine})")
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    failed = _collect(config, Metadata(), journal, stop)
    journal.info("Stopping AmazonCloudWatchAgent")
    return 1 if failed else 0


def _fail(journal: Journal, reason: str) -> int:
    journal.error(reason)
    print(f"E! {reason}", file=sys.stderr)
    return 1


def _become(user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    if entry.pw_uid == os.geteuid():
        return
    for folder, _, names in os.walk(HOME + "/logs"):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def write_translation(config: Section, folder: str) -> None:
    """Writes the translated configuration: .yaml (JSON is YAML), and a .toml, which ctl takes for "configured"."""
    interval = get_number(get_section(config, "agent"), "metrics_collection_interval", 60)
    head = f'[agent]\n  interval = "{interval:g}s"\n  logfile = "{HOME}/logs/amazon-cloudwatch-agent.log"\n'
    for name, content in (("yaml", json.dumps(config, indent=2) + "\n"), ("toml", head)):
        path = f"{folder}/amazon-cloudwatch-agent.{name}"
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(path + ".new", path)


def _identify(config: Section, metadata: Metadata, journal: Journal, stop: threading.Event) -> tuple[str, str] | None:
    """(region, instance id). Waits without a deadline: without them nothing can be published."""
    wait = 1.0
    while not stop.is_set():
        try:
            document = metadata.document()
            return get_text(get_section(config, "agent"), "region") or str(document["region"]), str(
                document["instanceId"]
            )
        except (Unavailable, ValueError, KeyError) as error:
            journal.error(f"[ec2] no instance identity yet, again in {wait:.0f} s: {error}")
        stop.wait(wait)
        wait = min(2 * wait, 60.0)
    return None


class _Part(Protocol):
    """Runs metrics or logs in a thread of its own."""

    def run(self) -> None: ...


def _collect(config: Section, metadata: Metadata, journal: Journal, stop: threading.Event) -> bool:
    """Runs metrics and logs side by side until `stop`; True if one of them ended by itself."""
    identity = _identify(config, metadata, journal, stop)
    if identity is None:
        return False
    region, instance_id = identity
    failed = threading.Event()

    def supervise(part: _Part) -> None:
        try:
            part.run()
        except Exception as error:  # the agent ends and systemd restarts it, instead of running without this part
            journal.error(f"[agent] {type(part).__name__}: {type(error).__name__}: {error}")
            failed.set()
            stop.set()

    threads = [
        threading.Thread(target=supervise, args=(part,), name=type(part).__name__)
        for part in _parts(config, metadata, journal, stop, region, instance_id)
    ]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        stop.wait(3600)
    for thread in threads:
        thread.join(60)
    return failed.is_set()


def _parts(
    config: Section, metadata: Metadata, journal: Journal, stop: threading.Event, region: str, instance_id: str
) -> list[_Part]:
    parts: list[_Part] = []
    metrics, logs = get_section(config, "metrics"), get_section(config, "logs")
    if metrics:
        from .metrics import Metrics

        service = Service("monitoring", region, get_text(metrics, "endpoint_override"), metadata, journal, stop)

        def resolve(name: str) -> str | None:
            value = metadata.dimension(name)
            if value is None:
                journal.warn(f"[processors.ec2tagger] {name} is not known; the dimension is left out")
            return value

        parts.append(Metrics(metrics, get_section(config, "agent"), service, resolve, journal, stop))
    if logs:
        from .logs import Logs

        service = Service("logs", region, get_text(logs, "endpoint_override"), metadata, journal, stop)
        parts.append(
            Logs(logs, service, lambda name: placeholders(name, instance_id), HOME + "/logs/state", journal, stop)
        )
    return parts


def placeholders(pattern: str, instance_id: str) -> str:
    """A group's or stream's name with {instance_id}, {hostname}, {local_hostname}, {ip_address}, {date} replaced."""
    hostname = os.uname().nodename
    values = {
        "instance_id": instance_id,
        "hostname": hostname,
        "local_hostname": hostname,
        "date": time.strftime("%Y-%m-%d"),
    }
    if "{ip_address}" in pattern:
        values["ip_address"] = hostname
        with contextlib.suppress(OSError):
            values["ip_address"] = socket.gethostbyname(hostname)
    for name, value in values.items():
        pattern = pattern.replace("{" + name + "}", value)
    return pattern
