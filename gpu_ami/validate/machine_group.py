"""Several machines of one type (tier T4): those beside the first one boot while it is checked; then all work together.

They are launched by one call in one cluster placement group. A site's checks marked `tier("T4")` run with ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.cloud import aws_errors, security_groups
from gpu_ami.errors import GpuAmiError, MachineError, UsageError
from gpu_ami.files import write_text
from gpu_ami.recipes import load_facts
from gpu_ami.validate.machines import Watch
from gpu_ami.validate.proof import MachineLost
from gpu_ami.validate.validator_process import ChecksIncomplete, Target
from validator import secret_shapes
from validator.probes.cluster import nodes as node_files

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import Popen
    from types import TracebackType

    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.machines import Boot, Machine
    from gpu_ami.validate.proof import Proof
    from gpu_ami.validate.recorder import HostRecord

_NODES = "nodes"
_MORE_SECONDS = 1800.0  # of all checks together: three collectives of up to ten minutes
_CHECK_SECONDS = 2400.0
_POLL_SECONDS = 0.2


def require(plan: PlanDocument, place: Place, instance_types: Sequence[str], nodes: int) -> None:
    """UsageError, before anything is launched: several machines cannot work together in this way."""
    if nodes == 1:
        return
    asked = f"--nodes {nodes}"
    if len(instance_types) != 1:
        hint = (
            f"choose one of them: --instance-type {instance_types[0]}; gpu-ami merge joins it with the others' reports"
        )
        raise UsageError(f"{asked}: expected one instance type, got {', '.join(instance_types)}", hint=hint)
    name = instance_types[0]
    rows = {row["name"]: row["efa_interfaces"] for row in plan["instance_types"]}
    if "efa" not in plan:
        return
    if not rows[name]:
        others = ", ".join(other for other, count in rows.items() if count) or "none of the plan"
        hint = f"types with EFA: {others}; a recipe without the component efa can be proven over TCP"
        raise UsageError(f"{asked}: the plan has EFA, and {name} has no EFA interface", hint=hint)
    if rows[name] > 1 and place.login.ssh_interface.startswith("public"):
        hint = "set ssh_interface to private_ip or session_manager, or use a jump host or Instance Connect Endpoint"
        message = f"EC2 gives no public address to a machine with the {rows[name]} EFA interfaces of {name}"
        raise UsageError(f"{asked}: ssh_interface {place.login.ssh_interface}: {message}", hint=hint)


def require_traffic(cloud: Cloud, plan: PlanDocument) -> None:
    """UsageError, before anything is launched: the place's security groups keep the machines from each other.

    CloudError: they cannot be looked up.
    """
    named = list(cloud.place.network.security_group_ids) or [cloud.default_security_group()]
    groups = cloud.security_groups(named)
    with aws_errors.translated(f"looking up {', '.join(named)}"):
        closed = security_groups.own_traffic(groups, efa="efa" in plan)
    if groups and closed:
        names = ", ".join(named)
        rules = " and ".join(f"{name}bound" for name in closed)
        hint = f"add rules for all traffic whose source and destination are {named[0]} itself (docs/nodes.md)"
        raise UsageError(
            f"--nodes: security group {names} has no {rules} rule for all traffic of its own members", hint=hint
        )


class Peers:
    """The machines beside the first one: their boots, and their end. Within the block, their boots go on."""

    def __init__(self, boot: Boot, host: HostRecord, instance_ids: Sequence[str]) -> None:
        self.instance_ids = list(instance_ids)
        self._boot, self._host = boot, host
        self._pool: ThreadPoolExecutor | None = None
        self._boots: list[Future[Machine]] = []

    def __enter__(self) -> Peers:
        if self.instance_ids:
            self._pool = ThreadPoolExecutor(len(self.instance_ids), thread_name_prefix="boot of a node")
            kind = self._host.report.instance_type
            self._boots = [self._pool.submit(self._boot.follow, each, kind) for each in self.instance_ids]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)  # a cancelled run ends each wait of a boot

    def machines(self) -> list[Machine]:
        """All of them, booted. MachineError names the node that did not boot; CloudError."""
        machines = []
        for instance_id, future in zip(self.instance_ids, self._boots, strict=True):
            while not future.done():
                if self._boot.cancelled.is_set():
                    raise MachineError(f"node {instance_id} was not waited for: the run was interrupted")
                time.sleep(_POLL_SECONDS)
            try:
                machines.append(future.result())
            except GpuAmiError as error:
                error.message = f"node {instance_id}: {error.message}"
                raise
        return machines

    def terminate(self) -> None:
        """Ends them before the first machine, which is restarted next: their cost ends here."""
        self._boot.cloud.terminate(self.instance_ids)
        self._host.end_others()


def group_of(machines: Sequence[Machine], cloud: Cloud) -> node_files.Group:
    """The machines as the checks see them, with what the facts know of their type."""
    return known_of(nodes_of(machines, cloud), machines[0].instance_type)


def _private_address(cloud: Cloud, instance_id: str) -> str:
    return str(cloud.persistent(lambda: cloud.instance(instance_id)).get("PrivateIpAddress") or "")


def nodes_of(machines: Sequence[Machine], cloud: Cloud) -> tuple[node_files.Node, ...]:
    """How the checks reach the machines, and their private addresses."""
    return tuple(
        node_files.Node(
            machine.instance_id,
            machine.url,
            _private_address(cloud, machine.instance_id),
            str(machine.key_file),
            str(machine.known_hosts),
            machine.proxy_command,
        )
        for machine in machines
    )


def known_of(nodes: tuple[node_files.Node, ...], instance_type: str) -> node_files.Group:
    """The nodes with what the facts know of NCCL between so many machines of their type."""
    facts, family = load_facts().table("collectives"), instance_type.partition(".")[0]
    rdma, row = facts["gpu_direct_rdma"], facts["floors"].get(instance_type)
    unknown = rdma["wording_unknown"]
    floor = None
    if row is not None and row["nodes"] == len(nodes):
        keys = ("gbps", "nodes", "size", "source", "algorithm", "protocol")
        floor = node_files.Floor(**{key: row[key] for key in keys})
    return node_files.Group(
        nodes,
        family in rdma["families"],
        floor,
        gpu_direct_unknown=unknown["why"] if family in unknown["families"] else "",
        no_floor=facts["no_floor"].get(family, {}).get("why", ""),
    )


def _evidence(proof: Proof, host: HostRecord, what: str, after: str = "") -> Path:
    return proof.evidence(Target(host.report.host, name=f"{host.report.evidence}-{what}"), after)


def keep_consoles(proof: Proof, host: HostRecord, cloud: Cloud, instance_ids: Sequence[str]) -> None:
    """The consoles of the machines beside the first one are evidence, whatever the verdict."""
    for instance_id in instance_ids:
        try:
            text = secret_shapes.hidden(cloud.console(instance_id))
        except GpuAmiError as error:
            text = f"the console could not be read: {error}\n"
        try:
            write_text(_evidence(proof, host, _NODES) / f"console-{instance_id}.log", text)
        except (OSError, MachineError) as error:
            proof.progress.note(f"console of node {instance_id}: {error}")


def check(
    proof: Proof, host: HostRecord, target: Target, machines: Sequence[Machine], cloud: Cloud, *, file: Path
) -> None:
    """The checks of tier T4 on all machines, in the first one's report. file: for the list of the machines.

    MachineLost: one is no longer running; ChecksIncomplete (what had been judged is in the report), MachineError.
    """
    node_files.write(file, group_of(machines, cloud))
    names = [machine.instance_id for machine in machines]
    host.report = host.report.with_facts(nodes={"count": len(names), "instances": names})
    stage = f"check {len(machines)} nodes of {host.report.instance_type}"
    check_all(proof, host, target, names, cloud, what=_NODES, file=file, stage=stage)


def check_all(  # noqa: PLR0913
    proof: Proof,
    host: HostRecord,
    target: Target,
    names: Sequence[str],
    cloud: Cloud,
    *,
    what: str,
    file: Path,
    stage: str,
    after: str = "",
) -> None:
    """A pass of its own, while all instances are watched; in the first one's report.

    what: the validator's option of the pass, and the name of its evidence; file: that option's. after: the restart
    before it. MachineLost, ChecksIncomplete, MachineError.
    """
    folder = _evidence(proof, host, what, after)
    options = [
        *proof.options.validator_options,
        *([f"--after={after}"] if after else []),
        f"--{what}={file}",
        "--no-evidence",
        f"--check-deadline={_CHECK_SECONDS:g}",
    ]
    started: list[Popen[bytes]] = []

    def stop(_reason: str) -> None:
        for validator in started:
            process.stop(validator)

    stage = f"{stage} after {after}" if after else stage
    with proof.progress.stage(stage, host.report.name), ExitStack() as stack:
        watches = [stack.enter_context(Watch(cloud, name, stop)) for name in names]
        try:
            results = proof.run_checks(target, folder, options, started.append, after, more_seconds=_MORE_SECONDS)
        except ChecksIncomplete as error:
            host.report = host.report.with_own_pass(error.results)
            lost = [watch.reason for watch in watches if watch.reason]
            if lost:
                code = next(watch.code for watch in watches if watch.reason)
                raise MachineLost(host.report.instance_type, "; ".join(lost), code) from error
            raise
    host.report = host.report.with_own_pass(results)
