"""CloudWatch as the vendor's agent speaks to it: metrics that belong to an entity, which moto drops without a word.

Source: the API's PutMetricData (`EntityMetricData`); plugins/outputs/cloudwatch of
https://github.com/aws/amazon-cloudwatch-agent v1.300060.0, which puts every metric of an instance there.
"""

from __future__ import annotations

from typing import Any

from moto.cloudwatch.responses import CloudWatchResponse


def take_entities() -> None:
    """From now on moto keeps the metrics of entities like all others. Asked for twice, it is done once."""
    if CloudWatchResponse.put_metric_data is not _put_metric_data:
        CloudWatchResponse.put_metric_data = _put_metric_data  # type: ignore[method-assign]


_plain = CloudWatchResponse.put_metric_data


def _put_metric_data(self: CloudWatchResponse) -> Any:
    """All metrics of the call: those that belong to nothing, and those of each entity."""
    namespace = self._get_param("Namespace")
    of_entities = [
        datum for entity in self._get_param("EntityMetricData", []) for datum in entity.get("MetricData", [])
    ]
    if of_entities:
        self.cloudwatch_backend.put_metric_data(namespace, of_entities)
    return _plain(self)
