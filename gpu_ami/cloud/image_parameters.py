"""SSM parameters that name an AMI: type String, data type aws:ec2:image, read back after they are written.

PutParameter answers before SSM has looked the AMI up, and drops a value that is not available; the data type of a
parameter cannot be changed. Source: SSM user guide, "Using native parameter support for Amazon Machine Image IDs",
read 2026-11-22.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud
from gpu_ami.errors import CloudError

DATA_TYPE = "aws:ec2:image"
_AT_A_TIME = 10  # names that GetParameters takes
READ_BACK_SECONDS = 120.0
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Parameter:
    """A parameter's value and data type."""

    value: str
    data_type: str = DATA_TYPE


def read(cloud: Cloud, names: Sequence[str]) -> dict[str, Parameter]:
    """The parameters of these names that exist."""
    ssm = cloud.client("ssm")
    found: dict[str, Parameter] = {}
    for start in range(0, len(names), _AT_A_TIME):
        with aws_errors.translated(f"reading SSM parameters in {cloud.place.region}"):
            rows = ssm.get_parameters(Names=list(names[start : start + _AT_A_TIME]))["Parameters"]
            found |= {row["Name"]: Parameter(row["Value"], row.get("DataType", "text")) for row in rows}
    return found


def naming_images(cloud: Cloud) -> Mapping[str, Parameter]:
    """Every parameter of the account in the region whose value names an AMI, whatever its data type."""
    names = list(_names(cloud))
    return {name: row for name, row in read(cloud, names).items() if row.value.startswith("ami-")}


def _names(cloud: Cloud) -> Iterator[str]:
    with aws_errors.translated(f"listing SSM parameters in {cloud.place.region}"):
        pages: Any = cloud.client("ssm").get_paginator("describe_parameters").paginate()
        names = [row["Name"] for page in pages for row in page["Parameters"] if row.get("Type") == "String"]
    yield from names


def write(cloud: Cloud, name: str, ami: str, *, overwrite: bool) -> None:
    """Writes a parameter and reads it back. CloudError: AWS refused it, or another value is there in the end."""
    try:
        with aws_errors.translated(f"writing SSM parameter {name} in {cloud.place.region}"):
            cloud.client("ssm").put_parameter(
                Name=name, Value=ami, Type="String", DataType=DATA_TYPE, Overwrite=overwrite
            )
    except CloudError as error:  # it may be ours: of an earlier call, whose answer was lost
        if error.code != "ParameterAlreadyExists" or read(cloud, [name]).get(name, Parameter("")).value != ami:
            raise
    deadline, value = time.monotonic() + READ_BACK_SECONDS, ""
    while time.monotonic() < deadline:
        value = read(cloud, [name]).get(name, Parameter("")).value
        if value == ami:
            return
        time.sleep(POLL_SECONDS)
    hint = "SSM drops an AMI that is not available in the region; then run the same command again"
    raise CloudError(
        f"SSM parameter {name} in {cloud.place.region}: expected {ami}, got {value or 'nothing'}", hint=hint
    )


def delete(cloud: Cloud, name: str) -> None:
    """Deletes a parameter; one that is not there is no error."""
    try:
        with aws_errors.translated(f"deleting SSM parameter {name} in {cloud.place.region}"):
            cloud.client("ssm").delete_parameter(Name=name)
    except CloudError as error:
        if error.code != "ParameterNotFound":
            raise
