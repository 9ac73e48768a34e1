"""Compares the files of a node's base AMI with the record that the build made of them."""

from __future__ import annotations

from typing import Any

from validator.observe import Observe

_RECORDS = "/usr/share/gpu-ami"


def check_unchanged(host: Any, role: str, observe: Observe) -> None:
    """Fails if a recorded file (`<role>.sha256`, in sha256sum's format) is missing or has other content."""
    __tracebackhide__ = True
    record = f"{_RECORDS}/{role}.sha256"
    files = [line.split(None, 1)[1] for line in host.run("cat %s", record).stdout.splitlines() if " " in line]
    if not files:
        observe.fail(f"no {record}: the build did not record the files of the base AMI")
    done = host.run("env LC_ALL=C sha256sum --check --quiet --strict %s", record)
    wrong = [line.replace(": FAILED", "") for line in done.stdout.splitlines() if ": FAILED" in line]
    observe({"files": files, "changed": wrong}, {"files": files, "changed": []})
    if wrong or done.rc != 0:
        observe.fail(f"differs from the base AMI: {', '.join(wrong) or done.stderr.strip()}")


def check_enabled(host: Any, units: list[str], observe: Observe) -> None:
    """Fails if one of the units does not start at boot."""
    __tracebackhide__ = True
    states = {unit: host.run("systemctl is-enabled %s", unit).stdout.strip() for unit in units}
    observe.same(states, dict.fromkeys(units, "enabled"), "units of the node at boot")


def check_executable(host: Any, paths: list[str], observe: Observe) -> None:
    """Fails if one of the paths is missing or not executable."""
    __tracebackhide__ = True
    tests = "; ".join("test -x %s && echo %s" for _ in paths)
    executable = host.run(f"{tests}; true", *(word for path in paths for word in (path, path))).stdout.split()
    observe(executable, paths)
    missing = [path for path in paths if path not in executable]
    if missing:
        observe.fail(f"missing or not executable: {', '.join(missing)}")
