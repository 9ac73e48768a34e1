"""The event parser runs, reads the kernel log, starts before the agent, and only root can change it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator.evidence import DIAGNOSIS_FILE
from validator.observe import Observe, output, unproven
from validator.plan_document import PlanDocument
from validator.probes import hardware, logrotate, restarts

pytestmark = pytest.mark.planned("event_parser")

_UNIT = "aws-hw-monitor.service"
_PATHS = f"/etc/systemd/system/{_UNIT}.d/paths.conf"
_PARSER_HOME = "/opt/aws/cloudwatch/nvidia"
_AGENT_UNIT = "amazon-cloudwatch-agent.service"
_DIAGNOSIS_SECONDS = 60.0  # three nvidia-smi at once on an emulated machine
_DIAGNOSED = ("events", "parser", "agent")
_DIAGNOSED_OF_GPUS = ("gpus", "remapped_rows", "nvlink")
_PROPERTIES = ("ActiveState", "SubState", "MainPID", "UnitFileState", "NRestarts", "Before", "FragmentPath", "Restart")
POLICY_FILE = "/etc/gpu-ami/xid-policy.json"


def _unit(host: Any) -> dict[str, str]:
    shown = output(host, f"systemctl show -p {','.join(_PROPERTIES)} {_UNIT}")
    return dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)


def require_parser(host: Any) -> dict[str, str]:
    """The unit's properties. UNPROVEN if it does not run: test_parser_is_running_and_enabled fails for that."""
    unit = _unit(host)
    if unit.get("SubState") != "running" or unit.get("MainPID", "0") == "0":
        unproven("the parser is not running: see event_parser::test_parser_is_running_and_enabled")
    return unit


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_parser_is_running_and_enabled(host: Any, observe: Observe) -> None:
    """The parser's main process is running and its unit is enabled. The state "active (exited)" proves nothing."""
    unit = _unit(host)
    expected = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    observe.same({key: unit.get(key, "") for key in expected}, expected, _UNIT)
    if unit.get("MainPID", "0") == "0":
        observe.fail(f"{_UNIT} has no main process")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_parser_does_not_restart(host: Any, observe: Observe) -> None:
    """The parser did not restart in this boot, and systemd would restart it after a crash."""
    unit = _unit(host)
    observe(
        {key: unit.get(key) for key in ("NRestarts", "Restart")}, {"NRestarts": "0", "Restart": "always or on-failure"}
    )
    restarts.check_none(host, _UNIT, unit.get("NRestarts", ""), observe)
    if unit.get("Restart") not in ("always", "on-failure", "on-abnormal"):
        observe.fail(f"{_UNIT}: Restart: expected always or on-failure, got {unit.get('Restart')}")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_parser_reads_the_kernel_log(host: Any, observe: Observe) -> None:
    """The parser's main process has /dev/kmsg open. Any other source is a snapshot or writable by users."""
    pid = require_parser(host)["MainPID"]
    opened = host.run(f"readlink /proc/{pid}/fd/*").stdout
    files = sorted({line for line in opened.splitlines() if line.startswith("/")})
    observe(files, "includes /dev/kmsg")
    if "/dev/kmsg" not in files:
        observe.fail(f"process {pid} of {_UNIT} has not opened /dev/kmsg; open files: {', '.join(files) or 'none'}")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_parser_has_a_heartbeat(host: Any, observe: Observe) -> None:
    """The parser wrote its status within two heartbeat periods. A parser that hangs is still active."""
    require_parser(host)
    status = host.run("cat /run/gpu-ami/event-parser.json && echo && cut -d' ' -f1 /proc/uptime")
    if status.rc != 0:
        observe.fail(f"the parser's status cannot be read: {status.stderr.strip()}")
    document, _, uptime = status.stdout.strip().rpartition("\n")
    fields = json.loads(document)
    age = float(uptime) - float(fields["heartbeat_monotonic_s"])
    limit = 2 * float(fields["heartbeat_period_s"]) + 5
    observe(f"{age:.0f} s ago", f"within {limit:.0f} s")
    if age > limit:
        observe.fail(f"the parser's last heartbeat was {age:.0f} s ago, expected within {limit:.0f} s")


