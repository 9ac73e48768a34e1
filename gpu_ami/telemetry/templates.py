"""Writes a plan's templates and dashboard: the files of `gpu-ami telemetry PLAN -o DIR`.

site-alarms.yml: the alarms of a site's own, of all instances in a Region.

neuron-alarms.yml, neuron-instance-alarm.yml: of a plan whose instances have Neuron devices. The alarms are Metrics
Insights queries over neuron-monitor's metrics, grouped by instance, as in fleet-alarms.yml. A silent monitor has no
series, so that alarm is an instance's own, and takes missing data for a breach.

lab.yml: the telemetry stack with a network, a launch template, two instances and their alarms, as the lab "Optimizing
GPU utilization on EC2" has it, in one stack that leaves nothing when it is deleted. Its agent publishes into a
namespace of its own, so that a lab shows on no production dashboard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from gpu_ami.files import write_text
from gpu_ami.plan import cost
from gpu_ami.recipes import PlanDocument, SiteAlarm, section
from gpu_ami.telemetry import alarms, dashboard, instance_alarms, stack
from gpu_ami.telemetry.instance_alarms import logical_id
from gpu_ami.telemetry.measurements import measured

Template = dict[str, Any]
SITE_ALARMS_FILE = "site-alarms.yml"


def site_template(plan: PlanDocument, alarms: Sequence[SiteAlarm]) -> Template:
    """One stack a Region. Its parameters are the topics of the telemetry stack."""
    arn = {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"}
    resources: Template = {}
    for alarm in alarms:
        made = logical_id(alarm.name)
        if alarm.logs:
            resources[f"{made}Filter"] = _site_alarm_filter(alarm)
        resources[f"{made}Alarm"] = {"Type": "AWS::CloudWatch::Alarm", "Properties": _site_alarm_properties(alarm)}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of the site of {plan['image']}: gpu-ami telemetry made it",
        "Parameters": {
            "PageTopicArn": arn | {"Description": "Output PageTopic of the telemetry stack"},
            "TicketTopicArn": arn | {"Description": "Output TicketTopic of the telemetry stack"},
        },
        "Resources": resources,
    }


def _site_alarm_properties(alarm: SiteAlarm) -> Template:
    actions = [{"Ref": f"{alarm.urgency.capitalize()}TopicArn"}]
    return {
        "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{alarm.name}"},
        "AlarmDescription": f"{alarm.meaning}\nFirst: {alarm.first}\nRunbook: gpu-ami runbook {alarm.name}",
        "AlarmActions": actions,
        "OKActions": actions,
        "TreatMissingData": "notBreaching",
        **(_of_metric(alarm) if alarm.metric else stack.of_lines(alarm.name)),
    }


def _site_alarm_filter(alarm: SiteAlarm) -> Template:
    assert alarm.logs
    return stack.line_filter(alarm.name, alarm.name, alarm.logs.group, alarm.logs.pattern)


def _of_metric(alarm: SiteAlarm) -> Template:
    metric = alarm.metric
    assert metric
    is_above = metric.above is not None
    query = (
        f'SELECT {metric.statistic}({_quoted(metric.name)}) FROM "{metric.namespace}"'
        f" GROUP BY {_quoted(metric.dimension)} ORDER BY {metric.statistic}() {'DESC' if is_above else 'ASC'}"
    )
    return {
        "ComparisonOperator": "GreaterThanThreshold" if is_above else "LessThanThreshold",
        "Threshold": metric.above if is_above else metric.below,
        "EvaluationPeriods": metric.minutes,
        "Metrics": [{"Id": "instances", "Expression": query, "Period": 60, "ReturnData": True}],
    }


def _quoted(name: str) -> str:
    """A name in a Metrics Insights query: with other characters than letters, digits and _ in double quotes."""
    return name if name.replace("_", "").isalnum() else f'"{name}"'


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


def neuron_alarms(plan: PlanDocument) -> Template:
    """One stack a Region: alarms of all instances. Its parameters are the topics of the telemetry stack."""
    named = {alarm.name: alarm for alarm in alarms.of_kind(alarms.NEURON)}
    made = {
        f"{label.capitalize()}{instance_alarms.logical_id(name)}": _alarm(named[name], label, _query(plan, how, metric))
        for name, label, how, metric in _WATCHED
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of all instances of {plan['image']} in a Region: gpu-ami telemetry made it",
        "Parameters": {"PageTopicArn": _topic("PageTopic"), "TicketTopicArn": _topic("TicketTopic")},
        "Resources": made | instance_alarms.parser_resources(measured(plan)),
    }


def _topic(output: str) -> Template:
    described = {"Description": f"Output {output} of the telemetry stack"}
    return {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"} | described


def neuron_instance_alarm(plan: PlanDocument) -> Template:
    """One stack an instance: its neuron-monitor or its event parser is silent; both: its agent, or the instance."""
    [alarm] = [one for one in alarms.of_kind(alarms.NEURON) if one.name == "neuron-monitor-silent"]
    namespace = _section(plan)["namespace"]
    query = {"Fn::Sub": f"SELECT SUM(reports) FROM \"{namespace}\" WHERE instance_id = '${{InstanceId}}'"}
    resource = _alarm(alarm, "", query)
    # Ten minutes where reports come each minute: a datapoint counts until two periods after the alarm's own (CloudWatch
    # user guide, "Evaluating an alarm with missing data"; with 2 of 300 s it was raised after 20 minutes).
    resource["Properties"] |= {
        "ComparisonOperator": "LessThanThreshold", "Threshold": 1, "TreatMissingData": "breaching",
        "EvaluationPeriods": 8,
    }  # fmt: skip
    resource["Properties"]["Metrics"][0]["Period"] = 60 * math.ceil(plan["telemetry"]["interval_s"] / 60)
    topics = {"page": {"Ref": "PageTopicArn"}}
    target = instance_alarms.Target({"Ref": "InstanceId"}, topics, 0, 0, "${AWS::StackName}")
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of one instance of {plan['image']}: gpu-ami telemetry made it",
        "Parameters": {
            "InstanceId": {"Type": "String", "Description": "The instance", "AllowedPattern": "i-[0-9a-f]+"},
            "PageTopicArn": _topic("PageTopic"),
        },
        "Resources": {
            "NeuronMonitorSilent": resource,
            "EventParserSilent": instance_alarms.parser_silent(measured(plan), target),
        },
    }


def _section(plan: PlanDocument) -> Any:
    return section(plan, "neuron_monitor")


def _query(plan: PlanDocument, function: str, metric: str) -> str:
    instance = _section(plan)["dimensions"][0]
    namespace = _section(plan)["namespace"]
    return f'SELECT {function}({metric}) FROM "{namespace}" GROUP BY {instance} ORDER BY {function}() DESC'


def _alarm(alarm: alarms.Alarm, label: str, query: Any) -> Template:
    actions = [{"Ref": f"{alarm.urgency.capitalize()}TopicArn"}]
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


NAMESPACE = "CWAgentGPU"
_TYPE = "g4dn.xlarge"
_INSTANCES = ("First", "Second")
_CTL = "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"


def lab(plan: PlanDocument) -> stack.Template:
    """The lab's template, for the plan's instance types."""
    plan = cast(PlanDocument, {**plan, "telemetry": {**plan["telemetry"], "namespace": NAMESPACE}})
    facts = measured(plan)
    template = stack.telemetry(plan, by_gpu=False)  # a template of more than 51,200 bytes would need a bucket
    template["Description"] = f"A lab with two instances of {facts.image}: gpu-ami telemetry made it"
    types = sorted(facts.limits)
    template["Parameters"] |= _parameters(types)
    template["Conditions"] |= {"MakesNetwork": {"Fn::Equals": [{"Ref": "SubnetId"}, ""]}}
    template["Mappings"] = {"InstanceTypes": stack.limits(facts), "Alarms": {}}
    template["Resources"] |= _network() | {"LaunchTemplate": _launch_template()}
    for name in _INSTANCES:
        template["Resources"] |= _instance(name)
        target = instance_alarms.Target(
            {"Ref": f"{name}Instance"}, {"page": {"Ref": "PageTopic"}, "ticket": {"Ref": "TicketTopic"}},
            stack.limit("FewestSamples"), stack.limit("HalfClock"), f"${{AWS::StackName}}-{name.lower()}",
        )  # fmt: skip
        made = instance_alarms.resources(facts, target)
        for key, resource in made.items():
            described = {"Text": resource["Properties"]["AlarmDescription"]}
            template["Mappings"]["Alarms"][key] = described  # once, for both instances
            resource["Properties"]["AlarmDescription"] = {"Fn::FindInMap": ["Alarms", key, "Text"]}
        template["Resources"] |= {f"{name}{key}": resource for key, resource in made.items()}
    return template


def _parameters(types: list[str]) -> stack.Template:
    cheapest = min(types, key=lambda name: cost.hourly_usd(name) or float("inf"))
    return {
        "ImageId": {"Type": "AWS::EC2::Image::Id", "Description": "AMI that gpu-ami built from the plan"},
        "InstanceType": {
            "Type": "String",
            "AllowedValues": types,
            "Default": _TYPE if _TYPE in types else cheapest,
        },
        "SubnetId": {
            "Type": "String",
            "Default": "",
            "Description": "Subnet with a way out to AWS (its VPC's default group is used); empty for a new VPC",
        },
    }


def _network() -> stack.Template:
    """A VPC with one public subnet. No port is open to the instances: Session Manager reaches them."""
    made: stack.Template = {
        "Vpc": ("VPC", {"CidrBlock": "10.66.0.0/24", "EnableDnsSupport": True, "EnableDnsHostnames": True}),
        "Gateway": ("InternetGateway", {}),
        "GatewayAttachment": (
            "VPCGatewayAttachment", {"VpcId": {"Ref": "Vpc"}, "InternetGatewayId": {"Ref": "Gateway"}},
        ),
        "Subnet": (
            "Subnet", {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.66.0.0/25", "MapPublicIpOnLaunch": True},
        ),
        "RouteTable": ("RouteTable", {"VpcId": {"Ref": "Vpc"}}),
        "Route": (
            "Route",
            {"RouteTableId": {"Ref": "RouteTable"}, "DestinationCidrBlock": "0.0.0.0/0",
             "GatewayId": {"Ref": "Gateway"}},
        ),
        "SubnetRoutes": (
            "SubnetRouteTableAssociation", {"SubnetId": {"Ref": "Subnet"}, "RouteTableId": {"Ref": "RouteTable"}},
        ),
        "Group": (
            "SecurityGroup", {"GroupDescription": "GPU lab: nothing comes in", "VpcId": {"Ref": "Vpc"}},
        ),
    }  # fmt: skip
    resources = {
        name: {"Type": f"AWS::EC2::{kind}", "Condition": "MakesNetwork", "Properties": properties}
        for name, (kind, properties) in made.items()
    }
    resources["Route"]["DependsOn"] = "GatewayAttachment"
    return resources


def _launch_template() -> dict[str, Any]:
    start = f"#!/bin/sh\n{_CTL} -a fetch-config -m ec2 -s -c ssm:${{AgentConfiguration}}\n"
    data = {
        "ImageId": {"Ref": "ImageId"},
        "InstanceType": {"Ref": "InstanceType"},
        "IamInstanceProfile": {"Name": {"Ref": "InstanceProfile"}},
        "MetadataOptions": {"HttpTokens": "required"},
        "UserData": {"Fn::Base64": {"Fn::Sub": start}},
    }
    return {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": data}}


def _instance(name: str) -> stack.Template:
    version = {"Fn::GetAtt": ["LaunchTemplate", "LatestVersionNumber"]}
    group = {"Fn::GetAtt": ["Group", "GroupId"]}
    properties = {
        "LaunchTemplate": {"LaunchTemplateId": {"Ref": "LaunchTemplate"}, "Version": version},
        "ImageId": {"Ref": "ImageId"},
        "InstanceType": {"Ref": "InstanceType"},
        "SubnetId": {"Fn::If": ["MakesNetwork", {"Ref": "Subnet"}, {"Ref": "SubnetId"}]},
        "SecurityGroupIds": {"Fn::If": ["MakesNetwork", [group], {"Ref": "AWS::NoValue"}]},
        "Tags": [{"Key": "Name", "Value": {"Fn::Sub": f"${{AWS::StackName}}-{name.lower()}"}}],
    }
    return {f"{name}Instance": {"Type": "AWS::EC2::Instance", "DependsOn": "AgentConfiguration",
                                "Properties": properties}}  # fmt: skip


INLINE_CHARACTERS = 51_200  # of a template that is sent with the call (CloudFormation quotas); larger ones need S3
_MADE: dict[str, Callable[[PlanDocument], stack.Template]] = {
    "telemetry.yml": stack.telemetry,
    "instance-alarms.yml": stack.instance_alarms_template,
    "fleet-alarms.yml": instance_alarms.fleet_alarms,
    "lab.yml": lab,
}
_MADE_FOR_NEURON: dict[str, Callable[[PlanDocument], stack.Template]] = {
    "telemetry.yml": stack.telemetry,
    "neuron-alarms.yml": neuron_alarms,
    "neuron-instance-alarm.yml": neuron_instance_alarm,
}
DASHBOARD_FILE = "dashboard.json"


def render(plan: PlanDocument, region: str, of_site: Sequence[SiteAlarm] = ()) -> dict[str, str]:
    """File name → its text. of_site: a site's own alarms. UsageError: it measures no GPUs and no Neuron devices."""
    header = f"# Made from the plan of {plan['image']} by `gpu-ami telemetry`; docs/telemetry.md says how to use it.\n"
    made = _MADE_FOR_NEURON if measured(plan).neuron else _MADE
    texts = {name: header + _yaml(make(plan)) for name, make in made.items()}
    if of_site:
        texts[SITE_ALARMS_FILE] = header + _yaml(site_template(plan, of_site))
    body = dashboard.body(plan, region, stack=dashboard.STACK)
    return texts | {DASHBOARD_FILE: json.dumps(body, indent=1) + "\n"}


