"""The daemon as a process: up, joined, released, killed. Nothing is left afterwards."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.files import read_json, write_json
from gpu_ami.process import ProcessIdentity
from gpu_ami.progress import Progress
from localregion import housekeeping, region
from localregion.images import base_image, source_ami
from localregion.state import Layout, save_image
from tests.localregion.test_daemon import RECORD
from tests.waiting import until

pytestmark = pytest.mark.slow

QUIET = Progress("quiet")
FINGERPRINT = "0123456789ABCDEF0123456789ABCDEF01234567"


def make_home(home: Path) -> Path:
    """A home with a package mirror that is there already (an empty one)."""
    tree = home / "mirror" / "tree-1"
    tree.mkdir(parents=True)
    write_json(tree / "mirror.json", {"key_fingerprint": FINGERPRINT, "origin": {}})
    (home / "mirror" / "current").symlink_to("tree-1")
    return home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = make_home(tmp_path / "home")
    yield home
    region.down(home)


def daemon_of(home: Path) -> ProcessIdentity:
    identity = ProcessIdentity.from_json((read_json(home / "region" / "region.json") or {}).get("process"))
    assert identity is not None
    return identity


def client(service: Any, place: Any) -> Any:
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    return boto3.client(service, endpoint_url=place.api.endpoint, region_name=place.region, **keys)


def found(place: Any, owner: str, name: str) -> list[str]:
    """What Packer's source_ami_filter asks for."""
    filters = {"name": name, "architecture": "x86_64", "root-device-type": "ebs", "virtualization-type": "hvm"}
    asked = [{"Name": key, "Values": [value]} for key, value in filters.items()]
    images = client("ec2", place).describe_images(Owners=[owner], Filters=asked)["Images"]
    return [str(image["ImageId"]) for image in images]


def test_an_embedded_region_lives_as_long_as_it_is_held(home: Path) -> None:
    place = region.up(home, embedded=True, progress=QUIET)
    identity = daemon_of(home)
    assert (place.machines.simulated, place.login.ssh_port, place.login.ssh_interface) == (True, 2222, "private_ip")
    assert place.mirror is not None and place.mirror.key_fingerprint == FINGERPRINT
    assert region.up(home, embedded=True, progress=QUIET) == place
    assert region.status(home)["up"] is True
    region.release(home)
    assert not identity.alive()
    assert not region.is_up(home)
    assert sorted(path.name for path in (home / "region").iterdir()) == ["instances", "lock", "server.log"]
    region.release(home)  # nothing more to give up


@pytest.mark.parametrize(("build", "copied"), [("from base", True), ("from layer", False), ("", False)])
def test_a_region_that_comes_up_for_a_build_copies_what_the_last_one_started_from(
    home: Path, monkeypatch: pytest.MonkeyPatch, build: str, copied: bool
) -> None:
    disk = home / "base.raw"
    disk.write_bytes(b"base")
    monkeypatch.setattr(base_image, "ensure", lambda *_: base_image.BaseImage(disk, "", "admin", ""))
    monkeypatch.setattr(source_ami, "ensure_disk", lambda *_: disk)
    region.up(home, embedded=True, progress=QUIET, build="from base")  # the first: there is no last one
    image = region.publish_source_ami(source_ami.DEBIAN, home, progress=QUIET)
    region.expect_launch(image, home)
    region.release(home)
    region.up(home, embedded=True, progress=QUIET, build=build)
    spare = home / "region" / "instances" / "spare"

    def copies() -> list[bytes]:
        return [copy.read_bytes() for copy in spare.glob(f"{image}.*.raw")]

    deadline = time.monotonic() + 10
    while copied and copies() != [b"base"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert bool(copies()) is copied
    region.release(home)
    assert not copies()
    disk.unlink()
    region.up(home, embedded=True, progress=QUIET, build="from base")  # it is gone: nothing is copied
    region.release(home)


def test_a_region_comes_up_under_conditions(home: Path) -> None:
    place = region.up(home, embedded=True, progress=QUIET, conditions="no-launch-permission:4")
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        client("ec2", place).run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)
    assert region.status(home)["conditions"] == place.conditions == "no-launch-permission:4"
    assert region.up(home, embedded=True, progress=QUIET).api == place.api  # joins, whatever they are
    with pytest.raises(CloudError, match="up under conditions no-launch-permission:4, expected throttling") as caught:
        region.up(home, embedded=True, progress=QUIET, conditions="throttling")
    assert "gpu-ami region down" in caught.value.hint


