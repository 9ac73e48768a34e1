"""The kernel of the planned line runs, modules can be built for it, and no upgrade exchanges it under them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import packages
from validator.observe import Observe, output

pytestmark = pytest.mark.planned("kernel")


def is_of_line(release: str, line: str) -> bool:
    """Whether a release ("6.1.0-44-cloud-amd64") is of a line ("6.1"); 6.12 is another line than 6.1."""
    return re.match(rf"{re.escape(line)}(\.|-|$)", release) is not None


@pytest.mark.survives
def test_running_kernel_is_of_the_planned_line(host: Any, plan: Any, observe: Observe) -> None:
    """The running kernel is of the planned line: drivers were built and proven for that one."""
    line, release = plan["kernel"]["version"], output(host, "uname -r").strip()
    observe(release, line)
    if not is_of_line(release, line):
        observe.fail(f"kernel {release} runs, expected one of line {line}")


@pytest.mark.tier("T0")
def test_every_installed_kernel_is_of_the_planned_line(host: Any, plan: Any, observe: Observe) -> None:
    """No kernel of another line is installed, which a boot loader could take for the newest at the next boot."""
    line = plan["kernel"]["version"]
    images = host.run("ls -1 /boot").stdout.split()
    found = [name.removeprefix("vmlinuz-") for name in images if re.match(r"vmlinuz-(?!0-rescue)", name)]
    observe(found, line)
    wrong = [release for release in found if not is_of_line(release, line)]
    if wrong or not found:
        observe.fail(f"kernels in /boot: {', '.join(wrong) or 'none'}; expected line {line} alone")


def test_modules_can_be_built_for_the_running_kernel(host: Any, observe: Observe) -> None:
    """The running kernel's own headers are there: without them, DKMS cannot build a module for it again."""
    release = output(host, "uname -r").strip()
    shown = host.run("cat %s", f"/lib/modules/{release}/build/include/generated/utsrelease.h")
    found = re.search(r'UTS_RELEASE "([^"]*)"', shown.stdout)
    observe(found[1] if found else None, release)
    if not found or found[1] != release:
        observe.fail(f"headers in /lib/modules/{release}/build: {found[1] if found else 'none'}, expected {release}")


@pytest.mark.tier("T0")
def test_kernel_is_held(host: Any, plan: Any, observe: Observe) -> None:
    """No upgrade installs another kernel: it would boot without the modules that were built for this one."""
    kernel = plan["kernel"].plain()
    names = sorted({kernel["package"], *kernel.get("hold", [])})
    if plan["os"]["family"] == "debian":
        shown = host.run(
            f"dpkg-query -W -f %s {' '.join(['%s'] * len(names))}", "${Package} ${db:Status-Want} ${Status}\\n", *names
        ).stdout
        there = {row.split()[0]: row.split()[1] for row in shown.splitlines() if row.endswith(" installed")}
        free = sorted(name for name, wanted in there.items() if wanted != "hold")
    else:
        shown = host.run(
            f"rpm -q --qf %s {' '.join(['%s'] * len(names))}", "%{NAME} %{VERSION}-%{RELEASE}\\n", *names
        ).stdout
        rows = [row.split() for row in shown.splitlines() if len(row.split()) == 2]
        there = {row[0]: row[1] for row in rows}
        free = sorted({row[0] for row in rows} - packages.held(host, {row[0]: row[1] for row in rows}, "redhat"))
    observe(there, "held")
    if kernel["package"] not in there:
        observe.fail(f"{kernel['package']} is not installed, so nothing says which kernel this image keeps")
    if free:
        observe.fail(f"not held, so an upgrade would move them: {', '.join(free)}")
