"""The planned driver is installed for every kernel, it is the one that is loaded, and it drives every promised GPU."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven
from validator.smi import pci_address

_QUERY = "nvidia-smi --query-gpu=index,pci.bus_id,name,memory.total --format=csv,noheader,nounits"


def loaded_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version; "" where it names none."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return found[1] if found else ""


def test_loaded_driver_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The driver in the kernel is the planned version; another one means that the image drives another stack."""
    planned = plan["nvidia_driver"]["version"]
    shown = host.run("cat /proc/driver/nvidia/version")
    if shown.rc != 0:
        observe(None, planned)
        observe.fail(f"no NVIDIA driver is loaded (/proc/driver/nvidia/version: {shown.stderr.strip()})")
    observe.same(loaded_version(shown.stdout), planned, "loaded driver (/proc/driver/nvidia/version)")


def test_module_on_disk_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The next boot loads the planned driver too: for each installed kernel, the module on disk has its version."""
    planned = plan["nvidia_driver"]["version"]
    listed = output(
        host,
        'for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] || continue;'
        ' echo "$k $(modinfo -k "$k" -F version nvidia 2>/dev/null || echo missing)"; done',
    )
    rows = dict(line.split(None, 1) for line in listed.splitlines() if " " in line.strip())
    observe(rows, planned)
    wrong = [f"{kernel}: {version}" for kernel, version in rows.items() if version != planned]
    if wrong or not rows:
        observe.fail(f"module nvidia on disk: {'; '.join(wrong) or 'no kernel is installed'}, expected {planned}")


def test_dkms_built_for_every_kernel(host: Any, plan: Any, observe: Observe) -> None:
    """DKMS has built and installed the planned driver for every installed kernel, so that updates rebuild it."""
    if "dkms" not in plan["nvidia_driver"]["package"]:
        unproven(f"the plan's driver is not a DKMS package ({plan['nvidia_driver']['package']})")
    planned = plan["nvidia_driver"]["version"]
    status = output(host, "dkms status")
    kernels = output(
        host, "cd /lib/modules && ls -d */ | while read -r k; do [ -e $k/modules.dep ] && echo ${k%/}; done"
    )
    pattern = re.compile(r"^nvidia[\w-]*[/,]\s*([\w.]+),\s*([^,\s]+),\s*[^,:\s]+:\s*installed", re.MULTILINE)
    built = {kernel for version, kernel in pattern.findall(status) if version == planned}
    missing = sorted(set(kernels.split()) - built)
    observe(status.splitlines(), f"{planned} installed for {', '.join(kernels.split())}")
    if missing:
        observe.fail(f"DKMS has no nvidia {planned} installed for kernel {', '.join(missing)}; dkms status: {status!r}")


def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """Driver packages have exactly the planned versions."""
    driver = plan["nvidia_driver"].plain()
    planned = {driver["package"]: driver["package_version"]} | dict(driver.get("packages", {}))
    found = {name: _package_version(host, name, plan["os"]["family"]) for name in planned}
    observe.same(found, planned, "driver packages")


def _package_version(host: Any, name: str, family: str) -> str:
    if family == "debian":
        return str(host.run("dpkg-query -W -f '${Version}' %s 2>/dev/null || echo missing", name).stdout.strip())
    return str(host.run("rpm -q --qf %s %s || true", "%{VERSION}-%{RELEASE}", name).stdout.strip())


def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not change the driver: its packages are held at the planned version."""
    driver = plan["nvidia_driver"].plain()
    names = sorted({driver["package"], *driver.get("packages", {})})
    if plan["os"]["family"] == "debian":
        held = set(output(host, "apt-mark showhold").split())
    else:
        locked = host.run(
            "dnf -q versionlock list 2>/dev/null; cat /etc/dnf/plugins/versionlock.list 2>/dev/null"
        ).stdout
        held = {name for name in names if re.search(rf"(^|[:\s]){re.escape(name)}-\d", locked, re.MULTILINE)}
    observe(sorted(held), names)
    free = [name for name in names if name not in held]
    if free:
        observe.fail(f"not held at their version: {', '.join(free)}")


@pytest.mark.tier("T3")
def test_every_promised_gpu_is_there(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """nvidia-smi, the driver and the PCI bus show the same GPUs, as many as the instance type promises."""
    promised = plan.instance_type(machine.instance_type)
    count = promised["gpu_count"]
    smi = {pci_address(row[1]) for row in _query(host, observe)}
    listed = host.run("nvidia-smi -L").stdout
    proc = {pci_address(name) for name in host.run("ls -1 /proc/driver/nvidia/gpus").stdout.split()}
    pci = _on_the_bus(host)
    seen = {"nvidia-smi": sorted(smi), "/proc/driver/nvidia/gpus": sorted(proc), "PCI": sorted(pci)}
    observe(seen, count)
    wrong = [
        f"{len(found)} by {where} ({', '.join(found) or 'none'})"
        for where, found in seen.items()
        if len(found) != count
    ]
    if wrong:
        observe.fail(f"{promised['name']} has {count} GPUs, found {'; '.join(wrong)}")
    if not smi == proc == pci:
        observe.fail(f"not the same GPUs: {seen}")
    names = len(re.findall(r"^GPU \d+: .+ \(UUID: GPU-[0-9a-f-]+\)$", listed, re.MULTILINE))
    if names != count:
        observe.fail(f"nvidia-smi -L lists {names} GPUs, expected {count}: {listed!r}")


def _on_the_bus(host: Any) -> set[str]:
    # A display device of NVIDIA's, or whatever a driver called nvidia has taken: an unbound GPU counts too.
    found = host.run(
        "for d in /sys/bus/pci/devices/*; do read -r v <$d/vendor; read -r c <$d/class;"
        ' n=$(readlink $d/driver); n=${n##*/}; case "$v $c" in "0x10de 0x03"*) n=nvidia;; esac;'
        ' case "$n" in nvidia|nvidia-gpu) echo ${d##*/};; esac; done'
    )
    return {pci_address(name) for name in found.stdout.split()}


@pytest.mark.tier("T3")
def test_gpus_are_the_promised_model(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Each GPU has the promised name and all of its memory."""
    gpu = plan.instance_type(machine.instance_type)["gpu"]
    wanted = [gpu["name"], str(gpu["memory_mib"])]
    rows = _query(host, observe)
    observe([row[2:4] for row in rows], wanted)
    wrong = [f"GPU {row[0]}: {', '.join(row[2:4])}" for row in rows if row[2:4] != wanted]
    if wrong or not rows:
        observe.fail(f"{'; '.join(wrong) or 'no GPU'}; expected {', '.join(wanted)} (name, MiB)")


def _query(host: Any, observe: Observe) -> list[list[str]]:
    done = host.run(_QUERY)
    if done.rc != 0:
        observe.fail(f"nvidia-smi ended with {done.rc}: {(done.stdout + done.stderr).strip()}")
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
