"""Writes a plan's templates and dashboard: the files of `gpu-ami telemetry PLAN -o DIR`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_ami.files import write_text
from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import dashboard, fleet_alarms, lab, neuron, stack
from gpu_ami.telemetry.measurements import measured

INLINE_CHARACTERS = 51_200  # of a template that is sent with the call (CloudFormation quotas); larger ones need S3
_MADE: dict[str, Callable[[PlanDocument], stack.Template]] = {
    "telemetry.yml": stack.telemetry,
    "instance-alarms.yml": stack.instance_alarms_template,
    "fleet-alarms.yml": fleet_alarms.fleet_alarms,
    "lab.yml": lab.lab,
}
_MADE_FOR_NEURON: dict[str, Callable[[PlanDocument], stack.Template]] = {
    "telemetry.yml": stack.telemetry,
    "neuron-alarms.yml": neuron.neuron_alarms,
    "neuron-instance-alarm.yml": neuron.neuron_instance_alarm,
}
DASHBOARD_FILE = "dashboard.json"


def render(plan: PlanDocument, region: str) -> dict[str, str]:
    """File name → its text. UsageError: the plan measures neither GPUs nor Neuron devices."""
    header = f"# Made from the plan of {plan['image']} by `gpu-ami telemetry`; docs/telemetry.md says how to use it.\n"
    made = _MADE_FOR_NEURON if measured(plan).neuron else _MADE
    texts = {name: header + _yaml(make(plan)) for name, make in made.items()}
    body = dashboard.body(plan, region, stack=dashboard.STACK)
    return texts | {DASHBOARD_FILE: json.dumps(body, indent=1) + "\n"}


def write(plan: PlanDocument, region: str, folder: Path) -> list[Path]:
    """Writes all files; returns their paths."""
    texts = render(plan, region)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _yaml(template: stack.Template) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes the same value twice instead of an alias, which CloudFormation's YAML does not know."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    style: dict[str, Any] = {"default_flow_style": None, "sort_keys": False, "width": 100_000, "allow_unicode": True}
    text: str = yaml.dump(template, Dumper=Dumper, **style)
    return text
