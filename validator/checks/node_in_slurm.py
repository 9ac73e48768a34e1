"""A ParallelCluster image in a Slurm cluster (tier TN): munge, slurmd, and jobs on all GPUs of all nodes.

They run with `--join` alone. The proof's machines are the cluster, with the image's own Slurm and munge; what was
started ends after the last check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, compute
from validator.probes.cluster import joined, nodes, slurm

pytestmark = [pytest.mark.tier("TN"), pytest.mark.live, pytest.mark.planned("node_parallelcluster")]

_CHEF_LOG = "/var/log/chef-client.log"
# What Chef writes of a run that failed, and the levels of its log. Source: chef-client's own log, aws-parallelcluster's
# integration tests (assert_no_msg_in_logs on ERROR and FATAL).
_CHEF_ERRORS = f"grep -nE -m 5 '(^|[^[:alnum:]])(ERROR|FATAL):|Chef Infra Client failed' {_CHEF_LOG}; [ $? -le 1 ]"
# pcluster's validators that read the AMI. Source: aws-parallelcluster 3.16.1, pcluster/validators.
_OF_THE_AMI = {
    "AmiOsCompatibleValidator", "CustomAmiTagValidator", "InstanceArchitectureCompatibilityValidator",
    "InstanceTypeBaseAMICompatibleValidator", "OsCustomAmiValidator", "RootVolumeSizeValidator",
}  # fmt: skip
_Result = TypeVar("_Result")


@dataclass
class Started:
    """The cluster, and what kept a part of it from starting ("" where it started)."""

    cluster: slurm.SlurmCluster
    munge_error: str = ""
    slurm_error: str = ""
    registered: tuple[slurm.Registered, ...] = ()

    def require(self) -> slurm.SlurmCluster:
        """UNPROVEN where it did not start: the checks of munge and slurmd have failed for that."""
        if self.munge_error or self.slurm_error:
            unproven(f"Slurm does not run: {self.munge_error or self.slurm_error}")
        idle = [row.name for row in self.registered if row.state == "IDLE"]
        missing = sorted(set(self.cluster.names) - set(idle))
        return unproven(f"not idle in Slurm: {', '.join(missing)}") if missing else self.cluster


@pytest.fixture(scope="module")
def started(cluster_file: joined.Joined, plan: PlanDocument, machine: MachineUnderTest) -> Iterator[Started]:
    """munge, then slurmctld and slurmd on the nodes; ended with the last check."""
    gpus = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    with nodes.Together(cluster_file.nodes) as together:
        try:
            together.enter()
        except nodes.NodeFailed as error:
            pytest.fail(str(error), pytrace=False)
        cluster = slurm.SlurmCluster(together, int(gpus))
        try:
            yield _start(cluster)
        finally:
            cluster.leave()


def _start(cluster: slurm.SlurmCluster) -> Started:
    made = Started(cluster)
    try:
        cluster.munge()
    except nodes.NodeFailed as error:
        made.munge_error = str(error)
        return made
    try:
        cluster.slurm()
        made.registered = tuple(cluster.registered())
    except nodes.NodeFailed as error:
        made.slurm_error = str(error)
    return made


def _judged(observe: Observe, step: Callable[[], _Result]) -> _Result:
    try:
        return step()
    except nodes.NodeFailed as error:
        observe.fail(str(error))


@pytest.mark.needs("promise")
def test_ami_has_the_tags_of_parallelcluster(cluster_file: joined.Joined, observe: Observe) -> None:
    """The AMI has the tags that pcluster's validators of a custom AMI read: version, system, build status."""
    tags = {name: cluster_file.tags.get(name, "") for name in cluster_file.expected_tags}
    observe(tags, dict(cluster_file.expected_tags))
    wrong = [
        f"{name}: expected {value}, got {tags[name] or 'no such tag'}"
        for name, value in cluster_file.expected_tags.items()
        if tags[name] != value
    ]
    if wrong:
        observe.fail(f"tags of the AMI: {'; '.join(wrong)} (pcluster create-cluster warns of it or refuses it)")


