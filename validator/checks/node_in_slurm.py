"""A ParallelCluster image in a Slurm cluster (tier TN): munge, slurmd, and jobs on all GPUs of all nodes.

They run with `--join` alone. The machines of the proof are the cluster, with the Slurm and munge of the image, set up
as the cookbook of ParallelCluster does: the first is head and compute node, the others are compute nodes. Source of the
settings, and of how the munge key is put there: aws-parallelcluster-cookbook f75d84c3 (aws-parallelcluster-slurm:
slurm.conf.erb, cgroup.conf.erb, slurmd.service.erb, setup_munge_key), read 2026-11-25. All files are in a folder of
/run; what was started ends after the last check.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from validator import remote
from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, compute
from validator.probes.cluster import joined, nodes

if TYPE_CHECKING:
    from validator.transport import ssh


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

FOLDER = "/run/gpu-ami-slurm"
BIN, SBIN = "/opt/slurm/bin", "/opt/slurm/sbin"
_KEY = "/etc/munge/munge.key"
_START_SECONDS = 90.0
IDLE_SECONDS = 90  # slurmd registers within a second or two; an emulated machine needs ten
JOB_SECONDS = 240.0
_PROBE_MIB = 16
_NOISE = "state file|state save file|mpi/|MailProg"  # of every first start
_REFUSED = "Requested node configuration is not available"
# TaskPlugin and ProctrackType are ParallelCluster's; the ports are the ones that its security groups are made for.
_SLURM_CONF = """\
ClusterName=gpu-ami
SlurmUser=slurm
SlurmctldHost={head}({address})
SlurmctldPort=6820
SlurmdPort=6818
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
ReturnToService=1
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobCompType=jobcomp/none
"""
_CGROUP_CONF = "ConstrainCores=yes\n"
_JOB = """\
printf 'node %s\\n' "$SLURMD_NODENAME"
printf 'visible %s\\n' "$CUDA_VISIBLE_DEVICES"
exec python3 -IS {folder}/compute_probe.py --mib {mib} --seconds 100
"""
_DESCRIBE = (
    "printf 'host %s\\n' \"$(hostname -s)\"; printf 'cpus %s\\n' \"$(nproc)\""
    f"; printf 'slurm %s\\n' \"$({SBIN}/slurmd -V)\"; printf 'munge %s\\n' \"$(/usr/sbin/munged -V)\""
    "; nvidia-smi -L; true"  # where it fails, the jobs lack its UUIDs
)
_UUID = re.compile(r"\(UUID: (GPU-[0-9A-Fa-f-]+)\)")
# nvidia-uvm: recipe nvidia_uvm of the cookbook, which the image's own boot does not run.
_PREPARE = """\
set -e
[ ! -e {key} ] || {{ echo '{key} exists: the machine belongs to a cluster already' >&2; exit 1; }}
rm -rf {folder}
mkdir -m 755 {folder} {folder}/spool
install -d -m 700 -o slurm {folder}/state
[ ! -d /proc/driver/nvidia ] || modprobe nvidia-uvm
"""
# As the cookbook does: the owner of /etc/munge is the image's.
_MUNGE = """\
set -e
(umask 077; base64 -d > {key})
chown munge:munge {key}
chmod 0600 {key}
systemctl restart munge.service
munge -n | unmunge > /dev/null
"""
_MUNGE_SAYS = "journalctl --no-pager -o cat -n 8 -u munge.service; tail -n 4 /var/log/munge/munged.log"
# As slurmd.service and slurmctld.service of the cookbook.
_DAEMON = """\
systemd-run --quiet --collect --unit=gpu-ami-{name} -p KillMode=process -p Delegate=yes -p LimitMEMLOCK=infinity \
-p LimitSTACK=infinity -p LimitNOFILE=131072 --setenv=SLURM_CONF={folder}/slurm.conf {program} -D -f \
{folder}/slurm.conf {further}
"""
# slurmd's steps are children of a scope of their own, which outlives slurmd.
_LEAVE = """\
[ -d {folder} ] || exit 0
systemctl stop gpu-ami-slurmd.service gpu-ami-slurmctld.service
systemctl stop slurmstepd.scope '*_slurmstepd.scope' munge.service
find /var/log/munge /var/lib/munge {key} -newer {folder}/slurm.conf -type f -delete
rm -rf {folder}
systemctl reset-failed gpu-ami-slurmd.service gpu-ami-slurmctld.service munge.service
true
"""


@dataclass
class Started:
    """The cluster, and what kept a part of it from starting ("" where it started)."""

    cluster: SlurmCluster
    munge_error: str = ""
    slurm_error: str = ""
    registered: tuple[Registered, ...] = ()

    def require(self) -> SlurmCluster:
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
        cluster = SlurmCluster(together, int(gpus))
        try:
            yield _start(cluster)
        finally:
            cluster.leave()


def _start(cluster: SlurmCluster) -> Started:
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
        if gpu_count(row.gres) != gpus:
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
    if not is_refused(done):
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


def _with_gpus(started: Started, plan: PlanDocument, machine: MachineUnderTest) -> tuple[SlurmCluster, int]:
    cluster = started.require()
    gpus = int(planned_instance_type(plan, machine.instance_type)["gpu_count"])
    return (cluster, gpus) if gpus else unproven(f"{machine.instance_type} has no NVIDIA GPU")


def _tasks(cluster: SlurmCluster, count: int, gpus: int, observe: Observe) -> list[Task]:
    done = _judged(observe, lambda: cluster.run(count, gpus))
    try:
        tasks = read_tasks(done.text)
    except compute.Unanswered as error:
        observe.fail(f"srun ended with {done.rc}: {error}")
    if done.rc != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:] or "no message"
        defects = [f"{task.node}: {defect}" for task in tasks for defect in task.defects]
        observe.fail(f"srun ended with {done.rc}: {'; '.join(defects) or said}; {_judged(observe, cluster.logs)}")
    return tasks


@dataclass(frozen=True)
class Registered:
    """A node as slurmctld has it. gres: `gpu:8`; state: `IDLE`, or with what slurmctld says of it."""

    name: str
    gres: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Task:
    """What a job's task printed on its node: the GPUs that Slurm gave it, and those that the compute probe saw."""

    node: str
    visible: str
    uuids: tuple[str, ...]
    defects: tuple[str, ...] = ()


