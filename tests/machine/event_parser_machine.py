"""A booted machine of the local region with the event parser: how it is made, asked, flooded and waited for."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpu_ami.cloud import runs
from gpu_ami.events.reader import parser_folder
from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from validator.transport import ssh

TYPE = "g5.12xlarge"
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


@contextmanager
def booted() -> Iterator[Guest]:
    """A machine of the newest image that was built here, else of the base image with driver and parser put on it."""
    from gpu_ami.cloud.client import Cloud
    from gpu_ami.local import region
    from gpu_ami.local.images import source_ami
    from gpu_ami.validate.machines import launch, machine

    progress = Progress("plain")
    place = region.up(embedded=True, progress=progress)
    region.publish_source_ami(source_ami.DEBIAN, progress=progress)
    try:
        with ExitStack() as stack:
            cloud = Cloud(place)
            run = stack.enter_context(runs.begin(home_dir(), "local"))
            tags = {"gpu-ami:run": run.id, "gpu-ami:expires": run.expires}
            images = sorted(cloud.ec2.describe_images()["Images"], key=lambda image: image["CreationDate"])
            built = [image["ImageId"] for image in images if image["Name"].startswith("gpu-ami_")]
            base = [image["ImageId"] for image in images if image["Name"].startswith("debian-12-amd64-")]
            key = stack.enter_context(launch.temporary_key(cloud, run, tags))
            identity = stack.enter_context(launch.launched(cloud, (built or base)[-1], TYPE, key, run, tags))
            boot = machine.Boot(cloud, run, "admin", progress, threading.Event())
            found = patiently(lambda: boot.follow(identity, TYPE))
            made = Guest(ssh.parse_url(found.url, key_file=found.key_file, known_hosts=found.known_hosts))
            if not built:
                with progress.stage("driver and parser"):
                    install_driver(made, place.mirror.url)
            install_parser(made)
            yield made
    finally:
        region.release()


def install_driver(guest: Guest, mirror: str) -> None:
    """The replica driver from the region's package mirror, as the role does it."""
    repository = f"{mirror}/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    guest.sudo(
        f"python3 -c \"import urllib.request as u; open('/usr/share/keyrings/nv.gpg','wb').write("
        f"u.urlopen('{repository}/gpu-ami-archive-keyring.gpg').read())\" && "
        f"echo 'deb [signed-by=/usr/share/keyrings/nv.gpg] {repository} ./' > /etc/apt/sources.list.d/nv.list && "
        "apt-get -qq update -o Dir::Etc::sourcelist=sources.list.d/nv.list -o Dir::Etc::sourceparts=- && "
        "DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends nvidia-driver-cuda=550.163.01-1 "
        "nvidia-smi=550.163.01-1 nvidia-kernel-open-dkms=550.163.01-1",
        timeout=400,
    )
    guest.sudo("modprobe nvidia")


def install_parser(guest: Guest) -> None:
    """This checkout's parser, by the table of the role's files/README.md; on a built image, over the one there."""
    files = parser_folder()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in [
            files / "aws-hwaccel-event-parser.py",
            *(files / "hwevents").glob("*.py"),
            *(files / "hwevents" / "data").iterdir(),
        ]:
            archive.add(path, arcname=str(path.relative_to(files)), filter=_roots)
    guest.put(packed.getvalue(), "/tmp/parser.tgz")
    guest.sudo(f"systemctl stop {UNIT} || true; mkdir -p {HOME} /etc/gpu-ami")
    guest.sudo(f"tar -xzf /tmp/parser.tgz -C {HOME} && python3 -m compileall -q {HOME}/hwevents")
    guest.put((files / "aws-hw-monitor.service").read_bytes(), f"/etc/systemd/system/{UNIT}")
    guest.put((files / "gpu-ami-events.logrotate").read_bytes(), "/etc/logrotate.d/gpu-ami-events")
    guest.sudo(f"systemctl daemon-reload && systemctl enable -q --now {UNIT}")
    # No limit on userland's records, and none of the floods on the emulated serial line.
    guest.sudo("echo on > /proc/sys/kernel/printk_devkmsg; dmesg -n 1")


def _roots(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
