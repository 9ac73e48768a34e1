"""Since when the fabric manager runs, and what its log says since then."""

from __future__ import annotations

import pytest

from validator.probes import fabric

START = "[Nov 25 2026 10:00:00] [INFO] [tid 1] Fabric Manager version 580.105.08 is running with the following options"
ROUTED = "[INFO] Successfully configured all the available NVSwitches to route GPU NVLink traffic."
OLDER = "[INFO] Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."


@pytest.mark.parametrize("line", [ROUTED, OLDER])
def test_log_of_its_last_start_says_whether_the_switches_are_routed(line: str) -> None:
    assert fabric.read(f"100\n40000000\n{START}\n{line}\n").is_routed
    again = fabric.read(f"100\n40000000\n{START}\n{line}\n{START}\n[ERROR] no\n")
    assert (again.is_routed, again.seconds, again.log) == (False, 60.0, (START, "[ERROR] no"))
    assert str(again) == f"active for 60 s, the last lines of {fabric.LOG}: {START} | [ERROR] no"


@pytest.mark.parametrize("printed", ["", "100\n", "100\n0\n", "100\n\n"])
def test_nothing_is_not_routed(printed: str) -> None:
    manager = fabric.read(printed)
    assert (manager.seconds, manager.log, manager.is_routed) == (0.0, (), False)
