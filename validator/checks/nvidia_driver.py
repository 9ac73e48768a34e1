"""The planned driver is installed for every kernel, it is the one that is loaded, and it drives every promised GPU."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from validator import loader, modules, oracle, packages
from validator.environment import environments
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven
from validator.oracle import Golden, loaded_version
from validator.smi import pci_address

pytestmark = pytest.mark.planned("nvidia_driver")

_QUERY = "nvidia-smi --query-gpu=index,pci.bus_id,name,memory.total --format=csv,noheader,nounits"
_NOT_SAID = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]")
_WATTS = re.compile(r"\d+(\.\d+)?")
_HIDES = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def loaded_flavour(text: str) -> str:
    """The flavour in /proc/driver/nvidia/version: open, proprietary, or "" where it names no module."""
    found = re.search(r"^NVRM version:.*?(Open )?Kernel Module", text, re.MULTILINE)
    return ("open" if found[1] else "proprietary") if found else ""


@pytest.mark.survives
def test_loaded_driver_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The driver in the kernel is the planned version; another one means that the image drives another stack."""
    planned = plan["nvidia_driver"]["version"]
    shown = host.run("cat /proc/driver/nvidia/version")
    if shown.rc != 0:
        observe(None, planned)
        observe.fail(f"no NVIDIA driver is loaded (/proc/driver/nvidia/version: {shown.stderr.strip()})")
    observe.same(loaded_version(shown.stdout), planned, "loaded driver (/proc/driver/nvidia/version)")


@pytest.mark.survives
def test_loaded_flavour_is_the_one_for_this_gpu(
    host: Any, plan: Any, machine: MachineUnderTest, observe: Observe
) -> None:
    """The module of the planned flavour is loaded, open or proprietary: the other may not drive this GPU."""
    driver = plan["nvidia_driver"].plain()
    wanted = driver.get("flavour")
    if wanted == "boot":
        wanted = driver["flavour_by_instance_type"].get(machine.instance_type)
    if wanted is None:
        unproven(f"the plan says no flavour of the driver for {machine.instance_type}")
    shown = host.run("cat /proc/driver/nvidia/version")
    if shown.rc != 0:
        unproven("no NVIDIA driver is loaded: see nvidia_driver::test_loaded_driver_is_the_planned_one")
    observe.same(loaded_flavour(shown.stdout), wanted, f"flavour of the loaded module on {machine.instance_type}")


@pytest.mark.survives
def test_no_part_is_of_another_version(host: Any, plan: Any, observe: Observe) -> None:
    """nvidia-smi, persistence daemon and libraries are of the driver's version: none works beside another."""
    planned = plan["nvidia_driver"]["version"]
    found = {"nvidia-smi": _said(host, "nvidia-smi --version", r"^NVIDIA-SMI version\s*: (\S+)") or "no version"}
    if host.run("command -v nvidia-persistenced").rc == 0:
        told = _said(host, "nvidia-persistenced --version", r"^nvidia-persistenced:\s+version (\S+)")
        found["nvidia-persistenced"] = told or "no version"
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for path in loader.on_path(host, soname):
            found[path] = path.rpartition(".so.")[2]
    observe(found, planned)
    wrong = [f"{part}: {version}" for part, version in found.items() if version != planned]
    if wrong:
        observe.fail(f"not of the driver's version {planned}: {'; '.join(wrong)}")


