"""CloudFormation templates of a plan whose instances have Neuron devices: neuron-alarms.yml, neuron-instance-alarm.yml.

The alarms are Metrics Insights queries over neuron-monitor's metrics, grouped by instance, as in fleet-alarms.yml. A
silent monitor has no series, so that alarm is an instance's own, and takes missing data for a breach.
"""

from __future__ import annotations

from typing import Any

from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import alarms, instance_alarms, stack

Template = dict[str, Any]
NAME = "My-Neuron-Usage"
_PERIOD = 300
# Alarm, what its name in CloudWatch has before the alarm's own, statistic and metric that must stay 0.
_WATCHED = (
    ("neuron-hardware-error", "hardware", "SUM", "execution_errors_hardware"),
    ("neuron-memory-error", "hbm", "MAX", "mem_ecc_uncorrected"),
    ("neuron-memory-error", "sram", "MAX", "sram_ecc_uncorrected"),
    ("neuron-execution-error", "runtime", "SUM", "execution_errors_runtime"),
    ("neuron-execution-error", "generic", "SUM", "execution_errors_generic"),
    ("neuron-execution-error", "timeout", "SUM", "executions_timed_out"),
)
# Title, metric, statistic.
_WIDGETS = (
    ("Utilization of the cores (%)", "neuroncore_utilization", "Average"),
    ("Memory of the devices (bytes)", "runtime_memory_neuron_device", "Maximum"),
    ("Memory of the host (bytes)", "runtime_memory_host", "Maximum"),
    ("Latency of executions, p99 (s)", "total_latency_p99", "Maximum"),
    ("Executions completed", "executions_completed", "Sum"),
    ("Executions timed out", "executions_timed_out", "Sum"),
    ("Hardware errors", "execution_errors_hardware", "Sum"),
    ("Uncorrected ECC errors of HBM", "mem_ecc_uncorrected", "Maximum"),
    ("Uncorrected ECC errors of SRAM", "sram_ecc_uncorrected", "Maximum"),
    ("Corrected ECC errors of HBM", "mem_ecc_corrected", "Maximum"),
    ("Devices", "neuron_device_count", "Minimum"),
    ("Reports of neuron-monitor", "reports", "Sum"),
)


def neuron_alarms(plan: PlanDocument) -> Template:
    """One stack a Region: topics, alarms of all instances, dashboard."""
    mail = {"Type": "String", "Default": "", "Description": "E-mail address for alarms of this urgency; empty for none"}
    named = {alarm.name: alarm for alarm in alarms.of_kind(alarms.NEURON)}
    made = {
        f"{label.capitalize()}{instance_alarms.logical_id(name)}": _alarm(named[name], label, _query(plan, how, metric))
        for name, label, how, metric in _WATCHED
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of all instances of {plan['image']} in a Region: gpu-ami telemetry made it",
        "Parameters": {
            "PageEmail": mail,
            "TicketEmail": mail,
            "DashboardName": {"Type": "String", "Default": NAME, "AllowedPattern": "[A-Za-z0-9_-]{1,255}"},
        },
        "Conditions": {
            f"Has{urgency}Email": {"Fn::Not": [{"Fn::Equals": [{"Ref": f"{urgency}Email"}, ""]}]}
            for urgency in ("Page", "Ticket")
        },
        "Resources": {
            "PageTopic": stack.topic("Page"),
            "TicketTopic": stack.topic("Ticket"),
            **made,
            "Dashboard": _dashboard(plan),
        },
        "Outputs": {
            name: {"Description": f"Topic of the alarms: {name}", "Value": {"Ref": name}}
            for name in ("PageTopic", "TicketTopic")
        },
    }


def neuron_instance_alarm(plan: PlanDocument) -> Template:
    """One stack an instance: its neuron-monitor is silent."""
    [alarm] = [one for one in alarms.of_kind(alarms.NEURON) if one.name == "neuron-monitor-silent"]
    namespace = _section(plan)["namespace"]
    query = {"Fn::Sub": f"SELECT SUM(reports) FROM \"{namespace}\" WHERE instance_id = '${{InstanceId}}'"}
    resource = _alarm(alarm, "", query, topics="Arn")
    resource["Properties"] |= {
        "ComparisonOperator": "LessThanThreshold", "Threshold": 1, "TreatMissingData": "breaching",
        "EvaluationPeriods": 2,
    }  # fmt: skip
    arn = {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarm of one instance of {plan['image']}: gpu-ami telemetry made it",
        "Parameters": {
            "InstanceId": {"Type": "String", "Description": "The instance", "AllowedPattern": "i-[0-9a-f]+"},
            "PageTopicArn": arn | {"Description": "Output PageTopic of the stack neuron-alarms.yml"},
        },
        "Resources": {"NeuronMonitorSilent": resource},
    }


def _section(plan: PlanDocument) -> Any:
    return plan["neuron_monitor"]


def _query(plan: PlanDocument, function: str, metric: str) -> str:
    instance = _section(plan)["dimensions"][0]
    namespace = _section(plan)["namespace"]
    return f'SELECT {function}({metric}) FROM "{namespace}" GROUP BY {instance} ORDER BY {function}() DESC'


def _alarm(alarm: alarms.Alarm, label: str, query: Any, topics: str = "") -> Template:
    actions = [{"Ref": f"{alarm.urgency.capitalize()}Topic{topics}"}]
    name = f"{label}-{alarm.name}" if label else alarm.name
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{name}"},
            "AlarmDescription": alarm.description(""),
            "AlarmActions": actions,
            "OKActions": actions,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 0,
            "EvaluationPeriods": 1,
            "TreatMissingData": "notBreaching",
            "Metrics": [{"Id": "instances", "Expression": query, "Period": _PERIOD, "ReturnData": True}],
        },
    }


def _dashboard(plan: PlanDocument) -> Template:
    import json

    text = json.dumps(body(plan, "${AWS::Region}"), separators=(",", ":"))
    properties = {"DashboardName": {"Ref": "DashboardName"}, "DashboardBody": {"Fn::Sub": text}}
    return {"Type": "AWS::CloudWatch::Dashboard", "Properties": properties}


def body(plan: PlanDocument, region: str) -> dict[str, Any]:
    """The dashboard's body: a line for each instance, core or device."""
    widgets = [
        {
            "type": "metric", "x": 8 * (place % 3), "y": 6 * (place // 3), "width": 8, "height": 6,
            "properties": {"title": title, "view": "timeSeries", "region": region, "metrics": [[_search(plan, *of)]]},
        }
        for place, (title, *of) in enumerate(_WIDGETS)
    ]  # fmt: skip
    return {"start": "-PT3H", "widgets": widgets}


def _search(plan: PlanDocument, metric: str, statistic: str) -> dict[str, str]:
    terms = f'Namespace="{_section(plan)["namespace"]}" MetricName="{metric}"'
    return {"expression": f"SEARCH('{terms}', '{statistic}', {_PERIOD})", "label": ""}