@dataclass
class SlurmCluster:
    """Slurm on the members of a proof. `munge` and `slurm` start it, `leave` ends all; NodeFailed names node and step.

    gpus: of each node, as the plan has them. uuids: by member, of nvidia-smi. versions: of Slurm and munge, by member.
    """

    together: nodes.Together
    gpus: int
    uuids: list[list[str]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    _hosts: list[tuple[str, int]] = field(default_factory=list)
    began: bool = False

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, len(self.together.members) + 1)]

    def munge(self) -> None:
        """Describes the nodes, puts files and one key on each, starts munge, and has it decode its own credential."""
        described = self.together.each(lambda member: _require(member, _DESCRIBE, "is described").text)
        self.uuids = [_UUID.findall(text) for text in described]
        self._hosts = [(_word(text, "host"), int(_word(text, "cpus"))) for text in described]
        self.versions = [f"{_word(text, 'slurm')}, {_word(text, 'munge')}" for text in described]
        self.began = True
        self.together.each(lambda member: _root(member, _PREPARE.format(folder=FOLDER, key=_KEY), "is prepared"))
        for name, text in self.files().items():
            self.together.each(lambda member, n=name, t=text: _put(member, n, t))  # type: ignore[misc]
        key = secrets.token_bytes(128)
        self.together.each(lambda member: _start_munge(member, key))

    def strangers(self) -> list[str]:
        """Members whose credentials another member's munge refuses, with what it says; each with each."""
        wrong = []
        for member in self.together.members:
            credential = _require(member, "munge -n", "munge makes a credential").stdout
            for other in self.together.members:
                done = other.run("unmunge --metadata=/dev/null", _START_SECONDS, credential)
                if done.rc != 0:
                    wrong.append(f"{other.name} refuses {member.name}'s: {_said(done)}")
        return wrong

    def files(self) -> dict[str, str]:
        """By name: the configuration, which is the same on each node, and the program of the jobs."""
        members = self.together.members
        head = _SLURM_CONF.format(folder=FOLDER, head=self._hosts[0][0], address=members[0].address)
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        rows = [
            f"NodeName={name} NodeAddr={member.address} NodeHostname={host} CPUs={cpus}{gres} State=UNKNOWN\n"
            for name, member, (host, cpus) in zip(self.names, members, self._hosts, strict=True)
        ]
        devices = "/dev/nvidia0" if self.gpus == 1 else f"/dev/nvidia[0-{self.gpus - 1}]"
        return {
            "slurm.conf": head + "".join(rows) + "PartitionName=proof Nodes=ALL Default=YES State=UP\n",
            "gres.conf": f"Name=gpu File={devices}\n" if self.gpus else "",
            "cgroup.conf": _CGROUP_CONF,
            "job.sh": _JOB.format(folder=FOLDER, mib=_PROBE_MIB),
            "compute_probe.py": remote.source("compute_probe"),
        }

    def slurm(self) -> None:
        """Starts slurmctld and every slurmd; they have registered, or not, when `registered` is asked."""
        head = self.together.members[0]
        _root(
            head, _DAEMON.format(name="slurmctld", folder=FOLDER, program=f"{SBIN}/slurmctld", further=""), "slurmctld"
        )
        for member, name in zip(self.together.members, self.names, strict=True):
            command = _DAEMON.format(name="slurmd", folder=FOLDER, program=f"{SBIN}/slurmd", further=f"-N {name}")
            _root(member, command, "slurmd")

    def registered(self) -> list[Registered]:
        """The nodes as slurmctld has them, when all are idle, one is drained, or the time for that is over."""
        idle = f'[ "$({BIN}/sinfo -h -N -t idle -o %N | wc -l)" -ge {len(self.names)} ]'
        drained = f'[ -n "$({BIN}/sinfo -h -R)" ]'  # it stays so
        wait = f"for _ in $(seq {IDLE_SECONDS}); do {{ {idle} || {drained}; }} 2> /dev/null && break; sleep 1; done"
        show = f"{wait}; {BIN}/scontrol --oneliner show nodes"
        done = self.together.members[0].run(_with_conf(show), IDLE_SECONDS + _START_SECONDS)
        if done.rc != 0:
            raise nodes.NodeFailed(
                f"{self.together.members[0].name}: slurmctld does not answer: {_said(done)}; {self.logs()}"
            )
        return read_nodes(done.text)

    def run(self, nodes: int, gpus: int) -> ssh.Finished:
        """The job on so many nodes, a task a node with so many GPUs; as the login user."""
        options = f"--chdir=/ --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --gres=gpu:{gpus} --immediate=60"
        command = f"{BIN}/srun {options} --time=5 --label sh {FOLDER}/job.sh"
        return self.together.members[0].run(_with_conf(command), JOB_SECONDS)

    def logs(self) -> str:
        """Errors of slurmctld and slurmd, by node."""
        lines = []
        for member in self.together.members:
            command = (
                f"grep -hE 'error|fatal' {FOLDER}/slurmd.log {FOLDER}/slurmctld.log | grep -vE '{_NOISE}' | head -n 4"
            )
            said = member.run(f"sudo -n sh -c {shlex.quote(command)}").text.strip()
            lines += [f"{member.name}: {line}" for line in said.splitlines()]
        return "; ".join(lines) or "their logs have no error"

    def leave(self) -> None:
        """Ends daemons and jobs, and removes key and files. Never raises: a node that is gone has taken them along."""

        def clean(member: nodes.Member) -> None:
            with contextlib.suppress(nodes.NodeFailed):
                member.run("sudo -n sh -s", 60, _LEAVE.format(folder=FOLDER, key=_KEY).encode())

        if self.began:
            self.together.each(clean)