def test_unknown_conditions_start_nothing(home: Path) -> None:
    with pytest.raises(UsageError, match="no conditions 'kind'"):
        region.up(home, embedded=True, progress=QUIET, conditions="kind")
    assert not region.is_up(home) and not (home / "region" / "server.log").exists()


EKS = {
    "os": {"id": "amzn", "version": "2023"},
    "architecture": "x86_64",
    "node": {"family": "eks", "version": "1.33"},
    "kernel": {"version": "6.12", "package": "kernel6.12", "headers": "kernel6.12-devel-{release}", "hold": []},
    "source_ami": {
        "owner": "amazon",
        "name": "amazon-eks-node-al2023-x86_64-standard-1.33-*",
        "ssm": "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/image_id",
    },
}


def test_a_plan_finds_its_source_ami(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By owner or alias and name filter, as Packer asks, and by SSM parameter; also in a region that runs already."""
    disk = home / "base.raw"
    disk.write_bytes(b"base")
    monkeypatch.setattr(base_image, "ensure", lambda *_: base_image.BaseImage(disk, "", "admin", ""))
    monkeypatch.setattr(source_ami, "ensure_disk", lambda *_: disk)
    place = region.up(home, embedded=True, progress=QUIET)
    assert client("ec2", place).describe_images()["Images"] == []
    eks = region.publish_source_ami(EKS, home, progress=QUIET)
    debian = region.publish_source_ami(source_ami.DEBIAN, home, progress=QUIET)
    assert found(place, "amazon", EKS["source_ami"]["name"]) == [eks]  # type: ignore[index]
    assert found(place, "136693071363", "debian-12-amd64-*") == [debian]
    assert found(place, "amazon", "debian-12-amd64-*") == []
    named = client("ssm", place).get_parameter(Name=EKS["source_ami"]["ssm"])  # type: ignore[index]
    assert named["Parameter"]["Value"] == eks
    image = client("ec2", place).describe_images(ImageIds=[eks])["Images"][0]
    assert (image["RootDeviceName"], image["ImageOwnerAlias"]) == ("/dev/xvda", "amazon")
    assert region.publish_source_ami(EKS, home, progress=QUIET) == eks


def test_a_source_ami_needs_a_region(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = home / "base.raw"
    disk.write_bytes(b"base")
    monkeypatch.setattr(source_ami, "ensure_disk", lambda *_: disk)
    with pytest.raises(CloudError, match="is not up"):
        region.publish_source_ami(EKS, home, progress=QUIET)


def test_a_region_that_was_up_outlives_its_guests(home: Path) -> None:
    place = region.up(home, embedded=False, progress=QUIET)
    identity = daemon_of(home)
    assert region.up(home, embedded=True, progress=QUIET) == place
    region.release(home)
    assert identity.alive()
    assert region.down(home) is True
    assert not identity.alive()
    assert region.down(home) is False


def test_a_region_dies_with_its_holder(home: Path) -> None:
    """kill -9 of the only process that holds it."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom localregion import region\n"
        "from gpu_ami.progress import Progress\n"
        "region.up(Path(sys.argv[1]), embedded=True, progress=Progress('quiet'))\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(region.__file__).parents[1])}
    holder = subprocess.Popen([sys.executable, "-c", script, str(home)], stdout=subprocess.PIPE, env=environment)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    identity = daemon_of(home)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    until(lambda: not identity.alive())
    assert not (home / "region" / "region.json").exists()


def test_a_killed_daemon_leaves_nothing_that_cannot_be_cleared(home: Path) -> None:
    region.up(home, embedded=False, progress=QUIET)
    identity = daemon_of(home)
    assert region.clean_leftovers(home) == []  # it is up: nothing of it is a leftover
    os.kill(identity.pid, signal.SIGKILL)
    until(lambda: not identity.alive())
    assert region.is_up(home) is False
    assert len(region.clean_leftovers(home)) == 2  # region.json, control.sock
    assert region.clean_leftovers(home) == []
    region.up(home, embedded=False, progress=QUIET)
    assert region.is_up(home)


def test_leftovers_wait_for_a_killed_daemon_that_still_holds_its_lock(home: Path) -> None:
    """Its threads end one by one: the process is a zombie, and its files are still open."""
    folder = home / "region"
    folder.mkdir()
    write_json(folder / "region.json", {})
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)
    release = threading.Timer(0.4, lock.close)
    release.start()
    assert len(region.clean_leftovers(home)) == 1
    assert lock.closed
    release.join()


