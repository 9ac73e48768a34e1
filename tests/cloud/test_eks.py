"""Calls to EKS: a cluster as described, waited for, and reached. Who may join: tests/validate/node_services/."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud import eks
from gpu_ami.errors import CloudError
from tests.validate.node_services.test_eks import LOCAL, Aws, a_cluster


def test_a_cluster_without_optional_parts() -> None:
    aws: Any = Aws(x={"status": "CREATING", "version": "1.35"})
    assert eks.describe(aws, "x") == eks.Described("x", "CREATING", "1.35")
    assert eks.describe(aws, "y") is None


def test_other_errors_are_errors() -> None:
    class Refuses(Aws):
        def describe_cluster(self, name: str) -> Any:
            raise CloudError("no", code="AccessDeniedException")

        describe_access_entry = delete_cluster = describe_cluster  # type: ignore[assignment]

    aws: Any = Refuses()
    for call in (lambda: eks.describe(aws, "x"), lambda: eks.delete(aws, "x")):
        with pytest.raises(CloudError, match="no"):
            call()


def test_a_cluster_that_is_not_in_time_or_gone() -> None:
    aws: Any = Aws(x=a_cluster(status="CREATING"))
    with pytest.raises(CloudError, match="EKS cluster x is CREATING, expected ACTIVE"):
        eks.wait_active(aws, "x", 0.0)
    with pytest.raises(CloudError, match="EKS cluster y is gone"):
        eks.wait_active(aws, "y", 60.0)


def test_a_cluster_that_failed_says_why() -> None:
    issues = {"issues": [{"code": "InternalFailure", "message": "etcd ended"}]}
    aws: Any = Aws(x=a_cluster(status="FAILED", health=issues))
    with pytest.raises(CloudError) as caught:
        eks.wait_active(aws, "x")
    assert caught.value.details == ("InternalFailure: etcd ended",)


def test_a_place_without_a_profile_has_no_role() -> None:
    from dataclasses import replace

    assert eks.node_role(Aws(replace(LOCAL, instance_profile=None))) == ""  # type: ignore[arg-type]


def test_the_removal_of_a_cluster_that_is_gone_is_no_error() -> None:
    eks.delete(Aws(), "x")  # type: ignore[arg-type]
