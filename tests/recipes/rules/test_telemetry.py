"""Rules of the CloudWatch agent: what its release reads of the driver's nvidia-smi."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.rules import telemetry as rules
from tests.recipes.conftest import context

GRAPHICS = "telemetry: {profile: graphics}"


def of(agent: str, *lines: str) -> rules.ResolveContext:
    return context("\n".join([f"cloudwatch_agent: {{version: {agent}}}", *lines]), types="g6.xlarge")


@pytest.mark.parametrize(
    ("agent", "driver", "needed"),
    [
        ("1.300033.0", "535.309.01", "1.300034.0"),
        ("1.300034.0", "535.309.01", None),
        ("1.300055.2", "550.163.01", None),
        ("1.300055.2", "570.172.08", "1.300056.0"),
        ("1.300055.2b1541", "595.91.07", "1.300056.0"),
        ("1.300056.0b1123", "595.91.07", None),
        ("newest", "595.91.07", None),
    ],
)
def test_power_draw_needs_an_agent_that_reads_it(agent: str, driver: str, needed: str | None) -> None:
    conflicts = list(rules.agent_reads_power_draw(of(agent), {"nvidia_driver": driver}))
    assert [conflict.path for conflict in conflicts] == ["cloudwatch_agent.version"] * bool(needed)
    assert all(f"needs ≥ {needed}" in conflict.text for conflict in conflicts)
    assert list(rules.agent_reads_power_draw(of(agent, GRAPHICS), {"nvidia_driver": driver})) == []


@pytest.mark.parametrize(
    ("agent", "driver", "layout"),
    [
        ("1.300071.0b1720", "570.148.08", None),
        ("1.300071.0b1720", "580.65.06", "v13"),
        ("newest", "595.91.07", "v13"),
        ("1.300033.0", "550.163.01", "v12"),
    ],
)
def test_layout_that_the_agent_does_not_know(agent: str, driver: str, layout: str | None) -> None:
    note = rules.unknown_layout(of(agent), driver)
    assert note == "" if layout is None else f"does not know the layout {layout} of nvidia-smi {driver}" in note
