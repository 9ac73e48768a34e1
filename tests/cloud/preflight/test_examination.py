"""Mistakes of a place, planted one at a time and all together: the preflight finds each, beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from moto import mock_aws

from gpu_ami.cloud import preflight
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Login, Place
from gpu_ami.cloud.preflight import resources
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan import resolve_source_ami
from tests.cloud.preflight.account import (
    REGION,
    Account,
    Wrapped,
    answer_what_moto_lacks,
    good_account,
    refusal,
    session,
)
from tests.cloud.preflight.mistakes import ERROR, MISTAKES, OF_THE_ACCOUNT, WARNING
from validator.plan_document import PlanDocument


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr(Cloud, "session", lambda _: session())
    with mock_aws():
        cloud = Cloud(Place(name="aws", region=REGION, login=Login(ssh_interface="public_ip")))
        made = good_account(cloud)
        answer_what_moto_lacks(made, monkeypatch)
        yield made


def matching(findings: list[Finding], level: Level, subject: str, text: str) -> list[Finding]:
    return [
        finding
        for finding in findings
        if (finding.level, finding.subject) == (level, subject) and text in finding.found
    ]


def test_nothing_is_found_in_a_good_place(account: Account) -> None:
    findings = account.findings()
    assert [str(finding) for finding in findings if finding.level is not Level.OK] == []
    assert {finding.subject for finding in findings} >= {
        "identity", "credentials", "subnet_id", "routes", "SSH ingress", "role gpu-ami-node of gpu-node", "kms_key_id",
        "source_ami", "kernel", "offerings", "quota L-417A185B", "permissions", "dry run of RunInstances m5.2xlarge",
    }  # fmt: skip
    assert preflight.exit_code(findings) == 0
    preflight.require(findings)


ACCOUNTS = [*MISTAKES, *OF_THE_ACCOUNT]


@pytest.mark.slow  # an examination for each; all mistakes in one account are found below
@pytest.mark.parametrize(
    ("mutation", "level", "subject", "text"), [row[1:] for row in ACCOUNTS], ids=[row[0] for row in ACCOUNTS]
)
def test_planted_mistake_is_found(
    account: Account, mutation: Callable[[Account], None], level: Level, subject: str, text: str
) -> None:
    mutation(account)
    findings = account.findings()
    matches = matching(findings, level, subject, text)
    assert len(matches) == 1, [str(finding) for finding in findings]
    assert level is not ERROR or matches[0].expected
    assert preflight.exit_code(findings) in ((2, 4) if level is ERROR else (0, 2))


def test_allowed_amis_are_named_where_they_hide_the_source_ami(account: Account) -> None:
    {row[0]: row[1] for row in OF_THE_ACCOUNT}["hidden by Allowed AMIs"](account)
    scope = Scope(account.cloud, cast("PlanDocument", account.plan), resolve_source_ami)
    (finding,) = resources.source_ami(scope)
    assert (finding.level, finding.remedy) == (
        ERROR,
        "Allowed AMIs hides AMIs of all but amazon: add its owner there",
    )


# Mistakes that one place can have at the same time.
TOGETHER = (
    "subnet full", "no way out", "group without ingress", "no egress", "trust policy", "no PutLogEvents",
    "key disabled", "source AMI of another architecture", "builder of another architecture",
    "quota too small", "quota unreadable", "RunInstances refused", "CreateKeyPair throttled",
    "action denied explicitly", "action not allowed", "source AMI old", "source AMI deprecated",
    "jump host without sshd", "key of the jump host missing", "further subnet unknown", "reservation cancelled",
)  # fmt: skip


def test_all_mistakes_are_found_in_one_go(account: Account) -> None:
    rows = [row for row in MISTAKES if row[0] in TOGETHER]
    assert len(rows) == len(TOGETHER)
    for row in sorted(rows, key=lambda row: row[0] == "no egress"):  # of the group that the place ends up with
        row[1](account)
    findings = account.findings()
    assert [row[0] for row in rows if not matching(findings, *row[2:])] == []
    with pytest.raises(UsageError) as raised:
        preflight.require(findings)
    assert sum("expected" in line for line in raised.value.details) >= 11


def test_refused_credentials_are_the_only_finding(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(_cloud: Cloud, _service: str) -> Any:
        def refuse() -> None:
            raise refusal("ExpiredToken", "GetCallerIdentity")

        return Wrapped(None, "sts", get_caller_identity=refuse)

    monkeypatch.setattr(Cloud, "client", client)
    (finding,) = account.findings()
    assert (finding.level, finding.subject, finding.refused) == (ERROR, "identity", True)
    assert "ExpiredToken" in finding.found and "log in again" in finding.remedy
    assert preflight.exit_code([finding]) == 4
    with pytest.raises(CloudError):
        preflight.require([finding])


def test_a_refused_look_up_is_a_warning(account: Account) -> None:
    def refuse(**_: Any) -> None:
        raise refusal("UnauthorizedOperation", "DescribeRouteTables")

    account.cloud.ec2 = Wrapped(account.ec2, describe_route_tables=refuse)
    findings = account.findings()
    assert matching(findings, WARNING, "routes", "not examined: looking up routes: UnauthorizedOperation")
    assert preflight.exit_code(findings) == 0


def test_without_a_plan_the_place_alone_is_examined(account: Account) -> None:
    findings = preflight.examine(account.cloud)
    assert {finding.level for finding in findings} == {Level.OK}
    assert not [finding for finding in findings if finding.subject in ("offerings", "source_ami", "architecture")]


def test_summary_counts_each_level() -> None:
    findings = [Finding(Level.OK, "a", "b"), Finding(ERROR, "a", "b"), Finding(Level.OK, "c", "d")]
    assert preflight.summary(findings) == "1 error, 0 warnings, 2 ok"


def test_efa_only_interfaces_need_no_address(account: Account) -> None:
    """p5.48xlarge has 32 interfaces, of which 31 are EFA-only: a /27 has room for it."""
    account.change(ssh_interface="private_ip")
    account.plan["instance_types"] = [{"name": "p5.48xlarge", "efa_interfaces": 300}]
    assert matching(account.findings(), Level.OK, "subnet_id", "free addresses")
