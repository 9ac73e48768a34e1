"""The drain hook watches the instance metadata, and a notice of interruption runs the scripts once."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from validator import remote
from validator.cloudwatch import CloudWatch, LogEvent
from validator.observe import Observe, output
from validator.plan_document import DrainHook, PlanDocument, section
from validator.probes import MachineUnderTest, logrotate, restarts
from validator.probes.agent import config as agent_config
from validator.probes.agent import delivery

pytestmark = pytest.mark.planned("drain_hook")

_UNIT = "gpu-ami-drain-hook.service"
_UNIT_FILE = f"/etc/systemd/system/{_UNIT}"
_HOME = "/opt/aws/cloudwatch/drain"
_PROGRAM, _DRILL_SCRIPTS = f"{_HOME}/gpu-ami-drain-hook.py", f"{_HOME}/drill.d"
_SCRIPTS = "/etc/gpu-ami/drain.d"
STATUS = "/run/gpu-ami-drain-hook/status.json"
_LATE = 30.0  # seconds since the last look, which comes each 5 s; a machine is slow after boot
# Waits for the first look after boot, and for the next one if the network was not up at the first.
LAST_LOOK = (
    f"for i in $(seq 100); do grep -qs '\"problems\": \\[\\]' {STATUS} && break; sleep 0.2; done;"
    f" cat {STATUS} && echo && cut -d' ' -f1 /proc/uptime"
)
_DRILL_SECONDS = 30
# Asks unit $2 for a drill, and prints the line that its end adds to log $1 within $3 seconds.
DRILL = r"""
n=$(cat -- "$1" 2>/dev/null | wc -l); pid=$(systemctl show -p MainPID --value -- "$2")
[ "${pid:-0}" -gt 0 ] || { echo "$2 has no main process" >&2; exit 3; }
kill -USR1 "$pid" || exit 3
read -r up rest </proc/uptime; end=$((${up%.*} + $3))
while [ "${up%.*}" -lt "$end" ]; do
  tail -n "+$((n + 1))" -- "$1" 2>/dev/null | grep -F '"event":"drained"' | grep -F '"notice":"drill"' && exit 0
  sleep 0.2; read -r up rest </proc/uptime
done
exit 4
"""


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_hook_is_running_and_enabled(host: Any, observe: Observe) -> None:
    """The drain hook is running, enabled, and was not restarted in this boot. A notice leaves only minutes."""
    expected = {
        "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled",
        "NRestarts": "0", "Restart": "always",
    }  # fmt: skip
    shown = output(host, f"systemctl show -p {','.join(expected)} {_UNIT}")
    unit = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
    state = {key: unit.get(key, "") for key in expected}
    observe(state, expected)
    restarts.check_none(host, _UNIT, state["NRestarts"], observe)
    observe.same(state, expected, _UNIT)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_metadata_is_read(host: Any, observe: Observe) -> None:
    """The hook polled the instance metadata recently and without error. A hook that cannot poll is active, too."""
    shown = host.run(LAST_LOOK)
    if shown.rc != 0:
        observe.fail(f"the drain hook has not polled since boot: {shown.stderr.strip()}")
    document, _, uptime = shown.stdout.strip().rpartition("\n")
    status = json.loads(document)
    age = float(uptime) - float(status["look_monotonic_s"])
    observe({"age": round(age), **status}, f"within {_LATE:.0f} s, no problem")
    if age > _LATE:
        observe.fail(f"the last look at the metadata was {age:.0f} s ago, expected within {_LATE:.0f} s")
    if status["problems"]:
        observe.fail(f"the instance metadata cannot be read: {'; '.join(status['problems'])}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_unit_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The unit has the planned notices, time limit and log."""
    planned = section(plan, "drain_hook", DrainHook)
    started = re.findall(r"(?m)^ExecStart=(.*)$", output(host, f"cat {_UNIT_FILE}"))
    expected = (
        f"/usr/bin/python3 -sSE {_PROGRAM} --notices {','.join(planned['notices'])}"
        f" --timeout {planned['timeout_s']} --log {planned['log']}"
    )
    observe.same(started, [expected], _UNIT_FILE)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_scripts_would_run(host: Any, observe: Observe) -> None:
    """Every script in drain.d is executable and writable only by root. The hook, which runs as root, skips others."""
    listing = output(host, f"find -L {_SCRIPTS} -maxdepth 1 ! -name '.*' -printf '%y %m %U %p\\n'")
    rows = [line.split(None, 3) for line in listing.splitlines()]
    observe(
        sorted(path for _, _, _, path in rows if path != _SCRIPTS), "regular files, executable, written by root alone"
    )
    wrong = {path: _fault(path, kind, int(mode, 8), owner) for kind, mode, owner, path in rows}
    if reasons := [f"{path}: {reason}" for path, reason in sorted(wrong.items()) if reason]:
        observe.fail(f"would not run at a notice: {'; '.join(reasons)}")


