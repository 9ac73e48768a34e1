"""CloudFormation template of a lab: the telemetry stack with a network, a launch template, two instances, their alarms.

As the lab "Optimizing GPU utilization on EC2" has it, in one stack that leaves nothing when it is deleted. Its agent
publishes into a namespace of its own, so that a lab shows on no production dashboard.
"""

from __future__ import annotations

from typing import Any, cast

from gpu_ami.plan import cost
from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import instance_alarms, stack
from gpu_ami.telemetry.measurements import measured

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
    template["Mappings"] = {"InstanceTypes": stack.limits(facts)}
    template["Resources"] |= _network() | {"LaunchTemplate": _launch_template()}
    for name in _INSTANCES:
        template["Resources"] |= _instance(name)
        target = instance_alarms.Target(
            {"Ref": f"{name}Instance"}, {"page": {"Ref": "PageTopic"}, "ticket": {"Ref": "TicketTopic"}},
            stack.limit("FewestSamples"), stack.limit("HalfClock"), f"${{AWS::StackName}}-{name.lower()}",
        )  # fmt: skip
        made = instance_alarms.resources(facts, target)
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
