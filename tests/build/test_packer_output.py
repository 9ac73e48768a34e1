"""Packer's machine-readable output: progress, log, task counts, and the true reason of a failure."""

from __future__ import annotations

import io
import re

import pytest

from gpu_ami.build.packer import Reader

TRANSCRIPT = """\
1795266055,,ui,say,==> amazon-ebs.image: Provisioning with Ansible...
1795266055,,ui,message,    amazon-ebs.image: Instance ID: i-f44e44a18f2743974
1795266056,,ui,message,    amazon-ebs.image: TASK [hygiene : Ensure no log%!(PACKER_COMMA) no key is left] *****
1795266056,,ui,message,    amazon-ebs.image: fatal: [127.0.0.1]: FAILED! => {"msg": "no"}
1795266061,,ui,error,Build 'amazon-ebs.image' errored after 9 seconds: exit status 2
1795266061,,error-count,1
1795266061,amazon-ebs.image,error,exit status 2
panic: not a record
"""
# Current Packers say Ansible's lines as if they were their own.
PLAYED = """\
1795266055,,ui,say,==> amazon-ebs.image: PLAY [Build the image] ****
1795266056,,ui,say,==> amazon-ebs.image: TASK [nccl : Ensure it is installed] ****
1795266056,,ui,say,==> amazon-ebs.image: changed: [default] => (item=libnccl2)
1795266056,,ui,say,==> amazon-ebs.image: changed: [default] => (item=libnccl-dev)
1795266056,,ui,say,==> amazon-ebs.image: TASK [nccl : Ensure it is held] ****
1795266056,,ui,say,==> amazon-ebs.image: ok: [default]
1795266061,,ui,say,==> amazon-ebs.image: PLAY RECAP ****
1795266061,,ui,say,==> amazon-ebs.image: default                    : ok=2    changed=1    unreachable=0    failed=0
1795266061,,ui,say,==> amazon-ebs.image: Stopping the source instance...
"""


def test_output_becomes_log_progress_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("gpu_ami.build.packer.time.monotonic", lambda: float(next(clock)))
    log, notes, builders = io.StringIO(), list[str](), list[str]()
    reader = Reader(log, notes.append, builders.append)
    for line in TRANSCRIPT.splitlines():
        reader.line(line)
    reader.end()
    assert builders == ["i-f44e44a18f2743974"]
    assert notes[0] == "Provisioning with Ansible..."
    assert re.fullmatch(r"hygiene : Ensure no log, no key is left \(\d+ s\)", notes[1])
    assert reader.reason == 'hygiene : Ensure no log, no key is left: fatal: [127.0.0.1]: FAILED! => {"msg": "no"}'
    assert reader.tail()[-1] == "panic: not a record"
    assert "errored after 9 seconds: exit status 2" in log.getvalue()


def test_tasks_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("gpu_ami.build.packer.time.monotonic", lambda: float(next(clock)))
    notes = list[str]()
    reader = Reader(io.StringIO(), notes.append)
    for line in PLAYED.splitlines():
        reader.line(line)
    reader.end()
    found = reader.play.converged
    assert found is not None
    assert (found.ok, found.changed) == (2, ("nccl : Ensure it is installed",))
    assert [name for name, seconds in found.slowest if seconds > 0] == [
        "nccl : Ensure it is installed",
        "nccl : Ensure it is held",
    ]
    assert found.seconds >= sum(seconds for _, seconds in found.slowest)
    assert notes[-1] == "Stopping the source instance..."
    assert all("ok=" not in note and "changed" not in note for note in notes)


def test_a_build_without_an_end_has_no_counts() -> None:
    reader = Reader(io.StringIO(), lambda note: None)
    for line in TRANSCRIPT.splitlines():
        reader.line(line)
    assert reader.play.converged is None


def reason(*lines: str) -> str:
    reader = Reader(io.StringIO(), lambda note: None)
    for line in lines:
        reader.line(line)
    reader.end()
    return reader.reason


# mitogen prints this in every build, while Ansible closes its connections.
MUX = (
    "1795266060,,ui,{kind},    amazon-ebs.image: [ERROR]: [mux  4711] 12:00:00.000001 E mitogen: prune_tree() of "
    "route to disconnected context"
)


@pytest.mark.parametrize("kind", ["message", "say", "error"])
def test_reason_is_packer_s_where_ansible_has_not_failed(kind: str) -> None:
    """A line that looks like an error of Ansible's does not explain an error after a recap with failed=0."""
    said = reason(
        *PLAYED.splitlines()[:-1],
        MUX.format(kind=kind),
        "1795266062,,ui,say,==> amazon-ebs.image: Creating AMI gpu-ami from instance i-0",
        "1795266063,,ui,error,==> amazon-ebs.image: Error creating AMI: UnauthorizedOperation: ec2:CreateImage",
        "1795266064,,ui,error,Build 'amazon-ebs.image' errored after 9 minutes: Error creating AMI",
    )
    assert said == "Error creating AMI: UnauthorizedOperation: ec2:CreateImage"