@pytest.mark.needs("promise")
def test_policy_is_understood(host: Any, observe: Observe) -> None:
    """The operator's severity policy, if there is one, is valid. Codes that it changes are listed."""
    require_parser(host)
    status = host.run("cat /run/gpu-ami/event-parser.json")
    errors = json.loads(status.stdout).get("policy_errors", []) if status.rc == 0 else []
    changed = policy_overrides(host.run(f"cat {POLICY_FILE}").stdout)
    observe([*errors, *changed], "no policy, or a valid one")
    if errors:
        observe.fail(f"the parser rejected its policy: {'; '.join(errors)}")
    if changed:
        unproven(f"{POLICY_FILE} differs from the catalogue: {'; '.join(changed)}")


@pytest.mark.needs("promise")
def test_unit_has_no_override(host: Any, observe: Observe) -> None:
    """The loaded unit is the one that the role installed. A drop-in could change its files, rights and restart."""
    shown = output(host, f"systemctl show -p DropInPaths,NeedDaemonReload {_UNIT}")
    properties = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
    # Drop-ins for all services (service.d) are the distribution's.
    overrides = [
        path for path in properties.get("DropInPaths", "").split() if f"/{_UNIT}.d/" in path and path != _PATHS
    ]
    observe([*overrides, f"NeedDaemonReload={properties.get('NeedDaemonReload')}"], [f"no drop-in except {_PATHS}"])
    if overrides:
        observe.fail(f"{_UNIT} has drop-ins that the role did not install: {', '.join(overrides)}")
    if properties.get("NeedDaemonReload") != "no":
        observe.fail(f"{_UNIT} was changed on disk after systemd loaded it (NeedDaemonReload)")


@pytest.mark.needs("promise")
def test_parser_starts_before_the_agent(host: Any, observe: Observe) -> None:
    """The parser is ordered before the agent, so its files exist when the agent starts."""
    before = _unit(host).get("Before", "").split()
    observe(before, _AGENT_UNIT)
    if _AGENT_UNIT not in before:
        observe.fail(f"{_UNIT}: Before: expected {_AGENT_UNIT}, got {' '.join(before) or 'none'}")


