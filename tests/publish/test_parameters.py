"""SSM parameters: written with their type, read back, and what SSM drops is an error."""

from __future__ import annotations

import pytest

from gpu_ami.cloud import Cloud
from gpu_ami.errors import CloudError
from gpu_ami.publish import parameters
from gpu_ami.publish.parameters import Parameter
from tests.local.conftest import BASE_ID
from tests.publish.conftest import Account


def test_values_are_read_back(account: Account) -> None:
    cloud = Cloud(account.place())
    names = [f"/images/{number}" for number in range(12)]
    for name in names:
        parameters.write(cloud, name, BASE_ID, overwrite=False)
    assert parameters.read(cloud, [*names, "/none"]) == dict.fromkeys(names, Parameter(BASE_ID, "aws:ec2:image"))
    account.client("ssm").put_parameter(Name="/other", Value="text", Type="String")
    assert sorted(parameters.naming_images(cloud)) == sorted(names)
    with pytest.raises(CloudError, match="writing SSM parameter /images/0 in us-east-1: ParameterAlreadyExists"):
        parameters.write(cloud, names[0], BASE_ID, overwrite=False)
    with pytest.raises(CloudError) as caught:
        parameters.write(cloud, names[0], "ami-0fff", overwrite=True)
    assert f"expected ami-0fff, got {BASE_ID}" in str(caught.value)
    assert "SSM drops an AMI that is not available" in str(caught.value)
    for _ in range(2):
        parameters.delete(cloud, names[0])
    assert parameters.read(cloud, names[:1]) == {}
