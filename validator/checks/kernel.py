"""The running kernel is of the planned line, modules can be built for it, and it is held."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output
from validator.plan_document import Kernel, PlanDocument
from validator.probes import packages

pytestmark = [pytest.mark.planned("kernel"), pytest.mark.beside_live]


def is_of_line(release: str, line: str) -> bool:
    """Whether a release ("6.1.0-44-cloud-amd64") belongs to a line ("6.1"); 6.12 is another line."""
    return re.match(rf"{re.escape(line)}(\.|-|$)", release) is not None


def is_planned(release: str, kernel: Kernel) -> bool:
    """Whether a release is of the planned series; of an image that follows its base AMI: one of several, or newer."""
    lines = kernel.get("follows") or [kernel["version"]]
    if any(is_of_line(release, line) for line in lines):
        return True
    return "follows" in kernel and all(_numbers(release) > _numbers(line) for line in lines)


def _numbers(release: str) -> tuple[int, ...]:
    """`6.17.0-1019-aws` → (6, 17)."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def _expected(kernel: Kernel) -> str:
    return " or ".join(kernel.get("follows") or [kernel["version"]])


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_running_kernel_is_of_the_planned_line(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The running kernel is of the planned series, for which the drivers were built and proven."""
    line, release = _expected(plan["kernel"]), output(host, "uname -r").strip()
    observe(release, line)
    if not is_planned(release, plan["kernel"]):
        observe.fail(f"running kernel: expected line {line}, got {release}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_every_installed_kernel_is_of_the_planned_line(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No kernel of another series is installed. The boot loader could select it at the next boot."""
    line = _expected(plan["kernel"])
    images = host.run("ls -1 /boot").stdout.split()
    releases = [name.removeprefix("vmlinuz-") for name in images if re.match(r"vmlinuz-(?!0-rescue)", name)]
    observe(releases, line)
    others = [release for release in releases if not is_planned(release, plan["kernel"])]
    if others or not releases:
        observe.fail(f"kernels in /boot: expected only line {line}, got {', '.join(others) or 'none'}")


def test_modules_can_be_built_for_the_running_kernel(host: Any, observe: Observe) -> None:
    """The headers of the running kernel are installed. Without them DKMS cannot build modules for it."""
    release = output(host, "uname -r").strip()
    shown = host.run("cat %s", f"/lib/modules/{release}/build/include/generated/utsrelease.h")
    match = re.search(r'UTS_RELEASE "([^"]*)"', shown.stdout)
    observe(match[1] if match else None, release)
    if not match or match[1] != release:
        observe.fail(
            f"headers in /lib/modules/{release}/build: expected {release}, got {match[1] if match else 'none'}"
        )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_kernel_is_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The kernel is held. An upgraded kernel would boot without the modules that were built for this one."""
    kernel = plan["kernel"]
    names = sorted({kernel["package"], *kernel.get("hold", [])})
    if plan["os"]["family"] == "debian":
        shown = host.run(
            f"dpkg-query -W -f %s {' '.join(['%s'] * len(names))}", "${Package} ${db:Status-Want} ${Status}\\n", *names
        ).stdout
        installed = {row.split()[0]: row.split()[1] for row in shown.splitlines() if row.endswith(" installed")}
        not_held = sorted(name for name, selection in installed.items() if selection != "hold")
    else:
        shown = host.run(
            f"rpm -q --qf %s {' '.join(['%s'] * len(names))}", "%{NAME} %{VERSION}-%{RELEASE}\\n", *names
        ).stdout
        rows = [row.split() for row in shown.splitlines() if len(row.split()) == 2]
        installed = {row[0]: row[1] for row in rows}
        not_held = sorted({row[0] for row in rows} - packages.held(host, {row[0]: row[1] for row in rows}, "redhat"))
    if not installed:
        packages.require_readable(host, plan["os"]["family"])
    observe(installed, "held")
    if kernel["package"] not in installed:
        observe.fail(f"{kernel['package']} is not installed, so no package holds the kernel")
    if not_held:
        observe.fail(f"not held: {', '.join(not_held)}")
