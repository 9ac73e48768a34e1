"""CloudFormation templates made from a plan: telemetry.yml, of GPUs and of Neuron devices, and instance-alarms.yml.

Where the text of a template needs the account, the Region or the stack's name, it asks CloudFormation for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpu_ami.cloud import policies
from gpu_ami.recipes import PlanDocument, agent
from gpu_ami.telemetry import alarms, dashboard, instance_alarms
from gpu_ami.telemetry.measurements import ALARMS_NAMESPACE, Measured, measured

Template = dict[str, Any]
_ARN = "arn:${AWS::Partition}"
_TOPICS = {"page": "PageTopic", "ticket": "TicketTopic"}
# Of role and profile: IAM has one of a name in all Regions, and callers may pass roles with this beginning (iam/).
_IAM_NAME = "gpu-ami-${AWS::StackName}-${AWS::Region}"
PARAMETER_CHARACTERS = 4096  # of a standard parameter (Systems Manager quotas)


def telemetry(plan: PlanDocument, *, by_gpu: bool = True) -> Template:
    """One stack a Region and account: role, agent configuration, log groups, event alarms, topics, dashboard.

    by_gpu: whether the dashboard has the view of one instance.
    """
    facts = measured(plan)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{dashboard.noun(facts)} telemetry of instances of {facts.image}: gpu-ami telemetry made it",
        "Parameters": _parameters(facts),
        "Conditions": _conditions(),
        "Resources": resources(plan, facts, by_gpu=by_gpu),
        "Outputs": outputs(),
    }


def instance_alarms_template(plan: PlanDocument) -> Template:
    """One stack an instance: the alarms that compare its metrics."""
    facts = measured(plan)
    types = sorted(facts.limits)
    target = instance_alarms.Target(
        {"Ref": "InstanceId"},
        {"page": {"Ref": "PageTopicArn"}, "ticket": {"Ref": "TicketTopicArn"}},
        limit("FewestSamples"), limit("HalfClock"), "${AWS::StackName}",
    )  # fmt: skip
    arn = {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of one instance of an image {facts.image}: gpu-ami telemetry made it",
        "Parameters": {
            "InstanceId": {"Type": "String", "Description": "The instance", "AllowedPattern": "i-[0-9a-f]+"},
            "InstanceType": {"Type": "String", "Description": "Its type", "AllowedValues": types, "Default": types[0]},
            "PageTopicArn": arn | {"Description": "Output PageTopic of the telemetry stack"},
            "TicketTopicArn": arn | {"Description": "Output TicketTopic of the telemetry stack"},
        },
        "Mappings": {"InstanceTypes": limits(facts)},
        "Resources": instance_alarms.resources(facts, target),
    }


def limits(facts: Measured) -> dict[str, dict[str, int]]:
    """Instance type → thresholds of its alarms."""
    return {
        name: {
            "FewestSamples": instance_alarms.fewest_samples(limit.gpus, facts.interval_s),
            "HalfClock": limit.half_clock,
        }
        for name, limit in sorted(facts.limits.items())
    }


def limit(key: str) -> dict[str, Any]:
    """A threshold of the chosen instance type."""
    return {"Fn::FindInMap": ["InstanceTypes", {"Ref": "InstanceType"}, key]}


def _parameters(facts: Measured) -> Template:
    retention = {"Type": "Number", "Description": "Days after which log events are deleted"}
    mail = {"Type": "String", "Default": "", "Description": "E-mail address for alarms of this urgency; empty for none"}
    return {
        "PageEmail": mail,
        "TicketEmail": mail,
        "RetentionDays": retention | {"Default": facts.retention_days or 90},
        "MakeLogGroups": {
            "Type": "String",
            "Description": "no, where the log groups exist already: an agent made them",
            "AllowedValues": ["yes", "no"],
            "Default": "yes",
        },
        "DashboardName": {
            "Type": "String",
            "Default": "",
            "Description": f"Its name, which an account has once; empty for {dashboard.name(facts)}-REGION",
            "AllowedPattern": "[A-Za-z0-9_-]{0,255}",
        },
    }


def _conditions() -> Template:
    return {
        "HasPageEmail": {"Fn::Not": [{"Fn::Equals": [{"Ref": "PageEmail"}, ""]}]},
        "HasTicketEmail": {"Fn::Not": [{"Fn::Equals": [{"Ref": "TicketEmail"}, ""]}]},
        "MakesLogGroups": {"Fn::Equals": [{"Ref": "MakeLogGroups"}, "yes"]},
        "NamesDashboard": {"Fn::Not": [{"Fn::Equals": [{"Ref": "DashboardName"}, ""]}]},
    }


def resources(plan: PlanDocument, facts: Measured, *, by_gpu: bool) -> Template:
    """Everything of the telemetry stack. The names that other stacks rely on are in `outputs`."""
    made: Template = {
        "InstanceRole": _role(facts),
        "InstanceProfile": {
            "Type": "AWS::IAM::InstanceProfile",
            "Properties": {
                "InstanceProfileName": {"Fn::Sub": _IAM_NAME},
                "Roles": [{"Ref": "InstanceRole"}],
            },
        },
        "AgentConfiguration": _agent_configuration(plan, facts),
        **{logical_id: _log_group(group) for logical_id, group in facts.log_groups.items()},
        "PageTopic": topic("Page"),
        "TicketTopic": topic("Ticket"),
    }
    for alarm in alarms.of_kind(alarms.EVENTS):
        name = instance_alarms.logical_id(alarm.name)
        made[f"{name}Filter"] = _filter(alarm, facts)
        made[f"{name}Alarm"] = _event_alarm(alarm, facts)
    arns = [f"${{{instance_alarms.logical_id(alarm.name)}Alarm.Arn}}" for alarm in alarms.of_kind(alarms.EVENTS)]
    body = json.dumps(dashboard.body(plan, "${AWS::Region}", arns, by_gpu=by_gpu), separators=(",", ":"))
    made["Dashboard"] = {
        "Type": "AWS::CloudWatch::Dashboard",
        "Properties": {"DashboardName": _dashboard_name(facts), "DashboardBody": {"Fn::Sub": body}},
    }
    return made


def _dashboard_name(facts: Measured) -> Template:
    """The parameter, or a name of this Region: CloudWatch has one dashboard of a name in all Regions."""
    regional = {"Fn::Sub": f"{dashboard.name(facts)}-${{AWS::Region}}"}
    return {"Fn::If": ["NamesDashboard", {"Ref": "DashboardName"}, regional]}


def _role(facts: Measured) -> Template:
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "RoleName": {"Fn::Sub": _IAM_NAME},
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
            "ManagedPolicyArns": [{"Fn::Sub": f"{_ARN}:iam::aws:policy/AmazonSSMManagedInstanceCore"}],
            "Policies": [
                {
                    "PolicyName": "telemetry",
                    "PolicyDocument": {"Version": "2012-10-17", "Statement": statements(facts)},
                }
            ],
        },
    }


def statements(facts: Measured) -> list[dict[str, Any]]:
    """iam/instance.json, with this plan's namespace and log groups alone, and reading the agent's configuration."""
    narrowed: dict[str, dict[str, Any]] = {
        "PublishMetrics": {"Condition": {"StringEquals": {"cloudwatch:namespace": facts.namespace}}},
        "WriteLogs": {"Resource": [
            {"Fn::Sub": f"{_ARN}:logs:${{AWS::Region}}:${{AWS::AccountId}}:log-group:{group}{end}"}
            for group in facts.log_groups.values() for end in ("", ":*")
        ]},
    }  # fmt: skip
    read = {
        "Sid": "ReadAgentConfiguration",
        "Effect": "Allow",
        "Action": ["ssm:GetParameter"],
        "Resource": {
            "Fn::Sub": f"{_ARN}:ssm:${{AWS::Region}}:${{AWS::AccountId}}:parameter/AmazonCloudWatch-${{AWS::StackName}}"
        },
    }
    # CloudWatch makes Neuron's metrics of a log; the agent publishes none itself.
    unused = {"PublishMetrics"} if facts.neuron else set()
    policy = [dict(one) for one in policies.read_policy("instance") if one["Sid"] not in unused]
    return [*(statement | narrowed.get(str(statement["Sid"]), {}) for statement in policy), read]


def _agent_configuration(plan: PlanDocument, facts: Measured) -> Template:
    return {
        "Type": "AWS::SSM::Parameter",
        "Properties": {
            # The managed policies of the agent let it read parameters with this beginning alone.
            "Name": {"Fn::Sub": "AmazonCloudWatch-${AWS::StackName}"},
            "Description": f"Configuration of the CloudWatch agent on instances of {facts.image}",
            "Type": "String",
            "Value": json.dumps(agent_document(plan), separators=(",", ":")),
        },
    }


def agent_document(plan: PlanDocument) -> Mapping[str, Any]:
    """The agent's whole configuration as one document, without the endpoints of a rehearsal."""
    telemetry = plan["telemetry"]
    of_all = agent.agent_config(telemetry, plan["event_parser"], None, *agent.publishers(plan).values())
    return {**of_all, **(agent.gpu_config(telemetry, None) if telemetry["measurements"] else {})}


