"""Limits, kernel settings, GPU clocks and MIG devices in effect are the planned ones."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan_document import PlanDocument, Tuning, section
from validator.probes import MachineUnderTest, hardware, nvidia_smi

pytestmark = [pytest.mark.planned("tuning"), pytest.mark.beside_live]


def divisions(listed: str) -> dict[int, list[str]]:
    """GPU index to the profiles of its MIG devices, from `nvidia-smi -L`."""
    return {gpu.index: [profile for profile, _ in gpu.migs] for gpu in nvidia_smi.listed(listed)}


@pytest.mark.needs("promise")
@pytest.mark.planned("tuning.memlock")
def test_users_may_lock_memory(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """A user who logs in can lock the planned amount of memory. RDMA pins its buffers."""
    limit = output(host, "su -s /bin/sh -c 'ulimit -l' nobody").strip()
    observe.same(limit, section(plan, "tuning", Tuning)["memlock"], "`ulimit -l` of a user who logged in")


@pytest.mark.needs("promise")
@pytest.mark.planned("tuning.memlock")
def test_services_may_lock_memory(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Services can lock the planned amount of memory. Slurm, containerd and kubelet run as services."""
    planned = str(section(plan, "tuning", Tuning)["memlock"])
    expected = "infinity" if planned == "unlimited" else str(int(planned) * 1024)
    shown = output(host, "systemctl show -p DefaultLimitMEMLOCK --value").strip()
    observe.same(shown, expected, "systemd's DefaultLimitMEMLOCK")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_kernel_settings_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every planned kernel setting is in effect. The kernel may reject one, or another file may override it."""
    settings = section(plan, "tuning", Tuning).get("sysctl", {})
    planned = {name: " ".join(str(value).split()) for name, value in settings.items()}
    if not planned:
        unproven("the plan has no kernel settings")
    shown = host.run(f"sysctl -e {' '.join(['%s'] * len(planned))}", *sorted(planned)).stdout
    rows = dict(line.split(" = ", 1) for line in shown.splitlines() if " = " in line)
    settings = {name: " ".join(rows.get(name, "missing").split()) for name in planned}
    observe.same(settings, planned, "kernel settings")


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_gpus_have_the_planned_clocks(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every GPU with planned clocks has them, within the 1 MHz to which the driver rounds."""
    clocks = section(plan, "tuning", Tuning).get("clocks", {})
    if not clocks:
        unproven("the plan has no clocks")
    done = host.run(
        "nvidia-smi --query-gpu=index,name,clocks.applications.memory,clocks.applications.graphics"
        " --format=csv,noheader,nounits"
    )
    if done.rc != 0:
        hardware.require_board(host, plan)
        observe.fail(f"nvidia-smi exited with status {done.rc}: {(done.stdout + done.stderr).strip()}")
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
    with_clocks = [row for row in rows if row[1] in clocks]
    observe(rows, clocks)
    if not with_clocks:
        unproven(f"no clocks are planned for {', '.join(sorted({row[1] for row in rows})) or 'no GPU'}")
    wrong = [
        f"GPU {index} ({name}): expected {clocks[name][0]}, {clocks[name][1]}, got {memory}, {graphics}"
        for index, name, memory, graphics in with_clocks
        if not (_is_near(memory, clocks[name][0]) and _is_near(graphics, clocks[name][1]))
    ]
    if wrong:
        observe.fail(f"application clocks (memory, graphics MHz): {'; '.join(wrong)}")


def _is_near(shown: str, planned: int) -> bool:
    return shown.isdigit() and abs(int(shown) - planned) <= 1


def _units(plan: PlanDocument) -> list[str]:
    tuning = section(plan, "tuning", Tuning)
    units = {"nvidia-clocks.service": tuning.get("clocks"), "nvidia-mig.service": tuning.get("mig")}
    names = [name for name, data in units.items() if data]
    return names or unproven("the plan has neither clocks nor MIG profiles")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_units_are_enabled(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The units that set clocks and MIG devices at boot are enabled if planned. Neither survives a reboot."""
    names = _units(plan)
    states = {name: host.run("systemctl is-enabled %s", name).stdout.strip() for name in names}
    observe.same(states, dict.fromkeys(names, "enabled"), "units that set GPUs at boot")


@pytest.mark.needs("promise")
def test_units_have_not_failed(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The units that set clocks and MIG devices have not failed. Without a loaded driver they are inactive."""
    names = _units(plan)
    states = {name: host.run("systemctl show -p ActiveState --value %s", name).stdout.strip() for name in names}
    observe(states, "active, or inactive without a loaded driver")
    failed = [f"{name} is {state}" for name, state in states.items() if state not in ("active", "inactive")]
    if failed:
        observe.fail(f"{'; '.join(failed)}: `journalctl -u` shows the GPU and the reason")


@pytest.mark.needs("promise")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_mig_devices_are_the_planned_ones(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """Every GPU has the planned MIG devices of this instance type, or none and MIG off if none are planned.

    A GPU in MIG mode without devices computes nothing.
    """
    mig = section(plan, "tuning", Tuning).get("mig", {})
    planned = [name for name in str(mig.get(machine.instance_type, "")).split(",") if name]
    listed = host.run("nvidia-smi -L")
    if listed.rc != 0:
        hardware.require_board(host, plan)
        observe.fail(f"nvidia-smi -L exited with status {listed.rc}: {(listed.stdout + listed.stderr).strip()}")
    devices = divisions(listed.stdout)
    observe(devices, planned or "no MIG devices")
    wrong = [
        f"GPU {index}: {', '.join(names) or 'no MIG devices'}"
        for index, names in devices.items()
        if sorted(names) != sorted(planned)
    ]
    on = [gpu.index for gpu in machine.gpus if gpu.mig == "Enabled"]
    if not planned and on and not wrong:
        observe.fail(f"MIG is enabled on GPU {', '.join(map(str, on))}, and the plan has none: nvidia-smi -mig 0")
    if wrong or not devices:
        observe.fail(
            f"MIG devices on {machine.instance_type}: expected {', '.join(planned) or 'none'},"
            f" got {'; '.join(wrong) or 'no GPU'}"
        )