def test_two_homes_do_not_clash(home: Path, tmp_path: Path) -> None:
    other = make_home(tmp_path / "other")
    try:
        region.up(home, embedded=False, progress=QUIET)
        region.up(other, embedded=False, progress=QUIET)
        one, two = region.status(home), region.status(other)
        assert one["network"] != two["network"]
        assert one["endpoint"] != two["endpoint"]
    finally:
        region.down(other)


def test_a_daemon_that_cannot_start_says_why(home: Path) -> None:
    (home / "mirror/tree-1/mirror.json").write_text("{")
    with pytest.raises(CloudError, match="the local region did not start: JSONDecodeError") as caught:
        region.up(home, embedded=True, progress=QUIET)
    assert "server.log" in caught.value.hint
    assert region.is_up(home) is False


def test_status_and_console_while_it_is_down(home: Path) -> None:
    found = region.status(home)
    assert (found["up"], found["instances"], found["images"], found["acceleration"]) == (False, [], [], None)
    with pytest.raises(UsageError, match="has no instance i-1"):
        region.console(home, "i-1")
    folder = home / "region" / "instances" / "i-1"
    folder.mkdir(parents=True)
    (folder / "console.log").write_bytes(b"booting\xff\n")
    assert region.console(home, "i-1").startswith("booting")
    json.dumps(found)


def test_prune_deregisters_images_of_a_region_that_is_up(home: Path, tmp_path: Path) -> None:
    layout = Layout(home.resolve())
    layout.make()
    for ami in ("ami-0000000000000000a", "ami-0000000000000000b"):
        record = dataclasses.replace(RECORD, id=ami, name=ami, snapshot_id=ami.replace("ami", "snap"))
        layout.image(ami).mkdir()
        (layout.image(ami) / "disk.raw").write_bytes(b"x")
        save_image(layout, record)
        housekeeping.note(layout.images, ami, tmp_path)
    write_json(tmp_path / "report.json", {"image": "ami-0000000000000000b"})
    place = region.up(home, embedded=True, progress=QUIET)
    try:
        removed = housekeeping.prune(layout.home, housekeeping.Policy(keep=0), QUIET)
        assert [(item.id, item.error) for item in removed] == [("ami-0000000000000000a", "")]
        filters = [{"Name": "image-id", "Values": ["ami-0000000000000000a", "ami-0000000000000000b"]}]
        images = client("ec2", place).describe_images(Filters=filters)["Images"]
        assert [image["ImageId"] for image in images] == ["ami-0000000000000000b"]
        until(lambda: not layout.image("ami-0000000000000000a").exists())
    finally:
        region.release(home)