def _fault(path: str, kind: str, mode: int, owner: str) -> str:
    if owner != "0" or mode & 0o022:
        return f"others than root can write it (owner {owner}, mode {mode:04o})"
    if path == _SCRIPTS:
        return ""
    if kind != "f":
        return "not a regular file"
    return "" if mode & 0o100 else f"not executable (mode {mode:04o})"


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_log_is_rotated(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The log of notices is rotated without losing lines."""
    logrotate.check_rotated(host, [section(plan, "drain_hook", DrainHook)["log"]], observe)


@pytest.mark.needs("promise")
@pytest.mark.live
def test_notice_runs_scripts_once(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed hook acts on each planned notice, once, and does nothing without one.

    A metadata service on the host's loopback plays the notices; a probe runs instead of the scripts of drain.d.
    """
    kinds = section(plan, "drain_hook", DrainHook)["notices"]
    played = host.run(remote.python("interruption_drill", _PROGRAM, _DRILL_SCRIPTS, *kinds), timeout=240)
    if played.rc != 0:
        observe.fail(f"the notices could not be played: {played.stderr.strip()[-300:]}")
    looks = json.loads(played.stdout)
    expected: list[dict[str, Any]] = [{}, {kind: {"probe": "ok"} for kind in kinds}, {}]
    observe([look["drained"] for look in looks], expected)
    for when, look, drained in zip(
        ("without a notice", "at a notice", "at the same notice again"), looks, expected, strict=True
    ):
        if look["status"] != 0:
            observe.fail(f"{when} the hook exited with status {look['status']}: {look['output']}")
        if look["drained"] != drained:
            observe.fail(
                f"{when} the hook ran {look['drained'] or 'nothing'}, expected {drained or 'nothing'}: {look['output']}"
            )


@pytest.mark.needs("promise")
@pytest.mark.live
def test_running_hook_runs_a_drill(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The running hook, within the limits of its unit, runs the script of a drill and logs its end."""
    [probe] = json.loads(_drill(host, plan, observe))["scripts"]
    observe.same(
        {key: probe[key] for key in ("name", "outcome", "status")},
        {"name": "probe", "outcome": "ok", "status": 0},
        "drill",
    )


@pytest.mark.needs("promise")
@pytest.mark.live
def test_log_of_a_drill_arrives(
    host: Any,
    plan: PlanDocument,
    machine: MachineUnderTest,
    cloudwatch: CloudWatch,
    log_group_suffix: str,
    observe: Observe,
) -> None:
    """The hook's log lines of a drill arrive once, in its log group and the stream of this instance."""
    machine.require_clock()
    if log_group_suffix:
        agent_config.require_group_suffix(agent_config.in_use(host), log_group_suffix)
    line = _drill(host, plan, observe)
    group = section(plan, "drain_hook", DrainHook)["log_group"]
    stream = plan["telemetry"]["log_stream"].replace("{instance_id}", machine.instance_id)

    def look() -> list[LogEvent] | None:
        events = cloudwatch.events(group, stream, machine.first_boot_time - 60) or []
        return [event for event in events if event.message.rstrip("\n") == line] or None

    events = cloudwatch.wait(look, cloudwatch.arrival_seconds)
    observe(f"{len(events or [])} events in {group}", "1")
    if not events:
        delivery.raise_if_refused(host)
        delivery.raise_if_dropped(host, "logs", cloudwatch.region, plan)
        observe.fail(
            f"a drill's line is not in group {group}, stream {stream}, after {cloudwatch.arrival_seconds:.0f} s: {line}"
        )
    if len(events) > 1:
        observe.fail(f"a drill's line arrived {len(events)} times in group {group}: {line}")


def _drill(host: Any, plan: PlanDocument, observe: Observe) -> str:
    """The line that a drill of the running hook adds to its log."""
    log = section(plan, "drain_hook", DrainHook)["log"]
    words = shlex.join([log, _UNIT, str(_DRILL_SECONDS)])
    done = host.run(f"sh -c {shlex.quote(DRILL)} drill {words}", timeout=_DRILL_SECONDS + 30)
    if done.rc == 3:
        observe.fail(f"no drill: {done.stderr.strip()}")
    if done.rc != 0:
        observe.fail(f"the drill's end is not in {log} within {_DRILL_SECONDS} s")
    return str(done.stdout.splitlines()[-1])
