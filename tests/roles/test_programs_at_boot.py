"""Programs that roles leave in an image to run at boot: what they choose, say and refuse. Tools are stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_ami.process import Completed, run

ROLES = Path(__file__).resolve().parents[2] / "roles"
FLAVOURS = """\
# a comment
version 580.178.04
dkms open nvidia
dkms proprietary nvidia-proprietary
default open
pci 1db1 proprietary
type p3.2xlarge proprietary
type g5.12xlarge open
"""


@dataclass
class Boot:
    """A machine's /sys, the tools of the system as stand-ins that note how they are called, and a configuration."""

    root: Path
    tools: dict[str, str] = field(default_factory=dict)

    def gpu(self, device: str, vendor: str = "0x10de", class_: str = "0x030200") -> None:
        folder = self.root / "sys/bus/pci/devices" / f"0000:00:{0x1B + len(list(self.root.rglob('vendor'))):02x}.0"
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", class_), ("device", f"0x{device}")):
            (folder / name).write_text(f"{value}\n")

    def type(self, name: str) -> None:
        (self.root / "sys/class/dmi/id").mkdir(parents=True)
        (self.root / "sys/class/dmi/id/product_name").write_text(f"{name}\n")

    def run(self, program: Path, configuration: str) -> Completed:
        bin_ = self.root / "bin"
        bin_.mkdir()
        for name, script in self.tools.items():
            (bin_ / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/calls\n{script}\n')
            (bin_ / name).chmod(0o755)
        (self.root / "conf").write_text(configuration)
        environment = {
            "PATH": f"{bin_}:/usr/bin:/bin", "SYS": str(self.root / "sys"), "CONF": str(self.root / "conf"),
            "OPTIONS": str(self.root / "run/options.conf"),
        }  # fmt: skip
        return run([program], timeout=60, env=environment, check=False)

    @property
    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    return Boot(tmp_path)


def flavour(boot: Boot, configuration: str = FLAVOURS, installed: str = "nvidia") -> Completed:
    """`installed`: which of the two DKMS says is installed for the running kernel."""
    status = f'case "$*" in "status -m {installed} "*) echo "{installed}/580.178.04, 6.1, x86_64: installed" ;; esac'
    boot.tools = {"dkms": status, "modprobe": "", "uname": "echo 6.1"}
    return boot.run(ROLES / "nvidia_driver/files/nvidia-flavour", configuration)


def test_the_gpu_goes_before_the_instance_type(boot: Boot) -> None:
    """A P3 is a Xen machine: its product name is no instance type."""
    boot.gpu("1db1")
    boot.type("HVM domU")
    done = flavour(boot)
    assert done.returncode == 0, done.stderr
    assert "flavour proprietary (GPU 10de:1db1): module nvidia-proprietary 580.178.04" in done.stdout
    assert [call for call in boot.calls if " status" not in call and "uname" not in call] == [
        "dkms uninstall -m nvidia -v 580.178.04 -k 6.1",
        "dkms install -m nvidia-proprietary -v 580.178.04 -k 6.1 --force",
        "modprobe nvidia",
    ]


def test_the_flavour_that_is_installed_is_only_loaded(boot: Boot) -> None:
    boot.gpu("2237")
    boot.type("g5.12xlarge")
    done = flavour(boot)
    assert "flavour open (instance type g5.12xlarge)" in done.stdout
    assert [call.split()[:2] for call in boot.calls if "status" not in call and "uname" not in call] == [
        ["modprobe", "nvidia"]
    ]


def test_an_unknown_gpu_gets_the_default_and_it_is_said(boot: Boot) -> None:
    boot.gpu("ffff")
    boot.type("g9.xlarge")
    done = flavour(boot)
    assert "neither GPU 10de:ffff nor instance type g9.xlarge is in" in done.stdout
    assert boot.calls[-1] == "modprobe nvidia"


def test_without_a_gpu_nothing_is_loaded(boot: Boot) -> None:
    boot.gpu("1237", vendor="0x8086")
    boot.type("m5.large")
    done = flavour(boot)
    assert (done.returncode, done.stdout) == (0, "no NVIDIA GPU: no module is loaded\n")
    assert boot.calls == []


def test_firmware_is_off_for_the_proprietary_module_alone(boot: Boot) -> None:
    boot.gpu("1db1")
    boot.type("p3.2xlarge")
    flavour(boot, f"{FLAVOURS}options proprietary NVreg_EnableGpuFirmware=0\n")
    assert (boot.root / "run/options.conf").read_text() == "options nvidia NVreg_EnableGpuFirmware=0\n"


def test_a_flavour_without_a_module_is_an_error(boot: Boot) -> None:
    boot.gpu("1db1")
    boot.type("p3.2xlarge")
    done = flavour(boot, FLAVOURS.replace("dkms proprietary nvidia-proprietary\n", ""))
    assert done.returncode == 1
    assert "names no module of flavour proprietary (GPU 10de:1db1)" in done.stderr


CLOCKS = "# comment\n6250,1710 NVIDIA A10G\n1215,1410 NVIDIA A100-SXM4-40GB\n"


_EIGHT = "0 1 2 3 4 5 6 7"


def clocks(boot: Boot, name: str, has: str) -> Completed:
    """`has`: memory and graphics clock that the GPU shows afterwards."""
    boot.tools = {
        "nvidia-smi": f"""case "$*" in
            *index,name*) echo "0, {name}" ;;
            *clocks.applications*) echo "0, {has}" ;;
            *) echo "All done." ;;
        esac"""
    }
    return boot.run(ROLES / "tuning/files/nvidia-clocks", CLOCKS)


def test_planned_clocks_are_set_and_read_back(boot: Boot) -> None:
    done = clocks(boot, "NVIDIA A10G", "6251, 1710")
    assert (done.returncode, done.stdout) == (0, "GPU 0 (NVIDIA A10G): memory,graphics 6250,1710 MHz\n")
    assert [call for call in boot.calls if "query" not in call] == ["nvidia-smi --applications-clocks=6250,1710"]


def test_clocks_of_equal_gpus_are_set_and_read_back_at_once(boot: Boot) -> None:
    """Eight GPUs: three calls of nvidia-smi, two more for one that did not take its clocks. Each prolongs the boot."""
    boot.tools = {
        "nvidia-smi": f"""case "$*" in
            *index,name*) for n in {_EIGHT}; do echo "$n, NVIDIA A10G"; done ;;
            *clocks.applications*) for n in {_EIGHT}; do echo "$n, 6251, $((1710 - (n == 5)  * 390))"; done ;;
            *) echo "set"; echo "but not taken" ;;
        esac"""
    }
    done = boot.run(ROLES / "tuning/files/nvidia-clocks", CLOCKS)
    assert done.returncode == 1
    assert [call for call in boot.calls if "query" not in call] == [
        "nvidia-smi --applications-clocks=6250,1710", "nvidia-smi -i 5 --applications-clocks=6250,1710",
    ]  # fmt: skip
    assert len(boot.calls) == 5
    assert done.stdout.count("memory,graphics 6250,1710 MHz") == 7
    assert done.stderr == "GPU 5 (NVIDIA A10G): did not accept 6250,1710 MHz: set but not taken\n"


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        (("NVIDIA A10G", "NVIDIA A100-SXM4-40GB"), ""),
        (("NVIDIA A10G", "NVIDIA T4"), ""),
        (("NVIDIA A10G", "NVIDIA A10G"), "--applications-clocks*) exit 15 ;;"),
    ],
)
def test_each_gpu_is_set_alone_where_not_all_can_be_set_at_once(
    boot: Boot, names: tuple[str, str], refusal: str
) -> None:
    """The clocks differ, a GPU has none, or the call for all GPUs failed."""
    lines = ["6250,1710 NVIDIA A10G", "1215,1410 NVIDIA A100-SXM4-40GB"]
    planned = {line.partition(" ")[2]: line.partition(" ")[0] for line in lines}
    has = [planned.get(name, "0,0") for name in names]
    boot.tools = {
        "nvidia-smi": f"""case "$*" in
            *index,name*) echo "0, {names[0]}"; echo "1, {names[1]}" ;;
            *clocks.applications*) echo "0, {has[0]}"; echo "1, {has[1]}" ;;
            {refusal}
            *) echo "All done." ;;
        esac"""
    }
    done = boot.run(ROLES / "tuning/files/nvidia-clocks", CLOCKS)
    alone = [
        f"nvidia-smi -i {n} --applications-clocks={planned[name]}" for n, name in enumerate(names) if name in planned
    ]
    assert done.returncode == 0, done.stderr
    assert [call for call in boot.calls if " -i " in call] == alone
    assert done.stdout.count("memory,graphics") == len(alone)


