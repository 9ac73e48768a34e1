"""Lines of JSON values: keys, entries of lists, missing paths and duplicate keys.

What the agent logs of its own errors, and what AWS did to it.
Injected lines: what is written where, and when. The tests of xid and neuron_error follow them further.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.scripted_host import on_this_machine, table_host
from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine
from validator.cloudwatch import ApiRefused
from validator.observe import Observe
from validator.plan import as_plan
from validator.probes.agent import delivery, injected_lines
from validator.probes.agent.findings import line_numbers
from validator.results import CheckRecord, RunningCheck, Verdict

TEXT = """{
  "a.b": {"c": "x\\"y}",
    "d": [1,
          {"e": null}, []]},
  "f": -1.5e3, "g": {},
  "f": true
}
"""


def test_every_value_has_its_line() -> None:
    json.loads(TEXT)
    assert line_numbers(TEXT).by_path == {
        "": 1, "a.b": 2, "a.b.c": 2, "a.b.d": 3, "a.b.d[0]": 3, "a.b.d[1]": 4, "a.b.d[1].e": 4, "a.b.d[2]": 4,
        "f": 6, "g": 5,
    }  # fmt: skip


def test_a_missing_path_has_the_line_of_its_parent() -> None:
    lines = line_numbers(TEXT)
    assert [lines.nearest(path) for path in ("a.b.d[1].x.y", "a.b.d[7]", "a.b.z", "other.key")] == [4, 3, 2, 1]


def test_a_duplicate_key_is_listed_with_its_second_line() -> None:
    assert line_numbers(TEXT).duplicates == {"f": 6}


def test_a_document_may_be_a_scalar() -> None:
    assert line_numbers("\n 12 ").by_path == {"": 2}


OWN = "2026-11-22T10:00:00Z E! [inputs.nvidia_smi] Error in plugin: exec: nvidia-smi: not found"
THROTTLED = "2026-11-22T10:00:00Z E! [logs] try 3 failed, again in 2 s: ThrottlingException: Rate exceeded (HTTP 400)"
# Texts of aws-sdk-go (1), its second version (2) and CloudWatch.
DENIED = "2026-11-22T10:00:00Z E! cloudwatch: code: AccessDenied, message: User: arn is not authorized to perform: x"
NO_PROFILE_1 = (
    "2026-11-22T10:00:00Z E! WriteToCloudWatch failure, err: NoCredentialProviders: no valid providers in chain"
)
NO_PROFILE_2 = "2026-11-22T10:00:00Z E! failed to refresh cached credentials, no EC2 IMDS role found, operation error"
LOG = "\n".join(["2026-11-22T10:00:00Z I! AccessDenied is only a word here", OWN, THROTTLED, DENIED])


# A request without an answer: the replica's text, and those of Go's net/http.
TIMEOUTS = [
    "2026-11-22T11:55:59Z E! [monitoring] try 1 failed, again in 0 s: timed out",
    '2026-11-22T10:00:00Z E! WriteToCloudWatch failure, err: RequestError: send request failed caused by: Post "x": '
    "net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
    '2026-11-22T10:00:00Z E! [outputs.cloudwatchlogs] Aws error received: Post "x": dial tcp 10.0.0.1:443: i/o timeout',
    '2026-11-22T10:00:00Z E! [outputs.cloudwatchlogs] Aws error received: Post "x": net/http: TLS handshake timeout',
    "2026-11-22T10:00:00Z E! [outputs.cloudwatchlogs] Aws error: read tcp 10.0.0.2: read: connection reset by peer",
]
# An endpoint that does not exist, or where nothing listens: the image's configuration may be wrong.
UNREACHABLE = [
    '2026-11-22T10:00:00Z E! [logs] Aws error received: Post "x": dial tcp: lookup nowhere.invalid: no such host',
    '2026-11-22T10:00:00Z E! [logs] Aws error received: Post "x": dial tcp 127.0.0.1:9: connect: connection refused',
]


def test_request_without_an_answer_is_temporary() -> None:
    assert delivery.temporary("\n".join([*TIMEOUTS, *UNREACHABLE])) == TIMEOUTS
    assert delivery.errors("\n".join([*TIMEOUTS, *UNREACHABLE])) == UNREACHABLE


def test_errors_of_the_image_are_separated_from_those_of_aws() -> None:
    assert delivery.errors(LOG) == [OWN]
    assert delivery.temporary(LOG) == [THROTTLED]
    assert delivery.refusals("\n".join([LOG, NO_PROFILE_1, NO_PROFILE_2])) == [DENIED, NO_PROFILE_1, NO_PROFILE_2]


@pytest.mark.parametrize("line", [DENIED, NO_PROFILE_1, NO_PROFILE_2])
def test_refused_agent_call_has_a_hint(line: str) -> None:
    with pytest.raises(ApiRefused, match="instance profile with the policy") as caught:
        delivery.raise_if_refused(table_host({"cat*": line}))
    assert line in str(caught.value)


@pytest.mark.parametrize("reply", [OWN, THROTTLED, "", (1, "", "No such file")])
def test_other_logs_raise_nothing(reply: str) -> None:
    delivery.raise_if_refused(table_host({"cat*": reply}))


@pytest.fixture
def observe() -> Observe:
    return Observe(RunningCheck(CheckRecord("a::b", "a", "T2", "", Verdict.PASS)))


def lines(raw: Path, structured: Path) -> injected_lines.InjectedLines:
    parser = PLAN["event_parser"] | {"raw_log": str(raw), "json_log": str(structured)}
    plan = as_plan(PLAN | {"event_parser": parser})
    return injected_lines.InjectedLines(table_host(on_this_machine), plan, FakeMachine(METADATA), None)  # type: ignore[arg-type]


def test_a_nonce_is_a_member_of_the_line() -> None:
    made = {injected_lines.nonce("serial-num") for _ in range(10)}
    assert len(made) == 10 and all(re.fullmatch(r"serial-num=[0-9a-f]{16}", one) for one in made)


def test_line_is_written_and_found_in_both_logs(tmp_path: Path, observe: Observe) -> None:
    """Here the file is both the kernel's log and the parser's."""
    file = tmp_path / "log"
    sent = lines(file, file).inject(str(file), "it's 100 % nonce=1\n", "nonce=1", "neuron0", observe)
    assert file.read_text() == "it's 100 % nonce=1\n"
    assert (sent.device, sent.started <= sent.raw <= sent.json) == ("neuron0", True)


def test_refusal_is_unproven_and_names_the_file(tmp_path: Path, observe: Observe) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{tmp_path} does not accept a line: .*irectory"):
        lines(tmp_path, tmp_path).inject(str(tmp_path), "x", "nonce=1", "", observe)


def test_drill_is_a_whole_record_of_the_kernel_log(tmp_path: Path, observe: Observe) -> None:
    injected, written = lines(tmp_path, tmp_path), []
    injected.inject = lambda *given: written.append(given)  # type: ignore[method-assign,assignment]
    injected.inject_drill("NEURON_HW_ERR=X", "nonce=1", "neuron0", observe)
    assert written == [("/dev/kmsg", "<4>NEURON_HW_ERR=X\n", "nonce=1", "neuron0", observe)]
