"""The command-line options of the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator import tiers


def add_options(parser: pytest.Parser) -> None:
    """Adds them to pytest's. Paths arrive as Path, times in seconds."""
    group = parser.getgroup("validator", "the proof of an image")
    group.addoption("--plan", metavar="FILE", type=Path, help="plan.json that the image was built from")
    group.addoption("--results", metavar="FILE", type=Path, help="write checks.json to FILE")
    group.addoption("--evidence", metavar="DIR", type=Path, help="write the host's logs and states to DIR")
    group.addoption("--no-evidence", action="store_true", help="run no commands on a host but those of the checks")
    group.addoption(
        "--waivers", metavar="FILE", type=Path, help="checks that may fail, with reason, owner and last day"
    )
    group.addoption("--instance-id", metavar="ID", help="instance id; default: from the instance metadata")
    group.addoption("--instance-type", metavar="TYPE", help="instance type; default: from the instance metadata")
    group.addoption(
        "--after", metavar="RESTART", help="the host was restarted: run only the checks that must hold after it"
    )
    group.addoption("--carried", metavar="FILE", type=Path, help="ids, one a line, of checks that an earlier proof has")
    group.addoption(
        "--nodes", metavar="FILE", type=Path, help="machines that work together: run only the checks of tier T4"
    )
    group.addoption("--tier", metavar="TIER", choices=tiers.NAMES, help="run only the checks of this tier")
    group.addoption("--known-hosts", metavar="FILE", type=Path, help="host keys; an unknown host is recorded there")
    group.addoption(
        "--proxy-command",
        metavar="COMMAND",
        default="",
        help="program through which hosts are reached, as OpenSSH's ProxyCommand (%%h, %%p, %%r)",
    )
    group.addoption(
        "--log-group-suffix",
        metavar="TEXT",
        default="",
        help="what this host's agent appends to planned log groups",
    )
    group.addoption("--aws-region", metavar="REGION", help="region of its metrics and logs")
    group.addoption("--aws-endpoint", metavar="URL", help="endpoint of CloudWatch; default: AWS")
    group.addoption("--aws-profile", metavar="NAME", help="AWS profile of the credentials")
    group.addoption(
        "--arrival-seconds", type=float, default=900.0, help="seconds within which metrics must arrive [%(default)s]"
    )
    group.addoption("--command-deadline", type=float, default=120.0, help="seconds for each command [%(default)s]")
    group.addoption("--check-deadline", type=float, default=1200.0, help="seconds for each check [%(default)s]")
    group.addoption(
        "--roles-path", metavar="DIR", type=Path, action="append", default=[], help="roles, for their footprint.yml"
    )
    group.addoption(
        "--base-inventory", metavar="DIR", type=Path, help="folder of base-inventory.jsonl.gz [that of --plan]"
    )
    group.addoption(
        "--serial", action="store_true", help="run one check after the other, with one round trip for each command"
    )
    group.addoption("--connect-timeout", type=float, default=15.0, help="seconds for a host to answer [%(default)s]")
