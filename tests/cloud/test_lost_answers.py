"""Calls whose answer is lost, whole or in part, and that AWS refuses for a minute: what is kept, and what goes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Place, amis, login, runs
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError, GpuAmiError, Unreachable
from gpu_ami.validate.machines.launch import launched
from tests.cloud.test_hostile_answers import (
    LAUNCH,
    PASSING,
    Scripted,
    answer,
    api,
    endpoint,
    failure,
    instances,
    patient,
    refusal,
    state,
)

__all__ = ["api", "endpoint", "patient"]

TERMINATED = answer("TerminateInstances", "<instancesSet/>")
IMAGE = "<imageId>ami-1</imageId><imageState>available</imageState><blockDeviceMapping/>"
IMAGES = answer("DescribeImages", f"<imagesSet><item>{IMAGE}</item></imagesSet>")
DONE = "<return>true</return>"


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("gpu_ami.cloud.client.uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="t-1")))
    return "t-1"


def launch(api: Scripted, home: Path, said: list[str] | None = None) -> GpuAmiError:
    """The error of a launch in a run of its own."""

    def run() -> None:
        with runs.begin(home, "odd") as begun, launched(
            api.cloud, LAUNCH, begun, lambda error: (said or []).append(error.message)
        ):  # fmt: skip
            raise AssertionError("nothing was launched")

    api.calls.clear()
    return failure(run)


UNKNOWN = ["a reset", "InternalError", "a gateway's 504"]


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_may_have_been_launched_is_left_for_sweep(case: str, api: Scripted, home: Path) -> None:
    """EC2 does not list it yet; the run's record, by which `sweep` knows its tag, was removed."""
    api.answers |= {
        "RunInstances": PASSING[case],
        "DescribeInstances": answer("DescribeInstances", "<reservationSet/>"),
    }
    error = launch(api, home)
    assert "what EC2 may have launched (1 p5.48xlarge): its answer was lost" in str(error) and "gpu-ami sweep" in str(
        error
    )
    assert len(runs.records(home)) == 1


@pytest.mark.parametrize("case", UNKNOWN)
@pytest.mark.usefixtures("token")
def test_what_was_launched_without_an_answer_is_terminated(case: str, api: Scripted, home: Path) -> None:
    """It is known by the call's client token; another machine of the run goes on."""
    listed = [f"<clientToken>{token}</clientToken>{state('pending')}" for token in ("t-1", "other")]
    status, text = instances(*listed)
    head, between, tail = text.rpartition("<instanceId>i-1")
    api.answers |= {
        "RunInstances": PASSING[case],
        "DescribeInstances": (status, f"{head}{between[:-1]}2{tail}"),
        "TerminateInstances": TERMINATED,
    }
    error = launch(api, home)
    assert "may have launched" not in str(error)
    assert api.calls.count("TerminateInstances") == 1 and runs.records(home) == []


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "VcpuLimitExceeded", "InsufficientInstanceCapacity"])
def test_a_refused_launch_leaves_no_record(code: str, api: Scripted, home: Path) -> None:
    api.answers["RunInstances"] = refusal(code)
    assert "may have launched" not in str(launch(api, home)) and runs.records(home) == []
    assert "DescribeInstances" not in api.calls


@pytest.mark.usefixtures("token")
def test_ctrl_c_during_a_launch_terminates_it(api: Scripted, home: Path) -> None:
    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    described = f"<clientToken>t-1</clientToken>{state('pending')}"
    api.answers |= {"DescribeInstances": instances(described), "TerminateInstances": TERMINATED}
    cloud = Cloud(api.cloud.place)
    cloud.ec2.meta.events.register("before-send.ec2.RunInstances", interrupt)
    api.calls.clear()
    with pytest.raises(KeyboardInterrupt), runs.begin(home, "odd") as run, launched(cloud, LAUNCH, run):
        pass
    assert "TerminateInstances" in api.calls and runs.records(home) == []


