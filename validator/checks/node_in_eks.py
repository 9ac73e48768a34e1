"""An EKS image as a node of a cluster (tier TN): Ready, every GPU allocatable, pods on them.

They run with `--join` alone, on a machine whose user data names the cluster, and again after a restart. Of several
machines the first one runs the pods; all are Ready and have their GPUs. Pods and image of the checks are removed after
the last one.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from validator.checks.event_parser import require_parser
from validator.cloudwatch import CloudWatch
from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import NodeRole, PlanDocument, section
from validator.probes import MachineUnderTest, containers, rdma
from validator.probes.agent import injected_lines
from validator.probes.cluster import joined, kubernetes

pytestmark = [pytest.mark.tier("TN"), pytest.mark.live, pytest.mark.planned("node_eks"), pytest.mark.survives]

_UNITS = ("nodeadm-config.service", "nodeadm-run.service", "kubelet.service", "containerd.service")
_LOGS = ("nodeadm-config", "nodeadm-run", "kubelet")
_RELEASE = r"\d+\.\d+\.\d+"
_READY = "Ready: True, all others False"
_SAYS = "journalctl --no-pager -o cat -n 200 -u %s | grep -E '^E[0-9]{4} |rror|ailed' | tail -n 3"


@pytest.fixture(scope="session")
def cluster_file(request: pytest.FixtureRequest) -> joined.Joined:
    """What --join says."""
    path = request.config.getoption("join")
    return joined.read(path) if path else unproven("no cluster was asked for: --join")


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, cluster_file: joined.Joined, machine: MachineUnderTest
) -> Iterator[kubernetes.Cluster]:
    """The cluster's API; the pods of the run are deleted with the last check."""
    profile = request.config.getoption("aws_profile")

    def session() -> Any:
        import botocore.session

        return botocore.session.Session(profile=profile)

    token = kubernetes.renewed_token(cluster_file.cluster, cluster_file.region, session)
    authority = base64.b64decode(cluster_file.authority).decode()
    api = kubernetes.Client(cluster_file.endpoint, kubernetes.trusting(authority), token)
    made = kubernetes.Cluster(api, cluster_file.run, machine.instance_id)
    try:
        yield made
    finally:
        for name in made.pods():
            with contextlib.suppress(kubernetes.ApiError):
                made.delete_pod(name)


@dataclass(frozen=True)
class Found:
    """The node as it was found, or why it is not there; what its kubelet logs of errors.

    boot_id: of the machine; after: the restart that it is found after, "" for its first boot.
    """

    node: Mapping[str, Any] | None
    error: str = ""
    log: str = ""
    boot_id: str = ""
    after: str = ""

    def defects(self) -> list[str]:
        """Why the node is not Ready in this boot; none where there is no node."""
        return kubernetes.defects(self.node, self.boot_id) if self.node else []

    def require(self) -> Mapping[str, Any]:
        """Skips as UNPROVEN what needs a node that is Ready."""
        if self.node is None:
            return unproven(f"no node: {self.error}")
        wrong = self.defects()
        return unproven(f"the node is not Ready: {'; '.join(wrong)}") if wrong else self.node


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, host: Any, cluster: kubernetes.Cluster) -> Found:
    """The node, as soon as it is Ready and pods can be scheduled on it, or after five minutes."""

    boot_id = output(host, "cat /proc/sys/kernel/random/boot_id").strip()

    def is_usable(node: Mapping[str, Any]) -> bool:
        return not kubernetes.defects(node, boot_id)

    try:
        node = cluster.wait_node(kubernetes.READY_SECONDS, is_usable)
    except kubernetes.ApiError as error:
        return Found(None, f"the cluster's API: {error}", _log(host))
    if node is None:
        waited = f"no node has registered with providerID aws:///…/{cluster.instance_id}"
        return Found(None, f"{waited} within {kubernetes.READY_SECONDS:.0f} s", _log(host))
    after = str(request.config.getoption("after") or "")
    return Found(node, "", "" if is_usable(node) else _log(host), boot_id, after)


@pytest.fixture(scope="module")
def others(cluster_file: joined.Joined, cluster: kubernetes.Cluster) -> dict[str, Mapping[str, Any] | None]:
    """The nodes of the other machines, by instance: each as soon as it is Ready, all within five minutes."""
    deadline = cluster.clock() + kubernetes.READY_SECONDS

    def wait(name: str) -> Mapping[str, Any] | None:
        return cluster.wait_node(deadline - cluster.clock(), lambda node: not kubernetes.defects(node), name)

    try:
        return {name: wait(name) for name in cluster_file.others}
    except kubernetes.ApiError as error:
        return unproven(f"the other machines were not looked at: the cluster's API: {error}")


