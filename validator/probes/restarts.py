"""Restarts of a service in this boot, with systemd's reasons.

The reasons tell a program that crashed (exit-code, signal) from a start that was slower than its unit allows (timeout).
Both fail: until the next start nothing did the service's work. Source: systemd.service(5), $SERVICE_RESULT.
"""

from __future__ import annotations

import re
from typing import Any

from validator.observe import Observe

# SD_MESSAGE_UNIT_FAILURE_RESULT: `a.service: Failed with result 'timeout'.`
_RUN_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
_SHOWN = 3


def check_none(host: Any, unit: str, restarts: str, observe: Observe) -> None:
    """Fails unless systemd's NRestarts of the unit is 0."""
    __tracebackhide__ = True
    if restarts == "0":
        return
    journal = host.run("journalctl --quiet --no-pager -b -o cat _PID=1 MESSAGE_ID=%s UNIT=%s", _RUN_FAILED, unit)
    results = re.findall(r"Failed with result '([\w-]+)'", journal.stdout)
    shown = ", ".join(results[:_SHOWN]) + (f" and {len(results) - _SHOWN} more" if len(results) > _SHOWN else "")
    why = f"results of its runs: {shown}" if results else "the journal has no failed run"
    times = "once" if restarts == "1" else f"{restarts or 'an unknown number of'} times"
    observe.fail(f"{unit} was restarted {times} in this boot; {why}")
