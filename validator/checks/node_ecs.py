"""The image is an ECS container instance: agent and Docker are the base AMI's, and GPUs are registered."""

from __future__ import annotations

from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan_document import NodeRole, PlanDocument, section
from validator.probes import MachineUnderTest, base_ami

pytestmark = pytest.mark.planned("node_ecs")

# The agent reads both files, that of the user last.
_SETTINGS = "cat /var/lib/ecs/ecs.config /etc/ecs/ecs.config"


def settings(text: str) -> dict[str, str]:
    """Variables of an ecs.config; the last line of a name is used."""
    rows = [line.strip().partition("=") for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {name.strip(): value.strip() for name, sign, value in rows if sign}


@pytest.mark.needs("observed")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T0")
def test_agent_offers_the_gpus(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The agent registers the GPUs with its cluster. Otherwise no task that needs a GPU is placed here."""
    accelerator = section(plan, "node_ecs", NodeRole).get("accelerator", "nvidia")
    if accelerator != "nvidia":
        unproven(f"tasks name {accelerator} devices themselves: the agent needs no setting")
    value = settings(host.run(_SETTINGS).stdout).get("ECS_ENABLE_GPU_SUPPORT", "not set")
    observe.same(value, "true", "ECS_ENABLE_GPU_SUPPORT (ecs.config)")


@pytest.mark.tier("T0")
def test_agent_starts_at_boot(host: Any, observe: Observe) -> None:
    """The ECS agent and Docker start at boot."""
    base_ami.check_enabled(host, ["ecs.service", "docker.service"], observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """The agent, its unit and container image, and Docker are unchanged since the base AMI."""
    base_ami.check_unchanged(host, "node_ecs", observe)


@pytest.mark.tier("T0")
def test_agent_s_image_is_there(host: Any, observe: Observe) -> None:
    """The agent's container image is on disk. An instance without internet access starts the agent from it."""
    size = int(output(host, "stat -c %s /var/cache/ecs/ecs-agent.tar", "%s"))
    observe(size, "> 0")
    if size == 0:
        observe.fail("/var/cache/ecs/ecs-agent.tar: expected an image, got an empty file")


def test_agent_knows_no_other_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The agent has no state of another instance. With it all instances would register as the same one.

    The agent writes its database at each start, so its age tells nothing: the instance that it names does.
    """
    found = host.run(r"grep -raoE '\bi-([0-9a-f]{17}|[0-9a-f]{8})\b' /var/lib/ecs/data | sort -u", pure=True).stdout
    others = sorted(row for row in found.split() if row.rpartition(":")[2] != machine.instance_id)
    observe.nothing(others, "agent state of other instances")
