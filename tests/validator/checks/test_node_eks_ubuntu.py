"""Each check of EKS nodes of Canonical's AMI, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from tests.validator.checks.node_cases import unchanged
from validator.checks import node_eks_ubuntu
from validator.plan import as_plan

PLAN = as_plan({"node_eks_ubuntu": {"version": "1.35"}, "container_toolkit": {"version": "1.19.1"}})
PROGRAMS = "/etc/eks/bootstrap.sh\n/usr/bin/containerd\n/usr/bin/containerd-shim-runc-v2\n"
KUBECONFIG = "/var/lib/kubelet/kubeconfig"
# As systemd 255 prints them (systemctl show, ExecCommand).
MODPROBE = "{ path=/sbin/modprobe ; argv[]=/sbin/modprobe overlay ; ignore_errors=yes ; pid=0 ; status=0/0 }\n"
COMMAND = "/usr/bin/nvidia-ctk --quiet runtime configure --runtime=containerd --config-source=command --set-as-default"
CTK = f"{{ path=/usr/bin/nvidia-ctk ; argv[]={COMMAND} ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; status=0/0 }}\n"
SCRIPT = 'sed "s,SANDBOX_IMAGE,$image,g" </usr/local/share/eks/containerd-config.toml >/etc/containerd/config.toml\n'
CRI = '[plugins."io.containerd.grpc.v1.cri"'
DUMP = f"""\
version = 2
{CRI}]
sandbox_image = "registry.example/pause:0"
{CRI}.containerd]
default_runtime_name = "nvidia"
{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""


def state(channel: str = "1.35.1/stable", hold: str = "forever", own: tuple[str, ...] = ()) -> dict[str, str]:
    return {"python3*": json.dumps({"channel": channel, "hold": hold, "own": own})}


def bootstrap(
    dump: str | tuple[int, str, str] = DUMP, started: str = MODPROBE + CTK, script: str = SCRIPT
) -> dict[str, Any]:
    return {"cat /etc/eks*": script, "systemctl show*": started, "unshare*": dump}


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    *unchanged(node_eks_ubuntu.test_base_files_are_untouched, "/etc/eks/bootstrap.sh"),
    (node_eks_ubuntu.test_kubelet_is_the_planned_version, state(), "PASS", ""),
    (
        node_eks_ubuntu.test_kubelet_is_the_planned_version,
        state("1.34.2/stable"),
        "FAIL",
        "channel of snap kubelet-eks (1.34.2/stable): expected '1.35', got '1.34'",
    ),
    (node_eks_ubuntu.test_kubelet_is_the_planned_version, state("latest/stable"), "FAIL", "got 'latest/stable'"),
    (node_eks_ubuntu.test_kubelet_is_the_planned_version, state(""), "FAIL", "kubelet-eks (not installed)"),
    (
        node_eks_ubuntu.test_kubelet_is_the_planned_version,
        {"python3*": (1, "", "No such file or directory: '/var/lib/snapd/state.json'")},
        "FAIL",
        "/var/lib/snapd/state.json",
    ),
    (node_eks_ubuntu.test_kubelet_runs, {"snap run*": "Kubernetes v1.35.1\n"}, "PASS", ""),
    (node_eks_ubuntu.test_kubelet_runs, {"snap run*": "Kubernetes v1.36.0\n"}, "FAIL", "expected '1.35', got '1.36'"),
    (node_eks_ubuntu.test_kubelet_runs, {"snap run*": (46, "", "cannot find app")}, "FAIL", "cannot find app"),
    (node_eks_ubuntu.test_snaps_are_held, state(), "PASS", ""),
    (node_eks_ubuntu.test_snaps_are_held, state(hold="", own=("system",)), "PASS", ""),
    (node_eks_ubuntu.test_snaps_are_held, state(hold=""), "FAIL", "expected forever, got none"),
    (node_eks_ubuntu.test_snaps_are_held, state(hold="2026-12-01T00:00:00Z"), "FAIL", "got 2026-12-01T00:00:00Z"),
    (node_eks_ubuntu.test_kubelet_is_off, {"systemctl is-enabled*": (1, "disabled\n")}, "PASS", ""),
    (
        node_eks_ubuntu.test_kubelet_is_off,
        {"systemctl is-enabled*": "enabled\n", "systemctl is-active*": (3, "inactive\n")},
        "FAIL",
        "snap.kubelet-eks.daemon.service is enabled, expected disabled",
    ),
    (
        node_eks_ubuntu.test_kubelet_is_off,
        {"systemctl is-enabled*": "enabled\n", "systemctl is-active*": "active\n"},
        "UNPROVEN",
        "this node has joined a cluster",
    ),
    (node_eks_ubuntu.test_kubelet_is_off, {"systemctl*": (1, "")}, "FAIL", "is not installed, expected disabled"),
    (node_eks_ubuntu.test_kubelet_knows_no_other_node, {"find*": ""}, "PASS", ""),
    (node_eks_ubuntu.test_kubelet_knows_no_other_node, {"find*": f"{KUBECONFIG}\n", "grep*": ""}, "PASS", ""),
    (
        node_eks_ubuntu.test_kubelet_knows_no_other_node,
        {"find* ! -newermt @998 *": f"{KUBECONFIG}\n/etc/kubernetes/pki/ca.crt\n", "grep*": (1, "")},
        "FAIL",
        "files of kubelet older than this instance: /etc/kubernetes/pki/ca.crt",
    ),
    (
        node_eks_ubuntu.test_kubelet_knows_no_other_node,
        {"find*": (1, "", "find: '/var/lib/kubelet': No such file or directory")},
        "FAIL",
        "'/var/lib/kubelet': No such file or directory",
    ),
    (node_eks_ubuntu.test_programs_can_be_run, {"test*": PROGRAMS}, "PASS", ""),
    (
        node_eks_ubuntu.test_programs_can_be_run,
        {"test*": PROGRAMS.replace("/etc/eks/bootstrap.sh\n", "")},
        "FAIL",
        "missing or not executable: /etc/eks/bootstrap.sh",
    ),
    (node_eks_ubuntu.test_bootstrap_keeps_the_runtime, bootstrap(), "PASS", ""),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap(started=MODPROBE),
        "FAIL",
        "containerd.service does not run nvidia-ctk before it starts",
    ),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap(DUMP.replace("registry.example/pause:0", "registry.k8s.io/pause:3.8")),
        "FAIL",
        "'sandbox image': 'lost'",
    ),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap(DUMP.replace('default_runtime_name = "nvidia"', 'default_runtime_name = "runc"')),
        "FAIL",
        "'default_runtime_name': 'runc'",
    ),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap(DUMP.replace("SystemdCgroup = true", "SystemdCgroup = false")),
        "FAIL",
        "'SystemdCgroup': False",
    ),
    (node_eks_ubuntu.test_bootstrap_keeps_the_runtime, bootstrap("[plugins"), "FAIL", "containerd config dump"),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap((1, "", "unable to load config for runtime containerd")),
        "FAIL",
        "on /usr/local/share/eks/containerd-config.toml: unable to load config",
    ),
    (
        node_eks_ubuntu.test_bootstrap_keeps_the_runtime,
        bootstrap(script="#!/bin/sh\n"),
        "UNPROVEN",
        "names no template of containerd's configuration",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_node_eks_ubuntu(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_without_the_toolkit_nothing_is_configured(judge: Judge) -> None:
    plan = as_plan({"node_eks_ubuntu": {"version": "1.35"}})
    assert judge(node_eks_ubuntu.test_bootstrap_keeps_the_runtime, {}, plan=plan).verdict == "UNPROVEN"
