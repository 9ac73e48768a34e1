"""Resources of CloudFormation that moto leaves out without a word: alarms and metric filters, and at the deletion of a
stack its route tables and internet gateways, so that the VPC cannot be deleted either.

Source: CloudFormation template reference of both types, read 2026-11-22.
"""

from __future__ import annotations

from typing import Any, cast

from moto.cloudformation import parsing
from moto.cloudwatch.models import Dimension, Metric, MetricDataQuery, MetricStat, cloudwatch_backends
from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.route_tables import RouteTable
from moto.logs.models import logs_backends


def install() -> None:
    """Makes stacks create these resources: moto finds the classes below, once its list of types is made anew."""
    parsing.get_model_map.cache_clear()
    parsing.get_name_type_map.cache_clear()
    RouteTable.delete_from_cloudformation_json = staticmethod(_delete_route_table)  # type: ignore[method-assign,assignment]
    InternetGateway.delete_from_cloudformation_json = staticmethod(_delete_gateway)  # type: ignore[method-assign,assignment]


def _delete_route_table(name: str, _document: Any, account_id: str, region_name: str) -> None:
    backend = ec2_backends[account_id][region_name]
    backend.get_route_table(name)._associations.clear()  # moto leaves those of the stack's subnets
    backend.delete_route_table(name)


def _delete_gateway(name: str, _document: Any, account_id: str, region_name: str) -> None:
    backend = ec2_backends[account_id][region_name]
    vpc = backend.internet_gateways[name].vpc
    if vpc:
        backend.detach_internet_gateway(name, vpc.id)
    backend.delete_internet_gateway(name)


class _Named:
    """A resource that is known by a name of its own. An update deletes it and creates it again."""

    def __init__(self, name: str, arn: str = "") -> None:
        self.physical_resource_id, self._arn = name, arn

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return attr == "Arn"

    def get_cfn_attribute(self, attribute_name: str) -> str:
        return self._arn

    @classmethod
    def update_from_cloudformation_json(
        cls, original_resource: Any, new_resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> Any:
        made: Any = cls
        name = original_resource.physical_resource_id
        made.delete_from_cloudformation_json(name, cloudformation_json, account_id, region_name)
        return made.create_from_cloudformation_json(new_resource_name, cloudformation_json, account_id, region_name)

    def is_created(self) -> bool:
        return True


class AlarmResource(_Named, CloudFormationModel):
    """AWS::CloudWatch::Alarm."""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::CloudWatch::Alarm"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> AlarmResource:
        given = cloudformation_json["Properties"]
        queries = [_query(metric) for metric in given.get("Metrics", ())]
        alarm = cloudwatch_backends[account_id][region_name].put_metric_alarm(
            given.get("AlarmName", resource_name), given.get("Namespace"), given.get("MetricName"),
            given["ComparisonOperator"], int(given["EvaluationPeriods"]), given.get("Period"),
            float(given["Threshold"]), given.get("Statistic"), given.get("AlarmDescription", ""),
            given.get("Dimensions", []), given.get("AlarmActions", []), queries or None,
            datapoints_to_alarm=given.get("DatapointsToAlarm"), extended_statistic=given.get("ExtendedStatistic"),
            ok_actions=given.get("OKActions", []), unit=given.get("Unit"),
            insufficient_data_actions=given.get("InsufficientDataActions", []),
            actions_enabled=given.get("ActionsEnabled", True), treat_missing_data=given.get("TreatMissingData"),
        )  # fmt: skip
        return cls(alarm.name, alarm.alarm_arn)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        cloudwatch_backends[account_id][region_name].delete_alarms([resource_name])


def _query(metric: dict[str, Any]) -> MetricDataQuery:
    stat, label, period = metric.get("MetricStat"), metric.get("Label"), metric.get("Period")
    return MetricDataQuery(
        metric["Id"], cast(str, label), cast(str, period), metric.get("ReturnData", True),
        metric.get("Expression"), _statistic(stat) if stat else None,
    )  # fmt: skip


def _statistic(stat: dict[str, Any]) -> MetricStat:
    of = stat["Metric"]
    dimensions = [Dimension(each["Name"], each["Value"]) for each in of.get("Dimensions", ())]
    return MetricStat(Metric(of["MetricName"], of["Namespace"], dimensions), stat["Period"], stat["Stat"], "")


class MetricFilterResource(_Named, CloudFormationModel):
    """AWS::Logs::MetricFilter."""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::Logs::MetricFilter"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> MetricFilterResource:
        given = cloudformation_json["Properties"]
        transformations: Any = [
            {key[0].lower() + key[1:]: value for key, value in each.items()} for each in given["MetricTransformations"]
        ]
        name = given.get("FilterName", resource_name)
        backend = logs_backends[account_id][region_name]
        backend.put_metric_filter(name, given["FilterPattern"], given["LogGroupName"], transformations)
        return cls(name)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        # The group's name may be a function of CloudFormation here, so it is looked up.
        backend = logs_backends[account_id][region_name]
        for entry in backend.describe_metric_filters(prefix=resource_name):
            if entry["filterName"] == resource_name:
                backend.delete_metric_filter(resource_name, entry["logGroupName"])
