"""Outcomes become verdicts: mistakes in a check and refused API calls are errors, not failures of the image."""

from __future__ import annotations

import pytest

from tests.validator.conftest import Run


def test_missing_fixture_is_an_error_of_the_check(run: Run) -> None:
    outcome = run("def test_it(hots):\n    pass\n")
    check = outcome.check("test_it")
    assert (check["id"], check["verdict"]) == ("test_given::test_it", "ERROR")
    expected = "error in the check: fixture 'hots' not found; did you mean host?; known: host, plan, machine,"
    assert check["message"].startswith(expected)


def test_refused_api_call_is_an_error_not_a_failure(run: Run) -> None:
    outcome = run(
        "from validator.cloudwatch import ApiRefused\n"
        "def test_it(host):\n"
        "    raise ApiRefused('logs:GetLogEvents', 'AccessDeniedException', 'not authorized', 'allow it')\n"
    )
    check = outcome.check("test_it")
    assert check["verdict"] == "ERROR"
    assert check["message"] == "logs:GetLogEvents: AccessDeniedException: not authorized (allow it)"


LOST = "from validator.transport import TransportFault\nraise TransportFault('h closed the connection')"


@pytest.mark.parametrize(
    ("body", "verdict", "message"),
    [
        ("pass", "PASS", ""),
        ("assert 1 == 2, 'one is not two'", "FAIL", "one is not two\nassert 1 == 2"),
        ("{}['absent']", "ERROR", "error in the check (test_given.py:2): KeyError: 'absent'"),
        ("import pytest; pytest.fail('no')", "FAIL", "no"),
        ("import pytest; pytest.skip('not planned')", "UNPROVEN", "not planned"),
        (LOST, "UNPROVEN", "transport error: h closed the connection"),
    ],
)
def test_outcome_of_a_call(run: Run, body: str, verdict: str, message: str) -> None:
    lines = "\n    ".join(body.splitlines())
    check = run(f"def test_it():\n    {lines}\n").check("test_it")
    assert (check["verdict"], check["message"]) == (verdict, message)


def test_failure_in_teardown_names_the_phase(run: Run) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef file():\n    yield\n    raise OSError('full')\n"
    check = run(fixture + "def test_it(file):\n    pass\n").check("test_it")
    expected = "in teardown: error in the check (test_given.py:5): OSError: full"
    assert (check["verdict"], check["message"]) == ("ERROR", expected)


SERVICE = """\
from testinfra.backend.base import CommandResult
from testinfra.host import Host

class Answers(Host):
    def __init__(self, code):
        self.code = code
    def run(self, command, *args, **kwargs):
        return CommandResult(backend=None, exit_status=self.code, command=command, _stdout=b"not-found", _stderr=b"")

def test_it():
    {body}
"""


@pytest.mark.parametrize(
    ("body", "verdict", "message"),
    [
        # systemd 255: is-enabled exits 4 (pytest-testinfra#801); testinfra knows 0 and 1 alone.
        ("Answers(4).run_test('systemctl is-enabled x')", "ERROR", "error in the check (test_given.py:11): Assert"),
        ("assert Answers(1).run_test('systemctl is-enabled x').rc == 0", "FAIL", "assert 1 == 0"),
        ("Answers(1).check_output('nvidia-smi')", "FAIL", "Unexpected exit code 1"),
    ],
)
def test_exit_status_that_testinfra_does_not_know_is_no_failure_of_the_image(
    run: Run, body: str, verdict: str, message: str
) -> None:
    check = run(SERVICE.format(body=body)).check("test_it")
    assert check["verdict"] == verdict and message in check["message"]