@pytest.mark.needs("promise")
def test_files_are_writable_by_root_only(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Program, unit and logs are owned by root and writable only by root. The parser runs with root's rights."""
    logs = [plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]]
    unit = _unit(host).get("FragmentPath") or f"/lib/systemd/system/{_UNIT}"
    listing = host.run(
        f"stat -c '%U %a %n' {unit} {' '.join(logs)}; find /opt/aws/cloudwatch/ ! -type l -printf '%U %m %p\\n'"
    )
    if listing.stderr.strip():
        observe.fail(f"missing: {listing.stderr.strip()}")
    rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
    wrong = [
        f"{path} ({owner}, {mode})" for owner, mode, path in rows if owner not in ("root", "0") or int(mode, 8) & 0o022
    ]
    observe(f"{len(rows)} files", "owned by root, mode without write for group and others")
    if wrong:
        observe.fail(f"not owned by root, or writable by others: {', '.join(wrong)}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_parser_files_are_unchanged(host: Any, observe: Observe) -> None:
    """Every file of the parser has the checksum of its installation, and there is no other module with them.

    A parser that was edited during the build may still report the Xid of the drill and miss the next one.
    """
    shown = host.run(
        f"cd {_PARSER_HOME} && cut -c 67- SHA256SUMS && echo // && find . -name '*.py' && echo //"
        " && sha256sum --check --quiet SHA256SUMS 2>&1"
    )
    listed, modules, differing = [part.split("\n") for part in f"{shown.stdout}\n//\n//".split("//")[:3]]
    names = {name for name in listed if name}
    observe(f"{len(names)} files", "those of SHA256SUMS")
    if len(names) < 2:
        observe.fail(f"{_PARSER_HOME}/SHA256SUMS is unusable: {shown.stderr.strip() or shown.stdout!r}")
    if shown.rc:
        observe.fail(f"changed since the installation: {'; '.join(line for line in differing if line)}")
    unexpected = sorted({name.removeprefix("./") for name in modules if name} - names)
    observe.nothing(unexpected, "modules that are not the parser's")


@pytest.mark.needs("promise")
def test_diagnosis_answers(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """gpu-ami-diagnose is in PATH and reads the events, the services and every GPU. On-call engineers run it first.

    What it finds is recorded, not judged: a pending row remap is the machine's, not the image's.
    """
    done = host.run(f"gpu-ami-diagnose --json --seconds {_DIAGNOSIS_SECONDS:g}", timeout=2 * _DIAGNOSIS_SECONDS)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        observe.fail(f"gpu-ami-diagnose exited with status {done.rc} and printed no JSON: {done.stderr.strip()[-300:]}")
    observe(
        [f"{found['level']}: {found['subject']}: {found['text']}" for found in document["findings"]], "every answer"
    )
    observe.keep(DIAGNOSIS_FILE, done.stdout)
    expected = _DIAGNOSED + (_DIAGNOSED_OF_GPUS if "nvidia_driver" in plan else ())
    answers = {name: document["probes"].get(name, {"status": "no such probe"}) for name in expected}
    silent = {name: answers[name].get("why", "") for name in expected if answers[name]["status"] != "read"}
    if silent and silent.keys() <= set(_DIAGNOSED_OF_GPUS):
        hardware.require_board(host, plan)
    if silent:
        reasons = "; ".join(f"{name}: {why}" for name, why in silent.items())
        observe.fail(f"probes of gpu-ami-diagnose without an answer: {reasons}")
    if "nvidia_driver" in plan:
        listed = output(host, "nvidia-smi -L").count("GPU ")
        observe.same(len(answers["gpus"]["data"]), listed, "GPUs in the diagnosis")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_logs_are_rotated(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Both logs are rotated without losing lines. A flood of errors must not fill the disk."""
    logs = [plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]]
    logrotate.check_rotated(host, logs, observe)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_kernel_ring_is_large_enough(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The kernel log buffer has the planned size, so a burst of Xids does not overwrite one that was not read."""
    planned = plan["event_parser"]["log_buf_len"]
    values = re.findall(r"(?:^|\s)log_buf_len=(\S+)", output(host, "cat /proc/cmdline"))
    observe.same(values[-1] if values else "not set", planned, "log_buf_len on the kernel command line")


@pytest.mark.needs("promise")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.survives
def test_drivers_own_lines_are_in_the_raw_log(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every kernel message of the driver in this boot is in the raw log, unchanged after the prefix."""
    raw = plan["event_parser"]["raw_log"]
    lines = host.run("dmesg --notime --facility kern 2>/dev/null | grep -a '^NVRM:'").stdout.splitlines()
    if not lines:
        unproven("the driver has logged no message in this boot")
    log = host.run("cat %s", raw).stdout
    missing = [line for line in lines if line.strip() not in log]
    observe(f"{len(lines) - len(missing)} of {len(lines)} lines", "all")
    if missing:
        observe.fail(f"{len(missing)} of {len(lines)} kernel messages are not in {raw}, the first: {missing[0]}")


def policy_overrides(text: str) -> list[str]:
    """ "xid 79: info, none" for each code that the policy overrides; empty if the policy has none or is not JSON."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    kinds = document.items() if isinstance(document, dict) else []
    return [
        f"{kind} {code}: {', '.join(str(entry[key]) for key in ('severity', 'action') if key in entry)}"
        for kind, entries in kinds
        for code, entry in (entries.items() if isinstance(entries, dict) else [])
        if isinstance(entry, dict) and entry.keys() & {"severity", "action"}
    ]
