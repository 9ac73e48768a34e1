"""What a check records beside its verdict, the messages of checks that fail, and verdicts from pytest's outcomes."""

from __future__ import annotations

import pytest

from tests.scripted_host import table_host
from tests.validator.conftest import Run
from validator.observe import Observe, output, unproven
from validator.results import Hop, RunningCheck


def test_unproven_ends_the_check_with_its_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="no GPU is idle"):
        unproven("no GPU is idle")


def test_output_of_a_command_that_succeeds() -> None:
    assert output(table_host({"uname -r": (0, "6.1.0\n", "warning\n")}), "uname %s", "-r") == "6.1.0\n"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((2, "partial", "denied\n"), "`uname -r` exited with status 2: denied"),
        ((2, "only this\n", ""), "`uname -r` exited with status 2: only this"),
        ((127, "", ""), "`uname -r` exited with status 127: no output"),
    ],
)
def test_output_of_a_command_that_fails(reply: tuple[int, str, str], message: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        output(table_host({"uname -r": reply}), "uname %s", "-r")
    assert str(failure.value) == message


def test_long_output_is_truncated() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        output(table_host({"make": (1, "", "a" * 1000 + "last words")}), "make")
    assert str(failure.value) == "`make` exited with status 1: " + "a" * 490 + "last words"


def test_same_records_both_values_and_names_the_difference(observe: Observe, running: RunningCheck) -> None:
    observe.same("580.1", "580.1", "driver")
    assert (running.record.observed, running.record.planned) == ("580.1", "580.1")
    with pytest.raises(pytest.fail.Exception, match=r"^driver: expected '580\.1', got '570\.1'$"):
        observe.same("570.1", "580.1", "driver")
    assert (running.record.observed, running.record.planned) == ("570.1", "580.1")


def test_nothing_fails_with_every_entry(observe: Observe, running: RunningCheck) -> None:
    observe.nothing([], "files that no package owns")
    assert (running.record.observed, running.record.planned) == ([], [])
    with pytest.raises(pytest.fail.Exception, match=r"^files that no package owns: /etc/a, /etc/b$"):
        observe.nothing(["/etc/a", "/etc/b"], "files that no package owns")
    assert running.record.observed == ["/etc/a", "/etc/b"]


def test_long_values_are_shortened_in_the_message(observe: Observe, running: RunningCheck) -> None:
    values = [f"/etc/file{number}" for number in range(1000)]
    with pytest.raises(pytest.fail.Exception) as failure:
        observe.nothing(values, "files")
    assert len(str(failure.value)) == len("files: ") + 1500 and str(failure.value).endswith("...")
    assert running.record.observed == values


def test_hops_are_kept_in_order_and_rounded(observe: Observe, running: RunningCheck) -> None:
    observe.hop("kernel → raw log", 0.12345)
    observe.hop("raw log → CloudWatch", 2)
    assert running.record.hops == (Hop("kernel → raw log", 0.123), Hop("raw log → CloudWatch", 2))


def test_event_and_failure(observe: Observe, running: RunningCheck) -> None:
    observe.event({"kind": "xid", "code": 31})
    assert running.record.event == {"kind": "xid", "code": 31}
    with pytest.raises(pytest.fail.Exception, match="seen 1 line, expected 2"):
        observe.fail("seen 1 line, expected 2")


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
from testinfra.modules.service import SystemdService

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
        (
            "SystemdService.get_module(Answers(4))('x').is_enabled",
            "ERROR",
            "error in the check (test_given.py:12): Assert",
        ),
        ("Answers(4).run_test('systemctl is-enabled x')", "FAIL", "Unexpected exit code 4"),  # the check's own choice
        ("assert Answers(1).run_test('systemctl is-enabled x').rc == 0", "FAIL", "assert 1 == 0"),
        ("Answers(1).check_output('nvidia-smi')", "FAIL", "Unexpected exit code 1"),
    ],
)
def test_exit_status_that_testinfra_does_not_know_is_no_failure_of_the_image(
    run: Run, body: str, verdict: str, message: str
) -> None:
    check = run(SERVICE.format(body=body)).check("test_it")
    assert check["verdict"] == verdict and message in check["message"]
