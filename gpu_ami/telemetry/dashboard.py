"""The body of the CloudWatch dashboard, made from a plan's measurements: the fleet, then one instance.

Widgets search for their series, so that instances appear and disappear by themselves. Source of the structure:
CloudWatch API reference, "Dashboard Body Structure and Syntax"; of expressions: CloudWatch user guide, "Use search
expressions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_ami.plan import cost
from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import alarms, measurements
from gpu_ami.telemetry.measurements import ALARMS_NAMESPACE, EVENTS_NAMESPACE, Measured, measured, unit_of
from validator.measurement import PREFIX

STACK = "gpu-telemetry"  # name of the stack where none is given
ANY_INSTANCE = "i-0123456789abcdef0"  # what the dashboard's variable replaces by the chosen instance
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 6
_SEVERITIES = ("fatal", "critical", "warning", "app", "info")
Widget = dict[str, Any]


@dataclass(frozen=True)
class Counted:
    """Events of a kind of devices. metrics: condition on their names; by: dimension of the code, code: its metric."""

    noun: str
    metrics: str
    by: str
    code: str
    codes: str


_OF_GPUS = Counted(
    "GPU",
    'MetricName=("XidEvents" OR "SxidEvents" OR "GpuLostEvents" OR "GpuInitFailedEvents" OR "StackErrorEvents")',
    "Xid",
    "XidEvents",
    "Xids by code",
)
_OF_NEURON = Counted("Neuron", 'MetricName="NeuronEvents"', "NeuronError", "NeuronEvents", "Neuron errors by name")


def name(facts: Measured) -> str:
    """The dashboard's, where nobody gives another one."""
    return f"My-{noun(facts)}-Usage"


def noun(facts: Measured) -> str:
    return _counted(facts).noun


def _counted(facts: Measured) -> Counted:
    return _OF_NEURON if facts.neuron else _OF_GPUS


def body(
    plan: PlanDocument,
    region: str,
    alarm_arns: Sequence[str] = (),
    stack: str = "${AWS::StackName}",
    *,
    by_gpu: bool = True,
) -> dict[str, Any]:
    """The dashboard's body. alarm_arns: of the event alarms; stack: the telemetry stack's name; by_gpu: with the view
    of one instance, a line for each of its GPUs."""
    facts = measured(plan)
    rows = [
        [_text(f"# {plan['image']}\n{_advice(facts)}")],
        *([[_alarms(alarm_arns)]] if alarm_arns else []),
        _neuron_numbers(facts) if facts.neuron else _fleet_numbers(plan, facts),
        _events(stack, _counted(facts)),
        _neuron(facts) if facts.neuron else
        [_metric(group, [_of_fleet(facts, name) for name in names]) for group, names in facts.groups().items()],
        _parser(facts),
    ]  # fmt: skip
    if facts.neuron or not by_gpu:
        return {"start": "-PT3H", "widgets": _placed(rows, region)}
    rows += [
        [_text("# One instance\nChoose it above; a line for each GPU.")],
        [
            _metric(f"{group} by GPU", [_of_instance(facts, name) for name in names])
            for group, names in facts.groups().items()
        ],
    ]
    return {"start": "-PT3H", "variables": [_variable(facts)], "widgets": _placed(rows, region)}


def _advice(facts: Measured) -> str:
    if facts.neuron:
        return "What to do for an alarm: `gpu-ami runbook NAME`"
    return "What to do for an alarm or an Xid: `gpu-ami runbook NAME`, `gpu-ami runbook 79`"


def _placed(rows: Sequence[Sequence[Widget]], region: str) -> list[Widget]:
    """Widgets with their places, side by side until a row of the grid is full."""
    placed, y = [], 0
    for row in rows:
        x = tallest = 0
        for widget in row:
            if x + widget["width"] > _COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            if widget["type"] == "metric":
                widget["properties"]["region"] = region
            placed.append({"type": widget["type"], "x": x, "y": y} | widget)
            x, tallest = x + widget["width"], max(tallest, widget["height"])
        y += tallest
    return placed


def _text(markdown: str) -> Widget:
    return {"type": "text", "width": _COLUMNS, "height": 2, "properties": {"markdown": markdown}}


def _alarms(arns: Sequence[str]) -> Widget:
    properties = {"title": "Alarms of events", "alarms": list(arns)}
    return {"type": "alarm", "width": _COLUMNS, "height": 3, "properties": properties}


def _metric(title: str, metrics: Sequence[list[Any]], *, view: str = "timeSeries", width: int = _WIDTH) -> Widget:
    properties: dict[str, Any] = {"title": title, "view": view, "metrics": list(metrics)}
    return {"type": "metric", "width": width, "height": _HEIGHT, "properties": properties}


def _expression(expression: str, label: str, **more: Any) -> list[Any]:
    return [{"expression": expression, "label": label, **more}]


def _search(namespace: str, dimensions: str, metric: str, statistic: str) -> str:
    return f"SEARCH('{{{namespace},{dimensions}}} MetricName=\"{metric}\"', '{statistic}', 300)"


def _label(name: str) -> str:
    unit = unit_of(name)
    return f"{name} ({unit})" if unit else name


def _of_fleet(facts: Measured, name: str) -> list[Any]:
    return _expression(_search(facts.namespace, "InstanceId", PREFIX + name, "Average"), _label(name))


