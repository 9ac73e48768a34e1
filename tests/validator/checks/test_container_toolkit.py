"""Each check of the container toolkit's configuration, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import container_toolkit as toolkit
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes import nvidia_smi

SECTION = {
    "version": "1.18.1",
    "runtime": "docker",
    "cdi": True,
    "packages": {"nvidia-container-toolkit": "1.18.1-1", "nvidia-container-toolkit-base": "1.18.1-1"},
}
DOCKER = '{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}, "features": {"cdi": true}}'
DUMP = """
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
enable_cdi = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = ""
SystemdCgroup = true
"""
OF_NODEADM = DUMP.replace('= "runc"', '= "nvidia"').replace('BinaryName = ""\nSystemdCgroup = true', 'BinaryName = ""')
WITHOUT_NVIDIA = DUMP.replace("runtimes.nvidia", "runtimes.kata")
# nvidia-ctk that takes what the file says, on containerd 1.6: runc is lost
WITHOUT_RUNC = DUMP.partition("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc")[0]
NAMES = "".join(f"nvidia.com/gpu={name}\n" for name in ("0", "1", "GPU-0a", "GPU-1b", "all"))
SPECIFICATION = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - hostPath: /dev/nvidia1
      path: /dev/nvidia0
  name: GPU-1b
kind: nvidia.com/gpu

---
"""
# As nvidia-ctk writes it from 1.19 on.
NUMBERED = SPECIFICATION.replace("path: /dev/nvidiactl\n", "path: /dev/nvidiactl\n    major: 195\n    minor: 255\n")
NUMBERS = "/dev/nvidiactl c3 ff\n"
NODES = "/dev/nvidia0\n/dev/nvidia1\n/dev/nvidiactl\n"
INSTALLED = "nvidia-container-toolkit installed 1.18.1-1\nnvidia-container-toolkit-base installed 1.18.1-1\n"
UNCONFIGURED = {"test -e /etc/containerd/config.toml": (1, ""), "test*": ""}
NO_NODEADM = {"test -x /usr/bin/nodeadm": (1, "")}


def plan(**changes: Any) -> PlanDocument:
    types = [{"name": "g5.12xlarge", "gpu_count": 2}, {"name": "m5.large", "gpu_count": 0}]
    return as_plan({"os": {"family": "debian"}, "instance_types": types, "container_toolkit": SECTION | changes})