def test_clocks_that_a_gpu_did_not_take_are_an_error(boot: Boot) -> None:
    """nvidia-smi calls it a warning and ends with 0."""
    done = clocks(boot, "NVIDIA A10G", "6251, 1320")
    assert done.returncode == 1
    assert "GPU 0 (NVIDIA A10G): did not accept 6250,1710 MHz: All done." in done.stderr


def test_a_gpu_without_planned_clocks_is_left_alone(boot: Boot) -> None:
    done = clocks(boot, "NVIDIA A100-SXM4-80GB", "1593, 1410")
    assert (done.returncode, done.stdout) == (
        0,
        "GPU 0 (NVIDIA A100-SXM4-80GB): no clocks are planned, left unchanged\n",
    )
    assert not [call for call in boot.calls if "applications-clocks=" in call]


MIG = "p4d.24xlarge 3g.20gb,3g.20gb\n"
SMI = """case "$*" in
    *mig.mode.current*) cat {root}/mode ;;
    *mig.mode.pending*) echo Enabled ;;
    --multi-instance-gpu=1) echo {at_once} >{root}/mode ;;
    --gpu-reset) echo {after_reset} >{root}/mode ;;
    "mig --list-gpu-instances") exit {listed} ;;
esac"""


def mig(
    boot: Boot, *, at_once: str = "Enabled", after_reset: str = "Enabled", listed: int = 6, mode: str = "Disabled"
) -> Completed:
    (boot.root / "mode").write_text(f"{mode}\n")
    boot.tools = {"nvidia-smi": SMI.format(root=boot.root, at_once=at_once, after_reset=after_reset, listed=listed)}
    return boot.run(ROLES / "tuning/files/nvidia-mig", MIG)


