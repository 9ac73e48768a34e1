"""Each container toolkit check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import FakeMachine, Judge
from validator.checks import container_toolkit as toolkit
from validator.plan import as_plan
from validator.plan_document import PlanDocument

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
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
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
NODES = "/dev/nvidia0\n/dev/nvidia1\n/dev/nvidiactl\n"
INSTALLED = "nvidia-container-toolkit installed 1.18.1-1\nnvidia-container-toolkit-base installed 1.18.1-1\n"
NO_NODEADM = {"test -x /usr/bin/nodeadm": (1, "")}


def plan(**changes: Any) -> PlanDocument:
    types = [{"name": "g5.12xlarge", "gpu_count": 2}, {"name": "m5.large", "gpu_count": 0}]
    return as_plan({"os": {"family": "debian"}, "instance_types": types, "container_toolkit": SECTION | changes})


CONTAINERD = plan(runtime="containerd")
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
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": '{"//": "nvidia-container-runtime"}'},
        plan(),
        "FAIL",
        "/etc/docker/daemon.json: runtime nvidia: expected nvidia-container-runtime, got none",
    ),
    (
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "cat*": (1, "")},
        plan(),
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
        NO_NODEADM | {"test*": "", "containerd*": DUMP.replace("runtimes.nvidia", "runtimes.runc")},
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
        {"test -e /etc/containerd/config.toml": (1, ""), "test*": ""},
        CONTAINERD,
        "UNPROVEN",
        "nodeadm configures containerd when the node joins a cluster, and this one has joined none",
    ),
    (  # one that has joined: what nodeadm wrote counts
        toolkit.test_runtime_knows_the_toolkit,
        {"test*": "", "containerd*": DUMP.replace("runtimes.nvidia", "runtimes.runc")},
        CONTAINERD,
        "FAIL",
        "containerd config dump: runtime nvidia: expected nvidia-container-runtime, got none",
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


def test_containerd_version_2_is_read_too() -> None:
    dump = DUMP.replace("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    assert toolkit.containerd_runtime(dump) == "/usr/bin/nvidia-container-runtime"


@pytest.mark.parametrize("check", [toolkit.test_cdi_lists_every_gpu, toolkit.test_device_nodes_are_there])
def test_machine_without_gpus_needs_no_specification(judge: Judge, check: Any) -> None:
    machine = FakeMachine({}, instance_type="m5.large")
    found = judge(check, {"nvidia-ctk*": "", "for*": "", "ls*": (2, "")}, plan=plan(), machine=machine)
    assert found.verdict == "PASS", found