@pytest.mark.needs("promise")
def test_pcluster_accepts_the_ami(cluster_file: joined.Joined, observe: Observe) -> None:
    """A dry run of `pcluster create-cluster` with the AMI as CustomAmi has no finding on the AMI."""
    answer = cluster_file.dry_run
    if not answer:
        wanted = cluster_file.expected_tags.get("parallelcluster:version", "")
        unproven(f"pcluster is not installed: pip install aws-parallelcluster=={wanted} (docs/nodes.md)")
    if "error" in answer:
        unproven(f"pcluster gives no answer: {answer['error']}")
    observe(dict(answer), "no finding on the AMI")
    of_ami = [row for row in answer["findings"] if row["type"] in _OF_THE_AMI]
    if of_ami:
        observe.fail("; ".join(map(_finding, of_ami)))
    others = [row for row in answer["findings"] if row["level"] == "ERROR"]
    if others or "would have succeeded" not in answer["message"]:
        reasons = "; ".join(map(_finding, others)) or answer["message"]
        unproven(f"pcluster refuses the cluster for another reason than the AMI: {reasons}")


def _finding(row: Mapping[str, str]) -> str:
    return f"{row['type']} ({row['level']}): {row['message'][:300]}"


@pytest.mark.needs("promise")
def test_munge_authenticates_every_node(started: Started, observe: Observe) -> None:
    """munge starts with the cluster's key on every node, and each decodes the credentials of every node.

    Slurm accepts only authenticated messages.
    """
    if started.munge_error:
        observe.fail(started.munge_error)
    strangers = _judged(observe, started.cluster.strangers)
    observe(strangers or "every credential is decoded", "every credential is decoded")
    if strangers:
        observe.fail("; ".join(strangers))


