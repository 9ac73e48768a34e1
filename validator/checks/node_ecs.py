"""The image is still an ECS container instance: agent and Docker are the base AMI's, and tasks are offered the GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from validator import node
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("node_ecs")

# The agent reads both, the user's after the image's.
_SETTINGS = "cat /var/lib/ecs/ecs.config /etc/ecs/ecs.config"


def settings(text: str) -> dict[str, str]:
    """Variables of an ecs.config; a later line counts."""
    rows = [line.strip().partition("=") for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, sign, value in rows if sign}


@pytest.mark.tier("T0")
def test_agent_offers_the_gpus(host: Any, plan: Any, observe: Observe) -> None:
    """The agent registers the GPUs with its cluster: without that, no task that asks for one is placed here."""
    accelerator = plan["node_ecs"].plain().get("accelerator", "nvidia")
    if accelerator != "nvidia":
        unproven(f"tasks name {accelerator} devices themselves: the agent is told nothing")
    found = settings(host.run(_SETTINGS).stdout).get("ECS_ENABLE_GPU_SUPPORT", "not set")
    observe.same(found, "true", "ECS_ENABLE_GPU_SUPPORT (ecs.config)")


@pytest.mark.tier("T0")
def test_agent_starts_at_boot(host: Any, observe: Observe) -> None:
    """The ECS agent and Docker start with every boot."""
    node.check_enabled(host, ["ecs.service", "docker.service"], observe)


@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """Agent, its unit and its image, and Docker are those of the base AMI."""
    node.check_unchanged(host, "node_ecs", observe)


@pytest.mark.tier("T0")
def test_agent_s_image_is_there(host: Any, observe: Observe) -> None:
    """The agent's container image is on the disk: an instance without a way out starts its agent from it."""
    size = int(output(host, "stat -c %s /var/cache/ecs/ecs-agent.tar", "%s"))
    observe(size, "> 0")
    if size == 0:
        observe.fail("/var/cache/ecs/ecs-agent.tar is empty")


def test_agent_knows_no_other_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The agent's state is of this instance: with the builder's, each instance would register as the same one."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    found = host.run(f"find /var/lib/ecs/data -type f ! -newermt @{since}").stdout.split()
    observe.nothing(sorted(found), "state of the agent that is older than this instance")
