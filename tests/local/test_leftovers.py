"""What a killed region left: its own processes are ended, by identity; other processes are not."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from gpu_ami.files import write_json
from gpu_ami.local import leftovers
from gpu_ami.local.state import Layout
from gpu_ami.process import identify


def test_leftovers_are_found_by_identity_and_ended(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    mine, other = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    try:
        for name, process in (("i-1", mine), ("i-2", other)):
            identity = identify(process.pid)
            assert identity is not None
            started = identity.started if process is mine else "an earlier boot/77"
            layout.instance(name).mkdir()
            write_json(layout.instance(name) / "process.json", {"pid": process.pid, "started": started})
        write_json(layout.region_file, {})
        found = leftovers.clear(layout)
        assert mine.wait(10) == -signal.SIGKILL
        assert other.poll() is None  # the pid was recorded, but it is another process now
        assert found == [f"machine of i-1 (pid {mine.pid})", "disk of i-1", "disk of i-2", str(layout.region_file)]
        assert list(layout.instances.iterdir()) == []
        assert leftovers.clear(layout) == []
    finally:
        mine.kill()
        other.kill()
        other.wait()
