"""When a machine's newest log event was written."""

from __future__ import annotations

import time

import pytest

from gpu_ami.cloud.fleet import arrivals
from tests.fleet.service_machines import GROUP, Fleet


def test_the_newest_event_is_found_and_none_is_none(in_service: Fleet) -> None:
    machine = in_service.add(start=False)
    assert arrivals.newest_event(in_service.cloud, GROUP, machine.instance_id) is None
    for seconds in (500, 5, 300):
        in_service.heartbeat(machine, seconds)
    newest = arrivals.newest_event(in_service.cloud, GROUP, machine.instance_id)
    assert newest is not None and time.time() - newest == pytest.approx(5, abs=4)
    assert arrivals.newest_event(in_service.cloud, GROUP, "i-none") is None
