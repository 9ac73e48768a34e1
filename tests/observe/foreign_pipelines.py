"""What public pipelines leave, as file trees. Each names the pipeline that it is after."""

from __future__ import annotations

from pathlib import Path

from tests.observe.foreign_images import AGENT, GPU_METRICS, PROPRIETARY, Image, sends

AL2023, UBUNTU = "6.12.58-82.121.amzn2023.x86_64", "6.8.0-1031-aws"


def eks_archive(root: Path) -> Path:
    """EKS's accelerated AMI whose flavours are DKMS tarballs (amazon-eks-ami 81fec2e8, install-nvidia-driver.sh)."""
    image = Image(root, "al2023", kernels=(AL2023,))
    image.install("nvidia-driver-cuda", "nvidia-persistenced", "nvidia-driver", version="580.126.09-1.amzn2023")
    image.install("nvidia-fabricmanager", "nvidia-imex", version="580.126.09-1")
    image.install("kubelet", version="1.35.2-1")
    image.install("nvidia-container-toolkit", version="1.18.1-1")
    for name in ("nvidia", "nvidia-open", "nvidia-open-grid"):
        file = f"{name}-580.126.09-kernel{AL2023}-x86_64.dkms.tar.gz"
        image.write(f"var/lib/dkms-archive/{name}/{file}", "")
    image.libraries("580.126.09", "usr/lib64")
    image.write("usr/bin/nodeadm", "")
    image.write("usr/bin/containerd", "")
    image.write("etc/eks/release", 'BASE_AMI_ID="ami-1"\nKUBERNETES_VERSION="1.35.2"\n')
    image.unit("nvidia-kmod-load.service", "Type=oneshot", "ExecStart=/etc/eks/nvidia-kmod-load.sh")
    image.enable("nvidia-fabricmanager.service", "nvidia-persistenced.service")
    return image.done()


def eks_trees(root: Path) -> Path:
    """EKS's accelerated AMI v20260923: two drivers as trees below /opt/nvidia, the kubelet's version in a file."""
    image = Image(root, "al2023", kernels=(AL2023,))
    image.install("nvidia-container-toolkit-base", version="1.19.1-1")
    for tree, version in (("lts", "580.178.04"), ("pb", "595.91.07")):
        folder = f"opt/nvidia/{tree}/usr/lib64"
        image.write(f"{folder}/libcuda.so.{version}", "")
        image.link(f"{folder}/libcuda.so.1", f"libcuda.so.{version}")
        for flavour in ("open", "proprietary"):
            image.write(f"opt/nvidia/{tree}/flavors/{flavour}/lib/modules/{AL2023}/extra/nvidia.ko", "")
    image.write("usr/bin/nodeadm", "")
    image.write("usr/bin/containerd", "")
    image.write("etc/eks/release", 'BASE_AMI_ID="ami-1"\nARCH="x86_64"\n')
    image.write("etc/eks/kubelet-version.txt", "Kubernetes v1.35.2-eks-40737a8\n")
    return image.done()


def pcluster(root: Path) -> Path:
    """ParallelCluster's Ubuntu: .run installer with DKMS, fabric manager held, the agent configured by the cluster."""
    image = Image(root, "ubuntu2204", kernels=(UBUNTU,))
    image.write("opt/parallelcluster/.bootstrapped", "aws-parallelcluster-cookbook-3.12.0")
    image.module(UBUNTU, "nvidia", "550.90.07")
    image.write("usr/src/nvidia-550.90.07/dkms.conf", 'PACKAGE_NAME="nvidia"\n')
    image.link("var/lib/dkms/nvidia/550.90.07/source", "/usr/src/nvidia-550.90.07")
    image.libraries("550.90.07")
    image.install("nvidia-fabricmanager-550", version="550.90.07-1", held=True)
    image.write("usr/bin/nv-fabricmanager", "")
    image.module(UBUNTU, "nouveau", "", "GPL", "kernel/drivers/gpu/drm/nouveau")
    image.write("etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\nblacklist lbm-nouveau\n")
    image.agent("", {}, version="1.300047.0b878")
    (root / "etc/systemd/system/multi-user.target.wants/amazon-cloudwatch-agent.service").unlink()
    image.write("usr/local/etc/cloudwatch_agent_config.json", '{"timestamp_formats": {}, "log_configs": []}')
    return image.done()


