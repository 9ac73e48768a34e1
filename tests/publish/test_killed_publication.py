"""A publisher that is killed by SIGKILL after each of its changes, and a run that goes on: nothing is doubled or lost.

The region's API kills the publisher when it has carried a change out and before it answers, so the publisher never
learns of it. Each run makes one change more than the run before; the states between reads are the same states.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.json_documents import valid
from tests.killed_driver.account import observed
from tests.publish.conftest import CONSUMER, HOME, LATEST, OTHER, Account

pytestmark = pytest.mark.slow

# Forks a publisher a line, so that the imports are paid for once; says its id, and how it ended.
DRIVER = """
import os, sys
import boto3, botocore.session
from gpu_ami import cli
from gpu_ami.cloud import Cloud, Place
from gpu_ami.cloud import image_parameters
from gpu_ami.publish import publication
from gpu_ami.release import keys, verification, verification_place
cli.make_parser()
publication.POLL_SECONDS = image_parameters.POLL_SECONDS = 0.05
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.read(0, 0)
        os.dup2(os.open("publisher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        os._exit(cli.main(line.split()))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Publishers:
    """Runs the command in processes of their own; `kill` ends the running one by SIGKILL at its next change."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid, self.kill = 0, False
        self.changes: list[str] = []

    def note(self, action: str) -> None:
        """A change has been made, and is not answered yet."""
        self.changes.append(action)
        if self.kill:
            os.kill(self.pid, signal.SIGKILL)

    def run(self, words: str, *, kill: bool) -> int:
        """The exit code; -9 of one that was killed."""
        assert self.process.stdin and self.process.stdout
        self.kill = kill
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        self.pid = int(self.process.stdout.readline())
        code = int(self.process.stdout.readline())
        self.pid = 0
        return code


@pytest.fixture
def publishers(account: Account) -> Iterator[Publishers]:
    made = Publishers()
    with observed(made):
        yield made
    made.process.kill()
    made.process.wait()


def record_is_whole(out: Path) -> None:
    """A record that is there can be read, and says that the run did not end."""
    if (out / "publication.json").exists():
        record = json.loads((out / "publication.json").read_text())
        valid(record, "publish")
        assert record["state"] == "incomplete"


def test_a_publication_that_is_killed_after_each_change_is_completed(account: Account, publishers: Publishers) -> None:
    account.policy(keep=1, retire_after=5)
    command = "publish out/demo-{} --key release.key.pub --where aws.yml -q"
    account.build(1)
    assert publishers.run(command.format(1), kill=False) == 0, Path("publisher.log").read_text()
    for region in (HOME, OTHER):
        account.deprecate(account.images(region)[0]["ImageId"], region, days_ago=10)
    out = account.build(2)
    publishers.changes.clear()
    codes = [-signal.SIGKILL]
    while codes[-1] == -signal.SIGKILL and len(codes) < 60:
        codes.append(publishers.run(command.format(2), kill=True))
        if codes[-1] == -signal.SIGKILL:
            record_is_whole(out)
    assert codes[-1] == 0, Path("publisher.log").read_text()
    # A run to which nothing was left to do ends the loop: every change was made by a run that was killed for it.
    assert len(publishers.changes) == len(codes) - 2
    once = [name for name in publishers.changes if name in ("CopyImage", "DeregisterImage", "DeleteParameter")]
    assert sorted(once) == ["CopyImage", *["DeleteParameter"] * 2, *["DeregisterImage"] * 2]
    for region in (HOME, OTHER):
        (image,) = account.images(region)
        assert image["Name"] == "gpu-ami-20261122000002" and image["DeregistrationProtection"].startswith("enabled")
        assert account.parameters(region) == {
            LATEST: image["ImageId"], "/images/demo/gpu-ami-20261122000002": image["ImageId"],
        }  # fmt: skip
        assert account.shared(region, image["ImageId"]) == [{"UserId": CONSUMER}]
        tags = {tag["Key"]: tag["Value"] for tag in account.snapshot(region, image)["Tags"]}
        assert (tags["of"], tags["gpu-ami:expires"]) == ("snapshot", "never")
    copies = account.client("ec2", OTHER).describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert len(copies) == 1
    assert account.record(out)["state"] == "published"
    before = len(publishers.changes)
    assert publishers.run(command.format(2), kill=True) == 0 and len(publishers.changes) == before


def test_a_rollback_that_is_killed_is_completed(account: Account, publishers: Publishers) -> None:
    command = "publish out/demo-{} --key release.key.pub --where aws.yml -q"
    for number in (1, 2):
        account.build(number)
        assert publishers.run(command.format(number), kill=False) == 0
    publishers.changes.clear()
    to = f"{command.format(2)} --to gpu-ami-20261122000001"
    assert [publishers.run(to, kill=True) for _ in range(3)] == [-9, -9, 0]
    assert publishers.changes == ["PutParameter", "PutParameter"]
    for region in (HOME, OTHER):
        assert account.parameters(region)[LATEST] == account.images(region)[0]["ImageId"]
        assert len(account.images(region)) == 2
