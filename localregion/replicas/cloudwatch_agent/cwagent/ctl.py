"""amazon-cloudwatch-agent-ctl: adds and removes configuration files, starts and stops the agent, prints its status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from . import HOME, UNIT, version  # other modules are imported where they are needed: `-a status` needs none of them

PARTS = HOME + "/etc/amazon-cloudwatch-agent.d"
_BESIDE = HOME + "/etc/amazon-cloudwatch-agent.json"  # read at each start, too
TRANSLATED = (HOME + "/etc/amazon-cloudwatch-agent.toml", HOME + "/etc/amazon-cloudwatch-agent.yaml")
_LEVELS = ("INFO", "DEBUG", "WARN", "ERROR", "OFF")
USAGE = """
usage:  amazon-cloudwatch-agent-ctl -a
        stop|start|status|fetch-config|append-config|remove-config|set-log-level|help
        [-m ec2|onPremise|onPrem|auto]
        [-c default|all|ssm:<parameter-store-name>|file:<file-path>]
        [-s]
        [-l INFO|DEBUG|WARN|ERROR|OFF]

(gpu-ami replica)
"""
_CONFIGURED = (_BESIDE, TRANSLATED[0])
# What `-c default` means: memory and disk use, as the agent's own default.
_DEFAULT = {
    "metrics": {
        "metrics_collected": {
            "mem": {"measurement": ["mem_used_percent"]},
            "disk": {"measurement": ["used_percent"], "resources": ["*"]},
        }
    }
}


class UsageError(Exception):
    pass


def _options(words: list[str]) -> dict[str, str]:
    names = {"-a": "action", "-m": "mode", "-c": "config", "-l": "level", "-o": "otel"}
    options = {"mode": "ec2"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-s":
            options["restart"] = "yes"
        elif word in names and rest:
            options[names[word]] = rest.pop(0)
        else:
            raise UsageError(f"Invalid option: {word}")
    if "action" not in options:
        raise UsageError("-a is required")
    return options


def main(words: list[str]) -> int:
    try:
        options = _options(words)
        return _act(options["action"], options)
    except UsageError as error:
        print(f"{error}\n{USAGE}", file=sys.stderr)
        return 1


def _act(action: str, options: dict[str, str]) -> int:
    if action in ("fetch-config", "append-config", "remove-config"):
        return _configure(action, options)
    if action == "status":
        print(json.dumps(status(), indent=2))
        return 0
    if action == "start":
        return _start()
    if action in ("stop", "prep-restart", "cond-restart"):
        return systemctl("stop" if action == "stop" else "try-restart", UNIT)
    if action == "set-log-level":
        if options.get("level") not in _LEVELS:
            raise UsageError(f"Invalid log level: {options.get('level')}")
        return _set_level(options["level"])
    if action == "help":
        print(USAGE)
        return 0
    raise UsageError(f"Invalid action: {action}")


def systemctl(*words: str) -> int:
    return subprocess.run(["systemctl", *words], stdin=subprocess.DEVNULL, check=False).returncode


def show(*names: str) -> dict[str, str]:
    words = ["systemctl", "show", "-p", ",".join(names), UNIT]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    rows = (line.partition("=") for line in done.stdout.decode().splitlines())
    return dict.fromkeys(names, "") | {name: value for name, _, value in rows}


def status() -> dict[str, str]:
    """As the agent's: status, starttime (RFC 3339, UTC), configstatus, version."""
    unit = show("ActiveState", "ExecMainStartTimestampMonotonic")
    running = unit["ActiveState"] == "active"
    started = ""
    if running:
        # Monotonic microseconds since boot: free of time zones.
        with open("/proc/uptime", encoding="ascii") as file:
            booted = time.time() - float(file.read().split()[0])
        seconds = booted + int(unit["ExecMainStartTimestampMonotonic"]) / 1e6
        started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))
    return {
        "status": "running" if running else "stopped",
        "starttime": started,
        "configstatus": "configured" if _parts() or any(map(os.path.exists, _CONFIGURED)) else "not configured",
        "version": version(),
    }


