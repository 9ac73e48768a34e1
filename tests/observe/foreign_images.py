"""Foreign images as file trees: what ordinary Packer templates and vendors leave, without a role of ours.

Each builder writes the files that its installers leave: package database, libraries, modules with their .modinfo,
records, units, the agent's configuration. Layouts: packages of Debian, Ubuntu, NVIDIA's repositories, amazon-eks-ami
v20260923, amazon-ecs-ami; the .run installer's of NVIDIA 580.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path

AGENT = "opt/aws/amazon-cloudwatch-agent"
GPU_METRICS = {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["utilization_gpu", "memory_used"]}}}}
SYSTEMS = {
    "debian12": ("debian", "12", "Debian GNU/Linux 12 (bookworm)"),
    "debian13": ("debian", "13", "Debian GNU/Linux 13 (trixie)"),
    "ubuntu2204": ("ubuntu", "22.04", "Ubuntu 22.04.5 LTS"),
    "ubuntu2404": ("ubuntu", "24.04", "Ubuntu 24.04.3 LTS"),
    "al2023": ("amzn", "2023", "Amazon Linux 2023.9"),
    "rocky9": ("rocky", "9.6", "Rocky Linux 9.6 (Blue Onyx)"),
}
OPEN, PROPRIETARY = "Dual MIT/GPL", "NVIDIA"


class Image:
    """A tree that is being written."""

    def __init__(self, root: Path, system: str, *, kernels: tuple[str, ...] = ("6.1.0-40-cloud-amd64",)) -> None:
        self.root, self.system = root, system
        identity, version, name = SYSTEMS[system]
        self.write("etc/os-release", f'ID={identity}\nVERSION_ID="{version}"\nPRETTY_NAME="{name}"\n')
        self.write("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
        # The head of an ELF file of x86-64.
        self.write_bytes("usr/bin/env", b"\x7fELF\x02\x01\x01" + b"\0" * 9 + struct.pack("<HH", 3, 0x3E))
        self.packages: dict[str, tuple[str, bool]] = {"base-files": ("1", False)}
        for kernel in kernels:
            self.write(f"lib/modules/{kernel}/modules.dep", "")

    def write(self, path: str, text: str) -> None:
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def program(self, path: str, text: str) -> None:
        self.write(path, text)
        (self.root / path).chmod(0o755)

    def link(self, path: str, target: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def install(self, *names: str, version: str, held: bool = False) -> None:
        self.packages |= dict.fromkeys(names, (version, held))

    def module(self, kernel: str, name: str, version: str, license: str = OPEN, folder: str = "updates/dkms") -> None:
        fields = f"version={version}\0license={license}\0vermagic={kernel} SMP mod_unload \0"
        content = gzip.compress(b"\x7fELF\0" + fields.encode())
        for file in (name, f"{name}-uvm") if name.startswith("nvidia") else (name,):
            self.write_bytes(f"lib/modules/{kernel}/{folder}/{file}.ko.gz", content)

    def enable(self, *units: str) -> None:
        """As `systemctl enable` does."""
        for unit in units:
            self.link(f"etc/systemd/system/multi-user.target.wants/{unit}", f"/etc/systemd/system/{unit}")

    def unit(self, name: str, *lines: str, enabled: bool = True) -> None:
        """A service that runs one command."""
        self.write(f"etc/systemd/system/{name}", "\n".join(["[Service]", *lines, ""]))
        if enabled:
            self.enable(name)

    def libraries(self, version: str, folder: str = "usr/lib/x86_64-linux-gnu") -> None:
        self.write("usr/bin/nvidia-smi", "")
        for name in ("libcuda", "libnvidia-ml"):
            self.write(f"{folder}/{name}.so.{version}", "")
            self.link(f"{folder}/{name}.so.1", f"{name}.so.{version}")

    def agent(self, where: str, config: Mapping[str, object], version: str = "1.300071.0b1720") -> None:
        """where: path below the agent's etc/."""
        self.install("amazon-cloudwatch-agent", version=version if self.is_rpm else f"{version}-1")
        self.write(f"{AGENT}/bin/CWAGENT_VERSION", f"{version}\n")
        self.write(f"{AGENT}/bin/amazon-cloudwatch-agent", "")
        self.enable("amazon-cloudwatch-agent.service")
        if where:
            self.write(f"{AGENT}/etc/{where}", json.dumps(config))

    @property
    def is_rpm(self) -> bool:
        return self.system in ("al2023", "rocky9")

    def done(self) -> Path:
        """Writes the package database."""
        if not self.is_rpm:
            blocks = [
                f"Package: {name}\nStatus: {'hold' if held else 'install'} ok installed\nVersion: {version}\n"
                for name, (version, held) in self.packages.items()
            ]
            self.write("var/lib/dpkg/status", "\n".join(blocks))
            self.write("usr/bin/dpkg-query", "")
            return self.root
        path = self.root / "usr/lib/sysimage/rpm/rpmdb.sqlite"
        path.parent.mkdir(parents=True)
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
            for name, (version, _) in self.packages.items():
                number, _, release = version.partition("-")
                database.execute("INSERT INTO Packages (blob) VALUES (?)", (rpm_header(name, number, release or "1"),))
        held = [f"{name}-0:{version}.*" for name, (version, is_held) in self.packages.items() if is_held]
        if held:
            self.write("etc/dnf/plugins/versionlock.list", "\n".join(held) + "\n")
        return self.root


