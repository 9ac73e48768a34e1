"""Something that is not AWS answers a call of a publication: exit 4, by name; the same command then ends it."""

from __future__ import annotations

import time

import pytest

from tests.cloud.foreign_answers import BODIES, Wire, wire_of
from tests.publish.conftest import HOME, LATEST, OTHER, Account

pytestmark = pytest.mark.slow

OPERATIONS = (
    "CopyImage", "CreateTags", "DescribeImageAttribute", "DescribeImages", "DescribeSnapshots",
    "EnableImageDeprecation", "EnableImageDeregistrationProtection", "GetParameters", "ModifyImageAttribute",
    "PutParameter",
)  # fmt: skip


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    sleep = time.sleep
    monkeypatch.setattr("time.sleep", lambda seconds: sleep(min(seconds, 0.01)))  # botocore tries some of them again
    return wire_of(monkeypatch)


def test_operations_are_all_of_a_publication(account: Account, wire: Wire) -> None:
    assert account.publish(account.build()) == 0
    assert tuple(sorted(wire.answers)) == OPERATIONS


# Each body once: what they are read by is common to all calls.
@pytest.mark.parametrize(("operation", "body"), list(zip(OPERATIONS, BODIES, strict=True)))
def test_a_foreign_answer_ends_the_publication_by_name(
    operation: str, body: str, account: Account, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    out = account.build()
    wire.replace(operation, BODIES[body])
    code, printed = account.publish(out), capsys.readouterr()
    said = printed.out + printed.err
    assert wire.replaced and code == 4 and "not one of AWS" in said and "Traceback" not in said, said
    wire.replace("")
    assert account.publish(out) == 0
    assert [len(account.images(region)) for region in (HOME, OTHER)] == [1, 1]
    assert account.parameters(OTHER)[LATEST] == account.images(OTHER)[0]["ImageId"]
