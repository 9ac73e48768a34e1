"""The company's monitoring agent reports to where the plan says."""

from typing import Any


def test_endpoint_is_the_planned_one(host: Any, plan: Any) -> None:
    """The agent reports to the planned endpoint; a machine that reports elsewhere is not monitored."""
    line = f"endpoint = {plan['company_monitor']['endpoint']}"
    assert line in host.file("/etc/company-monitor.conf").content_string.splitlines()
