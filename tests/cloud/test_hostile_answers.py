"""Each way in which AWS, or something in its place, may answer: an error that says what it is, never a traceback.

A refusal or a broken answer says nothing about an image: exit code 4, or 5 where there is no capacity or quota.
"""

from __future__ import annotations

import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Launch, Place, amis, placement_groups, preflight, resources, runs
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import GpuAmiError, Unreachable
from gpu_ami.plan import resolve_source_ami
from tests.cloud.foreign_answers import BODIES

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
Answer = tuple[int, str]


class Scripted:
    """An endpoint that answers each action as `answers` says; "" is the answer to every other one."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | list[Answer]] = {}  # of a list one after the other, the last for ever
        self.calls: list[str] = []
        self.tokens: list[str] = []  # of calls that have one
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                action = form.get("Action", [""])[0]
                scripted.calls.append(action)
                scripted.tokens += form.get("ClientToken", [])
                found = scripted.answers.get(action) or scripted.answers[""]
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                status, body = found
                if not status:  # the connection is reset before an answer
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.cloud = Cloud(
            Place("odd", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("a", "b")))
        )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.server.shutdown()


@pytest.fixture
def api(endpoint: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between botocore's attempts
    monkeypatch.setattr("gpu_ami.cloud.client.OUTAGE_SECONDS", 0.5)
    endpoint.answers.clear()
    return endpoint


@pytest.fixture
def patient(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """With time for an outage that ends, also on a busy machine."""
    monkeypatch.setattr("gpu_ami.cloud.client.OUTAGE_SECONDS", 30.0)
    return api


def answer(action: str, body: str) -> Answer:
    return 200, (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}"><requestId>1</requestId>{body}</{action}Response>'
    )


def refusal(code: str, status: int = 400) -> Answer:
    error = f"<Error><Code>{code}</Code><Message>said AWS</Message></Error>"
    return status, f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"


def instances(*described: str) -> Answer:
    items = "".join(f"<item><instanceId>i-1</instanceId>{each}</item>" for each in described)
    return answer(
        "DescribeInstances", f"<reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>"
    )


def state(name: str, code: str = "", message: str = "") -> str:
    reason = f"<stateReason><code>{code}</code><message>{message}</message></stateReason>" if code else ""
    return f"<instanceState><code>0</code><name>{name}</name></instanceState>{reason}"


def failure(call: Callable[[], object]) -> GpuAmiError:
    with pytest.raises(GpuAmiError) as caught:
        call()
    return caught.value


LAUNCH = Launch("ami-1", "p5.48xlarge", "", {runs.TAG_RUN: "r"}, "")
REFUSALS = {
    "InsufficientFreeAddressesInSubnet": (5, "subnet_ids"),
    "InstanceLimitExceeded": (5, "quota"),
    "VcpuLimitExceeded": (5, "quota"),
    "MaxSpotInstanceCountExceeded": (5, "quota"),
    "VolumeLimitExceeded": (5, "EBS"),
    "SnapshotLimitExceeded": (5, "EBS"),
    "Unsupported": (4, "does not support"),
    "OptInRequired": (4, "terms"),
    "Blocked": (4, "AWS Support"),
    "PendingVerification": (4, "verif"),
    "AuthFailure": (4, "clock"),
    "SignatureDoesNotMatch": (4, "clock"),
    "RequestExpired": (4, "clock"),
    "InvalidClientTokenId": (4, "access key"),
    "ExpiredToken": (4, "log in again"),
    "InvalidKMSKey.InvalidState": (4, "kms_key_id"),
    "KMSKeyNotAccessibleFault": (4, "kms_key_id"),
    "UnauthorizedOperation": (4, "policy"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_launch_says_what_it_means(code: str, api: Scripted) -> None:
    exit_code, words = REFUSALS[code]
    api.answers["RunInstances"] = refusal(code)
    error = failure(lambda: api.cloud.launch(LAUNCH))
    assert error.exit_code == exit_code and code in str(error) and "said AWS" in str(error)
    assert words in error.hint


REASONS = {
    "Server.InsufficientInstanceCapacity": (5, "Availability Zone"),
    "Server.SpotInstanceTermination": (5, "on-demand"),
    "Client.VolumeLimitExceeded": (5, "EBS"),
    "Server.InternalError": (4, "again"),
    "Client.InternalError": (4, "kms_key_id"),
    "Client.InvalidKMSKey.InvalidState": (4, "kms_key_id"),
    "Client.InvalidSnapshot.NotFound": (4, "snapshot"),
    "Client.InstanceInitiatedShutdown": (4, "shut down"),
    "Client.UserInitiatedShutdown": (4, "somebody"),
}


@pytest.mark.parametrize("code", REASONS)
def test_an_instance_that_ends_while_it_is_pending_says_why(code: str, api: Scripted) -> None:
    exit_code, words = REASONS[code]
    api.answers["DescribeInstances"] = instances(state("terminated", code, "said AWS"))
    error = failure(lambda: api.cloud.wait_for_state("i-1", "running", 5))
    assert error.exit_code == exit_code and f"{code}: said AWS" in str(error)
    assert words in error.hint and error.code == code


def list_tagged(cloud: Cloud) -> object:
    return resources.tagged(cloud, runs.TAG_RUN)


CALLS: dict[str, Callable[[Cloud], object]] = {
    "RunInstances": lambda cloud: cloud.launch(LAUNCH),
    "DescribeInstances": lambda cloud: cloud.wait_for_state("i-1", "running", 5),
    "TerminateInstances": lambda cloud: cloud.terminate(["i-1"]),
    "StopInstances": lambda cloud: cloud.stop("i-1"),
    "StartInstances": lambda cloud: cloud.start("i-1"),
    "DescribeImages": lambda cloud: cloud.image("ami-1"),
    "ModifyImageAttribute": lambda cloud: cloud.require_imds_v2("ami-1"),
    "DeleteKeyPair": lambda cloud: cloud.delete_key("k"),
    "GetConsoleOutput": lambda cloud: cloud.console("i-1"),
    "DescribeSecurityGroups": lambda cloud: cloud.ingress(["sg-1"]),
    "": list_tagged,
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("action", CALLS)
def test_what_is_no_answer_of_aws_is_no_success(action: str, body: str, api: Scripted) -> None:
    api.answers[action] = BODIES[body]
    error = failure(lambda: CALLS[action](api.cloud))
    assert error.exit_code == 4 and error.hint, str(error)


RESERVATION = "<reservationSet><item><instancesSet/></item></reservationSet>"
MISSING: dict[str, tuple[str, Answer]] = {
    "no instance was launched": ("RunInstances", answer("RunInstances", "<instancesSet/>")),
    "the instance has no id": ("RunInstances", answer("RunInstances", "<instancesSet><item/></instancesSet>")),
    "an instance without a state": ("DescribeInstances", instances("")),
    "a state with an empty name": (
        "DescribeInstances",
        instances("<instanceState><code>16</code><name></name></instanceState>"),
    ),
    "a state without a name": ("DescribeInstances", instances("<instanceState><code>16</code></instanceState>")),
    "a number that is none": ("DescribeInstances", instances("<instanceState><code>x</code></instanceState>")),
    "a time that is none": ("DescribeInstances", instances(f"{state('running')}<launchTime>soon</launchTime>")),
    "a reservation without instances": ("DescribeInstances", answer("DescribeInstances", RESERVATION)),
    "a group without rules": (
        "DescribeSecurityGroups",
        answer("DescribeSecurityGroups", "<securityGroupInfo><item/></securityGroupInfo>"),
    ),
    "no end of pages": (
        "",
        answer("DescribeInstances", "<reservationSet/><nextToken>again</nextToken>"),
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_well_formed_answer_that_lacks_something_is_an_error(case: str, api: Scripted) -> None:
    action, body = MISSING[case]
    api.answers[action] = body
    error = failure(lambda: CALLS[action](api.cloud))
    assert error.exit_code == 4 and (error.hint or "returned no instance" in str(error)), str(error)


def test_an_unknown_state_is_waited_for_until_the_deadline(api: Scripted) -> None:
    api.answers["DescribeInstances"] = instances(state("thinking"))
    error = failure(lambda: api.cloud.wait_for_state("i-1", "running", 0.1))
    assert error.exit_code == 4 and re.search(r"i-1 is thinking after \d+ s, expected running", str(error))


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://gpu-ami.invalid", "reachable"),
        ("https://127.0.0.1:{port}", "what answers does not speak TLS"),
        ("http://127.0.0.1:1", "reachable"),
    ],
    ids=["DNS", "TLS", "port"],
)
def test_an_endpoint_that_cannot_be_reached_is_named(url: str, hint: str, api: Scripted) -> None:
    url = url.format(port=api.server.server_port)
    cloud = Cloud(Place("odd", "us-east-1", api=ApiAccess(endpoint=url, credentials=Credentials("a", "b"))))
    error = failure(lambda: cloud.launch(LAUNCH))
    assert error.exit_code == 4 and url in str(error) and hint in error.hint


PASSING = {
    "InternalError": refusal("InternalError", 500),
    "InternalFailure": refusal("InternalFailure", 500),
    "ServiceUnavailable": refusal("ServiceUnavailable", 503),
    "Unavailable": refusal("Unavailable", 503),
    "RequestLimitExceeded": refusal("RequestLimitExceeded", 503),
    "a reset": (0, ""),
    "a gateway's 502": (502, "<html><body>Bad Gateway</body></html>"),
    "a gateway's 503": (503, "upstream connect error"),
    "a gateway's 504": (504, ""),
}


@pytest.mark.parametrize("case", PASSING)
def test_an_outage_outlasts_botocores_retries_but_not_a_wait(case: str, api: Scripted) -> None:
    api.answers["DescribeInstances"] = [*[PASSING[case]] * 8, instances(state("running"))]
    assert api.cloud.wait_for_state("i-1", "running", 30)["InstanceId"] == "i-1"


@pytest.mark.parametrize("action", ["DescribeInstances", "TerminateInstances"])
def test_the_wait_for_the_end_of_an_outage_is_said(
    action: str, patient: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and again while it lasts; nothing where AWS answers at once."""
    healthy = {
        "DescribeInstances": instances(state("running")),
        "TerminateInstances": answer("TerminateInstances", "<instancesSet/>"),
    }
    calls = {
        "DescribeInstances": lambda: patient.cloud.wait_for_state("i-1", "running", 30),
        "TerminateInstances": lambda: patient.cloud.terminate(["i-1"]),
    }
    said: list[str] = []
    monkeypatch.setattr(patient, "cloud", Cloud(patient.cloud.place, said.append))
    patient.answers |= healthy
    calls[action]()
    assert said == []
    patient.answers[action] = [*[PASSING["InternalError"]] * 20, healthy[action]]
    calls[action]()
    (line,) = said
    assert "i-1: InternalError; trying again for up to" in line and line.endswith(" s")
    monkeypatch.setattr("gpu_ami.cloud.client.SAID_AGAIN_SECONDS", 0.0)
    patient.answers[action] = [*[PASSING["InternalError"]] * 20, healthy[action]]
    calls[action]()
    assert len(said) > 2


