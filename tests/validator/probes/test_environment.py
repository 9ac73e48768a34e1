"""Settings of login shells and services, each with its source."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

from validator.probes import environment


def test_each_setting_has_its_source() -> None:
    replies = {
        "cat /etc/environment": "# comment\nexport A=1\nB=2\nnot a setting\n",
        "systemctl show-environment": "C=3\n",
    }
    host: Any = SimpleNamespace(run=lambda command: SimpleNamespace(stdout=replies.get(command, "")))
    assert environment.environments(host) == [
        ("/etc/environment", "A=1"),
        ("/etc/environment", "B=2"),
        ("services", "C=3"),
    ]


def test_login_shell_does_not_inherit_the_environment() -> None:
    command = environment.in_login_shell("printf %s \"${LEAKED-none} $HOME 'x'\"")
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=os.environ | {"LEAKED": "1"}, check=False
    )
    assert done.stdout.endswith("none /root 'x'")
