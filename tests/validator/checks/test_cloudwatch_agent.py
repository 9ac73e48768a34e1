"""Each agent check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, PLAN, Judge
from validator.checks import cloudwatch_agent as agent

NO_GPU = "T E! [inputs.nvidia_smi] Error in plugin: /usr/bin/nvidia-smi -q -x ended with 9: NVIDIA-SMI has failed\n"
BOARD = "0000:00:1b.0 0x1af4 0x1110 0x050000 \n"

LOGS, METRICS = PLAN["cloudwatch_agent"]["config"], PLAN["cloudwatch_agent"]["gpu_config"]


def files(*configs: dict[str, Any]) -> str:
    """As `validator.probes.agent.config.installed` reads them."""
    return "".join(f"file_{at}.json\n{json.dumps(config)}\x1e" for at, config in enumerate(configs))


def with_metrics(**others: Any) -> dict[str, Any]:
    return {"metrics": METRICS["metrics"] | others}


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (
        agent.test_credentials_are_the_instance_s,
        {"cat*": "# [credentials]\n# shared_credential_profile = x\n"},
        "PASS",
        "",
    ),
    (
        agent.test_credentials_are_the_instance_s,
        {"cat*": '[credentials]\n  shared_credential_profile = "builder"\n'},
        "FAIL",
        'credentials in common-config.toml: shared_credential_profile = "builder"',
    ),
    (agent.test_agent_is_active_and_enabled, {"*is-active*": "active\n", "*is-enabled*": "enabled\n"}, "PASS", ""),
    (
        agent.test_agent_is_active_and_enabled,
        {"*is-active*": (3, "inactive\n"), "*is-enabled*": "enabled\n"},
        "FAIL",
        "amazon-cloudwatch-agent.service: expected active, enabled, got inactive, enabled",
    ),
    (agent.test_agent_does_not_restart, {"systemctl show*": "0\n"}, "PASS", ""),
    (
        agent.test_agent_does_not_restart,
        {
            "systemctl show*": "7\n",
            "journalctl*": "amazon-cloudwatch-agent.service: Failed with result 'exit-code'.\n" * 7,
        },
        "FAIL",
        "was restarted 7 times in this boot; results of its runs: exit-code, exit-code, exit-code and 4 more",
    ),
    (agent.test_agent_is_the_planned_version, {"dpkg-query*": "1.300071.0b1234-1"}, "PASS", ""),
    (
        agent.test_agent_is_the_planned_version,
        {"dpkg-query*": "1.300064.1b1344-1"},
        "FAIL",
        "package amazon-cloudwatch-agent: expected 1.300071.0, got 1.300064.1b1344-1",
    ),
    (
        agent.test_agent_is_the_planned_version,
        {"dpkg-query*Status-Status* dpkg": "installed", "dpkg-query*": (1, "")},
        "FAIL",
        "package amazon-cloudwatch-agent: expected 1.300071.0, got not installed",
    ),
    (agent.test_agent_reports_configured, {"*ctl*": '{"status":"running","configstatus":"configured"}'}, "PASS", ""),
    (
        agent.test_agent_reports_configured,
        {"*ctl*": '{"status":"stopped","configstatus":"not configured"}'},
        "FAIL",
        "'status': 'stopped'",
    ),
    (
        agent.test_agent_reports_configured,
        {"*ctl*": (127, "", "not found")},
        "FAIL",
        "amazon-cloudwatch-agent-ctl -a status printed no JSON: 'not found'",
    ),
    (agent.test_installed_configuration_is_the_planned_one, {"cd*": files(LOGS, METRICS)}, "PASS", ""),
    (agent.test_installed_configuration_is_the_planned_one, {"cd*": files(LOGS | METRICS)}, "PASS", ""),
    (
        agent.test_installed_configuration_is_the_planned_one,
        {"cd*": files(LOGS)},
        "FAIL",
        "metrics: expected {'",
    ),
    (
        agent.test_installed_configuration_is_the_planned_one,
        {"cd*": files(LOGS, with_metrics(namespace="Mine"))},
        "FAIL",
        "metrics.namespace: expected 'CWAgent', got 'Mine'",
    ),
    (
        agent.test_installed_configuration_is_the_planned_one,
        {"cd*": files(LOGS, with_metrics(metrics_collected={"nvidia_gpu": {"measurement": ["memory_total"]}}))},
        "FAIL",
        "metrics.metrics_collected.nvidia_gpu.measurement: expected ['utilization_gpu', ",
    ),
    (
        agent.test_configuration_was_not_replaced,
        {"ls -d*": "x", "ls -1*": "file_base.json\nfile_gpu.json\n"},
        "PASS",
        "",
    ),
    (agent.test_configuration_was_not_replaced, {"ls -d*": (2, "")}, "UNPROVEN", "not written by the role"),
    (
        agent.test_configuration_was_not_replaced,
        {"ls -d*": "x", "ls -1*": "ssm_Own\nfile_gpu.json\n", "grep*": "/var/lib/cloud/instance/user-data.txt\n"},
        "FAIL",
        "is missing: ssm_Own took its place. `amazon-cloudwatch-agent-ctl -a fetch-config` removes it; -a append-config"
        " keeps it and adds to it; the user data asks for it (/var/lib/cloud/instance/user-data.txt)",
    ),
    (
        agent.test_configuration_was_not_replaced,
        {"ls -d*": "x", "ls -1*": "file_base.json\nssm_Own\n", "grep*": ""},
        "FAIL",
        "ssm_Own added to the image's configuration (append-config)",
    ),
    (agent.test_agent_log_has_no_error, {"cat*": "2026-11-21T13:00:00Z I! Starting\n"}, "PASS", ""),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": "I! Starting\n2026-11-21T13:00:00Z E! cannot publish\n"},
        "FAIL",
        "1 errors in the agent's log, the last: 2026-11-21T13:00:00Z E! cannot publish",
    ),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": (1, "", "No such file")},
        "FAIL",
        "the agent's log cannot be read: No such file",
    ),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": "T E! [logs] try 3 failed, again in 2 s: ThrottlingException: Rate exceeded (HTTP 400)\n"},
        "PASS",
        "",
    ),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": "T E! cloudwatch: code: AccessDenied, message: not authorized to perform: cloudwatch:PutMetricData\n"},
        "ERROR",
        "iam/instance.json",
    ),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": NO_GPU, "for d in *": BOARD, "grep -e *": "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n"},
        "UNPROVEN",
        "no NVIDIA GPU on the PCI bus: the 1 boards are simulated",
    ),
    (
        agent.test_agent_log_has_no_error,
        {"cat*": NO_GPU, "for d in *": BOARD, "grep -e *": "alias pci:v00001AF4d00001110sv*sd*bc*sc*i* nvidia\n"},
        "FAIL",
        "1 errors in the agent's log, the last: T E! [inputs.nvidia_smi]",
    ),
    (
        agent.test_agent_log_has_no_error,
        {
            "cat*": f"T E! cannot publish\n{NO_GPU}",
            "for d in *": BOARD,
            "grep -e *": "alias pci:v000010DEd*sv*sd* nvidia\n",
        },
        "FAIL",
        "2 errors in the agent's log",
    ),
    (agent.test_agent_knows_no_other_instance, {"cd*": f"logs/state/x:{INSTANCE}\n"}, "PASS", ""),
    (
        agent.test_agent_knows_no_other_instance,
        {"cd*": f"etc/a.toml:i-0bbbbbbbbbbbbbbbb\nlogs/x:{INSTANCE}\n"},
        "FAIL",
        "other instances in the agent's files: etc/a.toml:i-0bbbbbbbbbbbbbbbb",
    ),
    (
        agent.test_agent_knows_no_other_instance,
        {"cd*": (2, "", "can't cd to /opt/aws/amazon-cloudwatch-agent")},
        "FAIL",
        "can't cd",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_cloudwatch_agent(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table)
    assert (found.verdict, message in found.message) == (verdict, True), found