def _of_instance(facts: Measured, name: str) -> list[Any]:
    """The series of each GPU: those with the dimension index."""
    terms = f'Namespace="{facts.namespace}" MetricName="{PREFIX + name}" InstanceId="{ANY_INSTANCE}" index'
    return _expression(f"SEARCH('{terms}', 'Average', 60)", _label(name))


def _fleet_numbers(plan: PlanDocument, facts: Measured) -> list[Widget]:
    counted = _search(facts.namespace, "InstanceId", facts.witness, "Average")
    numbers = [_expression(f"METRIC_COUNT({counted})", "instances")]
    widgets = [_metric("Instances that report GPUs", numbers, view="singleValue", width=6)]
    if facts.has("utilization_gpu"):
        busy = _search(facts.namespace, "InstanceId", PREFIX + "utilization_gpu", "Average")
        widgets.append(_metric("GPU utilization, mean of instances (%)", [_expression(f"AVG({busy})", "%")], width=6))
        widgets.append(_metric("Unused GPU time (US dollars an hour)", _unused(plan), width=12))
    return widgets


def _unused(plan: PlanDocument) -> list[list[Any]]:
    """By instance type: price of a GPU's hour, times the part in which it did not work, of all its GPUs."""
    lines = []
    for row in plan["instance_types"]:
        price = cost.hourly_usd(row["name"])
        if price is not None:
            each = round(price / row["gpu_count"] / 100, 6)
            series = (
                f'Namespace="{plan["telemetry"]["namespace"]}" MetricName="{PREFIX}utilization_gpu"'
                f' InstanceType="{row["name"]}" index'
            )
            unused = f"SUM(100 - SEARCH('{series}', 'Average', 300)) * {each}"
            lines.append(_expression(unused, f"{row['name']} ({price:g} USD an hour each)"))
    return lines


def _search_neuron(facts: Measured, metric: str, statistic: str) -> str:
    """By namespace and name: a recipe chooses the dimensions of its metrics."""
    namespace = facts.neuron["namespace"] if facts.neuron else ""
    return f"SEARCH('Namespace=\"{namespace}\" MetricName=\"{metric}\"', '{statistic}', 300)"


def _neuron_numbers(facts: Measured) -> list[Widget]:
    reporting = _search_neuron(facts, measurements.DEVICES, "Minimum")
    cores = _search_neuron(facts, measurements.UTILIZATION, "Average")
    numbers = (
        ("Instances that report Neuron devices", f"METRIC_COUNT({reporting})", "instances"),
        ("Neuron devices", f"SUM({reporting})", "devices"),
        ("Core utilization, mean of those in use (%)", f"AVG({cores})", "%"),
    )
    return [
        _metric(title, [_expression(expression, label)], view="singleValue") for title, expression, label in numbers
    ]


def _neuron(facts: Measured) -> list[Widget]:
    """A line for each instance, core or device."""
    return [
        _metric(one.title, [_expression(_search_neuron(facts, one.metric, one.statistic), "")])
        for one in measurements.SHOWN
    ]


def _events(stack: str, counted: Counted) -> list[Widget]:
    # MetricName=…Events: Xids, SXids, GPUs that are lost or not initialised, or Neuron's errors; not DrillEvents.
    of_instances = f"{{{EVENTS_NAMESPACE},InstanceId,Severity}}"
    by_severity = [
        _expression(f"SUM(SEARCH('{of_instances} Severity=\"{one}\" {counted.metrics}', 'Sum', 300))", one)
        for one in _SEVERITIES
    ]
    by_action = [
        [ALARMS_NAMESPACE, f"{stack}-{alarm.metric}", {"label": alarm.name, "stat": "Sum"}]
        for alarm in alarms.of_kind(alarms.EVENTS)
    ]
    codes = [_expression(_search(EVENTS_NAMESPACE, f"InstanceId,{counted.by}", counted.code, "Sum"), counted.by)]
    return [
        _metric(f"{counted.noun} events by severity", by_severity),
        _metric(f"{counted.noun} events by what to do", by_action),
        _metric(counted.codes, codes),
    ]


def _parser(facts: Measured) -> list[Widget]:
    shown = (
        ("Heartbeats of event parsers", "Heartbeat", "Sum"),
        ("Lag of events (s)", "LagSeconds", "Maximum"),
        ("Kernel records lost", "RecordsLost", "Sum"),
        ("Events dropped", "EventsDropped", "Sum"),
        ("Drills", "DrillEvents", "Sum"),
        ("Row remaps pending at boot", "RowRemapPending", "Maximum"),
    )
    return [
        _metric(title, [_expression(_search(EVENTS_NAMESPACE, "InstanceId", metric, statistic), "")])
        for title, metric, statistic in (shown[:-1] if facts.neuron else shown)
    ]


def _variable(facts: Measured) -> dict[str, Any]:
    return {
        "type": "pattern",
        "pattern": ANY_INSTANCE,
        "inputType": "select",
        "id": "instance",
        "label": "Instance",
        "defaultValue": ANY_INSTANCE,
        "visible": True,
        "search": f'{{{facts.namespace},InstanceId}} MetricName="{facts.witness}"',
        "populateFrom": "InstanceId",
    }
