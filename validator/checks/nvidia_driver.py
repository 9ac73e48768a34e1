"""The planned driver is installed for every kernel, is loaded, and drives every GPU of the instance type."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from onhost import readings
from validator.observe import SCAN_SECONDS, Observe, output, unproven
from validator.pci import PCI_LIST
from validator.plan import OBSERVED, planned_instance_type
from validator.plan_document import NvidiaDriver, PlanDocument, section
from validator.probes import (
    Golden,
    MachineUnderTest,
    SinceImage,
    base_driver,
    environments,
    hardware,
    kernel_log,
    kernel_modules,
    loaded_version,
    nvidia_smi,
    packages,
    pci_address,
    require_driver,
    shared_libraries,
    still_holds,
)

pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.beside_live]
_NEEDS_BOARD = pytest.mark.usefixtures("board")

# What all checks ask of each GPU, as one question: the program's start is most of its time.
_FIELDS = (
    "index", "pci.bus_id", "name", "memory.total", "persistence_mode", "power.limit", "power.default_limit",
    "compute_mode",
)  # fmt: skip
_QUERY = f"nvidia-smi --query-gpu={','.join(_FIELDS)} --format=csv,noheader,nounits"
DKMS_MODULE = ("/usr", "/bin", "/sbin", "/lib", "/etc/dkms", "/var/lib/dkms")  # its program, its state, and the modules
_HIDES = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def loaded_flavour(text: str) -> str:
    """The flavour in /proc/driver/nvidia/version: open, proprietary, or "" if it names no module."""
    match = re.search(r"^NVRM version:.*?(Open )?Kernel Module", text, re.MULTILINE)
    return ("open" if match[1] else "proprietary") if match else ""


@pytest.mark.needs("promise")
@pytest.mark.survives
@_NEEDS_BOARD
def test_loaded_driver_is_the_planned_one(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The loaded driver is the planned version. All other components were planned for it."""
    planned = base_driver.version(plan, machine)
    shown = host.run("cat /proc/driver/nvidia/version")
    if shown.rc != 0:
        observe(None, planned)
        observe.fail(f"no NVIDIA driver is loaded (/proc/driver/nvidia/version: {shown.stderr.strip()})")
    observe.same(loaded_version(shown.stdout), planned, "loaded driver (/proc/driver/nvidia/version)")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_loaded_flavour_is_the_one_for_this_gpu(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The loaded module has the planned flavour, open or proprietary. The other may not support this GPU.

    GRID's build of the open module, which a fraction of a GPU takes, names itself as the open one.
    """
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    planned = driver.get("flavour")
    if planned == "boot":
        planned = driver["flavour_by_instance_type"].get(machine.instance_type)
    if planned is None:
        unproven(f"the plan has no driver flavour for {machine.instance_type}")
    planned = {"grid": "open"}.get(planned, planned)
    shown = require_driver(host)
    observe.same(loaded_flavour(shown), planned, f"flavour of the loaded module on {machine.instance_type}")


@pytest.mark.needs("observed")
@pytest.mark.survives
@_NEEDS_BOARD
def test_no_part_is_of_another_version(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """nvidia-smi, the persistence daemon and the libraries have the driver's version. They need exactly it."""
    planned = base_driver.version(plan, machine)
    versions = {
        "nvidia-smi": _shown_version(host, "nvidia-smi --version", r"^NVIDIA-SMI version\s*: (\S+)") or "no version"
    }
    if host.run("command -v nvidia-persistenced").rc == 0:
        daemon = _shown_version(host, "nvidia-persistenced --version", r"^nvidia-persistenced:\s+version (\S+)")
        versions["nvidia-persistenced"] = daemon or "no version"
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for path in shared_libraries.on_path(host, soname):
            versions[path] = path.rpartition(".so.")[2]
    # Debian's archive has the daemon in a version of its own.
    own = {"nvidia-persistenced": section(plan, "nvidia_driver", NvidiaDriver).get("persistence_daemon", planned)}
    observe(versions, planned)
    wrong = [f"{part}: {version}" for part, version in versions.items() if version != own.get(part, planned)]
    if wrong == ["nvidia-smi: no version"]:
        require_driver(host)  # without it nvidia-smi says nothing of itself
    if wrong:
        observe.fail(f"expected the driver's version {planned}, got {'; '.join(wrong)}")


def _shown_version(host: Any, command: str, pattern: str) -> str:
    match = re.search(pattern, host.run(command).stdout, re.MULTILINE)
    return match[1] if match else ""


# The same daemon by another name, in DLAMIs since 2022-12-20: the second of the two fails.
# Source: https://github.com/aws/aws-parallelcluster/issues/5448
_OF_DLAMI = "nvidia_gpu_settings_service.service"
_AS_FOUND = (["inactive", "disabled"], ["active", "static"])


@pytest.mark.survives
@_NEEDS_BOARD
def test_persistence_daemon_runs(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The persistence daemon, if installed, runs and keeps persistence mode on. Otherwise GPU settings are lost.

    An image as found may keep it on without the daemon (`nvidia-smi -pm 1`), or have Ubuntu's own packages: their unit
    is static, started by a rule of udev, and leaves persistence mode off (--no-persistence-mode).
    """
    unit = "nvidia-persistenced.service"
    if host.run("systemctl cat %s", unit).rc != 0:
        unproven("the driver's packages have no persistence daemon")
    states = [host.run(f"systemctl {verb} %s", unit).stdout.strip() for verb in ("is-active", "is-enabled")]
    as_found = plan.get("origin") == OBSERVED and states in _AS_FOUND
    if not as_found:
        runs_too = states[0] != "active" and host.run("systemctl is-active %s", _OF_DLAMI).stdout.strip() == "active"
        what = f"{unit} (the DLAMI's {_OF_DLAMI} runs the daemon already: disable one of the two)" if runs_too else unit
        observe.same(states, ["active", "enabled"], what)
    modes = _each_gpu(host, "persistence_mode")  # the unit of some packages has --no-persistence-mode
    flags = {index: readings.read_flag(mode) for index, mode in modes}
    unread = [f"GPU {index}: {flag.shown()}" for index, flag in flags.items() if flag.state == readings.UNKNOWN]
    without = [f"GPU {index}: {mode}" for index, mode in modes if not flags[index].is_set()]
    observe([*states, *(mode for _, mode in modes)], ["active", "enabled", "persistence mode Enabled"])
    if unread:
        observe.fail(f"whether persistence mode is on is unknown: {'; '.join(unread)}")
    if [flag for flag in flags.values() if flag.state == readings.KNOWN and not flag.is_set()]:
        if as_found:
            unproven(
                f"the image does not keep persistence mode on ({'; '.join(without)}): {unit} is {' and '.join(states)}"
            )
        observe.fail(f"{unit} runs, but persistence mode is off: {'; '.join(without)}")


@pytest.mark.tier("T2")
@pytest.mark.survives
def test_power_is_not_limited(host: Any, observe: Observe) -> None:
    """No GPU has a power limit below its default. It would be slower without any message."""
    rows = _each_gpu(host, "power.limit", "power.default_limit") or unproven(_SILENT)
    watts = {index: [readings.read_number(text) for text in texts] for index, *texts in rows}
    unread = [
        f"GPU {index}: {limit.shown()} of {default.shown()}"
        for index, (limit, default) in watts.items()
        if readings.UNKNOWN in (limit.state, default.state) or limit.state != default.state
    ]
    if unread:
        observe.fail(f"the power limit cannot be read: {'; '.join(unread)}")
    known = {index: pair for index, pair in watts.items() if pair[0].state == readings.KNOWN}
    limits = [(index, limit.number(), default.number()) for index, (limit, default) in known.items()]
    if not limits:
        unproven("nvidia-smi shows no power limit")
    if absent := sorted(watts.keys() - known.keys()):
        observe.fail(f"GPU {', '.join(absent)} shows no power limit, and others do")
    observe([f"{limit:g} of {default:g} W" for _, limit, default in limits], "the default limit")
    lower = [f"GPU {index}: {limit:g} of {default:g} W" for index, limit, default in limits if limit < default - 0.5]
    if lower:
        observe.fail(f"power limit below the default: {'; '.join(lower)}")


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_firmware_of_gpus_is_used_as_planned(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """GPUs use GSP firmware as planned. On some GPUs it fails under load, so a plan can disable it."""
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    flavour = driver.get("flavour_by_instance_type", {}).get(machine.instance_type, driver.get("flavour"))
    shown = host.run("cat /proc/driver/nvidia/params")
    match = re.search(r"^EnableGpuFirmware: (\d+)$", shown.stdout, re.MULTILINE)
    if not match:
        unproven("/proc/driver/nvidia/params has no EnableGpuFirmware")
    off = flavour == "proprietary" and (
        driver.get("gsp") is False or machine.instance_type in driver.get("without_gsp", [])
    )
    observe(f"EnableGpuFirmware {match[1]}", "0" if off else "not 0")
    if (match[1] == "0") is not off:
        observe.fail(f"EnableGpuFirmware: expected {'0 (GSP off)' if off else 'GSP in use'}, got {match[1]}")


@pytest.mark.needs("observed")
@pytest.mark.survives
@_NEEDS_BOARD
def test_options_of_the_module_are_in_effect(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The loaded module has the planned options, and those that modprobe's configuration sets.

    A module that was loaded earlier, or has no such option, ignores a setting without an error.
    """
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    planned = {name.removeprefix("NVreg_"): value for name, value in driver.get("options", {}).items()}
    configured = configured_options(output(host, "modprobe --showconfig"), driver.get("module", "nvidia"))
    require_driver(host)
    loaded = loaded_options(output(host, "cat /proc/driver/nvidia/params"))
    expected = {name: value for name, value in configured.items() if name in loaded} | planned
    observe({name: loaded.get(name, "no such option") for name in expected}, expected)
    wrong = [
        f"{name}: expected {value}, got {loaded.get(name, 'no such option')}"
        for name, value in expected.items()
        if name not in loaded or _option_value(loaded[name]) != _option_value(value)
    ]
    if wrong:
        observe.fail(f"options of the loaded module (/proc/driver/nvidia/params): {'; '.join(wrong)}")


def loaded_options(text: str) -> dict[str, str]:
    """Name (without NVreg_) → value in /proc/driver/nvidia/params, whose texts are in quotes: `RmMsg: ""`."""
    rows = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip().strip('"') for name, _, value in rows}


def configured_options(text: str, module: str) -> dict[str, str]:
    """Name (without NVreg_) → value that `modprobe --showconfig` sets for a module; of two settings the later one."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[0] == "options" and words[1].replace("-", "_") == module.replace("-", "_"):
            pairs = re.findall(r'NVreg_(\w+)=("[^"]*"|\S*)', words[2])
            settings |= {name: value.strip('"') for name, value in pairs}
    return settings


def _option_value(text: str) -> int | str:
    """A number in decimal, hexadecimal or octal notation as modprobe reads it (0666, 0x1b6); other text as it is."""
    try:
        return int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
    except ValueError:
        return text


# Linux's own drivers that bind a GPU at boot: nova_core succeeds nouveau, for Turing, Ampere and Ada. Ubuntu's kernel
# 7.0 came with it (Launchpad 2150845); NVIDIA's driver then says "already bound to NovaCore" (beclab/Olares#3963).
_OF_LINUX = ("nouveau", "nova_core")


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_nouveau_is_blacklisted(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nouveau and nova_core are not loaded and are blacklisted. The driver cannot use a GPU that one of them has bound.

    nova_core is of Linux 6.15 and later: kernels without it need no entry. Nor does a base AMI with its own driver, or
    an image as found, for nouveau if its kernels have no such module (EKS's on Amazon Linux 2023).
    """
    modules = {line.split()[0] for line in output(host, "cat /proc/modules").splitlines() if line.strip()}
    settings = {tuple(line.split()) for line in output(host, "modprobe --showconfig").splitlines()}
    loaded = [name for name in _OF_LINUX if name in modules]
    allowed = [name for name in _OF_LINUX if ("blacklist", name) not in settings]
    observe({"loaded": loaded, "not blacklisted": allowed}, "none of either")
    if loaded:
        observe.fail(f"{' and '.join(loaded)} is loaded")
    kernels = {
        name: kernel_modules.on_disk(host, name)
        for name in allowed
        if name != "nouveau" or plan.get("origin") == OBSERVED or "provided_by" in section(plan, "nvidia_driver")
    }
    if kernels:
        observe({"not blacklisted": allowed, "kernels": kernels}, "blacklisted, or no such module")
    without = [name for name, found in kernels.items() if found and set(found.values()) == {kernel_modules.MISSING}]
    if wrong := [name for name in allowed if name not in without]:
        observe.fail(f"{' and '.join(wrong)} is not blacklisted")


@pytest.mark.tier("T2")
@pytest.mark.survives
def test_every_user_can_use_the_gpus(host: Any, observe: Observe) -> None:
    """Every user can open the device nodes, and every GPU is in compute mode Default.

    Source: https://download.nvidia.com/XFree86/Linux-x86_64/550.54.14/README/faq.html (NVreg_DeviceFileMode: 0666)
    """
    nodes = [line.split() for line in host.run("stat -c '%a %n' /dev/nvidia[0-9]* /dev/nvidiactl").stdout.splitlines()]
    modes = _each_gpu(host, "compute_mode")
    observe([[" ".join(node) for node in nodes], modes], "mode 666; compute mode Default")
    if all(path == "/dev/nvidiactl" for _, path in nodes):
        unproven("no GPU has a device node: see nvidia_driver::test_every_promised_gpu_is_there")
    closed = [f"{path} has mode {mode}" for mode, path in nodes if int(mode, 8) & 0o006 != 0o006]
    closed += [f"GPU {row[0]} is in compute mode {row[-1]}" for row in modes if row[-1] != "Default"]
    if closed:
        observe.fail(f"GPUs that not every process can use: {'; '.join(closed)}")
    if not modes:
        unproven(_SILENT)


@pytest.mark.survives
def test_nothing_hides_gpus(host: Any, observe: Observe) -> None:
    """No setting of login shells or services hides GPUs. A program would use fewer without any message.

    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    settings = [f"{name} ({source})" for source, name in environments(host) if name.partition("=")[0] in _HIDES]
    observe.nothing(settings, "settings that hide GPUs")


# Debian 13 compresses modules: modinfo unpacks the 84 MiB of nvidia-current, under emulation in more than 120 s.
_UNPACK_SECONDS = 600.0
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def secure_boot(host: Any) -> str:
    """`on`, `off`, or `off: no UEFI variable`, by the firmware's variable: four bytes of attributes, then the state."""
    shown = host.run(f"od -An -tu1 {_SECURE_BOOT}")
    if shown.rc != 0:
        return "off: no UEFI variable"
    return "on" if shown.stdout.split()[4:5] == ["1"] else "off"


@pytest.mark.needs("observed")
def test_secure_boot_lets_the_module_load(host: Any, observe: Observe) -> None:
    """Under Secure Boot the kernel has the key that signed the module: without it the driver does not load at boot."""
    state = secure_boot(host)
    command = "modinfo -F signer nvidia || modinfo -F signer nvidia-current"
    signer = host.run(command, timeout=_UNPACK_SECONDS).stdout.strip()
    found = {"Secure Boot": state, "signer of nvidia": signer or "none"}
    observe(found, "off, or a signer that the kernel knows")
    if state != "on":
        return
    if not signer:
        observe.fail("Secure Boot is on, and nobody signed the module nvidia: the kernel refuses it")
    keys = output(host, "cat /proc/keys")
    if f"{signer}:" not in keys:
        observe.fail(
            f"Secure Boot is on, and the module nvidia is signed by {signer}, which no keyring of the kernel has"
        )


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The module on disk of each installed kernel is the planned version, so the next boot loads it."""
    base_driver.require_modules(host, plan)
    module = section(plan, "nvidia_driver", NvidiaDriver).get("module", "nvidia")
    kernel_modules.check_on_disk(host, module, base_driver.version(plan, machine), observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_dkms_built_for_every_kernel(
    host: Any, plan: PlanDocument, since_image: SinceImage | None, observe: Observe
) -> None:
    """DKMS has installed the planned driver for every installed kernel, and rebuilds it for a new one.

    On a machine DKMS is not asked again if this check passed on the image's files, and nothing of it has changed since.
    """
    package = section(plan, "nvidia_driver", NvidiaDriver).get("package", "")
    if "dkms" not in package and section(plan, "nvidia_driver", NvidiaDriver).get("source") != "grid":
        unproven(f"the plan's driver is not a DKMS package ({package})")
    if still_holds(since_image, "nvidia_driver::test_dkms_built_for_every_kernel", DKMS_MODULE, observe):
        return
    planned = section(plan, "nvidia_driver", NvidiaDriver)["version"]
    status = output(host, "dkms status", timeout=SCAN_SECONDS)
    kernels = output(
        host, "cd /lib/modules && ls -d */ | while read -r k; do [ -e $k/modules.dep ] && echo ${k%/}; done"
    )
    pattern = re.compile(r"^nvidia[\w-]*[/,]\s*([\w.]+),\s*([^,\s]+),\s*[^,:\s]+:\s*installed", re.MULTILINE)
    built = {kernel for version, kernel in pattern.findall(status) if version == planned}
    missing = sorted(set(kernels.split()) - built)
    observe(status.splitlines(), f"{planned} installed for {', '.join(kernels.split())}")
    if missing:
        observe.fail(f"DKMS has no nvidia {planned} installed for kernel {', '.join(missing)}; dkms status: {status!r}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed driver packages have exactly the planned versions."""
    packages.check_installed(host, plan, "nvidia_driver", observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_files_are_the_packages_own(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every file of the driver's packages is unchanged. The proof relies on the output of nvidia-smi."""
    packages.check_unchanged(host, plan, "nvidia_driver", ["nvidia-smi", "nvidia-persistenced"], observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held at the planned version, so a system upgrade does not change the driver."""
    packages.check_held(host, plan, "nvidia_driver", observe)


@pytest.mark.survives
@_NEEDS_BOARD
def test_every_gpu_was_initialised(host: Any, observe: Observe) -> None:
    """The kernel log of this boot names no GPU that the driver could not initialise. No Xid follows such a failure."""
    lines = kernel_log.gpu_failures(output(host, "dmesg --facility kern --notime"))
    observe(lines or "no failure", "no failure")
    if lines:
        observe.fail(f"the driver could not initialise a GPU: {'; '.join(lines[:3])}")


@pytest.mark.needs("observed")
@pytest.mark.tier("T3")
@pytest.mark.survives
@_NEEDS_BOARD
def test_every_promised_gpu_is_there(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """nvidia-smi, the driver and the PCI bus show the same GPUs, with the count and addresses of the instance type."""
    promised = planned_instance_type(plan, machine.instance_type)
    count = promised["gpu_count"]
    smi = {pci_address(row[1]) for row in _query(host, observe)}
    listed = host.run("nvidia-smi -L").stdout
    proc = {pci_address(name) for name in host.run("ls -1 /proc/driver/nvidia/gpus").stdout.split()}
    bus = [device for device in hardware.pci_devices(host.run(PCI_LIST, pure=True).stdout) if device.is_gpu]
    pci = {device.address for device in bus}
    recorded = hardware.applicable(golden_file, simulated=hardware.is_simulated(bus))
    sources = {"nvidia-smi": sorted(smi), "/proc/driver/nvidia/gpus": sorted(proc), "PCI": sorted(pci)}
    observe(sources, f"{count} GPUs; compared with {hardware.basis(recorded)}")
    missing = hardware.address_differences(smi & proc & pci, promised["gpu"], recorded)
    where = f": {'; '.join(missing)}" if missing else ""
    wrong = [
        f"{len(gpus)} in {source} ({', '.join(gpus) or 'none'})"
        for source, gpus in sources.items()
        if len(gpus) != count
    ]
    if wrong:
        observe.fail(f"GPUs of {promised['name']}: expected {count}, got {'; '.join(wrong)}{where}")
    if not smi == proc == pci:
        observe.fail(f"sources show different GPUs: {sources}")
    if missing:
        observe.fail(f"{promised['name']}: {'; '.join(missing)}")
    names = len(nvidia_smi.listed(listed))
    if names != count:
        observe.fail(f"nvidia-smi -L: expected {count} GPUs, got {names}: {listed!r}")


@pytest.mark.needs("observed")
@pytest.mark.tier("T3")
@_NEEDS_BOARD
def test_gpus_are_the_promised_model(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """Each GPU has the model and memory of the instance type, and exactly the memory of the golden file."""
    gpu = planned_instance_type(plan, machine.instance_type)["gpu"]
    rows = _query(host, observe, elsewhere=_NOT_LOADED)
    bus = [device for device in hardware.pci_devices(host.run(PCI_LIST, pure=True).stdout) if device.is_gpu]
    version = loaded_version(host.run("cat /proc/driver/nvidia/version").stdout)
    recorded = hardware.same_branch(hardware.applicable(golden_file, simulated=hardware.is_simulated(bus)), version)
    observe([row[2:4] for row in rows], [gpu["name"], str(gpu["memory_mib"]), hardware.basis(recorded)])
    if not rows:
        observe.fail(f"expected {gpu['name']}, {gpu['memory_mib']} MiB, got no GPU")
    unread = [f"GPU {row[1]}: memory.total: expected MiB, got {row[3]!r}" for row in rows if not row[3].isdigit()]
    boards = [hardware.Board(pci_address(row[1]), row[2], int(row[3])) for row in rows if row[3].isdigit()]
    wrong = unread + hardware.model_differences(boards, gpu, recorded)
    if wrong:
        observe.fail("; ".join(wrong))


_NOT_LOADED = 9  # nvidia-smi(1), return values: "NVIDIA driver is not loaded"
# nvidia-smi answers for no GPU where one has fallen off the bus (akash-network/support#209).
_SILENT = "nvidia-smi does not answer: see nvidia_driver::test_every_promised_gpu_is_there"


def _each_gpu(host: Any, *fields: str) -> list[list[str]]:
    """Index and fields of each GPU; empty if nvidia-smi fails, which other checks report."""
    done = host.run(_QUERY)
    rows = csv.DictReader(done.stdout.splitlines(), _FIELDS, restval="", skipinitialspace=True)
    return [[row["index"], *(row[field] for field in fields)] for row in rows if done.rc == 0]


def _query(host: Any, observe: Observe, elsewhere: int | None = None) -> list[list[str]]:
    """Rows of nvidia-smi. It fails the check, but with the exit status that another check reports."""
    done = host.run(_QUERY)
    if done.rc == elsewhere:
        unproven("no NVIDIA driver is loaded: see nvidia_driver::test_every_promised_gpu_is_there")
    if done.rc != 0:
        observe.fail(f"nvidia-smi exited with status {done.rc}: {(done.stdout + done.stderr).strip()}")
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
