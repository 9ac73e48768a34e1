"""What a node's base AMI brought, as the build recorded it, against what the machine has now."""

from __future__ import annotations

from typing import Any

from validator.observe import Observe

_RECORDS = "/usr/share/gpu-ami"


def check_unchanged(host: Any, role: str, observe: Observe) -> None:
    """Fails where a file on record (`<role>.sha256`, in sha256sum's format) is missing or of another content."""
    __tracebackhide__ = True
    record = f"{_RECORDS}/{role}.sha256"
    files = [line.split(None, 1)[1] for line in host.run("cat %s", record).stdout.splitlines() if " " in line]
    if not files:
        observe.fail(f"there is no {record}: the build has not recorded what the base AMI brought")
    done = host.run("env LC_ALL=C sha256sum --check --quiet --strict %s", record)
    wrong = [line.replace(": FAILED", "") for line in done.stdout.splitlines() if ": FAILED" in line]
    observe({"files": files, "changed": wrong}, {"files": files, "changed": []})
    if wrong or done.rc != 0:
        said = ", ".join(wrong) or done.stderr.strip()
        observe.fail(f"not as the base AMI brought it: {said}")


def check_enabled(host: Any, units: list[str], observe: Observe) -> None:
    """Fails where one of the units does not start at boot."""
    __tracebackhide__ = True
    found = {unit: host.run("systemctl is-enabled %s", unit).stdout.strip() for unit in units}
    observe.same(found, dict.fromkeys(units, "enabled"), "units of the node at boot")


def check_executable(host: Any, paths: list[str], observe: Observe) -> None:
    """Fails where one of the paths is missing or cannot be run."""
    __tracebackhide__ = True
    tests = "; ".join("test -x %s && echo %s" for _ in paths)
    there = host.run(f"{tests}; true", *(word for path in paths for word in (path, path))).stdout.split()
    observe(there, paths)
    gone = [path for path in paths if path not in there]
    if gone:
        observe.fail(f"not there, or not executable: {', '.join(gone)}")
