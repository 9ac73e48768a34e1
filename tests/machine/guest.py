"""A booted machine of the local region: launched, asked, made to print Xids, and waited for."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.cloud import Cloud, Launch, Place, login, runs
from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from validator.transport import ssh

GPU_TYPE, BUILT, DEBIAN = "g5.12xlarge", "gpu-ami_debian12-gpu_", "debian-12-amd64-"
RAW, JSON_LOG = "/var/log/gpuevent.log", "/var/log/gpuevent.jsonl"
UNIT = "aws-hw-monitor.service"
HOME = "/opt/aws/cloudwatch/nvidia"
STATUS = f"python3 -sSE {HOME}/aws-hwaccel-event-parser.py status"
# The driver prints Xids: argv = count, tag, code, seconds between two of them.
FLOOD = """
import glob, sys, time
count, tag, code, pause = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
with open(sorted(glob.glob("/proc/driver/nvidia/gpus/*/xid"))[0], "wb", 0) as driver:
    for number in range(count):
        driver.write(("%s, %s n=%d" % (code, tag, number)).encode())
        if pause:
            time.sleep(pause)
"""
# The sequence number of the newest record in the kernel's ring.
NEWEST = """
import errno, os
fd, newest = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), -1
while True:
    try:
        newest = int(os.read(fd, 16384).split(b",")[1])
    except BlockingIOError:
        break
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
print(newest)
"""


def patiently(call: Callable[[], Any], seconds: float = 600) -> Any:
    """Again while a busy emulator does not even open a channel: nothing was run then."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except ssh.TransportFault as fault:
            if "opening channel" not in str(fault) or time.monotonic() > deadline:
                raise


