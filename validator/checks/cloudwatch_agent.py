"""The planned CloudWatch agent runs with the planned configuration and has no state of the build instance."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, hardware, packages, restarts
from validator.probes.agent import config as agent_config
from validator.probes.agent import delivery

pytestmark = pytest.mark.planned("cloudwatch_agent")

_HOME = "/opt/aws/amazon-cloudwatch-agent"
_UNIT = "amazon-cloudwatch-agent.service"
_CHANGES = "amazon-cloudwatch-agent-ctl.*(fetch|append|remove)-config"
_OF_GPUS = "[inputs.nvidia_smi]"
_USER_DATA = "/var/lib/cloud/instance/user-data.txt /var/lib/cloud/instance/scripts/* /var/lib/cloud/scripts/*/*"


@pytest.mark.survives
def test_agent_is_active_and_enabled(host: Any, observe: Observe) -> None:
    """The agent is running and starts at boot."""
    active = host.run("systemctl is-active %s", _UNIT).stdout.strip()
    enabled = host.run("systemctl is-enabled %s", _UNIT).stdout.strip()
    observe.same([active, enabled], ["active", "enabled"], _UNIT)


@pytest.mark.survives
def test_agent_does_not_restart(host: Any, observe: Observe) -> None:
    """The agent was not restarted in this boot. An agent that crashes repeatedly is active most of the time."""
    count = output(host, "systemctl show -p NRestarts --value %s", _UNIT).strip()
    observe(count, "0")
    restarts.check_none(host, _UNIT, count, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_agent_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed agent is the planned version."""
    planned = plan["cloudwatch_agent"]["version"]
    if plan["os"]["family"] == "debian":
        version = host.run("dpkg-query -W -f '${Version}' amazon-cloudwatch-agent").stdout.strip()
    else:
        version = host.run("rpm -q --qf %s amazon-cloudwatch-agent", "%{VERSION}").stdout.strip()
    if not version:
        packages.require_readable(host, plan["os"]["family"])
    observe(version or "not installed", planned)
    if re.match(r"(\d+\.\d+\.\d+)?", version)[0] != planned:  # type: ignore[index]
        observe.fail(f"package amazon-cloudwatch-agent: expected {planned}, got {version or 'not installed'}")


@pytest.mark.survives
def test_agent_reports_configured(host: Any, observe: Observe) -> None:
    """The agent reports that it is running and configured."""
    done = host.run(f"{_HOME}/bin/amazon-cloudwatch-agent-ctl -a status -m ec2")
    try:
        status = json.loads(done.stdout)
    except ValueError:
        observe.fail(f"amazon-cloudwatch-agent-ctl -a status printed no JSON: {(done.stdout + done.stderr)[:300]!r}")
    expected = {"status": "running", "configstatus": "configured"}
    observe.same({key: status.get(key) for key in expected}, expected, "amazon-cloudwatch-agent-ctl -a status")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_installed_configuration_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The agent has exactly the planned configuration: every planned metric and log file, and no other."""
    agent = plan["cloudwatch_agent"]
    planned = agent_config.merged([agent["config"], agent.get("gpu_config", {})])
    installed = agent_config.installed(host)
    observe(installed, planned)
    differences = agent_config.differences(installed, planned)
    if differences:
        observe.fail(f"{agent_config.DIRECTORY} differs from the plan: {'; '.join(differences)}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_configuration_was_not_replaced(host: Any, observe: Observe) -> None:
    """The agent has the image's parts of configuration, and no other: no fetch-config, of user data too, replaced them.

    With other parts, log groups and metrics of the image are missing, and alarms on them are silent.
    """
    kept = host.run(f"ls -d {_HOME}/etc/gpu-ami/base.json", pure=True)
    if kept.rc != 0:
        unproven("the agent's configuration was not written by the role: no etc/gpu-ami/base.json")
    parts = host.run(f"ls -1 {agent_config.DIRECTORY}", pure=True).stdout.split()
    observe(sorted(parts), "file_base.json, and file_gpu.json on machines with GPUs")
    change = agent_config.replaced([part for part in parts if not part.endswith(".tmp")])
    if change:
        script = host.run(f"grep -lsE '{_CHANGES}' {_USER_DATA}", pure=True).stdout.split()
        observe.fail(change + (f"; the user data asks for it ({script[0]})" if script else ""))


@pytest.mark.needs("observed")
def test_agent_log_has_no_error(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The agent's log has no error. The agent logs an error when it cannot publish.

    Calls that AWS throttled are repeated by the agent and are not counted; calls that it refused say that the machine
    lacks a permission. A real driver on simulated boards has no GPU to be measured: its errors show nothing.
    """
    log = host.run(f"cat {delivery.LOG_FILE}")
    if log.rc != 0:
        observe.fail(f"the agent's log cannot be read: {log.stderr.strip()}")
    errors, temporary = delivery.errors(log.stdout), delivery.temporary(log.stdout)
    observe(errors[-20:] or f"no error, {len(temporary)} calls that AWS throttled", "no error")
    delivery.raise_refusals(delivery.refusals(log.stdout))
    if errors and all(_OF_GPUS in line for line in errors):
        hardware.require_board(host, plan)
    if errors:
        observe.fail(f"{len(errors)} errors in the agent's log, the last: {errors[-1]}")


@pytest.mark.tier("T0")
def test_credentials_are_the_instance_s(host: Any, observe: Observe) -> None:
    """The agent uses the credentials of the instance's role: common-config.toml names no profile and no file of others.

    With a profile of the builder it publishes as somebody else, or nothing where the file is missing.
    """
    lines = host.run("cat %s", f"{_HOME}/etc/common-config.toml").stdout.splitlines()
    named = [line.strip() for line in lines if re.match(r"\s*shared_credential_(?:profile|file)\s*=", line)]
    observe.nothing(named, "credentials in common-config.toml")


def test_agent_knows_no_other_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The agent's configuration, state and logs name no other instance. Otherwise it may publish as that instance."""
    pattern = r"\bi-([0-9a-f]{17}|[0-9a-f]{8})\b"
    matches = output(host, f"cd {_HOME} && {{ grep -raoE '{pattern}' etc logs var 2>/dev/null || true; }} | sort -u")
    rows = [row for row in matches.splitlines() if row.rpartition(":")[2] != machine.instance_id]
    observe.nothing(rows, "other instances in the agent's files")