def ubuntu_server(root: Path) -> Path:
    """Ubuntu's own nvidia-driver-570-server with the kernel's signed modules (linux-modules-nvidia-570-server-aws)."""
    image = Image(root, "ubuntu2404", kernels=("6.14.0-1018-aws",))
    names = ("nvidia-driver-570-server", "nvidia-utils-570-server", "libnvidia-compute-570-server")
    image.install(*names, version="570.211.01-0ubuntu0.24.04.1", held=True)
    image.install("linux-modules-nvidia-570-server-aws", version="6.14.0-1018.18~24.04.1+1")
    image.module("6.14.0-1018-aws", "nvidia", "570.211.01", PROPRIETARY, "kernel/nvidia-570srv")
    image.libraries("570.211.01")
    image.write("usr/lib/modprobe.d/nvidia-graphics-drivers.conf", "blacklist nouveau\n")
    image.write("usr/sbin/rsyslogd", "")
    image.enable("rsyslog.service")
    image.write("etc/rsyslog.d/50-default.conf", "*.*;auth,authpriv.none\t\t-/var/log/syslog\n")
    image.agent("amazon-cloudwatch-agent.d/file_config.json", GPU_METRICS | sends(("/var/log/syslog", "/team/syslog")))
    return image.done()


def dcgm_exporter(root: Path) -> Path:
    """Amazon Linux 2023 by nvidia-release: DCGM exporter for metrics, Fluent Bit for kernel lines, no agent."""
    image = Image(root, "al2023", kernels=(AL2023,))
    image.install("nvidia-release", version="2023-1.amzn2023")
    image.install("kmod-nvidia-open-dkms", "nvidia-driver-cuda", version="580.126.09-1.amzn2023", held=True)
    image.install("datacenter-gpu-manager-4-core", version="4.4.2-1")
    image.module(AL2023, "nvidia", "580.126.09", folder="extra")
    image.libraries("580.126.09", "usr/lib64")
    image.write("usr/bin/dcgm-exporter", "")
    image.unit("dcgm-exporter.service", "ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv")
    image.write(
        "etc/fluent-bit/fluent-bit.conf",
        "[SERVICE]\n    Flush 5\n[INPUT]\n    Name systemd\n    Tag host.*\n    Systemd_Filter _TRANSPORT=kernel\n"
        "[OUTPUT]\n    Name cloudwatch_logs\n    Match host.*\n    log_group_name /team/gpu/kernel\n"
        "    log_stream_prefix ${HOSTNAME}-\n",
    )
    image.enable("fluent-bit.service")
    return image.done()


def fluent_bit_of_a_unit(root: Path) -> Path:
    """Fluent Bit that takes one unit of the journal: no kernel line reaches it."""
    image = Image(root, "debian12")
    image.install("nvidia-open", "nvidia-driver", version="580.178.04-1", held=True)
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.178.04")
    image.libraries("580.178.04")
    image.write(
        "etc/fluent-bit/fluent-bit.conf",
        "[INPUT]\n    Name systemd\n    Systemd_Filter _SYSTEMD_UNIT=docker.service\n"
        "[OUTPUT]\n    Name cloudwatch_logs\n    Match *\n    log_group_name /team/docker\n",
    )
    image.enable("fluent-bit.service")
    return image.done()


def vector(root: Path) -> Path:
    """Vector's source journald into CloudWatch Logs (vector.dev), beside an agent that sends metrics alone."""
    image = Image(root, "debian12")
    image.install("nvidia-open", "nvidia-driver", version="580.178.04-1", held=True)
    image.module("6.1.0-40-cloud-amd64", "nvidia", "580.178.04")
    image.libraries("580.178.04")
    image.write(
        "etc/vector/vector.yaml",
        "sources:\n  kernel:\n    type: journald\n    current_boot_only: true\nsinks:\n  cloud:\n"
        "    type: aws_cloudwatch_logs\n    inputs: [kernel]\n    group_name: /team/journal\n"
        "    stream_name: '{{ host }}'\n",
    )
    image.enable("vector.service")
    image.agent("amazon-cloudwatch-agent.d/file_metrics.json", GPU_METRICS)
    return image.done()


def collector_part(root: Path) -> Path:
    """The agent with a part for its OpenTelemetry collector: a .yaml, which its translator skips."""
    image = Image(root, "al2023", kernels=(AL2023,))
    image.install("kmod-nvidia-open-dkms", "nvidia-driver-cuda", version="580.126.09-1.amzn2023", held=True)
    image.module(AL2023, "nvidia", "580.126.09", folder="extra")
    image.libraries("580.126.09", "usr/lib64")
    image.agent("amazon-cloudwatch-agent.d/file_config.json", GPU_METRICS)
    image.write(f"{AGENT}/etc/amazon-cloudwatch-agent.d/file_otel.yaml", "receivers:\n  journald: {}\n")
    return image.done()