@pytest.mark.parametrize("case", PASSING)
def test_machines_are_ended_after_an_outage(case: str, patient: Scripted) -> None:
    patient.answers["TerminateInstances"] = [*[PASSING[case]] * 8, answer("TerminateInstances", "<instancesSet/>")]
    patient.cloud.terminate(["i-1"])


@pytest.mark.parametrize("case", PASSING)
def test_a_launch_is_repeated_with_the_same_token(case: str, patient: Scripted) -> None:
    """EC2 launches nothing twice for one token: the answer to an earlier call may have been lost."""
    launched = answer("RunInstances", "<instancesSet><item><instanceId>i-1</instanceId></item></instancesSet>")
    patient.answers["RunInstances"] = [*[PASSING[case]] * 8, launched]
    patient.tokens.clear()
    assert patient.cloud.launch(LAUNCH) == "i-1"
    assert len(patient.tokens) > 1 and len(set(patient.tokens)) == 1


REPEATED = {
    "ImportKeyPair": ("InvalidKeyPair.Duplicate", lambda cloud: cloud.import_key("k", "ssh-ed25519 AAAA", {})),
    "CreatePlacementGroup": ("InvalidPlacementGroup.Duplicate", lambda cloud: placement_groups.create(cloud, "g", {})),
    "CreateImage": ("InvalidAMIName.Duplicate", lambda cloud: amis.create(cloud, "i-1", "name", {}, "", timeout=5)),
}


