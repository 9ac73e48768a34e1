from __future__ import annotations

import pytest

from gpu_ami.cloud.preflight.instances import quota_of
from gpu_ami.recipes import load_facts


@pytest.mark.parametrize(
    ("instance_type", "code"),
    [
        ("p6e-gb200.36xlarge", "L-417A185B"),
        ("p4d.24xlarge", "L-417A185B"),
        ("g6f.large", "L-DB2E81BA"),
        ("gr6.4xlarge", "L-DB2E81BA"),
        ("trn1n.32xlarge", "L-2C3B7624"),
        ("inf2.xlarge", "L-1945791B"),
        ("t3.micro", "L-1216C47A"),
        ("im4gn.large", "L-1216C47A"),
        ("dl1.24xlarge", "L-6E869C2A"),
        ("mac1.metal", ""),
    ],
)
def test_quota_of_an_instance_type(instance_type: str, code: str) -> None:
    assert quota_of(instance_type)[0] == code


def test_every_instance_type_of_the_facts_has_a_quota() -> None:
    assert [name for name in load_facts().instance_types["instance_types"] if not quota_of(name)[0]] == []
