"""The image is still an EKS node: what the base AMI brought is untouched, and nodeadm joins the cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import node
from validator.observe import Observe, output

pytestmark = pytest.mark.planned("node_eks")


def minor_version(text: str) -> str:
    """Major and minor version in kubelet's own words; "" where it names none."""
    found = re.search(r"^Kubernetes v(\d+\.\d+)\.", text, re.MULTILINE)
    return found[1] if found else ""


def test_kubelet_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """kubelet is of the planned Kubernetes version: the control plane refuses one that is newer than itself."""
    observe.same(minor_version(output(host, "kubelet --version")), plan["node_eks"]["version"], "kubelet --version")


def test_kubelet_is_the_base_ami_s(host: Any, observe: Observe) -> None:
    """kubelet says what it said when the base AMI was made: no role has brought another."""
    recorded = output(host, "cat /etc/eks/kubelet-version.txt").strip()
    observe.same(output(host, "kubelet --version").strip(), recorded, "kubelet (/etc/eks/kubelet-version.txt)")


@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """kubelet, containerd, runc, nodeadm, its units and the ECR credential provider are those of the base AMI."""
    node.check_unchanged(host, "node_eks", observe)


@pytest.mark.tier("T0")
def test_nodeadm_starts_at_boot(host: Any, observe: Observe) -> None:
    """nodeadm configures the node and joins the cluster at boot."""
    node.check_enabled(host, ["nodeadm-config.service", "nodeadm-run.service"], observe)


@pytest.mark.tier("T0")
def test_programs_can_be_run(host: Any, observe: Observe) -> None:
    """What a node starts is there and executable."""
    paths = ["/usr/bin/kubelet", "/usr/bin/containerd", "/usr/sbin/runc", "/usr/bin/nodeadm"]
    node.check_executable(host, [*paths, "/etc/eks/image-credential-provider/ecr-credential-provider"], observe)
