"""What the region refuses as EC2 does: filters that an operation does not have, values outside an enumeration."""

from __future__ import annotations

import pytest

from localregion.api import protocol


@pytest.mark.parametrize(
    ("operation", "parameters", "messages"),
    [
        (
            "DescribeCapacityReservations",
            {"Filter.1.Name": "capacity-reservation-id", "Filter.1.Value.1": "cr-1"},
            ["The filter 'capacity-reservation-id' is invalid"],
        ),
        ("DescribeInstances", {"Filter.1.Name": "capacity-reservation-id"}, []),
        ("DescribeInstances", {"Filter.1.Name": "tag:gpu-ami:run"}, []),
        ("DescribeVpcs", {"Filter.1.Name": "is-default"}, []),
        ("DescribeVpcs", {"Filter.1.Name": "isDefault"}, ["The filter 'isDefault' is invalid"]),
        (
            "RunInstances",
            {"InstanceInitiatedShutdownBehavior": "delete"},
            ["Value (delete) for parameter InstanceInitiatedShutdownBehavior is invalid."],
        ),
        ("RunInstances", {"InstanceType": "p9.48xlarge"}, []),  # newer than botocore's model
        ("NoSuchOperation", {"Filter.1.Name": "x"}, []),
    ],
)
def test_mistakes_of_a_request(operation: str, parameters: dict[str, str], messages: list[str]) -> None:
    assert list(protocol.mistakes(operation, parameters)) == messages
