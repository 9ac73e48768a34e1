"""Something that is not AWS answers a call of the preflight, or an answer has a hole: an error, never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from moto import mock_aws

from gpu_ami.cloud import preflight
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Login, Place
from gpu_ami.cloud.preflight import examination, identity
from gpu_ami.cloud.preflight.findings import Finding, Level, Scope
from gpu_ami.plan import resolve_source_ami
from tests.cloud.foreign_answers import BODIES, Wire, holes, wire_of
from tests.cloud.preflight.account import REGION, Account, answer_what_moto_lacks, good_account, session
from validator.plan_document import PlanDocument

pytestmark = pytest.mark.slow  # an examination for each operation

OPERATIONS = (
    "GetCallerIdentity", "DescribeSubnets", "DescribeRouteTables", "DescribeSecurityGroups", "DescribeInstanceTypes",
    "DescribeInstanceTypeOfferings", "DescribeInstances", "DescribeKey", "GetInstanceProfile", "ListRolePolicies",
    "GetRolePolicy", "ListAttachedRolePolicies", "CreateKeyPair", "RunInstances", "GetServiceQuota",
)  # fmt: skip
MOST_BYTES = 8192  # of an answer whose every field is taken away once
ANSWERED_ELSEWHERE = {"GetServiceQuota": "service-quotas"}  # in account.py; here on the wire


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[tuple[Account, Wire]]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(Cloud, "session", lambda _: session())
    with mock_aws():
        wire = wire_of(monkeypatch)
        watched: Any = Cloud.client
        account = good_account(Cloud(Place(name="aws", region=REGION, login=Login(ssh_interface="public_ip"))))
        answer_what_moto_lacks(account, monkeypatch)
        with_answers: Any = Cloud.client
        on_the_wire = ANSWERED_ELSEWHERE.get(getattr(request, "param", ""))

        def client(cloud: Cloud, service: str) -> Any:
            return (watched if service == on_the_wire else with_answers)(cloud, service)

        monkeypatch.setattr(Cloud, "client", client)
        yield account, wire


@pytest.mark.parametrize(
    ("operation", "wired"), [(name, name) for name in OPERATIONS], ids=OPERATIONS, indirect=["wired"]
)
def test_a_foreign_answer_is_an_error_that_says_so(
    operation: str, wired: tuple[Account, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first body is read by a whole examination, the others by the checks that have called the operation in it."""
    account, wire = wired
    asking: list[Callable[[Scope], list[Finding]]] = []
    run_check = examination.run_check

    def noted(name: str, check: examination.Check, scope: Scope, **more: bool) -> list[Finding]:
        before, findings = wire.replaced, run_check(name, check, scope, **more)
        if wire.replaced > before:
            asking.append(lambda scope: run_check(name, check, scope, **more))
        return findings

    monkeypatch.setattr(examination, "run_check", noted)
    for number, (name, body) in enumerate(BODIES.items()):
        wire.replace(operation, body)
        scope = Scope(account.cloud, cast("PlanDocument", account.plan), resolve_source_ami)
        findings = [found for check in asking for found in check(scope)] if number else account.findings()
        errors = [finding for finding in findings if finding.level is Level.ERROR]
        assert wire.replaced, name
        assert errors and all(one.refused and "not one of AWS" in one.found for one in errors), (name, findings)
        assert all("HTTPS_PROXY" in one.remedy for one in errors)
        assert preflight.exit_code(findings) == 4


def test_an_answer_with_a_hole_is_a_finding_or_none(wired: tuple[Account, Wire]) -> None:
    """Each answer that a check reads, without one of its fields or with another kind of value."""
    account, wire = wired
    scope = Scope(account.cloud, cast("PlanDocument", account.plan), resolve_source_ami)
    tried = 0
    for name, check in {"identity": identity.identity, **examination.CHECKS}.items():
        wire.answers.clear()
        wire.replace("")
        examination.run_check(name, check, scope)
        for operation, answer in sorted(wire.answers.items()):
            if len(answer) > MOST_BYTES:
                continue
            for hole, change in holes(answer):
                wire.replace(operation, change=change)
                try:
                    findings = examination.run_check(name, check, scope)
                except Exception as error:
                    raise AssertionError(f"{name}: {operation}: {hole}: {error!r}") from error
                assert preflight.exit_code(findings) in (0, 2, 4)
                tried += wire.replaced > 0
    assert tried > 50
