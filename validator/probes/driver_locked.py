"""Programs that require a driver of exactly their own version: the fabric manager and IMEX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from validator.observe import Observe
from validator.probes.hardware import loaded_version, require_driver


@dataclass(frozen=True)
class Program:
    """A program. label: the text before the version in the output of `--version` ("Fabric Manager version is")."""

    name: str
    label: str

    @property
    def version_command(self) -> str:
        return f"{self.name} --version"

    def version(self, text: str) -> str:
        """The version in its output; "" if there is none."""
        match = re.search(rf"^\s*{re.escape(self.label)}\s*:\s*(\S+)", text, re.MULTILINE)
        return match[1] if match else ""

    def own_version(self, host: Any, observe: Observe) -> str:
        """The version that the installed program reports; the check fails if it does not run."""
        __tracebackhide__ = True
        done = host.run(self.version_command)
        if done.rc != 0:
            observe.fail(f"{self.version_command} exited with status {done.rc}: {(done.stderr or done.stdout).strip()}")
        return self.version(done.stdout)

    def check_planned(self, host: Any, planned: str, observe: Observe) -> None:
        """Fails unless the program reports the planned version."""
        __tracebackhide__ = True
        observe.same(self.own_version(host, observe), planned, self.version_command)

    def check_of_loaded_driver(self, host: Any, observe: Observe) -> None:
        """Fails unless its version is exactly that of the loaded driver."""
        __tracebackhide__ = True
        driver = loaded_version(require_driver(host))
        observe.same(self.own_version(host, observe), driver, f"{self.version_command} with loaded driver {driver}")