def _said(host: Any, command: str, pattern: str) -> str:
    found = re.search(pattern, host.run(command).stdout, re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.survives
def test_persistence_daemon_runs(host: Any, observe: Observe) -> None:
    """The persistence daemon, where the packages bring it, runs and holds the mode: GPUs else lose what was set."""
    unit = "nvidia-persistenced.service"
    if host.run("systemctl cat %s", unit).rc != 0:
        unproven("the driver's packages bring no persistence daemon")
    states = [host.run(f"systemctl {verb} %s", unit).stdout.strip() for verb in ("is-active", "is-enabled")]
    observe.same(states, ["active", "enabled"], unit)
    modes = _each_gpu(host, "persistence_mode")  # some packages' unit says --no-persistence-mode
    without = [f"GPU {index}: {mode}" for index, mode in modes if mode not in ("Enabled", *_NOT_SAID)]
    observe([*states, *(mode for _, mode in modes)], ["active", "enabled", "persistence mode Enabled"])
    if without:
        observe.fail(f"{unit} runs, but leaves persistence mode off: {'; '.join(without)}")


@pytest.mark.tier("T2")
@pytest.mark.survives
def test_gpus_may_draw_their_whole_power(host: Any, observe: Observe) -> None:
    """No GPU's power is limited below its own default: it would be slower than its kind, and say so nowhere."""
    rows = _each_gpu(host, "power.limit,power.default_limit")
    told = [row for row in rows if not set(row[1:]) & set(_NOT_SAID)]
    unread = [
        f"GPU {index}: {limit} of {whole}"
        for index, limit, whole in told
        if not _WATTS.fullmatch(limit) or not _WATTS.fullmatch(whole)
    ]
    if unread:
        observe.fail(f"the power limit cannot be read: {'; '.join(unread)}")
    limits = [(index, float(limit), float(whole)) for index, limit, whole in told]
    if not limits:
        unproven("nvidia-smi says no power limit")
    observe([f"{limit:g} of {whole:g} W" for _, limit, whole in limits], "the default limit")
    lower = [f"GPU {index}: {limit:g} of {whole:g} W" for index, limit, whole in limits if limit < whole - 0.5]
    if lower:
        observe.fail(f"power is limited: {'; '.join(lower)}")


@pytest.mark.survives
def test_firmware_of_gpus_is_used_as_planned(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """GPUs run with their firmware (GSP), or without it where the plan says so: on some it fails under load."""
    driver = plan["nvidia_driver"].plain()
    flavour = driver.get("flavour_by_instance_type", {}).get(machine.instance_type, driver.get("flavour"))
    shown = host.run("cat /proc/driver/nvidia/params")
    found = re.search(r"^EnableGpuFirmware: (\d+)$", shown.stdout, re.MULTILINE)
    if not found:
        unproven("/proc/driver/nvidia/params does not say whether GPUs run with their firmware")
    off = driver.get("gsp") is False and flavour == "proprietary"
    observe(f"EnableGpuFirmware {found[1]}", "0" if off else "not 0")
    if (found[1] == "0") is not off:
        observe.fail(
            f"EnableGpuFirmware is {found[1]}, expected {'0 (the plan says gsp: false)' if off else 'GSP in use'}"
        )


@pytest.mark.survives
def test_nouveau_never_takes_a_gpu(host: Any, observe: Observe) -> None:
    """nouveau is neither loaded nor allowed to be: a GPU that it has taken is lost to the driver until a reboot."""
    loaded = "nouveau" in [line.split()[0] for line in output(host, "cat /proc/modules").splitlines() if line.strip()]
    settings = {tuple(line.split()) for line in output(host, "modprobe --showconfig").splitlines()}
    observe(
        {"loaded": loaded, "blacklisted": ("blacklist", "nouveau") in settings}, {"loaded": False, "blacklisted": True}
    )
    if loaded or ("blacklist", "nouveau") not in settings:
        observe.fail(f"nouveau is {'loaded' if loaded else 'not loaded, but not blacklisted either'}")


@pytest.mark.tier("T2")
@pytest.mark.survives
def test_everybody_may_use_the_gpus(host: Any, observe: Observe) -> None:
    """Device nodes are open to every user, as the driver makes them, and every GPU takes work of any process.

    Source: https://download.nvidia.com/XFree86/Linux-x86_64/550.54.14/README/faq.html (NVreg_DeviceFileMode: 0666)
    """
    nodes = [line.split() for line in host.run("stat -c '%a %n' /dev/nvidia[0-9]* /dev/nvidiactl").stdout.splitlines()]
    modes = _each_gpu(host, "compute_mode")
    observe([[" ".join(one) for one in nodes], modes], "mode 666; compute mode Default")
    if not nodes:
        unproven("there is no device node of a GPU: see nvidia_driver::test_every_promised_gpu_is_there")
    closed = [f"{path} has mode {mode}" for mode, path in nodes if int(mode, 8) & 0o006 != 0o006]
    closed += [f"GPU {row[0]} is in compute mode {row[-1]}" for row in modes if row[-1] != "Default"]
    if closed:
        observe.fail(f"not every process gets every GPU: {'; '.join(closed)}")


@pytest.mark.survives
def test_nothing_hides_gpus(host: Any, observe: Observe) -> None:
    """No login shell and no service is given fewer GPUs than there are: a program would not say that it saw fewer.

    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    found = [f"{name} ({where})" for where, name in environments(host) if name.partition("=")[0] in _HIDES]
    observe.nothing(found, "settings that hide GPUs")


@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The next boot loads the planned driver too: for each installed kernel, the module on disk has its version."""
    modules.check_on_disk(host, "nvidia", plan["nvidia_driver"]["version"], observe)


@pytest.mark.tier("T0")
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


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """Driver packages have exactly the planned versions."""
    packages.check_installed(host, plan, "nvidia_driver", observe)


@pytest.mark.tier("T0")
def test_files_are_the_packages_own(host: Any, plan: Any, observe: Observe) -> None:
    """Every file of the driver's packages is as its vendor made it: nvidia-smi, whose word the proof takes, and all."""
    packages.check_unchanged(host, plan, "nvidia_driver", ["nvidia-smi", "nvidia-persistenced"], observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not change the driver: its packages are held at the planned version."""
    packages.check_held(host, plan, "nvidia_driver", observe)


@pytest.mark.tier("T3")
@pytest.mark.survives
def test_every_promised_gpu_is_there(
    host: Any, plan: Any, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """nvidia-smi, the driver and the PCI bus show the same GPUs, as many and where the instance type promises them."""
    promised = plan.instance_type(machine.instance_type)
    count = promised["gpu_count"]
    smi = {pci_address(row[1]) for row in _query(host, observe)}
    listed = host.run("nvidia-smi -L").stdout
    proc = {pci_address(name) for name in host.run("ls -1 /proc/driver/nvidia/gpus").stdout.split()}
    bus = [one for one in oracle.pci_devices(host.run(oracle.PCI_LIST, pure=True).stdout) if one.is_gpu]
    pci = {one.address for one in bus}
    recorded = oracle.applicable(golden_file, simulated=oracle.is_simulated(bus))
    seen = {"nvidia-smi": sorted(smi), "/proc/driver/nvidia/gpus": sorted(proc), "PCI": sorted(pci)}
    observe(seen, f"{count} GPUs; compared with {oracle.basis(recorded)}")
    missing = oracle.address_differences(smi & proc & pci, promised["gpu"].plain(), recorded)
    where = f": {'; '.join(missing)}" if missing else ""
    wrong = [
        f"{len(found)} by {by} ({', '.join(found) or 'none'})" for by, found in seen.items() if len(found) != count
    ]
    if wrong:
        observe.fail(f"{promised['name']} has {count} GPUs, found {'; '.join(wrong)}{where}")
    if not smi == proc == pci:
        observe.fail(f"not the same GPUs: {seen}")
    if missing:
        observe.fail(f"{promised['name']}: {'; '.join(missing)}")
    names = len(re.findall(r"^GPU \d+: .+ \(UUID: GPU-[0-9a-f-]+\)$", listed, re.MULTILINE))
    if names != count:
        observe.fail(f"nvidia-smi -L lists {names} GPUs, expected {count}: {listed!r}")


@pytest.mark.tier("T3")
def test_gpus_are_the_promised_model(
    host: Any, plan: Any, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """Each GPU has the promised name and all of its memory: near the fact, and exactly what was recorded."""
    gpu = plan.instance_type(machine.instance_type)["gpu"].plain()
    rows = _query(host, observe)
    bus = [one for one in oracle.pci_devices(host.run(oracle.PCI_LIST, pure=True).stdout) if one.is_gpu]
    version = loaded_version(host.run("cat /proc/driver/nvidia/version").stdout)
    recorded = oracle.same_branch(oracle.applicable(golden_file, simulated=oracle.is_simulated(bus)), version)
    observe([row[2:4] for row in rows], [gpu["name"], str(gpu["memory_mib"]), oracle.basis(recorded)])
    if not rows:
        observe.fail(f"no GPU; expected {gpu['name']}, {gpu['memory_mib']} MiB")
    unread = [f"GPU {row[1]}: memory.total is {row[3]!r}" for row in rows if not row[3].isdigit()]
    boards = [oracle.Board(pci_address(row[1]), row[2], int(row[3])) for row in rows if row[3].isdigit()]
    wrong = unread + oracle.model_differences(boards, gpu, recorded)
    if wrong:
        observe.fail("; ".join(wrong))


def _each_gpu(host: Any, fields: str) -> list[list[str]]:
    """Index and fields of each GPU; none where they cannot be asked, which other checks tell."""
    asked = host.run(f"nvidia-smi --query-gpu=index,{fields} --format=csv,noheader,nounits")
    return [row for row in csv.reader(asked.stdout.splitlines(), skipinitialspace=True) if row and asked.rc == 0]


def _query(host: Any, observe: Observe) -> list[list[str]]:
    done = host.run(_QUERY)
    if done.rc != 0:
        observe.fail(f"nvidia-smi ended with {done.rc}: {(done.stdout + done.stderr).strip()}")
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
