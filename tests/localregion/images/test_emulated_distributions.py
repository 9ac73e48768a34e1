"""Emulated distributions as machines: each is booted once, and is what Ansible and testinfra are to take it for.

Minutes a machine without KVM; what holds without booting is in test_rootfs_layers.py and test_sandbox.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_ami.cloud.place import Place
from gpu_ami.progress import Progress
from localregion import region
from localregion.commands.region_verbs import ssh_command
from localregion.machines.boards import devices_of

pytestmark = pytest.mark.machine

_FACTS = ("distribution", "distribution_version", "os_family", "pkg_mgr", "service_mgr")


@dataclass(frozen=True)
class Case:
    """A plan's part that says which base image; what the machine must show."""

    plan: dict[str, Any]
    instance_type: str
    facts: tuple[str, ...]
    oem_strings: str


def plan(system: str, version: str, family: str = "ec2", release: str = "") -> dict[str, Any]:
    node = {"family": family} | ({"version": release} if release else {})
    source = {"owner": "amazon", "name": f"{system}-{version}-{family}-{release}-*"}
    return {"os": {"id": system, "version": version}, "architecture": "x86_64", "node": node, "source_ami": source}


CASES = {
    "eks": Case(
        plan("amzn", "2023", "eks", "1.33"), "p4d.24xlarge",
        ("Amazon", "2023", "RedHat", "dnf", "systemd"), "gpu-ami:nvswitch=6 gpu-ami:efa=4",
    ),
    "parallelcluster": Case(
        plan("ubuntu", "24.04", "parallelcluster", "3.16.3"), "p5.48xlarge",
        ("Ubuntu", "24.04", "Debian", "apt", "systemd"), "gpu-ami:nvswitch=4 gpu-ami:efa=32",
    ),
    "neuron": Case(
        plan("amzn", "2023"), "trn1.32xlarge",
        ("Amazon", "2023", "RedHat", "dnf", "systemd"), "gpu-ami:efa=8 gpu-ami:neuron=16",
    ),
}  # fmt: skip
_USERS = {"Amazon": "ec2-user", "Ubuntu": "ubuntu"}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield region.up(embedded=True, progress=Progress("plain"))
    region.release()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@dataclass(frozen=True)
class Guest:
    case: Case
    address: str
    user: str
    place: Place
    key: Path

    def run(self, command: str) -> str | None:
        """Output of a command; None if the guest does not accept a login yet."""
        words = ssh_command(self.address, self.place.login.ssh_port, self.user, self.key, [command])
        words = [words[0], "-o", "ConnectTimeout=10", *words[1:]]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode == 255 else done.stdout


@pytest.fixture(scope="module", params=list(CASES))
def guest(request: pytest.FixtureRequest, place: Place, key: Path) -> Iterator[Guest]:
    case = CASES[request.param]
    ami = region.publish_source_ami(case.plan, progress=Progress("plain"))
    assert place.api.credentials
    ec2 = boto3.client(
        "ec2",
        endpoint_url=place.api.endpoint,
        region_name=place.region,
        aws_access_key_id=place.api.credentials.access_key_id,
        aws_secret_access_key=place.api.credentials.secret_access_key,
    )
    name = f"test-{os.getpid()}-{request.param}"
    ec2.import_key_pair(KeyName=name, PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
    launched = ec2.run_instances(ImageId=ami, InstanceType=case.instance_type, MinCount=1, MaxCount=1, KeyName=name)
    instance = launched["Instances"][0]
    guest = Guest(case, instance["PrivateIpAddress"], _USERS[case.facts[0]], place, key)
    started = time.monotonic()
    while guest.run("true") is None:
        console = region.console(None, instance["InstanceId"])[-2000:]
        assert time.monotonic() - started < 900, console
    print(f"{request.param}: ssh after {time.monotonic() - started:.0f} s")
    yield guest
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


def test_ansible_takes_it_for_the_system(guest: Guest) -> None:
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    command = [
        Path(sys.executable).with_name("ansible"), "all", "-i", f"{guest.address},",
        "-e", f"ansible_port={guest.place.login.ssh_port}", "-u", guest.user,
        "--private-key", str(guest.key), f"--ssh-common-args={options}", "--become", "--one-line",
        "-m", "setup", "-a", "gather_subset=!all,!min,distribution,platform,pkg_mgr,service_mgr",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.partition("=>")[2])["ansible_facts"]
    assert tuple(facts[f"ansible_{name}"] for name in _FACTS) == guest.case.facts


def test_cloud_init_is_done(guest: Guest) -> None:
    deadline = time.monotonic() + 600
    while "running" in (guest.run("cloud-init status") or "running"):
        assert time.monotonic() < deadline
    assert (guest.run("cloud-init status; cloud-id") or "").split() == ["status:", "done", "aws"]


def test_smbios_says_which_devices_there_are(guest: Guest) -> None:
    said = guest.run("sudo grep -aoh 'gpu-ami:[a-z]*=[0-9]*' /sys/firmware/dmi/tables/DMI") or ""
    assert " ".join(said.split()) == guest.case.oem_strings


def test_drivers_that_a_base_brings_show_the_devices(guest: Guest) -> None:
    """Where the base AMI has the driver: one node a GPU, an NVSwitch and an EFA interface, and none more."""
    promised = devices_of(guest.case.instance_type)
    wanted = [promised.gpu, promised.nvswitch, promised.nvswitch, promised.efa]
    if guest.case.plan["node"]["family"] != "parallelcluster":
        wanted = [0, 0, 0, 0]
    said = guest.run(
        "ls /dev | grep -c '^nvidia[0-9]'; ls /dev | grep -c '^nvidia-nvswitch[0-9]'; "
        "ls /proc/driver/nvidia-nvswitch/devices | wc -l; ls /dev/infiniband | grep -c uverbs"
    )
    assert [int(word) for word in (said or "").split()] == wanted


def test_no_unit_has_failed(guest: Guest) -> None:
    assert (guest.run("systemctl list-units --failed --plain --no-legend") or "").strip() == ""