@dataclass
class Guest:
    """The machine under test; survives its reboots."""

    target: ssh.Target
    connection: ssh.Connection | None = None
    tags: int = field(default=0)

    def connected(self) -> ssh.Connection:
        deadline = time.monotonic() + 240
        while self.connection is None or not self.connection.alive:
            try:
                self.connection = ssh.connect(self.target)
            except ssh.TransportFault:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
        return self.connection

    def sudo(self, command: str, timeout: float = 120, check: bool = True) -> str:
        words = f"sudo -n sh -c {shlex.quote(command)}"
        done = patiently(lambda: self.connected().run(words, timeout=timeout))
        assert done.rc == 0 or not check, (
            f"{command}: {done.rc}\n{(done.stdout + done.stderr).decode(errors='replace')}"
        )
        return done.stdout.decode(errors="replace")

    def tag(self, name: str) -> str:
        """A word that no other record of this run has."""
        self.tags += 1
        return f"{name}{self.tags}-{int(time.time())}"

    def put(self, content: bytes, path: str) -> None:
        self.connected().put(content, "/tmp/put")
        self.sudo(f"install -o root -g root -m 0644 /tmp/put {path}")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sudo(STATUS, check=False))
        return found

    def xid(self, text: str) -> None:
        """The kernel prints one Xid."""
        self.sudo(f"echo {shlex.quote(text)} > $(ls /proc/driver/nvidia/gpus/*/xid | head -1)")

    def flood(self, count: int, tag: str, *, pause: float = 0, meanwhile: str = "true") -> None:
        """`count` Xids 45, `pause` seconds apart, while another command runs."""
        flood = f"python3 -c {shlex.quote(FLOOD)} {count} {tag} 45 {pause}"
        self.sudo(f"({meanwhile}) & {flood}; wait", timeout=600)

    def documents(self, word: str) -> list[dict[str, Any]]:
        """Lines of the JSON log and its rotated part that hold `word`."""
        found = self.sudo(f"cat {JSON_LOG}.1 {JSON_LOG} 2>/dev/null | grep -aF -- {shlex.quote(word)} || true")
        return [json.loads(line) for line in found.splitlines()]

    def raw(self, word: str) -> list[str]:
        return self.sudo(f"cat {RAW}.1 {RAW} 2>/dev/null | grep -aF -- {word} || true").splitlines()

    def until(self, what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{self.sudo(STATUS, check=False)}"
            time.sleep(0.5)

    def clock_ahead(self) -> float:
        """By how many seconds the machine's clock is ahead of ours: by the quickest of five answers."""
        answers = []
        for _ in range(5):
            asked = time.time()
            told = float(self.connected().run("date +%s.%N", timeout=60).stdout)
            answers.append((time.time() - asked, told - (asked + time.time()) / 2))
        took, ahead = min(answers)
        print(f"\nclock of the machine: {ahead:+.2f} s (± {took / 2:.2f} s)")
        return ahead

    def correct_clock(self) -> None:
        """What a time service does, and the region has none: an emulated clock drifts while the host is busy."""
        self.sudo(f"python3 -c 'import time; time.clock_settime(0, time.time() - {self.clock_ahead()})'")

    def boot_id(self) -> str:
        """Empty while the machine is on its way down."""
        try:
            return self.sudo("cat /proc/sys/kernel/random/boot_id").strip()
        except ssh.TransportFault:
            return ""

    def is_active(self) -> bool:
        return self.sudo(f"systemctl is-active {UNIT}", check=False).strip() == "active"

    def quiet(self, seconds: float = 60) -> None:
        """Till the service has read and written all that the kernel has printed."""
        self.until("the service is up", self.is_active)
        newest = int(self.sudo(f"python3 -c {shlex.quote(NEWEST)}"))
        self.until(f"record {newest} is read", lambda: self.status().get("last_seq", -1) >= newest, seconds)
        self.until("all is written", lambda: self.status().get("backlog_bytes", 1) == 0, seconds)


@dataclass(frozen=True)
class Machine:
    """A machine that runs and lets us in. key_file: of its login."""

    guest: Guest
    instance_id: str
    key_file: Path


@contextmanager
def debian_region(progress: Progress) -> Iterator[Place]:
    """The local region with the plain Debian base image."""
    from localregion import region
    from localregion.images import source_ami

    place = region.up(embedded=True, progress=progress)
    try:
        region.publish_source_ami(source_ami.DEBIAN, progress=progress)
        yield place
    finally:
        region.release()


def newest_image(cloud: Cloud, prefix: str) -> str:
    """Id of the newest image whose name begins so."""
    images = sorted(cloud.ec2.describe_images()["Images"], key=lambda image: image["CreationDate"])
    found = [image["ImageId"] for image in images if image["Name"].startswith(prefix)]
    assert found, f"no image {prefix}* in {home_dir()}; of a recipe: gpu-ami plan RECIPE -o OUT; gpu-ami build OUT"
    return found[-1]


@contextmanager
def launched(
    cloud: Cloud, image: str, instance_type: str, progress: Progress, user_data: str = "", user: str = "admin"
) -> Iterator[Machine]:
    """A machine of the image, terminated when the block ends. user: of the login."""
    with launched_together(cloud, image, instance_type, progress, user_data, count=1, user=user) as [machine]:
        yield machine


@contextmanager
def launched_together(
    cloud: Cloud,
    image: str,
    instance_type: str,
    progress: Progress,
    user_data: str = "",
    *,
    count: int,
    user: str = "admin",
) -> Iterator[list[Machine]]:
    """Machines of the image with one key, which boot at the same time; terminated when the block ends."""
    from gpu_ami.validate.machines import machine

    with ExitStack() as stack:
        run = stack.enter_context(runs.begin(home_dir(), "local"))
        tags = {"gpu-ami:run": run.id, "gpu-ami:expires": run.expires}
        key = stack.enter_context(login.temporary_key(cloud, run, tags))
        instances: list[str] = []
        stack.callback(lambda: cloud.terminate(instances))
        for _ in range(count):
            instances.append(cloud.launch(Launch(image, instance_type, key, tags, user_data)))
        boot = machine.Boot(cloud, run, user, progress, threading.Event())
        made = []
        for instance_id in instances:
            found = patiently(lambda each=instance_id: boot.follow(each, instance_type))
            target = ssh.parse_url(found.url, key_file=found.key_file, known_hosts=found.known_hosts)
            made.append(Machine(Guest(target), instance_id, run.key_file))
        yield made