def _log_group(name: str) -> Template:
    return {
        "Type": "AWS::Logs::LogGroup",
        "Condition": "MakesLogGroups",
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {"LogGroupName": name, "RetentionInDays": {"Ref": "RetentionDays"}},
    }


def topic(urgency: str) -> Template:
    """A topic with an e-mail subscription where the parameter names an address."""
    mail = [{"Protocol": "email", "Endpoint": {"Ref": f"{urgency}Email"}}]
    subscription = {"Fn::If": [f"Has{urgency}Email", mail, {"Ref": "AWS::NoValue"}]}
    return {"Type": "AWS::SNS::Topic", "Properties": {"Subscription": subscription}}


def line_filter(name: str, metric: str, group: Template | str, pattern: str) -> Template:
    """A metric filter that counts lines of a log group; names of the stack are put before name and metric."""
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "FilterName": _of_stack(name),
            "LogGroupName": group,
            "FilterPattern": pattern,
            "MetricTransformations": [
                {
                    "MetricNamespace": ALARMS_NAMESPACE,
                    "MetricName": _of_stack(metric),
                    "MetricValue": "1",
                    "DefaultValue": 0,
                }
            ],
        },
    }


def of_lines(metric: str) -> Template:
    """An alarm's properties: one line in five minutes. A line has the time of its event, and may arrive later."""
    return {
        "Namespace": ALARMS_NAMESPACE,
        "MetricName": _of_stack(metric),
        "Statistic": "Sum",
        "Period": 60,
        "EvaluationPeriods": 5,
        "DatapointsToAlarm": 1,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "Threshold": 1,
    }


def _of_stack(name: str) -> Template:
    return {"Fn::Sub": f"${{AWS::StackName}}-{name}"}


def _filter(alarm: alarms.Alarm, facts: Measured) -> Template:
    group = {"Fn::If": ["MakesLogGroups", {"Ref": "JsonLogGroup"}, facts.json_log_group]}
    return line_filter(alarm.name, alarm.metric, group, alarm.pattern)


def _event_alarm(alarm: alarms.Alarm, facts: Measured) -> Template:
    topic = [{"Ref": _TOPICS[alarm.urgency]}]
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": _of_stack(alarm.name),
            "AlarmDescription": alarm.description(facts.json_log_group),
            "AlarmActions": topic,
            "OKActions": topic,
            **of_lines(alarm.metric),
            "TreatMissingData": "notBreaching",
        },
    }


def outputs() -> Template:
    described = {
        "InstanceProfile": "For launch templates, and for instance_profile of a place",
        "AgentConfiguration": "amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c ssm:NAME",
        "PageTopic": "Alarms that call someone",
        "TicketTopic": "Alarms that are read in working hours",
        "Dashboard": "The dashboard's name",
    }
    return {name: {"Description": text, "Value": {"Ref": name}} for name, text in described.items()}