def rpm_header(name: str, version: str, release: str) -> bytes:
    """A header as rpm stores it in its database: the texts, and the epoch, which is a number."""
    source = f"{name}-{version}-{release}.src.rpm"
    texts = {1000: name, 1001: version, 1002: release, 1011: "A vendor", 1022: "x86_64", 1044: source}
    index, data = struct.pack(">IIII", 1003, 4, 0, 1), struct.pack(">I", 3)
    for tag, value in texts.items():
        index += struct.pack(">IIII", tag, 6, len(data), 1)
        data += value.encode() + b"\0"
    return struct.pack(">II", len(texts) + 1, len(data)) + index + data


def sends(*files: tuple[str, str]) -> dict[str, object]:
    """A configuration that sends these files to these groups."""
    entries = [
        {"file_path": path, "log_group_name": group, "log_stream_name": "{instance_id}"} for path, group in files
    ]
    return {"logs": {"logs_collected": {"files": {"collect_list": entries}}}}


def distribution_driver(root: Path) -> Path:
    """Debian's own driver: module nvidia-current, proprietary; the agent by .d, no log of the kernel."""
    image = Image(root, "debian12")
    image.install("nvidia-driver", "nvidia-kernel-dkms", "libcuda1", "nvidia-smi", version="535.309.01-0+deb12u1")
    image.module("6.1.0-40-cloud-amd64", "nvidia-current", "535.309.01", PROPRIETARY)
    image.libraries("535.309.01", "usr/lib/x86_64-linux-gnu/nvidia/current")
    image.write("etc/modprobe.d/nvidia-blacklists-nouveau.conf", "blacklist nouveau\n")
    image.agent("amazon-cloudwatch-agent.d/file_config.json", GPU_METRICS)
    return image.done()


