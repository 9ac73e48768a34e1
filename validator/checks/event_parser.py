"""The event parser lives, reads the kernel's own log, starts before the agent, and nobody but root can change it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator import policy
from validator.logrotate import losses
from validator.observe import Observe, output, unproven

_UNIT = "aws-hw-monitor.service"
_PATHS = f"/etc/systemd/system/{_UNIT}.d/paths.conf"
_PARSER_HOME = "/opt/aws/cloudwatch/nvidia"
_AGENT_UNIT = "amazon-cloudwatch-agent.service"
_PROPERTIES = ("ActiveState", "SubState", "MainPID", "UnitFileState", "NRestarts", "Before", "FragmentPath", "Restart")


def _unit(host: Any) -> dict[str, str]:
    shown = output(host, f"systemctl show -p {','.join(_PROPERTIES)} {_UNIT}")
    return dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)


def require_parser(host: Any) -> dict[str, str]:
    """The unit's properties; UNPROVEN where it does not run, because the check after this one says so already."""
    unit = _unit(host)
    if unit.get("SubState") != "running" or unit.get("MainPID", "0") == "0":
        unproven("the parser does not run: see event_parser::test_parser_lives_and_is_enabled")
    return unit


@pytest.mark.survives
def test_parser_lives_and_is_enabled(host: Any, observe: Observe) -> None:
    """The parser's own process runs now and starts with every boot; "active (exited)" would prove nothing."""
    unit = _unit(host)
    found = {key: unit.get(key, "") for key in ("ActiveState", "SubState", "UnitFileState")}
    wanted = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    observe.same(found, wanted, _UNIT)
    if unit.get("MainPID", "0") == "0":
        observe.fail(f"{_UNIT} has no main process")


@pytest.mark.survives
def test_parser_does_not_restart(host: Any, observe: Observe) -> None:
    """The parser has not died in this boot, and systemd would start it again if it did."""
    unit = _unit(host)
    observe(
        {key: unit.get(key) for key in ("NRestarts", "Restart")}, {"NRestarts": "0", "Restart": "always or on-failure"}
    )
    if unit.get("NRestarts") != "0":
        observe.fail(f"{_UNIT} was restarted {unit.get('NRestarts')} times in this boot")
    if unit.get("Restart") not in ("always", "on-failure", "on-abnormal"):
        observe.fail(f"{_UNIT} is not supervised: Restart={unit.get('Restart')}")


@pytest.mark.survives
def test_parser_reads_the_kernel_log(host: Any, observe: Observe) -> None:
    """The parser's main process has /dev/kmsg open: any other source is a snapshot, or can be written by users."""
    pid = require_parser(host)["MainPID"]
    opened = host.run(f"readlink /proc/{pid}/fd/*").stdout
    files = sorted({line for line in opened.splitlines() if line.startswith("/")})
    observe(files, "/dev/kmsg among them")
    if "/dev/kmsg" not in files:
        observe.fail(f"process {pid} of {_UNIT} does not read /dev/kmsg; it has open: {', '.join(files) or 'nothing'}")


@pytest.mark.survives
def test_parser_has_a_heartbeat(host: Any, observe: Observe) -> None:
    """The parser wrote its status within the last two heartbeats: a reader that hangs is active too."""
    require_parser(host)
    status = host.run("cat /run/gpu-ami/event-parser.json && echo && cut -d' ' -f1 /proc/uptime")
    if status.rc != 0:
        observe.fail(f"the parser leaves no status: {status.stderr.strip()}")
    document, _, uptime = status.stdout.strip().rpartition("\n")
    told = json.loads(document)
    age = float(uptime) - float(told["heartbeat_monotonic_s"])
    most = 2 * float(told["heartbeat_period_s"]) + 5
    observe(f"{age:.0f} s ago", f"within {most:.0f} s")
    if age > most:
        observe.fail(f"the parser's last heartbeat was {age:.0f} s ago, expected within {most:.0f} s")


def test_policy_is_understood(host: Any, observe: Observe) -> None:
    """The operator's policy of severities, if there is one, is read without an error, and what it decides is named."""
    require_parser(host)
    status = host.run("cat /run/gpu-ami/event-parser.json")
    errors = json.loads(status.stdout).get("policy_errors", []) if status.rc == 0 else []
    decided = policy.decided(host.run(f"cat {policy.PATH}").stdout)
    observe([*errors, *decided], "the catalogue decides alone, or a policy that the parser understands")
    if errors:
        observe.fail(f"the parser does not understand its policy: {'; '.join(errors)}")
    if decided:
        unproven(f"{policy.PATH} says otherwise than the catalogue: {'; '.join(decided)}")


def test_nothing_lies_over_its_unit(host: Any, observe: Observe) -> None:
    """The unit in effect is the one that the role installed: a drop-in can take its files, its rights, its restart."""
    shown = output(host, f"systemctl show -p DropInPaths,NeedDaemonReload {_UNIT}")
    told = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
    # What a system puts over all of its services (service.d) is none of this unit's.
    over = [path for path in told.get("DropInPaths", "").split() if f"/{_UNIT}.d/" in path and path != _PATHS]
    observe([*over, f"NeedDaemonReload={told.get('NeedDaemonReload')}"], [f"no drop-in but {_PATHS}"])
    if over:
        observe.fail(f"over {_UNIT} lies what the role did not install: {', '.join(over)}")
    if told.get("NeedDaemonReload") != "no":
        observe.fail(f"{_UNIT} on disk is not the one in effect: it was changed after systemd had read it")