@pytest.mark.parametrize("action", REPEATED)
def test_a_lost_answer_is_no_duplicate(action: str, api: Scripted) -> None:
    code, call = REPEATED[action]
    image = "<imageId>ami-1</imageId><imageState>available</imageState><blockDeviceMapping/>"
    api.answers |= {
        "DescribeImages": answer("DescribeImages", f"<imagesSet><item>{image}</item></imagesSet>"),
        "CreateTags": answer("CreateTags", "<return>true</return>"),
        action: [PASSING["a reset"], refusal(code)],
    }
    cloud = Cloud(api.cloud.place)  # with botocore's whole budget of retries
    call(cloud)
    api.answers[action] = refusal(code)
    assert failure(lambda: call(cloud)).code == code


def test_an_outage_without_an_end_is_an_error(api: Scripted) -> None:
    api.answers["DescribeInstances"] = api.answers["TerminateInstances"] = PASSING["InternalError"]
    for call in (lambda: api.cloud.wait_for_state("i-1", "running", 0.2), lambda: api.cloud.terminate(["i-1"])):
        error = failure(call)
        assert (error.exit_code, error.code) == (4, "InternalError") and "try again" in error.hint
    api.answers["DescribeInstances"] = PASSING["a reset"]
    error = failure(lambda: list_tagged(api.cloud))
    assert error.exit_code == 4 and isinstance(error, Unreachable) and "reachable" in error.hint


