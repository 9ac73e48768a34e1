"""Each check of ECS container instances, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from tests.validator.checks.node_cases import unchanged
from validator.checks import node_ecs
from validator.plan import as_plan

PLAN = as_plan({"node_ecs": {"version": "", "accelerator": "nvidia"}})

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    *unchanged(node_ecs.test_base_files_are_untouched, "/var/cache/ecs/ecs-agent.tar"),
    (node_ecs.test_agent_offers_the_gpus, {"cat*": "# x\nECS_ENABLE_GPU_SUPPORT=true\n"}, "PASS", ""),
    (
        node_ecs.test_agent_offers_the_gpus,
        {"cat*": "#ECS_ENABLE_GPU_SUPPORT=true\nECS_CLUSTER=a\n"},
        "FAIL",
        "ECS_ENABLE_GPU_SUPPORT (ecs.config): expected 'true', got 'not set'",
    ),
    (
        node_ecs.test_agent_offers_the_gpus,
        {"cat*": "ECS_ENABLE_GPU_SUPPORT=true\nECS_ENABLE_GPU_SUPPORT=false\n"},
        "FAIL",
        "got 'false'",
    ),
    (node_ecs.test_agent_starts_at_boot, {"systemctl*": "enabled\n"}, "PASS", ""),
    (
        node_ecs.test_agent_starts_at_boot,
        {"systemctl*ecs*": (1, "disabled\n"), "systemctl*": "enabled\n"},
        "FAIL",
        "'ecs.service': 'disabled'",
    ),
    (node_ecs.test_agent_s_image_is_there, {"stat*": "4096\n"}, "PASS", ""),
    (
        node_ecs.test_agent_s_image_is_there,
        {"stat*": "0\n"},
        "FAIL",
        "/var/cache/ecs/ecs-agent.tar: expected an image, got an empty file",
    ),
    (
        node_ecs.test_agent_s_image_is_there,
        {"stat*": (1, "", "stat: cannot statx '/var/cache/ecs/ecs-agent.tar': No such file or directory")},
        "FAIL",
        "No such file or directory",
    ),
    (node_ecs.test_agent_knows_no_other_instance, {"grep*": ""}, "PASS", ""),
    (
        node_ecs.test_agent_knows_no_other_instance,
        {"grep*": "/var/lib/ecs/data/agent.db:i-0123456789abcdef0\n"},
        "PASS",
        "",
    ),
    (
        node_ecs.test_agent_knows_no_other_instance,
        {"grep*": "/var/lib/ecs/data/agent.db:i-0123456789abcdef0\n/var/lib/ecs/data/agent.db:i-0bbbbbbbbbbbbbbbb\n"},
        "FAIL",
        "agent state of other instances: /var/lib/ecs/data/agent.db:i-0bbbbbbbbbbbbbbbb",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_node_ecs(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_neuron_devices_are_not_registered_as_gpus(judge: Judge) -> None:
    plan = as_plan({"node_ecs": {"version": "", "accelerator": "neuron"}})
    found = judge(node_ecs.test_agent_offers_the_gpus, {}, plan=plan)
    assert (found.verdict, "tasks name neuron devices themselves" in found.message) == ("UNPROVEN", True)


def test_an_image_without_nvidia_s_driver_is_not_asked_for_gpus() -> None:
    """ECS's AMI without GPUs, as found."""
    marks = node_ecs.test_agent_offers_the_gpus.pytestmark  # type: ignore[attr-defined]
    assert "nvidia_driver" in [mark.args[0] for mark in marks if mark.name == "planned"]