def read_nodes(printed: str) -> list[Registered]:
    """Of `scontrol --oneliner show nodes`."""
    found = []
    for line in printed.splitlines():
        row = dict(re.findall(r"(NodeName|Gres|State|Reason)=(\S+(?: [^=\s]+(?= |$))*)", line))
        if "NodeName" in row:
            gres = "" if row.get("Gres") in (None, "(null)") else row["Gres"]
            found.append(Registered(row["NodeName"], gres, row.get("State", ""), row.get("Reason", "")))
    return found


def gpu_count(gres: str) -> int:
    """GPUs of `gpu:8`, `gpu:h100:8(S:0-1)` and the like."""
    counts = [re.sub(r"\(.*", "", part).split(":") for part in re.split(r",(?![^(]*\))", gres) if part]
    return sum(int(words[-1]) if words[-1].isdigit() else 1 for words in counts if words[0] == "gpu")


def read_tasks(printed: str) -> list[Task]:
    """Of `srun --label` and the job. Compute.Unanswered: a task whose probe printed no result."""
    lines: dict[str, list[str]] = {}
    for line in printed.splitlines():
        label, _, rest = line.partition(": ")
        if label.strip().isdigit():
            lines.setdefault(label.strip(), []).append(rest)
    return [_task(rows) for _, rows in sorted(lines.items(), key=lambda item: int(item[0]))]


