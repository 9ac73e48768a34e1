"""One real machine of the local region, from RunInstances to nothing (about two minutes without KVM).

`make prove` goes through the rest: build, images, proof on two instance types.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_ami.cloud.place import Place
from gpu_ami.files import home_dir, read_json
from gpu_ami.process import ProcessIdentity
from gpu_ami.progress import Progress
from localregion import region
from localregion.commands.region_verbs import ssh_command
from localregion.images import source_ami

pytestmark = pytest.mark.machine

# Asks the metadata service without and with a token, and the API; nothing else can be reached.
_LOOK_AROUND = """\
python3 - <<'END'
import socket, urllib.error, urllib.request
base = "http://169.254.169.254/latest/"
try:
    urllib.request.urlopen(base + "meta-data/instance-id")
    print("no token: answered")
except urllib.error.HTTPError as error:
    print("no token:", error.code)
ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
token = urllib.request.urlopen(urllib.request.Request(base + "api/token", method="PUT", headers=ttl)).read().decode()
asked = urllib.request.Request(base + "meta-data/instance-id", headers={"X-aws-ec2-metadata-token": token})
print("token:", urllib.request.urlopen(asked).read().decode())
try:
    urllib.request.urlopen("http://169.254.169.251/?Action=GetCallerIdentity&Version=2011-06-15")
except urllib.error.HTTPError as error:
    print("api:", error.code)
else:
    print("api: 200")
try:
    socket.create_connection(("169.254.0.2", 22), timeout=3)
    print("host: reached")
except OSError:
    print("host: not reached")
END
"""
_BOARDS = (
    "for device in /sys/bus/pci/devices/*; do "
    '[ "$(cat $device/vendor):$(cat $device/device)" = 0x1af4:0x1110 ] && basename $device; done; true'
)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = region.up(embedded=True, progress=Progress("plain"))
    region.publish_source_ami(source_ami.DEBIAN, progress=Progress("plain"))
    yield place
    region.release()


@pytest.fixture(scope="module")
def ec2(place: Place) -> Any:
    assert place.api.credentials
    return boto3.client(
        "ec2",
        endpoint_url=place.api.endpoint,
        region_name=place.region,
        aws_access_key_id=place.api.credentials.access_key_id,
        aws_secret_access_key=place.api.credentials.secret_access_key,
    )


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


class Guest:
    """A launched instance and how to talk to it."""

    def __init__(self, ec2: Any, place: Place, key: Path) -> None:
        self.ec2, self.place, self.key = ec2, place, key
        name = f"test-{os.getpid()}"
        ec2.import_key_pair(KeyName=name, PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
        image = ec2.describe_images(Filters=[{"Name": "name", "Values": ["debian-12-amd64-*"]}])["Images"][-1]
        tags = [{"Key": "gpu-ami:fault", "Value": "missing-gpu-3"}]
        launched = ec2.run_instances(
            ImageId=image["ImageId"],
            InstanceType="p4d.24xlarge",
            MinCount=1,
            MaxCount=1,
            KeyName=name,
            UserData="#!/bin/sh\necho from-user-data > /run/mark\n",
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )["Instances"][0]
        self.id, self.address = launched["InstanceId"], launched["PrivateIpAddress"]

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ec2.describe_instances(InstanceIds=[self.id])["Reservations"][0]["Instances"][0]
        return found

    def state(self) -> str:
        return str(self.describe()["State"]["Name"])

    def run(self, command: str) -> str | None:
        """Output of a command; None if the guest does not accept a login yet."""
        words = ssh_command(self.address, self.place.login.ssh_port, "admin", self.key, [command])
        done = subprocess.run(
            [words[0], "-o", "ConnectTimeout=10", *words[1:]],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return None if done.returncode == 255 else done.stdout

    def await_shell(self) -> None:
        until(lambda: self.run("true") is not None, 600, region.console(None, self.id)[-2000:])


@pytest.fixture(scope="module")
def guest(ec2: Any, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    key = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    guest = Guest(ec2, place, key)
    guest.await_shell()
    yield guest
    ec2.terminate_instances(InstanceIds=[guest.id])
    until(lambda: guest.state() == "terminated", 30, "it does not end")


def test_the_guest_sees_its_boards_but_the_faulty_one(guest: Guest) -> None:
    assert (guest.run(_BOARDS) or "").split() == [
        "0000:10:1c.0", "0000:10:1d.0", "0000:20:1c.0",
        "0000:90:1c.0", "0000:90:1d.0", "0000:a0:1c.0", "0000:a0:1d.0",
    ]  # fmt: skip


def test_the_guest_reaches_metadata_and_api_and_nothing_else(guest: Guest) -> None:
    said = (guest.run(_LOOK_AROUND) or "").splitlines()
    assert said[:2] == ["no token: 401", f"token: {guest.id}"]
    assert said[2] in ("api: 200", "api: 400", "api: 403")
    assert said[3] == "host: not reached"


def test_cloud_init_took_key_and_user_data_from_ec2(guest: Guest) -> None:
    until(lambda: "running" not in (guest.run("cloud-init status") or "running"), 300, "cloud-init does not end")
    assert (guest.run("cat /run/mark; cloud-id") or "").split() == ["from-user-data", "aws"]


def test_the_console_is_the_kernel_s(guest: Guest) -> None:
    assert "Linux version" in region.console(None, guest.id)


def test_a_reboot_is_a_new_boot(guest: Guest, ec2: Any) -> None:
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = guest.run(boot_id)
    ec2.reboot_instances(InstanceIds=[guest.id])
    until(lambda: guest.run(boot_id) not in (None, before), 600, "no second boot")


def test_a_machine_that_is_killed_is_stopped_and_says_why(guest: Guest) -> None:
    recorded = read_json(home_dir() / "region" / "instances" / guest.id / "process.json")
    machine = ProcessIdentity.from_json(recorded)
    assert machine is not None and machine.alive()
    os.kill(machine.pid, signal.SIGKILL)
    until(lambda: guest.state() == "stopped", 30, "it is not noticed")
    expected = "Server.InternalError: QEMU was killed (signal 9), as the kernel does when memory is full: "
    assert guest.describe()["StateReason"]["Message"].startswith(expected)