def _log(host: Any) -> str:
    lines = [line for unit in _LOGS for line in host.run(_SAYS, unit).stdout.splitlines()]
    return " | ".join(lines)[-600:] or f"no errors in the journal of {', '.join(_LOGS)}"


def test_nodeadm_and_its_units_ended_well(host: Any, observe: Observe) -> None:
    """nodeadm has configured the node and started containerd and kubelet, without an error."""
    states = {}
    for unit in _UNITS:
        shown = output(host, "systemctl show -p ActiveState -p Result %s", unit)
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        states[unit] = f"{values.get('ActiveState', '')} {values.get('Result', '')}"
    expected = {unit: f"{'inactive' if unit.startswith('nodeadm') else 'active'} success" for unit in _UNITS}
    observe(states, expected)
    wrong = [
        f"{unit}: expected {expected[unit]}, got {states[unit]}" for unit in _UNITS if states[unit] != expected[unit]
    ]
    if wrong:
        observe.fail(f"{'; '.join(wrong)}; {_log(host)}")


def test_node_is_ready(found: Found, others: dict[str, Mapping[str, Any] | None], observe: Observe) -> None:
    """Each machine's node is Ready, and none of its other conditions is True (memory, disk or PID pressure)."""
    if found.node is None:
        observe.fail(f"{found.error}; {found.log}")
    seen = {name: status for name, (status, _) in kubernetes.conditions(found.node).items()}
    lost = {name: kubernetes.defects(node) if node else ["no node has registered"] for name, node in others.items()}
    observe(seen | {f"node of {name}": ", ".join(wrong) or "Ready" for name, wrong in lost.items()}, _READY)
    if wrong := found.defects():
        observe.fail(f"node {found.node['metadata']['name']}: {'; '.join(wrong)}; {found.log}")
    if any(lost.values()):
        observe.fail("; ".join(f"node of {name}: {', '.join(wrong)}" for name, wrong in lost.items() if wrong))


def test_node_stays_ready(host: Any, found: Found, cluster: kubernetes.Cluster, observe: Observe) -> None:
    """The node stays Ready, and kubelet runs on. From one that flaps the cluster evicts pods, and jobs start again.

    That it became Ready once is how a node starts: before that, and before it registered, nothing counts. After a
    restart it has long been registered, and what happened before it was Ready again is part of that start.
    """
    node, before = found.require(), kubernetes.ready_since(found.require())
    registered = before[1] if found.after else kubernetes.joined_at(node)
    first = kubernetes.kubelet_run(output(host, kubernetes.KUBELET_RUN))
    try:
        then = cluster.wait_node(kubernetes.STEADY_SECONDS, lambda node: kubernetes.ready_since(node) != before)
    except kubernetes.ApiError as error:
        unproven(f"the node was not watched to the end: the cluster's API: {error}")
    after = kubernetes.ready_since(then) if then else ("no node", "")
    last = kubernetes.kubelet_run(output(host, kubernetes.KUBELET_RUN))
    observe([" since ".join(after), f"kubelet {last}"], [" since ".join(before), f"kubelet {first}"])
    wrong = [f"Ready was {before[0]} since {before[1]}, and then {' since '.join(after)}"] if after != before else []
    if last != first:
        wrong.append(f"kubelet ran since {first.since}, and then {last}")
    if first.restarts and first.since > registered:
        count = f"systemd had started kubelet again, the last time (of {first.restarts}) at {first.since}"
        wrong.append(f"before that, {count}, after the node had joined at {registered}")
    if wrong:
        observe.fail(f"within {kubernetes.STEADY_SECONDS:.0f} s: {'; '.join(wrong)}; {_log(host)}")