AS_FOUND = as_plan(plan() | {"origin": "observed"})
CONTAINERD = plan(runtime="containerd")
EKS = as_plan(CONTAINERD | {"node_eks": {"version": "1.35"}})
JOINED = {"test*": "", "containerd*": DUMP}
CASES: list[tuple[Any, dict[str, Any], PlanDocument, str, str]] = [
    (
        toolkit.test_toolkit_is_the_planned_version,
        {"nvidia-ctk*": "NVIDIA Container Toolkit CLI version 1.18.1\ncommit: f202b80\n"},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_toolkit_is_the_planned_version,
        {"nvidia-ctk*": "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80\n"},
        plan(),
        "FAIL",
        "nvidia-ctk --version: expected '1.18.1', got '1.17.8'",
    ),
    (toolkit.test_runtime_knows_the_toolkit, {"test*": "", "cat*": DOCKER}, plan(), "PASS", ""),
    (  # the ECS GPU AMI has no daemon.json
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": (1, ""), "grep -so*": "/usr/bin/nvidia-container-runtime\n"},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": '{"//": "nvidia-container-runtime"}', "grep -so*": (2, "")},
        plan(),
        "FAIL",
        "/etc/docker/daemon.json: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": (1, ""), "grep -so*": (2, "")},
        plan(),
        "FAIL",
        "/etc/docker/daemon.json: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (  # an image that others built relies on Docker's own --gpus
        toolkit.test_runtime_knows_the_toolkit,
        {
            "test*": "",
            "cat*": (1, ""),
            "grep -so*": (2, ""),
            "command -v nvidia-container-runtime-hook": "/usr/bin/x\n",
        },
        AS_FOUND,
        "UNPROVEN",
        "daemon.json has no runtime nvidia: containers get GPUs by --gpus alone, not by --runtime nvidia",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": (1, ""), "grep -so*": (2, ""), "command -v nvidia-container-runtime-hook": (127, "")},
        AS_FOUND,
        "FAIL",
        "/etc/docker/daemon.json: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": DOCKER[:-1]},
        plan(),
        "FAIL",
        "dockerd cannot read /etc/docker/daemon.json:",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": DOCKER.replace("nvidia-container-runtime", "runc")},
        plan(),
        "FAIL",
        "/etc/docker/daemon.json: runtime nvidia: expected nvidia-container-runtime, got runc",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": (1, "")},
        plan(),
        "FAIL",
        "/usr/bin/nvidia-container-runtime is missing or not executable: docker cannot give containers a GPU",
    ),
    (toolkit.test_runtime_knows_the_toolkit, NO_NODEADM | {"test*": "", "containerd*": DUMP}, CONTAINERD, "PASS", ""),
    (
        toolkit.test_runtime_knows_the_toolkit,
        NO_NODEADM | {"test*": "", "containerd*": WITHOUT_NVIDIA},
        CONTAINERD,
        "FAIL",
        "containerd config dump: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        NO_NODEADM | {"test*": "", "containerd*": (1, "", "containerd: failed to load TOML")},
        CONTAINERD,
        "FAIL",
        "containerd config dump: containerd: failed to load TOML",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        NO_NODEADM | {"test*": "", "containerd*": "a = ["},
        CONTAINERD,
        "FAIL",
        "containerd config dump: ",
    ),
    (  # an EKS node that has joined no cluster yet: nodeadm writes the file when it does
        toolkit.test_runtime_knows_the_toolkit,
        UNCONFIGURED,
        CONTAINERD,
        "UNPROVEN",
        "nodeadm configures containerd when the node joins a cluster, and this one has joined none",
    ),
    (  # one that has joined: what nodeadm wrote counts
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "containerd*": WITHOUT_NVIDIA},
        CONTAINERD,
        "FAIL",
        "containerd config dump: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (toolkit.test_default_runtime_is_the_planned_one, {"cat*": DOCKER}, plan(), "PASS", ""),
    (
        toolkit.test_default_runtime_is_the_planned_one,
        {"cat*": '{"default-runtime": "nvidia"}'},
        plan(),
        "FAIL",
        "default-runtime (/etc/docker/daemon.json): expected 'runc', got 'nvidia'",
    ),
    (toolkit.test_default_runtime_is_the_planned_one, JOINED, CONTAINERD, "PASS", ""),
    (
        toolkit.test_default_runtime_is_the_planned_one,
        {"test*": "", "containerd*": WITHOUT_RUNC},
        CONTAINERD,
        "FAIL",
        "containerd config dump: the default runtime runc is not configured; runtimes: nvidia",
    ),
    (toolkit.test_default_runtime_is_the_planned_one, JOINED, EKS, "FAIL", "expected 'nvidia', got 'runc'"),
    (
        toolkit.test_default_runtime_is_the_planned_one,
        {"test*": "", "containerd*": DUMP.replace('name = "runc"', 'name = "nvidia"')},
        EKS,
        "PASS",
        "",
    ),
    (toolkit.test_default_runtime_is_the_planned_one, UNCONFIGURED, EKS, "UNPROVEN", "has joined none"),
    (
        toolkit.test_default_runtime_is_the_planned_one,
        {"test*": "", "containerd*": "version = 3\n[plugins.a]\n"},
        CONTAINERD,
        "FAIL",
        "expected plugin io.containerd.cri.v1.runtime or io.containerd.grpc.v1.cri, got a",
    ),
    (toolkit.test_systemd_manages_cgroups, {"docker info*": "systemd\n"}, plan(), "PASS", ""),
    (
        toolkit.test_systemd_manages_cgroups,
        {"docker info*": "cgroupfs\n"},
        plan(),
        "FAIL",
        "CgroupDriver (docker info): expected 'systemd', got 'cgroupfs'",
    ),
    (
        toolkit.test_systemd_manages_cgroups,
        {"docker info*": (1, "", "Cannot connect to the Docker daemon")},
        plan(),
        "FAIL",
        "docker info: Cannot connect to the Docker daemon",
    ),
    (toolkit.test_systemd_manages_cgroups, JOINED, CONTAINERD, "PASS", ""),
    (
        toolkit.test_systemd_manages_cgroups,
        {"test*": "", "containerd*": DUMP.replace("SystemdCgroup = true", "SystemdCgroup = false", 1)},
        CONTAINERD,
        "FAIL",
        "SystemdCgroup (containerd config dump): expected true, got nvidia: False",
    ),
    (
        toolkit.test_systemd_manages_cgroups,
        {"test*": "", "containerd*": DUMP.replace("SystemdCgroup = true", "")},
        CONTAINERD,
        "FAIL",
        "expected true, got nvidia: None, runc: None",
    ),
    # containerd 2 adds its own runc to nodeadm's file (amazon-eks-ami 81fec2e8, nodeadm/test/e2e)
    (toolkit.test_systemd_manages_cgroups, {"test*": "", "containerd*": OF_NODEADM}, EKS, "PASS", ""),
    (
        toolkit.test_systemd_manages_cgroups,
        {"test*": "", "containerd*": OF_NODEADM.replace('= "nvidia"', '= "runc"')},
        EKS,
        "FAIL",
        "expected true, got runc: None",
    ),
    (toolkit.test_systemd_manages_cgroups, UNCONFIGURED, EKS, "UNPROVEN", "has joined none"),
    (toolkit.test_runtime_reads_cdi, {"cat*": DOCKER}, plan(), "PASS", ""),
    (
        toolkit.test_runtime_reads_cdi,
        {"cat*": DOCKER.replace("true", "false")},
        plan(),
        "FAIL",
        "features.cdi (/etc/docker/daemon.json): expected True, got False",
    ),
    (toolkit.test_runtime_reads_cdi, {}, plan(cdi=False), "UNPROVEN", "is planned without CDI"),
    (toolkit.test_runtime_reads_cdi, JOINED, CONTAINERD, "PASS", ""),
    (
        toolkit.test_runtime_reads_cdi,
        {"test*": "", "containerd*": DUMP.replace("enable_cdi = true", "enable_cdi = false")},
        CONTAINERD,
        "FAIL",
        "got enable_cdi false, cdi_spec_dirs /etc/cdi /var/run/cdi",
    ),
    (
        toolkit.test_runtime_reads_cdi,
        {"test*": "", "containerd*": DUMP.replace(', "/var/run/cdi"', "")},
        CONTAINERD,
        "FAIL",
        "expected enable_cdi and cdi_spec_dirs /etc/cdi /var/run/cdi, got enable_cdi true, cdi_spec_dirs /etc/cdi",
    ),
    (
        toolkit.test_runtime_reads_cdi,
        {"test*": "", "containerd*": DUMP.replace("enable_cdi = true", "")},
        CONTAINERD,
        "UNPROVEN",
        "knows no CDI",
    ),
    (
        toolkit.test_specification_is_written_at_boot,
        {"systemctl*": "enabled\n", "grep*": (1, "")},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_specification_is_written_at_boot,
        {"systemctl*": (1, "disabled\n"), "grep*": (1, "")},
        plan(),
        "FAIL",
        "nvidia-cdi-refresh.service is disabled, expected enabled",
    ),
    (
        toolkit.test_specification_is_written_at_boot,
        {"systemctl*": "enabled\n", "grep*": "/etc/cdi/nvidia.yaml\n"},
        plan(),
        "FAIL",
        "/etc/cdi/nvidia.yaml: static CDI specification, expected none: it",
    ),
    (toolkit.test_specification_is_written_at_boot, {}, plan(cdi=False), "UNPROVEN", "is planned without CDI"),
    (toolkit.test_cdi_lists_every_gpu, {"nvidia-ctk cdi list": NAMES}, plan(), "PASS", ""),
    (
        toolkit.test_cdi_lists_every_gpu,
        {"nvidia-ctk cdi list": NAMES.replace("nvidia.com/gpu=1\n", "")},
        plan(),
        "FAIL",
        "nvidia-ctk cdi list: g5.12xlarge has 2 GPUs; missing 1, unexpected none, 2 by UUID",
    ),
    (
        toolkit.test_cdi_lists_every_gpu,
        {"nvidia-ctk cdi list": NAMES + "nvidia.com/gpu=2\n"},
        plan(),
        "FAIL",
        "nvidia-ctk cdi list: g5.12xlarge has 2 GPUs; missing none, unexpected 2, 2 by UUID",
    ),
    (
        toolkit.test_cdi_lists_every_gpu,
        {"nvidia-ctk cdi list": NAMES + "nvidia.com/gpu=0:0\n"},
        plan(),
        "FAIL",
        "unexpected 0:0, 2 by UUID",
    ),
    (toolkit.test_cdi_lists_every_gpu, {"nvidia-ctk cdi list": (1, "")}, plan(), "FAIL", "missing 0, 1, all"),
    (toolkit.test_device_nodes_are_there, {"for*": SPECIFICATION, "ls*": NODES}, plan(), "PASS", ""),
    (
        toolkit.test_device_nodes_are_there,
        {"for*": SPECIFICATION, "ls*": NODES.replace("/dev/nvidia1\n", "")},
        plan(),
        "FAIL",
        "the CDI specification names missing device nodes: /dev/nvidia1",
    ),
    (toolkit.test_device_nodes_are_there, {"for*": ""}, plan(), "FAIL", "names a device node"),
    (
        toolkit.test_device_nodes_are_there,
        {"for*": NUMBERED, "ls*": NODES, "stat*": NUMBERS},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_device_nodes_are_there,
        {"for*": NUMBERED, "ls*": NODES, "stat*": NUMBERS.replace("c3", "1f4")},
        plan(),
        "FAIL",
        "the CDI specification is of an earlier start of the driver: /dev/nvidiactl is 500:255, specified 195:255",
    ),
    (
        toolkit.test_packages_are_the_planned_ones,
        {"dpkg-query*": INSTALLED},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_packages_are_the_planned_ones,
        {"dpkg-query*": INSTALLED.replace("base installed 1.18.1", "base installed 1.19.0")},
        plan(),
        "FAIL",
        "'1.19.0-1'",
    ),
    (
        toolkit.test_packages_are_held,
        {"apt-mark*": "nvidia-container-toolkit\nnvidia-container-toolkit-base\n"},
        plan(),
        "PASS",
        "",
    ),
    (
        toolkit.test_packages_are_held,
        {"apt-mark*": "nvidia-container-toolkit\n"},
        plan(),
        "FAIL",
        "would change them: nvidia-container-toolkit-base",
    ),
]


