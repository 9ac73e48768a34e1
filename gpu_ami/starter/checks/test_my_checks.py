"""Checks of your own, run beside those of gpu-ami: gpu-ami prove my-gpu-image --checks checks

Every function test_* is a check. Its docstring is the promise that the report shows; `host` is testinfra's.
"""

from typing import Any


def test_time_zone_is_utc(host: Any) -> None:
    """Timestamps of all machines can be compared, because the time zone is UTC."""
    assert host.check_output("date +%Z") == "UTC"
