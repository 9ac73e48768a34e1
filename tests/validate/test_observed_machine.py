"""The login user of an AMI that others built, by its name and description."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_ami.validate import image_proof

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef


@pytest.mark.parametrize(
    ("image", "user"),
    [
        ({"Name": "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260923"}, "ec2-user"),
        ({"Name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006"}, "ubuntu"),
        ({"Name": "team-gpu-1", "Description": "from debian-12-amd64-20260101"}, "admin"),
        ({"Name": "team-gpu-2"}, "ec2-user"),
    ],
)
def test_login_user_is_that_of_the_ami(image: ImageTypeDef, user: str) -> None:
    assert image_proof.login_user(image) == user