@pytest.mark.needs("promise")
def test_slurmd_registers_every_gpu(
    started: Started, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """slurmd of every node registers the GPUs of the instance type, each by its device file, and the nodes are idle.

    A node with another count is drained, and its jobs stay pending.
    """
    if started.munge_error:
        unproven(f"munge does not start: {started.munge_error}")
    if started.slurm_error:
        observe.fail(started.slurm_error)
    gpus = int(planned_instance_type(plan, machine.instance_type)["gpu_count"])
    rows = started.registered
    seen = {"versions": started.cluster.versions, "nodes": [vars(row) for row in rows]}
    observe(seen, f"{len(started.cluster.names)} nodes IDLE with gpu:{gpus}")
    wrong = [
        f"{name}: slurmctld does not know it" for name in started.cluster.names if name not in {r.name for r in rows}
    ]
    for row in rows:
        if slurm.gpu_count(row.gres) != gpus:
            wrong.append(f"{row.name}: Gres {row.gres or 'none'}, {machine.instance_type} has {gpus} GPUs")
        if row.state != "IDLE":
            wrong.append(f"{row.name}: expected IDLE, got {row.state}{f' ({row.reason})' if row.reason else ''}")
    if wrong:
        observe.fail(f"{'; '.join(wrong)}; {_judged(observe, started.cluster.logs)}")


@pytest.mark.needs("promise")
def test_a_job_on_all_gpus_sees_each_once(
    started: Started, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """A job over all nodes with all their GPUs computes on each of them, and sees every UUID of nvidia-smi once."""
    cluster, gpus = _with_gpus(started, plan, machine)
    count = len(cluster.together.members)
    tasks = _tasks(cluster, count, gpus, observe)
    observe([vars(task) for task in tasks], f"{count} tasks with {gpus} GPUs each, every UUID once")
    wrong = [f"{task.node}: {defect}" for task in tasks for defect in task.defects]
    by_node = {task.node: task for task in tasks}
    for name, uuids in zip(cluster.names, cluster.uuids, strict=True):
        got = by_node[name].uuids if name in by_node else ()
        missing, strange = sorted(set(uuids) - set(got)), sorted(set(got) - set(uuids))
        if missing or strange or len(uuids) != gpus:
            wrong.append(
                f"{name}: nvidia-smi -L lists {len(uuids)} GPUs; the job lacks {missing}, has beside them {strange}"
            )
    twice = [uuid for uuid, times in Counter(uuid for task in tasks for uuid in task.uuids).items() if times > 1]
    wrong += [f"more than once: {', '.join(twice)}"] if twice else []
    if wrong or len(tasks) != count:
        observe.fail("; ".join([*wrong, *([f"{len(tasks)} of {count} tasks"] if len(tasks) != count else [])]))


@pytest.mark.needs("promise")
def test_a_job_sees_no_gpu_that_it_did_not_ask_for(
    started: Started, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """A job that requests one GPU of a node sees only one, so two jobs on a node do not share a GPU."""
    cluster, gpus = _with_gpus(started, plan, machine)
    if gpus == 1:
        unproven(f"{machine.instance_type} has one GPU: there is none that a job could see beside its own")
    tasks = _tasks(cluster, 1, 1, observe)
    observe([vars(task) for task in tasks], "one GPU")
    uuids = [uuid for task in tasks for uuid in task.uuids]
    wrong = [defect for task in tasks for defect in task.defects]
    if len(uuids) != 1 or wrong:
        observe.fail("; ".join([f"expected one GPU, got {len(uuids)}: {', '.join(uuids)}", *wrong]))


@pytest.mark.needs("promise")
def test_a_job_for_one_gpu_more_is_refused(
    started: Started, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """A job for one GPU more than a node has is refused at once.

    Where it is not, Slurm counts GPUs that the node does not have.
    """
    cluster, gpus = _with_gpus(started, plan, machine)
    done = _judged(observe, lambda: cluster.run(1, gpus + 1))
    said = done.stderr.decode(errors="replace").strip()[-300:]
    observe(said or f"exit status {done.rc}", "Requested node configuration is not available")
    if not slurm.is_refused(done):
        observe.fail(
            f"srun --gres=gpu:{gpus + 1}: expected a refusal, got exit status {done.rc}: {said or 'no message'}"
        )


@pytest.mark.needs("promise")
def test_cookbook_reports_no_error(host: Any, observe: Observe) -> None:
    """ParallelCluster's cookbook has set up this node without an error in chef-client.log."""
    if host.run("test -s %s", _CHEF_LOG).rc != 0:
        unproven(
            f"no {_CHEF_LOG}: these machines are a Slurm cluster without ParallelCluster's cookbook; a cluster of"
            " `pcluster create-cluster` with this AMI as CustomAmi runs it (docs/nodes.md)"
        )
    errors = output(host, "sudo -n sh -c %s", _CHEF_ERRORS).strip().splitlines()
    observe.nothing(errors, f"errors in {_CHEF_LOG}")


def _with_gpus(started: Started, plan: PlanDocument, machine: MachineUnderTest) -> tuple[slurm.SlurmCluster, int]:
    cluster = started.require()
    gpus = int(planned_instance_type(plan, machine.instance_type)["gpu_count"])
    return (cluster, gpus) if gpus else unproven(f"{machine.instance_type} has no NVIDIA GPU")


def _tasks(cluster: slurm.SlurmCluster, count: int, gpus: int, observe: Observe) -> list[slurm.Task]:
    done = _judged(observe, lambda: cluster.run(count, gpus))
    try:
        tasks = slurm.read_tasks(done.text)
    except compute.Unanswered as error:
        observe.fail(f"srun ended with {done.rc}: {error}")
    if done.rc != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:] or "no message"
        defects = [f"{task.node}: {defect}" for task in tasks for defect in task.defects]
        observe.fail(f"srun ended with {done.rc}: {'; '.join(defects) or said}; {_judged(observe, cluster.logs)}")
    return tasks
