"""What the agent logs of its own errors, and what AWS did to it."""

from __future__ import annotations

import pytest

from tests.validator.checks.conftest import table_host
from validator.cloudwatch import ApiRefused
from validator.probes.agent import log as agent_log

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
    assert agent_log.temporary("\n".join([*TIMEOUTS, *UNREACHABLE])) == TIMEOUTS
    assert agent_log.errors("\n".join([*TIMEOUTS, *UNREACHABLE])) == UNREACHABLE


def test_errors_of_the_image_are_separated_from_those_of_aws() -> None:
    assert agent_log.errors(LOG) == [OWN]
    assert agent_log.temporary(LOG) == [THROTTLED]
    assert agent_log.refusals("\n".join([LOG, NO_PROFILE_1, NO_PROFILE_2])) == [DENIED, NO_PROFILE_1, NO_PROFILE_2]


@pytest.mark.parametrize("line", [DENIED, NO_PROFILE_1, NO_PROFILE_2])
def test_refused_agent_call_has_a_hint(line: str) -> None:
    with pytest.raises(ApiRefused, match="instance profile with the policy") as caught:
        agent_log.raise_if_refused(table_host({"cat*": line}))
    assert line in str(caught.value)


@pytest.mark.parametrize("reply", [OWN, THROTTLED, "", (1, "", "No such file")])
def test_other_logs_raise_nothing(reply: str) -> None:
    agent_log.raise_if_refused(table_host({"cat*": reply}))