@pytest.mark.parametrize(("check", "table", "planned", "verdict", "message"), CASES)
def test_container_toolkit(
    judge: Judge, check: Any, table: dict[str, Any], planned: PlanDocument, verdict: str, message: str
) -> None:
    found = judge(check, table, plan=planned)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize("check", [toolkit.test_cdi_lists_every_gpu, toolkit.test_device_nodes_are_there])
def test_machine_without_gpus_needs_no_specification(judge: Judge, check: Any) -> None:
    machine = FakeMachine({}, instance_type="m5.large")
    found = judge(check, {"nvidia-ctk*": "", "for*": "", "ls*": (2, "")}, plan=plan(), machine=machine)
    assert found.verdict == "PASS", found


# `nvidia-smi -L` and `nvidia-ctk cdi list` of two GPUs, the first divided: nvidia-ctk leaves out a GPU in MIG mode
# (pkg/nvcdi/lib-nvml.go, d34b3046).
DIVIDED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a)
  MIG 3g.20gb     Device  0: (UUID: MIG-0a0)
  MIG 3g.20gb     Device  1: (UUID: MIG-0a1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1b)
"""
RIGHT = "".join(f"nvidia.com/gpu={name}\n" for name in ("0:0", "0:1", "1", "GPU-1b", "MIG-0a0", "MIG-0a1", "all"))


@pytest.mark.parametrize(
    ("names", "verdict", "message"),
    [
        (RIGHT, "PASS", ""),
        (NAMES, "FAIL", "2 GPUs, 1 of them in MIG mode; missing 0:0, 0:1, unexpected 0, 2 by UUID"),
        (RIGHT.replace("nvidia.com/gpu=0:1\n", ""), "FAIL", "missing 0:1, unexpected none, 3 by UUID"),
        (RIGHT.replace("nvidia.com/gpu=MIG-0a1\n", ""), "FAIL", "missing none, unexpected none, 2 by UUID"),
    ],
)
def test_cdi_lists_mig_devices_in_place_of_their_gpu(judge: Judge, names: str, verdict: str, message: str) -> None:
    gpus = [nvidia_smi.Gpu(index, "", "", "", "", {}, mig=mode) for index, mode in enumerate(("Enabled", "Disabled"))]
    machine = FakeMachine(METADATA, gpus=tuple(gpus))
    table = {"nvidia-ctk cdi list": names, "nvidia-smi -L": DIVIDED}
    found = judge(toolkit.test_cdi_lists_every_gpu, table, plan=plan(), machine=machine)
    assert (found.verdict, message in found.message) == (verdict, True), found
