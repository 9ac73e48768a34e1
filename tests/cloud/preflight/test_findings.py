from __future__ import annotations

from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Place
from gpu_ami.cloud.preflight.findings import Scope, error, ok, warning

PLAN = {"build": {"instance_type": "m5.2xlarge"}, "instance_types": [{"name": "g5.xlarge"}, {"name": "m5.2xlarge"}]}


def test_text_names_what_was_found_what_was_expected_and_what_to_do() -> None:
    finding = error("subnet_id", "subnet-1: 2 free addresses", "at least 4", "use a larger subnet")
    text = "error   subnet_id: subnet-1: 2 free addresses; expected at least 4\n        → use a larger subnet"
    assert str(finding) == text
    assert str(ok("identity", "arn:x")) == "ok      identity: arn:x"
    assert str(warning("quota", "not examined")) == "warning quota: not examined"


def test_scope_lists_each_instance_type_once_the_builder_first() -> None:
    scope = Scope(Cloud(Place(name="aws", region="us-east-1")), PLAN)
    assert scope.instance_types == ["m5.2xlarge", "g5.xlarge"]
    assert Scope(scope.cloud).instance_types == []