def write(plan: PlanDocument, region: str, folder: Path, of_site: Sequence[SiteAlarm] = ()) -> list[Path]:
    """Writes all files; returns their paths."""
    texts = render(plan, region, of_site)
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

        def choose_scalar_style(self) -> str:
            chosen: str = super().choose_scalar_style()
            event: Any = self.event
            is_name = event.value.replace(":", "").replace(".", "").isalnum()
            return "" if is_name and str(event.tag).startswith("!") else chosen  # !Ref Name, without quotes

        def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
            return super().represent_sequence(tag, sequence, True if _is_short(sequence) else flow_style)

        def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.Node:  # type: ignore[override]
            if len(mapping) == 1 and (next(iter(mapping)) == "Ref" or next(iter(mapping)).startswith("Fn::")):
                return self._function(*next(iter(mapping.items())))
            return super().represent_mapping(tag, mapping, True if "MetricStat" in mapping else flow_style)

        def _function(self, name: str, argument: Any) -> yaml.Node:
            """The short form, !Sub, as in AWS's documentation; it takes a fifth of the bytes of the long one."""
            node = self.represent_data(".".join(argument) if name == "Fn::GetAtt" else argument)
            if not node.tag.startswith("tag:yaml.org"):  # CloudFormation allows no short form directly in another one
                return super().represent_mapping("tag:yaml.org,2002:map", {name: argument}, True)
            node.tag = "!" + name.removeprefix("Fn::")
            return node

    style: dict[str, Any] = {"default_flow_style": None, "sort_keys": False, "width": 100_000, "allow_unicode": True}
    text: str = yaml.dump(template, Dumper=Dumper, **style)
    return text
