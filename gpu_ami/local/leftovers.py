"""Removes what a killed region left: machines, disks, sockets, incomplete images.

A process belongs to the region if its pid and start time are those that were recorded; its name does not count.
"""

from __future__ import annotations

import shutil
import signal

from gpu_ami.files import read_json
from gpu_ami.local.machines import PROCESS
from gpu_ami.local.state import Layout, clear_partial_images
from gpu_ami.process import ProcessIdentity, end


def clear(layout: Layout) -> list[str]:
    """Removes everything; returns a line for each thing that was removed. The caller holds the region's lock."""
    removed = clear_instances(layout)
    removed += [f"incomplete image {name}" for name in clear_partial_images(layout)]
    for path in (layout.region_file, layout.control):
        if path.exists() or path.is_socket():
            path.unlink(missing_ok=True)
            removed.append(str(path))
    return removed


def clear_instances(layout: Layout) -> list[str]:
    """Ends the instances' machines and removes their folders."""
    removed = []
    for folder in sorted(layout.instances.glob("*")):
        identity = ProcessIdentity.from_json(read_json(folder / PROCESS))
        if identity and identity.alive():
            end(identity, first=signal.SIGKILL)
            removed.append(f"machine of {folder.name} (pid {identity.pid})")
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(f"disk of {folder.name}")
    return removed