WAVE = [PASSING["RequestLimitExceeded"]] * 8
PATIENT: dict[str, tuple[Callable[[Cloud], object], str]] = {
    "CreateImage": (lambda cloud: amis.create(cloud, "i-1", "name", {}, "", timeout=5), "<imageId>ami-1</imageId>"),
    "CreateTags": (lambda cloud: amis.create(cloud, "i-1", "name", {}, "", timeout=5), DONE),
    "ModifyImageAttribute": (lambda cloud: cloud.require_imds_v2("ami-1"), DONE),
    "DescribeImages": (lambda cloud: cloud.wait_for_image("ami-1"), f"<imagesSet><item>{IMAGE}</item></imagesSet>"),
    "ModifyInstanceMetadataOptions": (lambda cloud: cloud.harden("i-1"), ""),
    "StopInstances": (lambda cloud: cloud.stop("i-1"), "<instancesSet/>"),
    "StartInstances": (lambda cloud: cloud.start("i-1"), "<instancesSet/>"),
}


@pytest.mark.parametrize("action", PATIENT)
def test_a_wave_of_throttling_does_not_end_a_build_or_a_proof(action: str, patient: Scripted) -> None:
    """More refusals than botocore's retries: an hour's work is behind each of these calls."""
    call, healthy = PATIENT[action]
    patient.answers |= {"CreateImage": answer("CreateImage", "<imageId>ami-1</imageId>"), "DescribeImages": IMAGES}
    patient.answers |= {"CreateTags": answer("CreateTags", DONE), "DescribeInstances": instances(state("running"))}
    patient.answers |= {action: [*WAVE, answer(action, healthy)]}
    call(Cloud(patient.cloud.place))


def test_an_image_that_a_lost_call_made_is_found_after_an_outage(patient: Scripted) -> None:
    """The first call's answer is lost with all of botocore's retries; the next one finds its image."""
    patient.answers |= {
        "CreateImage": [*[PASSING["a reset"]] * 6, refusal("InvalidAMIName.Duplicate")],
        "DescribeImages": IMAGES,
        "CreateTags": answer("CreateTags", DONE),
    }
    assert amis.create(Cloud(patient.cloud.place), "i-1", "name", {}, "", timeout=5) == "ami-1"


@pytest.mark.parametrize("removal", ["done", "refused"])
def test_an_image_that_cannot_be_tagged_complete_is_removed(removal: str, api: Scripted) -> None:
    left: list[str] = []
    api.answers |= {
        "CreateImage": answer("CreateImage", "<imageId>ami-1</imageId>"),
        "DescribeImages": IMAGES,
        "CreateTags": refusal("UnauthorizedOperation"),
        "DeregisterImage": answer("DeregisterImage", DONE) if removal == "done" else refusal("UnauthorizedOperation"),
    }
    api.calls.clear()

    def create() -> str:
        return amis.create(api.cloud, "i-1", "name", {}, "", timeout=5, on_leftover=lambda: left.append("ami-1"))

    error = failure(create)
    assert error.message == "tagging ami-1: UnauthorizedOperation" and "DeregisterImage" in api.calls
    assert left == ([] if removal == "done" else ["ami-1"])
    assert ("not removed: removing image ami-1" in str(error)) is (removal == "refused")


@pytest.mark.parametrize(("answered", "kept"), [("a reset", ["ami-1"]), ("InternalError", ["ami-1"]), ("", [])])
def test_an_image_that_may_have_been_made_is_left_for_sweep(answered: str, kept: list[str], api: Scripted) -> None:
    left: list[str] = []
    api.answers["CreateImage"] = PASSING.get(answered) or refusal("UnauthorizedOperation")
    failure(lambda: amis.create(api.cloud, "i-1", "name", {}, "", timeout=5, on_leftover=lambda: left.append("ami-1")))
    assert left == kept


