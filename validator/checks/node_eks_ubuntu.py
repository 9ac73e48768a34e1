"""The image is an EKS node of Canonical's AMI: kubelet's snap is the planned one and held, kubelet is off until
bootstrap.sh configures it, and what bootstrap.sh configures gives pods GPUs.

Sources, read on 2026-11-28: documentation.ubuntu.com/aws (EKS kubelet snap, snap usage in EKS worker images), eksctl
(pkg/nodebootstrap, bootstrap.ubuntu.sh), copies of Canonical's bootstrap.sh in public repositories.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan_document import NodeRole, PlanDocument, section
from validator.probes import MachineUnderTest, base_ami, containers

pytestmark = pytest.mark.planned("node_eks_ubuntu")

_SNAP = "kubelet-eks"
_UNIT = f"snap.{_SNAP}.daemon.service"
_BOOTSTRAP = "/etc/eks/bootstrap.sh"
_KUBECONFIG = "/var/lib/kubelet/kubeconfig"
_PLACEHOLDER = "MASTER_ENDPOINT"  # of the kubeconfig, until bootstrap.sh writes the cluster's address
# What snapd knows: channel of kubelet's snap, hold of all snaps, and of this one (snapcore/snapd, overlord/snapstate).
# It is there in image files, too, where no snapd answers.
STATE_PROGRAM = f"""
import json
data = json.load(open("/var/lib/snapd/state.json"))["data"]
snap = data.get("snaps", {{}}).get("{_SNAP}", {{}})
core = data.get("config", {{}}).get("core", {{}})
print(json.dumps({{
    "channel": snap.get("channel", ""),
    "hold": core.get("refresh", {{}}).get("hold", ""),
    "own": sorted(data.get("snaps-hold", {{}}).get("{_SNAP}", {{}})),
}}))
"""
# Two levels of kubelet's folder and the cluster's certificate, older than the instance.
_OLDER = (
    "find /var/lib/kubelet /etc/kubernetes -ignore_readdir_race -maxdepth 2 -type f ! -newermt @%s"
    " '(' -path '/var/lib/kubelet/*' -o -path '/etc/kubernetes/pki/*' ')'"
)
_IMAGE = "registry.example/pause:0"
# As bootstrap.sh and containerd's unit do it, in a mount name space where /etc/containerd is a folder of its own.
_REPLAY = (
    "set -e; folder=$(mktemp -d); trap 'rm -rf \"$folder\"' EXIT; "
    'sed "s,SANDBOX_IMAGE,{image},g" <{template} >"$folder/config.toml"; mount --bind "$folder" /etc/containerd; '
    "{command} >&2; containerd config dump"
)


def _state(host: Any) -> dict[str, Any]:
    return dict(json.loads(output(host, f"python3 -c {shlex.quote(STATE_PROGRAM)}")))


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_kubelet_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """kubelet's snap follows the planned Kubernetes version. The control plane refuses a newer kubelet."""
    channel = str(_state(host)["channel"])
    minor = re.match(r"\d+\.\d+", channel)
    observe.same(
        minor[0] if minor else channel,
        section(plan, "node_eks_ubuntu", NodeRole)["version"],
        f"channel of snap {_SNAP} ({channel or 'not installed'})",
    )