def vendor_without_holds(root: Path) -> Path:
    """NVIDIA's driver and CUDA by apt, nothing held; the agent at the path that AWS's own blog post uses; rsyslog."""
    kernel = "6.8.0-1031-aws"
    image = Image(root, "ubuntu2204", kernels=(kernel,))
    image.install("nvidia-open", "nvidia-driver-cuda", "libnvidia-compute", version="580.178.04-1ubuntu1")
    image.module(kernel, "nouveau", "", "GPL", "kernel/drivers/gpu/drm/nouveau")  # linux-modules-extra
    image.install("cuda-toolkit-12-9", version="12.9.1-1")
    image.module(kernel, "nvidia", "580.178.04")
    image.libraries("580.178.04")
    image.write("usr/local/cuda-12.9/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "12.9.1"}}')
    image.link("usr/local/cuda", "/etc/alternatives/cuda")
    image.link("etc/alternatives/cuda", "/usr/local/cuda-12.9")
    image.write("usr/sbin/rsyslogd", "")
    image.enable("rsyslog.service")
    image.write("etc/rsyslog.d/50-default.conf", "auth,authpriv.*\t/var/log/auth.log\nkern.*\t\t-/var/log/kern.log\n")
    image.agent("amazon-cloudwatch-agent.json", GPU_METRICS | sends(("/var/log/kern.log", "/fleet/kernel")))
    return image.done()


def run_installer(root: Path) -> Path:
    """NVIDIA's .run installer: no package; no DKMS; the installer's log; the agent without a configuration."""
    kernel = "6.17.0-1009-aws"
    image = Image(root, "ubuntu2404", kernels=(kernel,))
    image.write("var/log/nvidia-installer.log", "nvidia-installer log file\ndriver version: 570.172.08\n")
    image.module(kernel, "nvidia", "570.172.08", folder="kernel/drivers/video")
    image.libraries("570.172.08")
    image.agent("", {})
    return image.done()


def snapshot_script(root: Path) -> Path:
    """The event parser of aws-efa-nccl-baseami-pipeline d8b0211: it tails /var/log/dmesg, a snapshot of the boot."""
    image = Image(root, "debian12")
    image.install("nvidia-open", "nvidia-driver", version="580.178.04-1", held=True)
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.178.04")
    image.libraries("580.178.04")
    start = "ExecStart=/opt/aws/cloudwatch/aws-cloudwatch-wrapper.sh"
    image.unit("aws-hw-monitor.service", "Type=simple", start, "RemainAfterExit=1")
    image.write(
        "opt/aws/cloudwatch/aws-cloudwatch-wrapper.sh",
        "#!/bin/sh\n\n/usr/bin/python3 /opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py &\n",
    )
    image.write(
        "opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py",
        "#!/usr/bin/python3\nimport subprocess\n"
        "f = subprocess.Popen(['tail', '-F', '-n', '1000', '/var/log/dmesg'], stdout=subprocess.PIPE)\n"
        "while True:\n    line = f.stdout.readline()\n    if 'NVRM:' in str(line):\n"
        "        open('/var/log/gpuevent.log', 'a').write(line.decode().strip() + '\\n')\n",
    )
    config = GPU_METRICS | sends(("/var/log/gpuevent.log", "/ec2/accelerated/accel-event-log"))
    image.agent("amazon-cloudwatch-agent.d/file_config.json", config)
    return image.done()


def other_fabric_manager(root: Path) -> Path:
    """A fabric manager that an upgrade has left behind its driver."""
    kernel = "6.1.158-178.288.amzn2023.x86_64"
    image = Image(root, "al2023", kernels=(kernel,))
    image.install("kmod-nvidia-open-dkms", "nvidia-driver", version="580.178.04-1.amzn2023")
    image.install("nvidia-fabricmanager", version="580.159.03-1")
    image.write("usr/bin/nv-fabricmanager", "")
    image.module(kernel, "nvidia", "580.178.04", folder="extra")
    image.libraries("580.178.04", "usr/lib64")
    return image.done()


def module_of_another_kernel(root: Path) -> Path:
    """The module was built for the kernel of the build alone; the image boots a newer one."""
    image = Image(root, "ubuntu2404", kernels=("6.17.0-1009-aws", "6.17.0-1012-aws"))
    image.install("nvidia-open", "nvidia-driver", version="580.178.04-1ubuntu1")
    image.module("6.17.0-1009-aws", "nvidia", "580.178.04")
    image.libraries("580.178.04")
    image.write("etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n")
    return image.done()


def fetched_by_unit(root: Path) -> Path:
    """The agent's configuration is fetched at boot from an SSM parameter, by a script of cloud-init."""
    kernel = "6.1.158-178.288.amzn2023.x86_64"
    image = Image(root, "al2023", kernels=(kernel,))
    image.install("kmod-nvidia-latest-dkms", "nvidia-driver", version="580.178.04-1.amzn2023", held=True)
    image.module(kernel, "nvidia", "580.178.04", PROPRIETARY, folder="extra")
    image.agent("", {}, version="1.300072.0b1766")
    image.write(
        "var/lib/cloud/scripts/per-instance/agent.sh",
        "#!/bin/sh\n/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl -a fetch-config -m ec2"
        " -c ssm:AmazonCloudWatch-gpu -s\n",
    )
    return image.done()


def eks_base(root: Path) -> Path:
    """EKS's accelerated AMI with two trees of drivers (amazon-eks-ami v20260923), no agent."""
    kernel = "6.12.58-82.121.amzn2023.x86_64"
    image = Image(root, "al2023", kernels=(kernel,))
    image.install("nvidia-container-toolkit", "nvidia-container-toolkit-base", version="1.19.1-1")
    image.install("containerd", version="2.1.4-1.amzn2023")
    image.write("usr/bin/containerd", "")
    image.write("usr/bin/nvidia-ctk", "")
    image.write("usr/bin/nodeadm", "")
    image.write("etc/eks/release", 'BASE_AMI_ID="ami-1"\nKUBERNETES_VERSION="1.35.2"\n')
    image.write("opt/nvidia/drivers/lts/.version", "580.178.04\n")
    image.write("opt/nvidia/drivers/latest/.version", "595.91.07\n")
    return image.done()


def ecs_base(root: Path) -> Path:
    """ECS's GPU AMI: driver by packages that are locked, the ECS agent, Docker with the toolkit's runtime."""
    kernel = "6.1.158-178.288.amzn2023.x86_64"
    image = Image(root, "al2023", kernels=(kernel,))
    image.install("kmod-nvidia-open-dkms", "nvidia-driver", version="580.178.04-1.amzn2023", held=True)
    image.install("ecs-init", version="1.98.0-1.amzn2023")
    image.install("nvidia-container-toolkit", "libnvidia-container1", version="1.18.1-1")
    image.module(kernel, "nvidia", "580.178.04", folder="extra")
    image.libraries("580.178.04", "usr/lib64")
    image.write("usr/bin/dockerd", "")
    image.write("usr/bin/nvidia-ctk", "")
    image.write("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    image.write("etc/modprobe.d/nouveau.conf", "blacklist nouveau\n")
    return image.done()


def mixed_parts(root: Path) -> Path:
    """Libraries of a newer driver over the module of an older one: nvidia-smi reports a version mismatch."""
    image = Image(root, "debian12")
    image.install("nvidia-open", "nvidia-driver", version="580.178.04-1")
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.159.03")
    image.libraries("580.178.04")
    return image.done()