WHOLE = instances(state("running"))[1].encode()
HALF = WHOLE[: len(WHOLE) // 2]
CUT: dict[str, tuple[bytes, bool]] = {  # what is sent, and whether the connection is reset after it
    "closed": (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(WHOLE), HALF), False),
    "reset": (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(WHOLE), HALF), True),
    "before the first byte": (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(WHOLE), False),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s" % (len(WHOLE), HALF), False),
}


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], Cloud]]:
    """A place whose answers end in the middle, the first so many of them."""
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
    listening = [socket.create_server(("127.0.0.1", 0))]

    def place(case: str, times: int) -> Cloud:
        sent, reset = CUT[case]

        def serve() -> None:
            number = 0
            while True:
                try:
                    connection, _ = listening[0].accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE)
                    connection.sendall(sent if number < times else whole)
                    if reset and number < times:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                number += 1

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening[0].getsockname()[1]}"
        return Cloud(Place("odd", "us-east-1", api=ApiAccess(endpoint=url, credentials=Credentials("a", "b"))))

    yield place
    listening[0].shutdown(socket.SHUT_RDWR)
    listening[0].close()


@pytest.mark.parametrize("case", CUT)
def test_an_answer_that_is_cut_off_is_asked_for_again(case: str, cut: Callable[[str, int], Cloud]) -> None:
    assert cut(case, 8).wait_for_state("i-1", "running", 60)["InstanceId"] == "i-1"


@pytest.mark.parametrize("case", CUT)
def test_answers_that_are_all_cut_off_are_a_matter_of_the_connection(
    case: str, cut: Callable[[str, int], Cloud]
) -> None:
    """Not of a proxy's login page, which the hint asked about."""
    error = failure(lambda: cut(case, 10**6).instance("i-1"))
    assert isinstance(error, Unreachable) and error.exit_code == 4
    assert "connection" in str(error).lower() and "reachable" in error.hint and "login page" not in error.hint


def test_a_record_is_kept_where_the_image_of_a_build_is_in_no_file(home: Path) -> None:
    caught = pytest.raises(CloudError, match="no space")
    with caught as raised, runs.begin(home, "odd") as run, runs.recording(run, "ami-1"):
        raise CloudError("no space")
    assert raised.value.details[0] == "ami-1 was made, and no build.json names it"
    assert [record.id for record in runs.records(home)] == [run.id]


@pytest.mark.parametrize(("answered", "deleted"), [("a reset", True), ("InternalError", True), ("", False)])
def test_a_key_that_may_have_been_imported_is_deleted(
    answered: str, deleted: bool, api: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "make_key", lambda _: "ssh-ed25519 AAAA")
    api.answers["ImportKeyPair"] = PASSING.get(answered) or refusal("UnauthorizedOperation")
    api.answers["DeleteKeyPair"] = answer("DeleteKeyPair", DONE)
    api.calls.clear()
    with pytest.raises(CloudError), runs.begin(home, "odd") as run, login.temporary_key(api.cloud, run, {}):
        pass
    assert ("DeleteKeyPair" in api.calls) is deleted and runs.records(home) == []
    api.answers["DeleteKeyPair"] = PASSING["a reset"]
    with pytest.raises(CloudError), runs.begin(home, "odd") as run, login.temporary_key(api.cloud, run, {}):
        pass
    assert bool(runs.records(home)) is deleted  # neither call was answered: `sweep` looks for it


@pytest.mark.parametrize(
    ("each", "error"),
    [
        ([TERMINATED, refusal("InvalidInstanceID.NotFound"), TERMINATED], ""),
        ([TERMINATED, refusal("UnauthorizedOperation"), TERMINATED], "UnauthorizedOperation"),
    ],
)
def test_an_instance_that_is_gone_keeps_no_other_from_its_end(each: list[Any], error: str, api: Scripted) -> None:
    """EC2 refuses the whole call for one id that it has forgotten, an hour after that instance has ended."""
    api.answers["TerminateInstances"] = [refusal("InvalidInstanceID.NotFound"), *each]
    api.calls.clear()
    if error:
        assert failure(lambda: api.cloud.terminate(["i-1", "i-2", "i-3"])).code == error
    else:
        api.cloud.terminate(["i-1", "i-2", "i-3"])
    assert api.calls.count("TerminateInstances") == 4