@pytest.mark.needs("observed")
def test_versions_are_the_image_s(host: Any, plan: PlanDocument, found: Found, observe: Observe) -> None:
    """The cluster sees the planned Kubernetes version, the base AMI's kubelet, and the containerd that is installed."""
    if found.node is None:
        unproven(f"no node: {found.error}")
    info = found.node["status"]["nodeInfo"]
    planned = str(section(plan, "node_eks", NodeRole)["version"])
    recorded = output(host, "cat /etc/eks/kubelet-version.txt").strip().removeprefix("Kubernetes ")
    installed = re.search(rf"\bv?({_RELEASE})", output(host, "containerd --version"))
    seen = {"kubelet": info["kubeletVersion"], "runtime": info["containerRuntimeVersion"]}
    expected = {"kubelet": recorded, "runtime": f"containerd://{installed[1] if installed else '?'}"}
    observe(seen, expected)
    # The node adds what the build has beside its release, as 2.2.4+unknown of Amazon Linux 2023.12.
    release = {**seen, "runtime": re.sub(rf"(://{_RELEASE})[+~-].*", r"\1", seen["runtime"])}
    wrong = [
        f"{name}: expected {expected[name]}, the node reports {seen[name]}"
        for name in seen
        if release[name] != expected[name]
    ]
    if not str(info["kubeletVersion"]).startswith(f"v{planned}."):
        wrong.append(f"kubelet: planned {planned}, the node reports {info['kubeletVersion']}")
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.fixture(scope="module")
def xids(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch, log_group_suffix: str
) -> injected_lines.Xids:
    """UNPROVEN where an injected Xid would reach production's log groups although the proof has groups of its own."""
    return injected_lines.Xids.of_proof(host, plan, machine, cloudwatch, log_group_suffix)


@pytest.mark.needs("observed")
def test_an_xid_names_the_node(
    xids: injected_lines.Xids, machine: MachineUnderTest, found: Found, observe: Observe
) -> None:
    """An Xid arrives in CloudWatch Logs with the name of the node, by which an operator drains it."""
    if found.node is None:
        unproven(f"no node: {found.error}")
    machine.require_clock()
    require_parser(xids.host)
    sent = xids.from_userland(machine.gpus[0].pci if machine.gpus else "0000:00:1e.0", observe)
    event = xids.event(sent, observe)
    observe.same(event.get("NodeName"), found.node["metadata"]["name"], "NodeName of the event in the JSON stream")


@pytest.mark.needs("observed")
def test_every_gpu_is_allocatable(
    plan: PlanDocument,
    machine: MachineUnderTest,
    cluster: kubernetes.Cluster,
    found: Found,
    others: dict[str, Mapping[str, Any] | None],
    observe: Observe,
) -> None:
    """Pods can have each GPU of each machine: the device plug-in has registered all of them with kubelet."""
    gpus = _gpus(plan, machine)
    found.require()
    count = _registered(cluster, gpus)
    observe(count, gpus)
    if count is None:
        observe.fail(
            f"no {kubernetes.GPU} on the node: does a device plug-in of the cluster run on it? expected {gpus}"
        )
    if count != gpus:
        observe.fail(f"allocatable {kubernetes.GPU}: expected {gpus}, got {count}")
    counts = {name: _registered(cluster, gpus, name) for name, node in others.items() if node}
    if counts:
        observe({cluster.instance_id: count} | counts, f"{gpus} of each machine")
    wrong = [f"{name} has {count or 0}" for name, count in counts.items() if count != gpus]
    if wrong:
        observe.fail(f"allocatable {kubernetes.GPU}: expected {gpus} of each machine; {', '.join(wrong)}")


@pytest.mark.needs("observed")
def test_every_efa_interface_is_allocatable(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, found: Found, observe: Observe
) -> None:
    """Pods can have each EFA interface of the machine."""
    planned = planned_instance_type(plan, machine.instance_type)["efa_interfaces"]
    if not planned:
        unproven(f"{machine.instance_type} has no EFA interface")
    node = found.require()
    attached = len(rdma.efa_devices(host))
    count = kubernetes.allocatable(node, kubernetes.EFA)
    if count is None:
        unproven(f"no {kubernetes.EFA} on the node: the cluster has no EFA device plug-in; attached: {attached}")
    observe(count, attached)
    if count != attached:
        observe.fail(f"allocatable {kubernetes.EFA}: expected {attached}, which are attached, got {count}")


@pytest.fixture(scope="module")
def image(host: Any, cluster_file: joined.Joined) -> Iterator[tuple[str, str]]:
    """An image of the compute probe in the node's containerd, and the path of Python in it. No registry is asked."""
    name = f"localhost/gpu-ami-probe:{cluster_file.run}"
    try:
        python = kubernetes.import_image(host, name)
    except kubernetes.Unanswered as error:
        pytest.fail(str(error), pytrace=False)
    yield name, python
    with contextlib.suppress(kubernetes.Unanswered):
        kubernetes.remove_image(host, name)


