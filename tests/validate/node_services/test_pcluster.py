"""A dry run of pcluster: what is asked, and what each answer means. tests/machine/ has one with the real CLI."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.cloud import ApiAccess, Credentials, Place
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.validate import node_services
from gpu_ami.validate.node_services import ParallelCluster

PLAN: Any = {
    "os": {"id": "ubuntu", "version": "24.04"},
    "build": {"instance_type": "g5.xlarge"},
    "node_parallelcluster": {"version": "3.16.3"},
    "efa": {"version": "1.51.0"},
    "instance_types": [{"name": "p4d.24xlarge", "efa_interfaces": 4}, {"name": "g5.xlarge", "efa_interfaces": 0}],
}
PLACE = Place(
    name="aws", region="eu-west-1", api=ApiAccess(endpoint="http://127.0.0.1:9", credentials=Credentials("k", "s", ""))
)
ACCEPTED = (
    '{"validationMessages": [{"level": "WARNING", "type": "KeyPairValidator", "message": "no key"}], "message": "m"}'
)
REFUSED = '{"configurationValidationErrors": [{"level": "ERROR", "type": "T", "message": "x"}], "message": "Invalid"}'


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a pcluster that answers so, and keeps its configuration and environment."""

    def make(answer: str, status: int = 1) -> str:
        script = f"""\
            #!/bin/sh
            for word; do [ "$last" = --cluster-configuration ] && cp "$word" {tmp_path}/asked.yml; last=$word; done
            echo "$AWS_ENDPOINT_URL $AWS_ACCESS_KEY_ID $*" > {tmp_path}/called
            cat <<'END'
            """
        program = tmp_path / "pcluster"
        program.write_text(f"{textwrap.dedent(script)}{answer}\nEND\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PCLUSTER", str(program))
        return str(program)

    return make


def dry_run(program: str) -> dict[str, Any]:
    return node_services.pcluster_dry_run(
        program, PLACE, PLAN, "ami-1", "subnet-1", instance_types=["g5.xlarge", "p4d.24xlarge"]
    )


def test_a_cluster_of_the_ami_is_asked_for_in_the_place(cli: Any, tmp_path: Path) -> None:
    answer = dry_run(cli(ACCEPTED))
    assert answer == {
        "message": "m",
        "findings": [{"level": "WARNING", "type": "KeyPairValidator", "message": "no key"}],
    }
    called = (tmp_path / "called").read_text()
    assert called.startswith("http://127.0.0.1:9 k create-cluster ")
    assert called.endswith("--region eu-west-1 --dryrun true\n")
    asked = yaml.safe_load((tmp_path / "asked.yml").read_text())
    assert asked["Image"] == {"Os": "ubuntu2404", "CustomAmi": "ami-1"}
    assert asked["HeadNode"] == {"InstanceType": "g5.xlarge", "Networking": {"SubnetId": "subnet-1"}}
    resources = asked["Scheduling"]["SlurmQueues"][0]["ComputeResources"]
    efa = {row["InstanceType"]: row["Efa"]["Enabled"] for row in resources}
    assert efa == {"g5.xlarge": False, "p4d.24xlarge": True}


def test_errors_are_findings(cli: Any) -> None:
    assert dry_run(cli(REFUSED))["findings"] == [{"level": "ERROR", "type": "T", "message": "x"}]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("", "exit status 1, no output"),
        ("Traceback\nKeyError: x", "exit status 1: KeyError: x"),
        ("{}", "exit status 1: {}"),
        ("[1]", "exit status 1: [1]"),
        ('{"message": 3}', 'exit status 1: {"message": 3}'),
        ('{"message": "m", "validationMessages": [{"level": "ERROR"}]}', "exit status 1: {"),
    ],
)
def test_another_answer_is_an_error_and_no_acceptance(cli: Any, answer: str, error: str) -> None:
    found = dry_run(cli(answer))
    assert set(found) == {"error"} and error in found["error"]


def test_without_pcluster_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PCLUSTER", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    assert node_services.pcluster() is None
    monkeypatch.setenv("PCLUSTER", "")
    monkeypatch.setattr(node_services.shutil, "which", lambda _name: "/usr/bin/pcluster")  # type: ignore[attr-defined]
    assert node_services.pcluster() is None
    ParallelCluster().require(PLAN, None, "")  # type: ignore[arg-type]


def test_another_release_is_refused_before_a_launch(cli: Any) -> None:
    cli('{"version": "3.16.3"}', 0)
    ParallelCluster().require(PLAN, None, "")  # type: ignore[arg-type]
    cli('{"version": "3.16.1"}', 0)
    with pytest.raises(UsageError, match=r"expected release 3\.16\.3, that of the base AMI, got 3\.16\.1"):
        ParallelCluster().require(PLAN, None, "")  # type: ignore[arg-type]
    cli("3.16.3", 0)
    with pytest.raises(CloudError, match="expected a JSON document"):
        ParallelCluster().require(PLAN, None, "")  # type: ignore[arg-type]