@pytest.mark.needs("promise")
def test_kubelet_runs(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The program in the snap is the planned Kubernetes version, and starts."""
    shown = output(host, f"snap run {_SNAP}.kubelet --version")
    match = re.search(r"^Kubernetes v(\d+\.\d+)\.", shown, re.MULTILINE)
    planned = section(plan, "node_eks_ubuntu", NodeRole)["version"]
    observe.same(match[1] if match else shown.strip(), planned, f"snap run {_SNAP}.kubelet --version")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_snaps_are_held(host: Any, observe: Observe) -> None:
    """snapd refreshes no snap by itself. A refresh restarts kubelet, with another version, on all nodes at once."""
    state = _state(host)
    observe([state["hold"], state["own"]], "forever")
    if state["hold"] != "forever" and not state["own"]:
        observe.fail(
            f"refresh.hold of snapd: expected forever, got {state['hold'] or 'none'}: snapd refreshes {_SNAP} by itself"
        )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_kubelet_is_off(host: Any, observe: Observe) -> None:
    """kubelet does not start at boot: it is not configured before bootstrap.sh, which enables it, has run.

    UNPROVEN on a node that has joined a cluster.
    """
    state = host.run("systemctl is-enabled %s", _UNIT).stdout.strip()
    observe(state, "disabled")
    if state == "enabled" and host.run("systemctl is-active %s", _UNIT).stdout.strip() == "active":
        unproven("kubelet runs: this node has joined a cluster; see test_kubelet_knows_no_other_node")
    if state != "disabled":
        observe.fail(f"{_UNIT} is {state or 'not installed'}, expected disabled")


def test_kubelet_knows_no_other_node(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """kubelet has no kubeconfig, certificate or state of another node. With the builder's, all nodes would be one."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    left = output(host, _OLDER % since).splitlines()
    if _KUBECONFIG in left and host.run("grep -q %s %s", _PLACEHOLDER, _KUBECONFIG).rc == 0:
        left.remove(_KUBECONFIG)  # the base AMI's, which names no cluster yet
    observe.nothing(sorted(left), "files of kubelet older than this instance")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """bootstrap.sh and containerd are unchanged."""
    base_ami.check_unchanged(host, "node_eks_ubuntu", observe)


@pytest.mark.tier("T0")
def test_programs_can_be_run(host: Any, observe: Observe) -> None:
    """User data can run bootstrap.sh, and containerd and its shim are executable."""
    base_ami.check_executable(host, [_BOOTSTRAP, "/usr/bin/containerd", "/usr/bin/containerd-shim-runc-v2"], observe)


@pytest.mark.needs("promise")
def test_bootstrap_keeps_the_runtime(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Pods have GPUs after bootstrap.sh, which replaces containerd's configuration when the node joins its cluster.

    Its template is configured as at a start of containerd, beside the machine's own configuration: nvidia must be the
    default runtime then, and the template's sandbox image and manager of cgroups must stay.
    """
    if "container_toolkit" not in plan:
        unproven("the plan has no container toolkit")
    template = re.search(r"/[\w./-]*/containerd-config\.toml", output(host, f"cat {_BOOTSTRAP}"))
    if template is None:
        unproven(f"{_BOOTSTRAP} names no template of containerd's configuration")
    started = output(host, "systemctl show containerd.service --property=ExecStartPre --value")
    command = re.search(r"argv\[\]=(\S*nvidia-ctk [^;]+?) ;", started)
    observe(command[1] if command else None, "nvidia-ctk runtime configure")
    if command is None:
        observe.fail(
            f"containerd.service does not run nvidia-ctk before it starts: {_BOOTSTRAP} replaces "
            "/etc/containerd/config.toml, and pods get no GPU"
        )
    script = _REPLAY.format(image=_IMAGE, template=template[0], command=command[1])
    done = host.run(f"unshare --mount sh -c {shlex.quote(script)}", pure=True)
    if done.rc != 0:
        observe.fail(f"{command[1]} on {template[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    _judge(done.stdout, observe)


def _judge(dump: str, observe: Observe) -> None:
    try:
        config = containers.read_config(dump)
    except containers.Unanswered as error:
        observe.fail(str(error))
    options = config.runtimes.get("nvidia", {})
    found = {
        "default_runtime_name": config.default_runtime,
        "BinaryName": str(options.get("BinaryName", "")).rpartition("/")[2],
        "SystemdCgroup": options.get("SystemdCgroup"),
        "sandbox image": _IMAGE if _IMAGE in dump else "lost",
    }
    expected = {
        "default_runtime_name": "nvidia",
        "BinaryName": "nvidia-container-runtime",
        "SystemdCgroup": True,
        "sandbox image": _IMAGE,
    }
    observe.same(found, expected, "containerd config dump after bootstrap.sh")
