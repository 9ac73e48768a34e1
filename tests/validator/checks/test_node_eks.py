"""Each check of EKS nodes, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from tests.validator.checks.node_cases import unchanged
from validator.checks import node_eks
from validator.plan import as_plan

KUBELET = "Kubernetes v1.33.5-eks-ba24e9c\n"
PROGRAMS = "".join(
    f"{path}\n"
    for path in (
        "/usr/bin/kubelet",
        "/usr/bin/containerd",
        "/usr/sbin/runc",
        "/usr/bin/nodeadm",
        "/etc/eks/image-credential-provider/ecr-credential-provider",
    )
)
PLAN = as_plan({"node_eks": {"version": "1.33"}})

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    *unchanged(node_eks.test_base_files_are_untouched, "/usr/bin/kubelet"),
    (node_eks.test_kubelet_is_the_planned_version, {"kubelet*": KUBELET}, "PASS", ""),
    (
        node_eks.test_kubelet_is_the_planned_version,
        {"kubelet*": KUBELET.replace("1.33", "1.34")},
        "FAIL",
        "kubelet --version: expected '1.33', got '1.34'",
    ),
    (node_eks.test_kubelet_is_the_base_ami_s, {"kubelet*": KUBELET, "cat*": KUBELET}, "PASS", ""),
    (
        node_eks.test_kubelet_is_the_base_ami_s,
        {"kubelet*": KUBELET, "cat*": KUBELET.replace("1.33.5", "1.33.4")},
        "FAIL",
        "expected 'Kubernetes v1.33.4-eks-ba24e9c', got 'Kubernetes v1.33.5-eks-ba24e9c'",
    ),
    (node_eks.test_kubelet_knows_no_other_node, {"find /var/lib/kubelet *": ""}, "PASS", ""),
    (
        node_eks.test_kubelet_knows_no_other_node,
        {"find /var/lib/kubelet * ! -newermt @998": "/var/lib/kubelet/pki/kubelet-server-2026-11-01.pem\n"},
        "FAIL",
        "files of kubelet older than this instance: /var/lib/kubelet/pki/kubelet-server-2026-11-01.pem",
    ),
    (
        node_eks.test_kubelet_knows_no_other_node,
        {"find*": (1, "", "find: '/var/lib/kubelet': No such file or directory")},
        "FAIL",
        "'/var/lib/kubelet': No such file or directory",
    ),
    (node_eks.test_nodeadm_starts_at_boot, {"systemctl*": "enabled\n"}, "PASS", ""),
    (
        node_eks.test_nodeadm_starts_at_boot,
        {"systemctl*run*": (1, "disabled\n"), "systemctl*": "enabled\n"},
        "FAIL",
        "'nodeadm-run.service': 'disabled'",
    ),
    (node_eks.test_programs_can_be_run, {"test*": PROGRAMS}, "PASS", ""),
    (
        node_eks.test_programs_can_be_run,
        {"test*": PROGRAMS.replace("/usr/sbin/runc\n", "")},
        "FAIL",
        "missing or not executable: /usr/sbin/runc",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_node_eks(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found
