"""Rules of the CloudWatch agent: what its release reads of the driver's `nvidia-smi -q -x`."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import at_least, parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext


def agent_release(context: ResolveContext) -> str:
    """The agent's release in the recipe, without its build number; for `newest` the newest in the facts."""
    asked = str(context.section("cloudwatch_agent").get("version", "newest")).partition("b")[0]
    known = context.facts.cloudwatch_agent["versions"]
    return asked if asked[:1].isdigit() else max(known, key=parts)


def measures_gpus(context: ResolveContext) -> list[str]:
    """The planned measurements of the agent's nvidia_gpu plugin."""
    asked = context.section("telemetry")
    profile = context.facts.telemetry.get(asked.get("profile", ""), {})
    return list(asked.get("measurements") or profile.get("measurements", []))


def agent_reads_power_draw(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """Agents read the element that older drivers have: on a newer one power_draw is never published."""
    driver, agent = chosen["nvidia_driver"], agent_release(context)
    if "power_draw" not in measures_gpus(context):
        return
    rows = [
        row
        for row in context.facts.cloudwatch_agent["nvidia_smi"]["power_draw"]
        if at_least(driver, row["driver_from"])
    ]
    missing = [row for row in rows if not at_least(agent, row["agent_from"])]
    if missing:
        row = missing[-1]
        text = f"CloudWatch agent {agent} publishes no power_draw of driver {driver}: needs ≥ {row['agent_from']}"
        nearest = f"cloudwatch_agent.version {row['agent_from']} or newer, or telemetry.measurements without power_draw"
        yield Conflict("cloudwatch_agent.version", text, row["source"], nearest=nearest)


def unknown_layout(context: ResolveContext, driver: str) -> str:
    """A note where the agent does not know the layout of the driver's nvidia-smi; "" where it does."""
    if not measures_gpus(context):
        return ""
    layouts = [
        row for row in context.facts.cloudwatch_agent["nvidia_smi"]["layouts"] if at_least(driver, row["driver_from"])
    ]
    if not layouts:
        return ""
    row, agent = layouts[-1], agent_release(context)
    if "agent_from" in row and at_least(agent, row["agent_from"]):
        return ""
    return (
        f"CloudWatch agent {agent} does not know the layout {row['name']} of nvidia-smi {driver}: it logs a warning and"
        f" reads it as the newest that it knows, so check that the metrics of GPUs arrive ({row['source']})"
    )


TELEMETRY_RULES = ((("nvidia_driver",), agent_reads_power_draw),)