def bottlerocket(root: Path) -> Path:
    """Bottlerocket's NVIDIA variant: no package database, units of its own, the driver below /usr/lib/nvidia/tesla."""
    kernel = "6.12.55"
    image = Image(root, "debian12", kernels=(kernel,))
    image.write(
        "etc/os-release",
        'ID=bottlerocket\nVERSION_ID=1.50.0\nPRETTY_NAME="Bottlerocket OS 1.50.0 (aws-k8s-1.34-nvidia)"\n',
    )
    image.module(kernel, "nvidia", "580.126.09", folder="kernel/drivers/extra/video/nvidia/tesla")
    image.libraries("580.126.09", "usr/lib/nvidia/tesla")
    image.write("usr/bin/containerd", "")
    return image.root


def gpumon(root: Path) -> Path:
    """A script that sends metrics by boto3 instead of the agent (public packer templates for g4dn), systemd timer."""
    image = Image(root, "ubuntu2204", kernels=(UBUNTU,))
    image.install("nvidia-driver-535-server", "libnvidia-compute-535-server", version="535.309.01-0ubuntu1", held=True)
    image.module(UBUNTU, "nvidia", "535.309.01", PROPRIETARY, "updates/dkms")
    image.libraries("535.309.01")
    image.write("opt/gpumon/gpumon.py", "#!/usr/bin/python3\nimport boto3, pynvml\ncloudwatch.put_metric_data()\n")
    image.unit("gpumon.service", "ExecStart=/usr/bin/python3 /opt/gpumon/gpumon.py")
    return image.done()