def test_parser_starts_before_the_agent(host: Any, observe: Observe) -> None:
    """The parser is ordered before the agent, so that its files are there when the agent looks for them."""
    before = _unit(host).get("Before", "").split()
    observe(before, _AGENT_UNIT)
    if _AGENT_UNIT not in before:
        observe.fail(f"{_UNIT} is not ordered before {_AGENT_UNIT}: Before={' '.join(before)}")


def test_files_are_roots_alone(host: Any, plan: Any, observe: Observe) -> None:
    """Program, unit and logs belong to root and nobody else may write them: the parser runs as root or near it."""
    logs = [plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]]
    unit = _unit(host).get("FragmentPath") or f"/lib/systemd/system/{_UNIT}"
    found = host.run(
        f"stat -c '%U %a %n' {unit} {' '.join(logs)}; find /opt/aws/cloudwatch/ ! -type l -printf '%U %m %p\\n'"
    )
    if found.stderr.strip():
        observe.fail(f"missing: {found.stderr.strip()}")
    rows = [line.split(None, 2) for line in found.stdout.splitlines()]
    wrong = [
        f"{path} ({owner}, {mode})" for owner, mode, path in rows if owner not in ("root", "0") or int(mode, 8) & 0o022
    ]
    observe(f"{len(rows)} files", "owned by root, mode without write for group and others")
    if wrong:
        observe.fail(f"not root's alone: {', '.join(wrong)}")


@pytest.mark.tier("T0")
def test_parser_is_the_one_that_was_installed(host: Any, observe: Observe) -> None:
    """Every file of the parser has the checksum with which it was installed, and no module is beside them.

    A parser that somebody has mended on the builder may still see the Xid of the drill, and miss the next one.
    """
    found = host.run(
        f"cd {_PARSER_HOME} && cut -c 67- SHA256SUMS && echo // && find . -name '*.py' && echo //"
        " && sha256sum --check --quiet SHA256SUMS 2>&1"
    )
    listed, modules, differing = [part.split("\n") for part in f"{found.stdout}\n//\n//".split("//")[:3]]
    names = {name for name in listed if name}
    observe(f"{len(names)} files", "those of SHA256SUMS")
    if len(names) < 2:
        observe.fail(
            f"{_PARSER_HOME}/SHA256SUMS does not say what was installed: {found.stderr.strip() or found.stdout!r}"
        )
    if found.rc:
        observe.fail(f"changed since they were installed: {'; '.join(line for line in differing if line)}")
    strange = sorted({name.removeprefix("./") for name in modules if name} - names)
    observe.nothing(strange, "modules that were not installed with the parser")


@pytest.mark.tier("T0")
def test_logs_are_rotated(host: Any, plan: Any, observe: Observe) -> None:
    """Both logs are rotated, and no line is lost by it: an error storm must not fill the disk."""
    logs = [plan["event_parser"]["raw_log"], plan["event_parser"]["json_log"]]
    done = host.run("logrotate -d /etc/logrotate.conf 2>&1")
    considered = set(re.findall(r"considering log (\S+)", done.stdout))
    observe(sorted(considered & set(logs)), logs)
    missing = [log for log in logs if log not in considered]
    if missing:
        said = f"; logrotate ended with {done.rc}: {done.stdout[-200:]!r}" if done.rc else ""
        observe.fail(f"no rule of logrotate covers {', '.join(missing)}{said}")
    rules = output(host, "cat /etc/logrotate.conf /etc/logrotate.d/*")
    for log in logs:
        if lost := losses(rules, log):
            observe.fail(f"{log} is rotated with {'; and with '.join(lost)}")


@pytest.mark.survives
def test_kernel_ring_is_large_enough(host: Any, plan: Any, observe: Observe) -> None:
    """The kernel keeps enough of its log that a burst of Xids does not push one out before it is read."""
    wanted = plan["event_parser"]["log_buf_len"]
    found = re.findall(r"(?:^|\s)log_buf_len=(\S+)", output(host, "cat /proc/cmdline"))
    observe.same(found[-1] if found else "not set", wanted, "log_buf_len on the kernel's command line")


@pytest.mark.planned("nvidia_driver")
@pytest.mark.survives
def test_drivers_own_lines_are_in_the_raw_log(host: Any, plan: Any, observe: Observe) -> None:
    """What the driver said in this boot stands in the raw log, byte for byte after the kernel's prefix."""
    raw = plan["event_parser"]["raw_log"]
    said = host.run("dmesg --notime --facility kern 2>/dev/null | grep -a '^NVRM:'").stdout.splitlines()
    if not said:
        unproven("the driver has not logged a line in this boot")
    log = host.run("cat %s", raw).stdout
    missing = [line for line in said if line.strip() not in log]
    observe(f"{len(said) - len(missing)} of {len(said)} lines", "all")
    if missing:
        observe.fail(f"{len(missing)} of {len(said)} kernel lines are not in {raw}, the first: {missing[0]}")
