"""The machine of the event parser's test: a built image with this checkout's parser."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_ami.cloud import Cloud
from gpu_ami.events.reader import parser_folder
from gpu_ami.progress import Progress
from tests.machine.guest import BUILT, GPU_TYPE, HOME, UNIT, Guest, debian_region, launched, newest_image


@contextmanager
def booted() -> Iterator[Guest]:
    """A machine of the newest image that was built here, with this checkout's parser over the image's."""
    progress = Progress("plain")
    with debian_region(progress) as place:
        cloud = Cloud(place)
        with launched(cloud, newest_image(cloud, BUILT), GPU_TYPE, progress) as machine:
            install_parser(machine.guest)
            yield machine.guest


def install_parser(guest: Guest) -> None:
    """This checkout's parser, by the table of its README.md."""
    files, units = parser_folder(), Path(__file__).parents[2] / "roles/event_parser/files"
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
    guest.put((units / "aws-hw-monitor.service").read_bytes(), f"/etc/systemd/system/{UNIT}")
    guest.put((units / "gpu-ami-events.logrotate").read_bytes(), "/etc/logrotate.d/gpu-ami-events")
    guest.sudo(f"systemctl daemon-reload && systemctl enable -q --now {UNIT}")
    # No limit on userland's records, and none of the floods on the emulated serial line.
    guest.sudo("echo on > /proc/sys/kernel/printk_devkmsg; dmesg -n 1")


def _roots(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