def test_gpus_are_divided_after_a_reset(boot: Boot) -> None:
    boot.type("p4d.24xlarge")
    done = mig(boot, at_once="Disabled")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "p4d.24xlarge: every GPU is divided into 3g.20gb,3g.20gb",
    )
    assert "nvidia-smi --gpu-reset" in boot.calls
    assert "nvidia-smi mig --create-gpu-instance 3g.20gb,3g.20gb --default-compute-instance" in boot.calls


def test_gpus_that_take_the_mode_at_once_are_not_reset(boot: Boot) -> None:
    boot.type("p4d.24xlarge")
    assert mig(boot).returncode == 0
    assert "nvidia-smi --gpu-reset" not in boot.calls


def test_instances_of_this_boot_are_kept(boot: Boot) -> None:
    boot.type("p4d.24xlarge")
    done = mig(boot, mode="Enabled", listed=0)
    assert "GPU instances exist already" in done.stdout
    assert not [call for call in boot.calls if "--create-gpu-instance" in call]


def test_a_mode_that_stays_pending_is_an_error(boot: Boot) -> None:
    boot.type("p4d.24xlarge")
    done = mig(boot, at_once="Disabled", after_reset="Disabled")
    assert (done.returncode, done.stderr) == (1, "p4d.24xlarge: MIG mode is Disabled after a reset, pending Enabled \n")


def test_another_instance_type_is_left_whole(boot: Boot) -> None:
    boot.type("g5.12xlarge")
    done = mig(boot)
    assert "no MIG profiles are planned" in done.stdout
    assert boot.calls == []