def test_reason_is_the_failed_task() -> None:
    recap = "1795266061,,ui,say,==> amazon-ebs.image: default : ok=2 changed=1 unreachable=0 failed=1"
    said = reason(
        *PLAYED.splitlines()[:4],
        '1795266057,,ui,say,==> amazon-ebs.image: fatal: [default]: FAILED! => {"msg": "no such package"}',
        MUX.format(kind="message"),
        "1795266061,,ui,say,==> amazon-ebs.image: PLAY RECAP ****",
        recap,
        "1795266061,,ui,error,==> amazon-ebs.image: Provisioning step had errors: Running the cleanup provisioner",
    )
    assert said == 'nccl : Ensure it is installed: fatal: [default]: FAILED! => {"msg": "no such package"}'


def test_reason_says_that_there_is_none() -> None:
    assert reason("1795266055,,ui,say,==> amazon-ebs.image: Stopping") == "Packer exited without an error message"


def test_an_error_before_the_first_task_has_no_task() -> None:
    said = reason("1795266055,,ui,message,    amazon-ebs.image: ERROR! the role 'x' was not found")
    assert said == "ERROR! the role 'x' was not found"


def test_reason_of_a_handshake_is_the_one_that_ansible_says() -> None:
    """Packer's own error is "failed to handshake"; the reason stood in the details alone."""
    offer = "no matching host key type found. Their offer: ssh-rsa"
    said = reason(
        "1795266055,,ui,say,==> amazon-ebs.image: PLAY [Image] ****",
        "1795266055,,ui,say,==> amazon-ebs.image: TASK [Gathering Facts] ****",
        "1795266056,,ui,error,==> amazon-ebs.image: failed to handshake",
        f'1795266056,,ui,message,    amazon-ebs.image: fatal: [default]: UNREACHABLE! => {{"msg": "{offer}"}}',
        "1795266057,,ui,message,    amazon-ebs.image: PLAY RECAP ****",
        "1795266057,,ui,message,    amazon-ebs.image: default : ok=0 changed=0 unreachable=1 failed=0",
        "1795266058,,ui,error,==> amazon-ebs.image: Error executing Ansible: Non-zero exit status: exit status 4",
    )
    assert said.startswith("failed to handshake: Gathering Facts: fatal: [default]: UNREACHABLE!") and offer in said


def test_reason_of_several_lines_is_whole() -> None:
    said = reason(
        "1795266063,,ui,error,==> amazon-ebs.image: Error launching source instance: NewCode: no\\n"
        "==> amazon-ebs.image: \\tstatus code: 400%!(PACKER_COMMA) request id: 1"
    )
    assert said == r"Error launching source instance: NewCode: no \tstatus code: 400, request id: 1"
    several = reason("1795266063,,ui,error,==> amazon-ebs.image: 1 error(s) occurred:\\n\\n* Error waiting for AMI: x")
    assert several == "1 error(s) occurred: * Error waiting for AMI: x"


def test_reason_is_not_a_warning() -> None:
    """The plugins write some warnings as errors, and go on."""
    said = reason(
        "1795266055,,ui,error,==> amazon-ebs.image: Warning: use_proxy is false%!(PACKER_COMMA) but instance does"
        " not have an IP address to give to Ansible. Falling back to use localhost proxy.",
        '1795266055,,ui,error,==> amazon-ebs.image: Error tagging source instance\'s network interface "eni-1": no',
        "1795266063,,ui,error,==> amazon-ebs.image: Error creating AMI: UnauthorizedOperation: ec2:CreateImage",
    )
    assert said == "Error creating AMI: UnauthorizedOperation: ec2:CreateImage"
    assert reason("1795266063,,ui,error,==> amazon-ebs.image: Warning: alone").startswith("Packer exited without")


def test_reason_of_a_builder_that_ended_has_its_state_reason() -> None:
    """EC2 terminates an instance that it cannot run after RunInstances; Packer says why in a line of its own."""
    waited = "Error waiting for instance (i-1) to become ready: waiter state transitioned to Failure"
    details = "Instance state change details: Server.InsufficientInstanceCapacity: Insufficient capacity"
    said = reason(
        f"1795266063,,ui,error,==> amazon-ebs.image: {waited}",
        f"1795266063,,ui,error,==> amazon-ebs.image: {details}",
        f"1795266064,,ui,error,Build 'amazon-ebs.image' errored after 9 seconds: {waited}",
    )
    assert said == f"{waited}; {details}"