def test_an_instance_that_is_pending_again_is_waited_for(api: Scripted) -> None:
    """EC2's answers come from several servers: a later one may be older."""
    running, pending = instances(state("running")), instances(state("pending"))
    modified = answer("ModifyInstanceMetadataOptions", "<instanceId>i-1</instanceId>")
    refused = refusal("IncorrectInstanceState")
    api.answers |= {
        "DescribeInstances": [pending, running, pending, pending, running],
        "ModifyInstanceMetadataOptions": [refused, refused, modified],
    }
    api.calls.clear()
    api.cloud.harden("i-1")
    assert api.calls.count("ModifyInstanceMetadataOptions") == 3


def test_a_state_that_ec2_refuses_for_good_is_an_error(api: Scripted) -> None:
    api.answers |= {
        "DescribeInstances": instances(state("running")),
        "ModifyInstanceMetadataOptions": refusal("IncorrectInstanceState"),
    }
    api.cloud.place = replace(api.cloud.place, api=replace(api.cloud.place.api, consistent_seconds=0.1))
    error = failure(lambda: api.cloud.harden("i-1"))
    assert error.exit_code == 4 and "IncorrectInstanceState" in str(error)


def test_a_proxy_that_refuses_the_connection_is_named_with_its_answer(
    api: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its password. A build and the preflight say it before anything is launched."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(407, "Proxy Authentication Required")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HTTPS_PROXY", f"http://somebody:secret@{where}")
    cloud = Cloud(Place("odd", "us-east-1", api=ApiAccess(credentials=Credentials("a", "b"))))
    plan: Any = {"source_ami": {"id": "ami-1"}, "architecture": "x86_64"}
    error = failure(lambda: resolve_source_ami(cloud, plan))  # a build's first call
    (finding,) = preflight.examine(cloud)
    server.shutdown()
    assert error.exit_code == preflight.exit_code([finding]) == 4
    for text, hint in ((str(error), error.hint), (finding.found, finding.remedy)):
        assert where in text and "407 Proxy Authentication Required" in text and "secret" not in text
        assert "HTTPS_PROXY" in hint


def test_an_image_behind_an_empty_page_is_there(api: Scripted) -> None:
    """`verify` said that the AMI is missing, and refused the certificate."""
    found = "<imagesSet><item><imageId>ami-1</imageId></item></imagesSet>"
    empty = answer("DescribeImages", "<imagesSet/><nextToken>t</nextToken>")
    api.answers |= {"DescribeImages": [empty, answer("DescribeImages", found)]}
    image = Cloud(api.cloud.place).image("ami-1")
    assert image and image["ImageId"] == "ami-1"
