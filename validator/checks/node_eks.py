"""The image is an EKS node: the base AMI's files are unchanged, and nodeadm joins the cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output
from validator.plan_document import NodeRole, PlanDocument, section
from validator.probes import MachineUnderTest, base_ami

pytestmark = pytest.mark.planned("node_eks")

# Empty in the base AMI (amazon-eks-ami templates/al2023/provisioners/install-worker.sh, read 2026-11-26). Two levels:
# keys and certificates (pki/), the kubeconfig, states of CPUs and devices; not the volumes of pods.
_STATE = "find /var/lib/kubelet -ignore_readdir_race -maxdepth 2 -type f ! -newermt @%s"


def minor_version(text: str) -> str:
    """Major and minor version in the output of `kubelet --version`; "" if there is none."""
    match = re.search(r"^Kubernetes v(\d+\.\d+)\.", text, re.MULTILINE)
    return match[1] if match else ""


@pytest.mark.needs("promise")
def test_kubelet_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """kubelet is the planned Kubernetes version. The control plane refuses a newer kubelet."""
    observe.same(
        minor_version(output(host, "kubelet --version")),
        section(plan, "node_eks", NodeRole)["version"],
        "kubelet --version",
    )


def test_kubelet_is_the_base_ami_s(host: Any, observe: Observe) -> None:
    """kubelet has the version recorded by the base AMI. No role has replaced it."""
    recorded = output(host, "cat /etc/eks/kubelet-version.txt").strip()
    observe.same(output(host, "kubelet --version").strip(), recorded, "kubelet (/etc/eks/kubelet-version.txt)")


def test_kubelet_knows_no_other_node(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """kubelet has no certificate, key or state of another node. With the builder's, all nodes would share its key.

    kubelet serves with a certificate that it finds, and `kubectl logs` fails: it names another node.
    """
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    left = output(host, _STATE % since).splitlines()
    observe.nothing(sorted(left), "files of kubelet older than this instance")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """kubelet, containerd, runc, nodeadm, its units and the ECR credential provider are unchanged."""
    base_ami.check_unchanged(host, "node_eks", observe)


@pytest.mark.tier("T0")
def test_nodeadm_starts_at_boot(host: Any, observe: Observe) -> None:
    """The nodeadm units are enabled. They configure the node and join the cluster at boot."""
    base_ami.check_enabled(host, ["nodeadm-config.service", "nodeadm-run.service"], observe)


@pytest.mark.tier("T0")
def test_programs_can_be_run(host: Any, observe: Observe) -> None:
    """The programs of a node are installed and executable."""
    paths = ["/usr/bin/kubelet", "/usr/bin/containerd", "/usr/sbin/runc", "/usr/bin/nodeadm"]
    base_ami.check_executable(host, [*paths, "/etc/eks/image-credential-provider/ecr-credential-provider"], observe)