@pytest.mark.needs("observed")
def test_a_pod_on_all_gpus_computes(
    host: Any,
    plan: PlanDocument,
    machine: MachineUnderTest,
    cluster: kubernetes.Cluster,
    found: Found,
    image: tuple[str, str],
    observe: Observe,
) -> None:
    """A pod that requests all GPUs computes right on each, and has exactly those that nvidia-smi lists."""
    gpus = _gpus(plan, machine)
    node = found.require()
    count = _registered(cluster, gpus)
    if count != gpus:
        unproven(f"no node could run the pod: allocatable {kubernetes.GPU}: {count or 0} of {gpus}")
    # As NVIDIA's by default, the local region's device plug-in names UUIDs in NVIDIA_VISIBLE_DEVICES.
    if why := containers.runtime(host).not_simulated(qualified=False):
        unproven(why)
    listed = set(re.findall(r"\(UUID: (GPU-[0-9A-Fa-f-]+)\)", host.run("nvidia-smi -L").stdout))
    result = kubernetes.read_pod(_run_pod(cluster, "all", node, image, gpus, kubernetes.POD_SECONDS))
    observe({"exit": result.exit_code, "GPUs": list(result.uuids)}, f"exit 0, the {gpus} GPUs of nvidia-smi")
    if result.exit_code is None:
        observe.fail(f"the pod is {result.phase} after {kubernetes.POD_SECONDS:.0f} s: {result.message}")
    wrong = list(result.defects)
    missing, strange = sorted(listed - set(result.uuids)), sorted(set(result.uuids) - listed)
    if missing or strange:
        wrong.append(f"nvidia-smi -L lists {len(listed)} GPUs; the pod lacks {missing}, has beside them {strange}")
    if result.exit_code != 0 or wrong:
        observe.fail(f"the pod ended with {result.exit_code}: {'; '.join(wrong) or result.message}")


def _registered(cluster: kubernetes.Cluster, gpus: int, instance_id: str = "") -> int | None:
    """How many GPUs pods can have, as soon as it is so many, or after two minutes; None: of no device plug-in."""

    def has_all(node: Mapping[str, Any]) -> bool:
        return kubernetes.allocatable(node, kubernetes.GPU) == gpus

    try:
        node = cluster.wait_node(kubernetes.DEVICE_SECONDS, has_all, instance_id)
    except kubernetes.ApiError as error:
        unproven(str(error))
    return kubernetes.allocatable(node, kubernetes.GPU) if node else None


def _run_pod(
    cluster: kubernetes.Cluster,
    purpose: str,
    node: Mapping[str, Any],
    image: tuple[str, str],
    gpus: int,
    seconds: float,
) -> dict[str, Any]:
    """The pod as it is when it has ended, or after so many seconds; it is deleted then."""
    try:
        name = cluster.create_pod(purpose, node, *image, gpus)
        pod = cluster.wait_pod(name, seconds)
        cluster.delete_pod(name)
    except kubernetes.ApiError as error:
        unproven(f"the pod could not be run: {error}")
    return pod


@pytest.mark.needs("observed")
def test_a_pod_for_one_gpu_more_stays_pending(
    plan: PlanDocument,
    machine: MachineUnderTest,
    cluster: kubernetes.Cluster,
    found: Found,
    image: tuple[str, str],
    observe: Observe,
) -> None:
    """A pod that requests one GPU more than the node has is not scheduled: the cluster counts no GPU twice."""
    gpus = _gpus(plan, machine)
    node = found.require()
    pod = _run_pod(cluster, "more", node, image, gpus + 1, kubernetes.PENDING_SECONDS)
    phase, scheduled = pod["status"].get("phase"), kubernetes.conditions(pod).get("PodScheduled", ("", ""))
    observe([phase, *scheduled], f"Pending, Insufficient {kubernetes.GPU}")
    if phase != "Pending" or f"Insufficient {kubernetes.GPU}" not in scheduled[1]:
        said = scheduled[1] or "no word of the scheduler"
        observe.fail(
            f"a pod for {gpus + 1} GPUs of {gpus}: expected Insufficient {kubernetes.GPU}, got {phase}: {said}"
        )


def _gpus(plan: PlanDocument, machine: MachineUnderTest) -> int:
    gpus = int(planned_instance_type(plan, machine.instance_type)["gpu_count"])
    return gpus or unproven(f"{machine.instance_type} has no NVIDIA GPU")
