"""The daemon as a process: up, joined, released, killed. Nothing is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.local import base_image, region
from gpu_ami.local.state import ProcessIdentity, read_json, write_json
from gpu_ami.log import Progress

QUIET = Progress("quiet")
FINGERPRINT = "0123456789ABCDEF0123456789ABCDEF01234567"


def make_home(home: Path) -> Path:
    """A home with a base image and a package mirror that are there already (empty ones)."""
    tree = home / "mirror" / "tree-1"
    tree.mkdir(parents=True)
    write_json(tree / "mirror.json", {"key_fingerprint": FINGERPRINT, "origin": {}})
    (home / "mirror" / "current").symlink_to("tree-1")
    (home / "base.raw").write_bytes(b"base")
    return home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = make_home(tmp_path / "home")
    monkeypatch.setattr(
        base_image,
        "ensure",
        lambda home, _progress: base_image.BaseImage(home / "base.raw", "debian-12-amd64-test", "admin", "0"),
    )
    yield home
    region.down(home)


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)


def daemon_of(home: Path) -> ProcessIdentity:
    identity = ProcessIdentity.from_json((read_json(home / "region" / "region.json") or {}).get("process"))
    assert identity is not None
    return identity


def images(place: Any) -> list[str]:
    ec2 = boto3.client(
        "ec2", endpoint_url=place.endpoint, region_name=place.region,
        aws_access_key_id="local", aws_secret_access_key="local",
    )  # fmt: skip
    return [image["Name"] for image in ec2.describe_images()["Images"]]


def test_an_embedded_region_lives_as_long_as_it_is_held(home: Path) -> None:
    place = region.up(home, embedded=True, progress=QUIET)
    identity = daemon_of(home)
    assert images(place) == ["debian-12-amd64-test"]
    assert (place.simulated, place.ssh_port, place.ssh_interface) == (True, 2222, "private_ip")
    assert place.mirror is not None and place.mirror.key_fingerprint == FINGERPRINT
    assert region.up(home, embedded=True, progress=QUIET) == place
    assert region.status(home)["up"] is True
    region.release(home)
    assert not identity.alive()
    assert not region.is_up(home)
    assert sorted(path.name for path in (home / "region").iterdir()) == ["instances", "lock", "server.log"]
    region.release(home)  # nothing more to give up


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
        "import sys, time\nfrom pathlib import Path\nfrom gpu_ami.local import base_image, region\n"
        "from gpu_ami.log import Progress\n"
        "image = lambda home, _: base_image.BaseImage(home / 'base.raw', 'debian-12-amd64-test', 'admin', '0')\n"
        "base_image.ensure = image\n"
        "region.up(Path(sys.argv[1]), embedded=True, progress=Progress('quiet'))\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(region.__file__).parents[2])}
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
    (home / "base.raw").unlink()
    with pytest.raises(CloudError, match=r"the local region did not start: FileNotFoundError.*base\.raw") as caught:
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