@pytest.mark.parametrize("role", ["nvidia_driver", "tuning"])
def test_shellcheck_is_content(role: str) -> None:
    programs = [path for path in (ROLES / role / "files").iterdir() if not path.suffix]
    assert programs
    done = run(["shellcheck", *programs], timeout=60, check=False)
    assert done.returncode == 0, done.stdout


PARAMS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
DEVICES = "Character devices:\n195 nvidia\n235 nvidia-uvm\n236 nvidia-caps\n\nBlock devices:\n240 nvidia-uvm\n"


@dataclass
class Nodes:
    """A machine's /proc and /dev, and mknod, chmod, chown and modprobe as stand-ins that note how they are called."""

    root: Path

    def write(self, path: str, text: str) -> None:
        file = self.root / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def create(self, module: str = "nvidia-uvm") -> tuple[Completed, list[str]]:
        """The program's end, and its calls, with paths below /dev."""
        tools = self.root / "bin"
        tools.mkdir(exist_ok=True)
        for name in ("mknod", "chmod", "chown", "modprobe"):
            (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/calls\n')
            (tools / name).chmod(0o755)
        (self.root / "dev").mkdir(exist_ok=True)
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "PROC": str(self.root / "proc"), "DEV": str(self.root / "dev")}
        program = ROLES / "nvidia_device_nodes/files/nvidia-device-nodes"
        done = run([program, module], timeout=60, env=environment, check=False)
        calls = (self.root / "calls").read_text().replace(f"{self.root}/dev/", "").splitlines()
        return done, calls


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    machine = Nodes(tmp_path)
    machine.write("driver/nvidia/params", PARAMS)
    machine.write("devices", DEVICES)
    for address, minor in (("0000:00:1b.0", 0), ("0000:00:1c.0", 1)):
        machine.write(f"driver/nvidia/gpus/{address}/information", f"Model: \t\t X\nDevice Minor: \t {minor}\n")
    return machine


def test_device_nodes_are_created_with_the_driver_s_numbers(nodes: Nodes) -> None:
    for name, minor, mode in (("config", 1, 256), ("monitor", 2, 292)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        nodes.write(f"driver/nvidia/capabilities/mig/{name}", text)
    done, calls = nodes.create()
    assert (done.returncode, done.stderr, calls[0]) == (0, "", "modprobe nvidia-uvm")
    assert [call.removeprefix("mknod -m ") for call in calls if call.startswith("mknod")] == [
        "0666 nvidiactl c 195 255", "0666 nvidia0 c 195 0", "0666 nvidia1 c 195 1", "0666 nvidia-uvm c 235 0",
        "0666 nvidia-uvm-tools c 235 1", "0400 nvidia-caps/nvidia-cap1 c 236 1", "0444 nvidia-caps/nvidia-cap2 c 236 2",
    ]  # fmt: skip
    assert "chown 0:0 nvidia-uvm" in calls
    links = {path.name: str(path.readlink()) for path in (nodes.root / "dev/char").iterdir()}
    assert (links["195:255"], links["235:0"]) == ("../nvidiactl", "../nvidia-uvm")
    assert links["236:1"] == "../nvidia-caps/nvidia-cap1"


def test_device_nodes_are_left_to_the_system_where_the_driver_says_so(nodes: Nodes) -> None:
    nodes.write("driver/nvidia/params", PARAMS.replace("Files: 1", "Files: 0"))
    done, calls = nodes.create("nvidia-current-uvm")
    assert (done.returncode, calls) == (0, ["modprobe nvidia-current-uvm"])
    assert done.stdout == "ModifyDeviceFiles is 0: the device nodes are left to the system\n"


def test_a_module_without_device_numbers_is_an_error(nodes: Nodes) -> None:
    """Block devices are not looked at, and drivers before R450 have no capabilities."""
    nodes.write("devices", DEVICES.replace("235 nvidia-uvm\n236 nvidia-caps\n", ""))
    done, _ = nodes.create()
    assert (done.returncode, "nvidia-uvm is loaded, but" in done.stderr) == (1, True)
    nodes.write("devices", DEVICES.replace("236 nvidia-caps\n", ""))
    done, calls = nodes.create()
    assert (done.returncode, any("caps" in call for call in calls)) == (0, False)