def _task(rows: Sequence[str]) -> Task:
    values = {name: rest for name, _, rest in (row.partition(" ") for row in rows) if name in ("node", "visible")}
    printed = "\n".join(row for row in rows if row.startswith("{"))
    result = compute.read(printed, f"task on {values.get('node', 'a node')}: {' '.join(rows)[-300:] or 'no output'}")
    defects = [text for text in (result.error, result.unfinished) if text]
    for gpu in result.gpus:
        defects += [f"GPU {gpu.index}: {gpu.error or gpu.wrong}"] if not gpu.right else []
    uuids = tuple(f"GPU-{gpu.uuid.removeprefix('GPU-')}" for gpu in result.gpus)
    return Task(values.get("node", ""), values.get("visible", ""), uuids, (*defects, *compute.missing(result)))


def is_refused(done: ssh.Finished) -> bool:
    """Whether slurmctld refused a job as one that no node can ever run, which is not a job that waited in vain."""
    return done.rc != 0 and _REFUSED in done.stderr.decode(errors="replace")


def _with_conf(command: str) -> str:
    return f"export SLURM_CONF={FOLDER}/slurm.conf; cd /; {command}"


def _word(text: str, name: str) -> str:
    return next((line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")), "")


def _said(done: ssh.Finished) -> str:
    said = done.stderr.decode(errors="replace").strip() or done.text.strip()
    return " ".join(said.split())[-500:] or f"exit status {done.rc}"


def _require(member: nodes.Member, command: str, step: str) -> ssh.Finished:
    done = member.run(command, _START_SECONDS)
    if done.rc != 0:
        raise nodes.NodeFailed(f"{member.name}: {step}: {_said(done)}")
    return done


def _root(member: nodes.Member, script: str, step: str) -> None:
    done = member.run("sudo -n sh -s", _START_SECONDS, script.encode())
    if done.rc != 0:
        raise nodes.NodeFailed(f"{member.name}: {step}: {_said(done)}")


def _put(member: nodes.Member, name: str, text: str) -> None:
    done = member.run(f"sudo -n sh -c 'cat > {FOLDER}/{name}'", _START_SECONDS, text.encode())
    if done.rc != 0:
        raise nodes.NodeFailed(f"{member.name}: {FOLDER}/{name} is written: {_said(done)}")


def _start_munge(member: nodes.Member, key: bytes) -> None:
    """The key travels in the script's input, never in a command line."""
    encoded = base64.b64encode(key) + b"\n"
    script = _MUNGE.format(key=_KEY)
    done = member.run(f"sudo -n sh -c {shlex.quote(script)}", _START_SECONDS, encoded)
    if done.rc != 0:
        says = member.run(f"sudo -n sh -c {shlex.quote(_MUNGE_SAYS)}").text
        raise nodes.NodeFailed(f"{member.name}: munge does not start: {_said(done)}; {' '.join(says.split())[-400:]}")


def shown(rows: Sequence[Registered]) -> str:
    """For a message."""
    return json.dumps([vars(row) for row in rows])