def several_toolkits(root: Path) -> Path:
    """As a Deep Learning AMI: several CUDA toolkits by .run installers beside each other, the link on one of them."""
    image = Image(root, "ubuntu2404", kernels=("6.14.0-1018-aws",))
    image.write("etc/motd", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006\n")
    image.module("6.14.0-1018-aws", "nvidia", "580.126.09", folder="updates/dkms")
    image.write("usr/src/nvidia-580.126.09/dkms.conf", 'PACKAGE_NAME="nvidia"\n')
    image.link("var/lib/dkms/nvidia/580.126.09/source", "/usr/src/nvidia-580.126.09")
    image.libraries("580.126.09")
    for version in ("12.6", "12.8", "13.0"):
        image.write(f"usr/local/cuda-{version}/version.json", '{"cuda" : {"version" : "%s.1"}}' % version)  # noqa: UP031
    image.link("usr/local/cuda", "/usr/local/cuda-12.8")
    return image.done()


def rocky_by_hand(root: Path) -> Path:
    """Rocky Linux: driver by .run installer, Docker's own packages, the toolkit of an archive in /usr/local/bin, the
    agent with its translation alone, and a script that follows the journal into a file that nobody sends."""
    kernel = "5.14.0-570.17.1.el9_6.x86_64"
    image = Image(root, "rocky9", kernels=(kernel,))
    image.write("var/log/nvidia-installer.log", "nvidia-installer log file\ninstaller version: 580.95.05\n")
    image.module(kernel, "nvidia", "580.95.05", folder="kernel/drivers/video")
    image.libraries("580.95.05", "usr/lib64")
    image.write("usr/local/cuda-13.0/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "13.0.1"}}')
    image.link("usr/local/cuda", "cuda-13.0")
    image.install("docker-ce", version="28.5.1-1.el9")
    image.install("containerd.io", version="1.7.28-1.el9")
    for name in ("usr/bin/dockerd", "usr/bin/containerd", "usr/local/bin/nvidia-ctk"):
        image.write(name, "")
    runtime = '{"runtimes": {"nvidia": {"args": [], "path": "/usr/local/bin/nvidia-container-runtime"}}}'
    image.write("etc/docker/daemon.json", runtime)
    image.write(
        "etc/modprobe.d/nvidia-installer-disable-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n"
    )
    image.agent("", {}, version="1.300060.0b1248")
    image.write(f"{AGENT}/etc/amazon-cloudwatch-agent.toml", "[inputs]\n  [[inputs.nvidia_smi]]\n")
    follow = "journalctl -k -f -o short-iso | grep --line-buffered -E 'NVRM: Xid|SXid' >> /var/log/gpu/xid.log"
    image.program("usr/local/bin/xid-watch.sh", f"#!/bin/bash\n{follow}\n")
    image.unit("xid-watch.service", "Restart=always", "ExecStart=/usr/local/bin/xid-watch.sh")
    return image.done()


def conda_libraries(root: Path) -> Path:
    """Amazon Linux 2023 with nvidia-open by dnf, CUDA by conda alone, and a script that follows journald, sent by the
    agent."""
    image = Image(root, "al2023", kernels=(AL2023,))
    image.install("nvidia-open", "kmod-nvidia-open-dkms", "nvidia-driver", version="580.126.09-1.amzn2023")
    image.module(AL2023, "nvidia", "580.126.09", folder="extra")
    image.libraries("580.126.09", "usr/lib64")
    for name in ("cuda-version-12.8-h5d125a7_3", "cudnn-9.8.0.87-h81d5506_1", "python-3.12.11-h9e4cc4f_0"):
        image.write(f"opt/conda/conda-meta/{name}.json", "{}")
    image.write("home/ec2-user/venv/lib/python3.12/site-packages/nvidia_nccl_cu12-2.27.3.dist-info/METADATA", "")
    image.write("etc/modprobe.d/nvidia.conf", "blacklist nouveau\n")
    image.program(
        "opt/gpu-events/watch.py",
        "#!/usr/bin/python3\nimport json, subprocess\n"
        "kernel = subprocess.Popen(['journalctl', '-k', '-f', '-o', 'json'], stdout=subprocess.PIPE, text=True)\n"
        "with open('/var/log/gpu-events.json', 'a', buffering=1) as out:\n    for line in kernel.stdout:\n"
        "        if 'NVRM: Xid' in str(json.loads(line).get('MESSAGE')):\n            out.write(line)\n",
    )
    image.unit("gpu-events.service", "ExecStart=/usr/bin/python3 /opt/gpu-events/watch.py", "Restart=always")
    config = GPU_METRICS | sends(("/var/log/gpu-events.json", "/ml/gpu-events"))
    image.agent("amazon-cloudwatch-agent.json", config)
    return image.done()


def sends_itself(root: Path) -> Path:
    """Ubuntu's nvidia-driver-580-open and Docker, no agent: a script sends lines to CloudWatch Logs itself."""
    kernel = "6.14.0-1018-aws"
    image = Image(root, "ubuntu2404", kernels=(kernel,))
    names = ("nvidia-driver-580-open", "nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580")
    image.install(*names, version="580.126.09-0ubuntu0.24.04.1", held=True)
    image.module(kernel, "nvidia", "580.126.09")
    image.libraries("580.126.09")
    image.install("docker.io", version="28.2.2-0ubuntu1~24.04.1")
    image.install("nvidia-cuda-toolkit", version="12.0.140~12.0.1-4build4")
    image.write("usr/bin/dockerd", "")
    image.write("usr/lib/modprobe.d/nvidia-graphics-drivers.conf", "blacklist nouveau\n")
    image.program(
        "usr/local/sbin/xid2cw",
        "#!/bin/sh\njournalctl --dmesg --follow --lines=0 --grep 'NVRM: Xid' | while read -r line; do\n"
        "  aws logs put-log-events --log-group-name /gpu/xid --log-stream-name $(hostname)"
        ' --log-events "timestamp=$(date +%s000),message=$line"\ndone\n',
    )
    image.unit("xid2cw.service", "ExecStart=/usr/local/sbin/xid2cw")
    return image.done()


def neuron_by_hand(root: Path) -> Path:
    """Ubuntu 22.04 with Neuron's packages, EFA's installer and the agent with metrics of the CPU."""
    image = Image(root, "ubuntu2204", kernels=(UBUNTU,))
    image.install("aws-neuronx-dkms", version="2.23.9.0")
    image.install("aws-neuronx-tools", version="2.25.145.0")
    image.install("aws-neuronx-runtime-lib", version="2.27.23.0-8deec4dbf")
    image.module(UBUNTU, "neuron", "2.23.9.0", "GPL")
    for name in ("neuron-ls", "neuron-monitor"):
        image.write(f"opt/aws/neuron/bin/{name}", "")
    image.install("efa", version="2.17.3-1.amzn1")
    image.write("opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.3\nefa 2.17.3\n")
    image.module(UBUNTU, "efa", "2.17.3", "Dual BSD/GPL")
    image.write("usr/sbin/rsyslogd", "")
    image.enable("rsyslog.service")
    image.write("etc/rsyslog.d/50-default.conf", "*.*;auth,authpriv.none\t\t-/var/log/syslog\n")
    cpu = {"metrics": {"metrics_collected": {"cpu": {"measurement": ["usage_idle"]}}}}
    image.agent("amazon-cloudwatch-agent.d/file_config.json", cpu | sends(("/var/log/syslog", "/trn/syslog")))
    return image.done()