def _parts() -> list[str]:
    names = sorted(os.listdir(PARTS)) if os.path.isdir(PARTS) else []
    return [os.path.join(PARTS, name) for name in names if not name.endswith(".tmp")]


def _start() -> int:
    if not _parts() and not os.path.exists(_BESIDE):
        print("amazon-cloudwatch-agent is not configured. Applying amazon-cloudwatch-agent default configuration.")
        code = _configure("fetch-config", {"config": "default"})
        if code:
            return code
    return systemctl("enable", "--quiet", UNIT) or systemctl("restart", UNIT)


def _source(config: str | None) -> tuple[str, str]:
    """(name in the folder, content) of -c."""
    if not config:
        raise UsageError("-c is required")
    if config == "default":
        return "default", json.dumps(_DEFAULT, indent=2) + "\n"
    kind, _, path = config.partition(":")
    if kind == "ssm" and path:
        from . import parameters

        try:
            return part_name(config), parameters.fetch(path, HOME + "/logs/amazon-cloudwatch-agent.log")
        except parameters.NotFetched as error:
            raise UsageError(f"Fail to fetch the config: {path}: {error}") from error
    if kind != "file" or not path:
        raise UsageError(f"-c {config}: this replica takes default, all, ssm:<name> and file:<path>")
    try:
        with open(path, encoding="utf-8") as file:
            return part_name(config), file.read()
    except OSError as error:
        raise UsageError(f"Fail to fetch the config: {error}") from error


def part_name(config: str) -> str:
    """The file in the agent's folder that a source is kept in."""
    kind, _, path = config.partition(":")
    return f"{kind}_{os.path.basename(path)}" if path else config


def _configure(action: str, options: dict[str, str]) -> int:
    print("****** processing amazon-cloudwatch-agent ******")
    os.makedirs(PARTS, exist_ok=True)
    code = _remove(options.get("config")) if action == "remove-config" else _take(action, options.get("config"))
    if code or "restart" not in options:
        return code
    return systemctl("enable", "--quiet", UNIT) or systemctl("restart", UNIT)


def _take(action: str, config: str | None) -> int:
    """fetch-config replaces all parts, append-config one or none of them; a mistake changes nothing."""
    name, content = _source(config)
    final = os.path.join(PARTS, name)
    fresh = final + ".tmp"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(content)
    print(f"Successfully fetched the config and saved in {fresh}")
    kept = [] if action == "fetch-config" else [path for path in _parts() if path != final]
    if not _validated([*kept, fresh]):
        os.unlink(fresh)
        return 1
    for path in _parts():
        if path not in kept and path != final:
            os.unlink(path)
    os.replace(fresh, final)
    return 0


def _remove(config: str | None) -> int:
    if config == "all":
        gone = _parts()
    else:
        gone = [path for path in _parts() if os.path.basename(path) == part_name(config or "")]
        if not gone:
            print(f"E! {config}: no such part in {PARTS}", file=sys.stderr)
            return 1
    left = [path for path in _parts() if path not in gone]
    if left and not _validated(left):
        return 1
    for path in gone:
        os.unlink(path)
    return 0


def _validated(paths: list[str]) -> bool:
    from . import configuration

    print("Start configuration validation...")
    try:
        config = configuration.combine(paths)
    except configuration.Refused as error:
        for mistake in error.mistakes:
            print(f"E! {mistake}", file=sys.stderr)
        print(
            f"Configuration validation first phase failed. Agent version: {version()}. "
            "Verify the JSON input is only using features supported by this version.",
            file=sys.stderr,
        )
        return False
    from .agent import write_translation

    write_translation(config, HOME + "/etc")
    print(
        "Configuration validation first phase succeeded\nConfiguration validation second phase succeeded\n"
        "Configuration validation succeeded"
    )
    return True


def _set_level(level: str) -> int:
    """The level goes where the agent keeps it: etc/env-config.json."""
    path = HOME + "/etc/env-config.json"
    try:
        with open(path, encoding="utf-8") as file:
            environment = json.load(file)
    except (OSError, ValueError):
        environment = {}
    environment["CWAGENT_LOG_LEVEL"] = level
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(environment, file)
    os.replace(path + ".new", path)
    return 0
