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


def _is_short(value: Any) -> bool:
    """What stands on one line: a template has to stay below INLINE_CHARACTERS."""
    return len(json.dumps(value)) <= 110


def _yaml(template: stack.Template) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes the same value twice instead of an alias, which CloudFormation's YAML does not know."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
            return super().represent_sequence(tag, sequence, True if _is_short(sequence) else flow_style)

        def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
            is_function = len(mapping) == 1 and next(iter(mapping)).startswith("Fn::")
            return super().represent_mapping(tag, mapping, True if is_function and _is_short(mapping) else flow_style)

    style: dict[str, Any] = {"default_flow_style": None, "sort_keys": False, "width": 100_000, "allow_unicode": True}
    text: str = yaml.dump(template, Dumper=Dumper, **style)
    return text
