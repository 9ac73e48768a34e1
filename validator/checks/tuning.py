"""Limits, kernel settings, GPU clocks and MIG are what the plan says, on the machine and not only in files."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("tuning")


def divisions(listed: str) -> dict[int, list[str]]:
    """GPU index → profiles of its MIG devices, as `nvidia-smi -L` lists them."""
    found: dict[int, list[str]] = {}
    for line in listed.splitlines():
        gpu, device = re.match(r"GPU (\d+):", line), re.match(r"\s+MIG (\S+)\s+Device", line)
        if gpu:
            found[int(gpu[1])] = []
        elif device and found:
            found[max(found)].append(device[1])
    return found


def test_users_may_lock_memory(host: Any, plan: Any, observe: Observe) -> None:
    """A user that logs in may lock as much memory as planned: RDMA pins its buffers."""
    said = output(host, "su -s /bin/sh -c 'ulimit -l' nobody").strip()
    observe.same(said, plan["tuning"]["memlock"], "`ulimit -l` of a user that logged in")


def test_services_may_lock_memory(host: Any, plan: Any, observe: Observe) -> None:
    """A service may too: Slurm, containerd and kubelet are none of those that log in."""
    planned = str(plan["tuning"]["memlock"])
    wanted = "infinity" if planned == "unlimited" else str(int(planned) * 1024)
    shown = output(host, "systemctl show -p DefaultLimitMEMLOCK --value").strip()
    observe.same(shown, wanted, "systemd's DefaultLimitMEMLOCK")


@pytest.mark.survives
def test_kernel_settings_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The kernel has every planned setting: it may have refused one of sysctl.d, or another file have won."""
    wanted = {name: " ".join(str(value).split()) for name, value in plan["tuning"].plain().get("sysctl", {}).items()}
    if not wanted:
        unproven("the plan has no kernel settings")
    shown = host.run(f"sysctl -e {' '.join(['%s'] * len(wanted))}", *sorted(wanted)).stdout
    rows = dict(line.split(" = ", 1) for line in shown.splitlines() if " = " in line)
    found = {name: " ".join(rows.get(name, "not there").split()) for name in wanted}
    observe.same(found, wanted, "kernel settings")


@pytest.mark.tier("T3")
@pytest.mark.survives
def test_gpus_have_the_planned_clocks(host: Any, plan: Any, observe: Observe) -> None:
    """Every GPU whose clocks are planned has them, to the MHz that the driver rounds by."""
    clocks = plan["tuning"].plain().get("clocks", {})
    if not clocks:
        unproven("the plan has no clocks")
    done = host.run(
        "nvidia-smi --query-gpu=index,name,clocks.applications.memory,clocks.applications.graphics"
        " --format=csv,noheader,nounits"
    )
    if done.rc != 0:
        observe.fail(f"nvidia-smi ended with {done.rc}: {(done.stdout + done.stderr).strip()}")
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
    known = [row for row in rows if row[1] in clocks]
    observe(rows, clocks)
    if not known:
        unproven(f"no clocks are planned for {', '.join(sorted({row[1] for row in rows})) or 'no GPU'}")
    wrong = [
        f"GPU {index} ({name}): {memory}, {graphics}, expected {clocks[name][0]}, {clocks[name][1]}"
        for index, name, memory, graphics in known
        if not (_near(memory, clocks[name][0]) and _near(graphics, clocks[name][1]))
    ]
    if wrong:
        observe.fail(f"application clocks (memory, graphics MHz): {'; '.join(wrong)}")


def _near(shown: str, wanted: int) -> bool:
    return shown.isdigit() and abs(int(shown) - wanted) <= 1


def _units(plan: Any) -> list[str]:
    tuning = plan["tuning"].plain()
    units = {"nvidia-clocks.service": tuning.get("clocks"), "nvidia-mig.service": tuning.get("mig")}
    names = [name for name, data in units.items() if data]
    return names or unproven("the plan has neither clocks nor MIG profiles")


@pytest.mark.tier("T0")
def test_units_are_enabled(host: Any, plan: Any, observe: Observe) -> None:
    """What sets clocks and MIG at boot is enabled if the plan has such data: neither lasts over a boot."""
    names = _units(plan)
    found = {name: host.run("systemctl is-enabled %s", name).stdout.strip() for name in names}
    observe.same(found, dict.fromkeys(names, "enabled"), "units that set GPUs at boot")


def test_units_have_not_failed(host: Any, plan: Any, observe: Observe) -> None:
    """What sets clocks and MIG at boot has done so, or was left out where no driver is loaded: no GPU refused it."""
    names = _units(plan)
    found = {name: host.run("systemctl show -p ActiveState --value %s", name).stdout.strip() for name in names}
    observe(found, "active, or inactive where no driver is loaded")
    failed = [f"{name} is {state}" for name, state in found.items() if state not in ("active", "inactive")]
    if failed:
        observe.fail(f"{'; '.join(failed)}: journalctl -u says which GPU refused what")


@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_gpus_are_divided_as_planned(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Every GPU of this instance type is divided into the planned MIG devices, and whole where none are planned."""
    mig = plan["tuning"].plain().get("mig", {})
    planned = [name for name in str(mig.get(machine.instance_type, "")).split(",") if name]
    found = divisions(output(host, "nvidia-smi -L"))
    observe(found, planned or "whole GPUs")
    wrong = [
        f"GPU {index}: {', '.join(names) or 'whole'}"
        for index, names in found.items()
        if sorted(names) != sorted(planned)
    ]
    if wrong or not found:
        observe.fail(
            f"{'; '.join(wrong) or 'no GPU'}; expected {', '.join(planned) or 'whole GPUs'} on {machine.instance_type}"
        )
