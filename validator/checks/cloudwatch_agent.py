"""The CloudWatch agent runs, as the planned version, with the planned configuration and nothing of the builder."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator import agent_config
from validator.machine import MachineUnderTest
from validator.observe import Observe, output

_HOME = "/opt/aws/amazon-cloudwatch-agent"
_UNIT = "amazon-cloudwatch-agent.service"


@pytest.mark.survives
def test_agent_is_active_and_enabled(host: Any, observe: Observe) -> None:
    """The agent runs now and starts with every boot."""
    active = host.run("systemctl is-active %s", _UNIT).stdout.strip()
    enabled = host.run("systemctl is-enabled %s", _UNIT).stdout.strip()
    observe.same([active, enabled], ["active", "enabled"], _UNIT)


@pytest.mark.survives
def test_agent_does_not_restart(host: Any, observe: Observe) -> None:
    """The agent has not been restarted in this boot: one that dies again and again is active most of the time too."""
    observe.same(output(host, "systemctl show -p NRestarts --value %s", _UNIT).strip(), "0", f"restarts of {_UNIT}")


@pytest.mark.tier("T0")
def test_agent_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """The installed agent has the planned version."""
    planned = plan["cloudwatch_agent"]["version"]
    if plan["os"]["family"] == "debian":
        found = host.run("dpkg-query -W -f '${Version}' amazon-cloudwatch-agent").stdout.strip()
    else:
        found = host.run("rpm -q --qf %s amazon-cloudwatch-agent", "%{VERSION}").stdout.strip()
    observe(found or "not installed", planned)
    if re.match(r"(\d+\.\d+\.\d+)?", found)[0] != planned:  # type: ignore[index]
        observe.fail(f"package amazon-cloudwatch-agent: found {found or 'none'}, expected {planned}")


@pytest.mark.survives
def test_agent_says_it_is_configured(host: Any, observe: Observe) -> None:
    """The agent itself reports that it runs and is configured."""
    done = host.run(f"{_HOME}/bin/amazon-cloudwatch-agent-ctl -a status -m ec2")
    try:
        told = json.loads(done.stdout)
    except ValueError:
        observe.fail(f"amazon-cloudwatch-agent-ctl -a status gave no JSON: {(done.stdout + done.stderr)[:300]!r}")
    wanted = {"status": "running", "configstatus": "configured"}
    observe.same({key: told.get(key) for key in wanted}, wanted, "amazon-cloudwatch-agent-ctl -a status")


@pytest.mark.tier("T0")
def test_installed_configuration_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The agent runs with exactly the planned configuration: every metric and every log file, and no other."""
    agent = plan["cloudwatch_agent"].plain()
    planned = agent_config.merged([agent["config"], agent.get("gpu_config", {})])
    found = agent_config.installed(host)
    observe(found, planned)
    wrong = agent_config.differences(found, planned)
    if wrong:
        observe.fail(f"installed configuration ({agent_config.DIRECTORY}) is not the plan's: {'; '.join(wrong)}")


def test_agent_log_has_no_error(host: Any, observe: Observe) -> None:
    """The agent logged no error: it says there when it cannot publish."""
    log = host.run(f"cat {_HOME}/logs/amazon-cloudwatch-agent.log")
    if log.rc != 0:
        observe.fail(f"the agent has no log: {log.stderr.strip()}")
    wrong = [line for line in log.stdout.splitlines() if re.search(r"\bE!", line)]
    observe(wrong[-20:], [])
    if wrong:
        observe.fail(f"{len(wrong)} errors in the agent's log, the last: {wrong[-1]}")


def test_agent_knows_no_other_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Configuration, state and logs of the agent name no other instance: else it may publish as the builder."""
    pattern = r"\bi-([0-9a-f]{17}|[0-9a-f]{8})\b"
    found = output(host, f"cd {_HOME} && {{ grep -raoE '{pattern}' etc logs var 2>/dev/null || true; }} | sort -u")
    rows = [row for row in found.splitlines() if row.rpartition(":")[2] != machine.instance_id]
    observe.nothing(rows, "other instances in the agent's files")
