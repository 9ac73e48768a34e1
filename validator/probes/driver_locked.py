"""Programs that run only beside a driver of exactly their own version: the fabric manager, IMEX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from validator.observe import Observe, unproven
from validator.probes.hardware import loaded_version


@dataclass(frozen=True)
class Program:
    """A program and how its `--version` begins the line with the version ("Fabric Manager version is")."""

    name: str
    says: str

    @property
    def question(self) -> str:
        return f"{self.name} --version"

    def version(self, text: str) -> str:
        """The version in what it said; "" where it names none."""
        found = re.search(rf"^\s*{re.escape(self.says)}\s*:\s*(\S+)", text, re.MULTILINE)
        return found[1] if found else ""

    def own_version(self, host: Any, observe: Observe) -> str:
        """What the installed program says; the check fails where it does not run."""
        __tracebackhide__ = True
        done = host.run(self.question)
        if done.rc != 0:
            observe.fail(f"{self.question} ended with {done.rc}: {(done.stderr or done.stdout).strip()}")
        return self.version(done.stdout)

    def check_planned(self, host: Any, planned: str, observe: Observe) -> None:
        """Fails unless the program itself says the planned version."""
        __tracebackhide__ = True
        observe.same(self.own_version(host, observe), planned, self.question)

    def check_of_loaded_driver(self, host: Any, observe: Observe) -> None:
        """Fails unless it is of the loaded driver's version, to the last number."""
        __tracebackhide__ = True
        shown = host.run("cat /proc/driver/nvidia/version")
        if shown.rc != 0:
            unproven("no NVIDIA driver is loaded: see nvidia_driver::test_loaded_driver_is_the_planned_one")
        driver = loaded_version(shown.stdout)
        observe.same(self.own_version(host, observe), driver, f"{self.question} beside driver {driver}")
