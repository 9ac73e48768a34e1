"""The proof of an AMI: boots it on each instance type, side by side; checks every machine, also after restarts.

Each machine is terminated as soon as its own proof has ended; the report is on disk before that. An AMI that others
built is booted once, to see what is in it: the proof's plan is made of what was read.
"""

from __future__ import annotations

import fnmatch
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpu_ami import observe as observing
from gpu_ami.cloud import Cloud, Place, capacity, key_name, login, placement_groups, runs
from gpu_ami.errors import CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.plan import cost
from gpu_ami.process import UnderWay
from gpu_ami.progress import Progress
from gpu_ami.report import HostReport, LaunchAttempt, Report
from gpu_ami.validate import cluster, machine_group
from gpu_ami.validate.machines import Boot, Machine, console, deadlines, launch, require_interface, restart, restarts
from gpu_ami.validate.node_services import Proven
from gpu_ami.validate.proof import (
    IMAGE_FILES,
    MachineLost,
    Proof,
    assemble,
    check_files,
    check_machine,
    own_log_groups,
    record_error,
)
from gpu_ami.validate.recorder import HostRecord, Recorder
from gpu_ami.validate.validator_process import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.recipes import PlanDocument


def prove_image(
    proof: Proof,
    cloud: Cloud,
    run: runs.Run,
    ami: str,
    instance_types: Sequence[str],
    *,
    files: Callable[[], HostReport] | None = None,
    no_files: str = "",
) -> Report:
    """Boots `ami` once on each instance type, side by side, checks every machine, and writes the report.

    files: checks the image's files meanwhile; no_files: why not. An error of one machine ends in its own report; Ctrl-C
    ends all of them, and the report says so.
    """
    require_interface(cloud.place.login.ssh_interface)
    recorder = Recorder(functools.partial(assemble, proof, run, ami, no_files=no_files), proof.out, proof.progress)
    with recorder.recording(), ExitStack() as stack:
        note_leftover = functools.partial(_note_leftover, proof)
        key = stack.enter_context(login.temporary_key(cloud, run, _tags(proof, cloud, run), note_leftover))
        # After the key: a place that refuses it has launched nothing whose log groups could be left.
        stack.enter_context(own_log_groups(cloud, run, proof.progress, note_leftover))
        assert proof.plan  # an image is launched for a plan
        proven = Proven(proof.plan, ami, cloud, run, _tags(proof, cloud, run))
        clean_up = functools.partial(login.clean_up, run, on_leftover=note_leftover)
        joining = stack.enter_context(cluster.opened(proven, proof.options.join, clean_up, proof.progress))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(instance_types) + 1))
        futures: list[Future[Any]] = []
        under_way = UnderWay()
        # Before the pool waits for its threads, or Ctrl-C would wait for what their validators wait for.
        stack.push(functools.partial(_abandon, proof, recorder, under_way))
        launcher = _Launcher(proof, cloud, run, recorder, ami, key, joining)
        if files:
            image = recorder.add(HostReport("", host=IMAGE_FILES, offline=True))
            futures.append(pool.submit(under_way.run, check_files, proof, image, files))
        for instance_type in instance_types:
            within = asdict(deadlines(instance_type, cloud.place))
            report = HostReport(instance_type, restarts=restarts.RESTARTS, deadlines=within)
            host = recorder.add(report, cloud.place.prices)
            futures.append(pool.submit(under_way.run, _prove_instance_type, launcher, host))
        for future in futures:
            while not future.done():  # a wait without end would not see Ctrl-C
                _end_at_limit(proof, recorder)
                time.sleep(0.1)
        for future in futures:
            future.result()
        recorder.save()
    return recorder.complete()


def _end_at_limit(proof: Proof, recorder: Recorder) -> None:
    """CloudError when the machines have cost what --max-cost allows: the proof ends, with a report of what it has."""
    if proof.options.max_cost is None:
        return
    spent = proof.spent + cost.spent_usd([host.machine_time for host in recorder.hosts if host.machine_time])
    if spent >= proof.options.max_cost:
        raise CloudError(
            f"--max-cost {proof.options.max_cost:g}: the machines have cost {spent:.2f} USD",
            details=[*([f"{proof.spent:.2f} USD of it for the build"] if proof.spent else []), cost.basis()],
            hint="raise it, or prove fewer instance types (--instance-type)",
        )


@dataclass(frozen=True)
class _Launcher:
    """What the machines of one proof share beside the proof itself."""

    proof: Proof
    cloud: Cloud
    run: runs.Run
    recorder: Recorder
    ami: str
    key: str
    joining: cluster.Joining | None = None

    def boot(self) -> Boot:
        assert self.proof.plan  # an image is launched for a plan
        user = self.proof.plan["os"]["ssh_user"]
        return Boot(
            self.cloud, self.run, user, self.proof.progress, self.proof.options.cancelled, units=self.proof.units()
        )

    def launched(self, host: HostRecord, placement_group: str = "") -> AbstractContextManager[list[str]]:
        """Ids of the proof's instances, terminated with the block; what cannot be is named in the host's report."""

        def note_leftover(error: GpuAmiError) -> None:
            host.update(left_behind=str(error))
            _note_leftover(self.proof, error)

        def note_attempt(attempt: capacity.Attempt) -> None:
            host.update(attempts=(*host.report.attempts, LaunchAttempt(**asdict(attempt))))
            if attempt.answer != capacity.LAUNCHED:
                self.proof.progress.note(str(attempt))

        instance_type = host.report.instance_type
        efa, roles = launch.efa_interfaces(self.proof.plan, instance_type), self.proof.roles
        tags = _tags(self.proof, self.cloud, self.run)
        machines = launch.launch_of(
            self.cloud,
            self.run,
            ami=self.ami,
            instance_type=instance_type,
            key=self.key,
            tags=tags,
            roles=roles,
            cluster=self.joining.cluster if self.joining else None,
            efa_interfaces=efa,
            cancelled=self.proof.options.cancelled,
            on_attempt=note_attempt,
            count=self.proof.options.nodes,
            placement_group=placement_group,
        )
        return launch.launched_together(self.cloud, machines, self.run, note_leftover)

    def placement_group(self) -> AbstractContextManager[str]:
        """The name of the placement group of the proof's machines, removed with the block; "" for a single machine."""
        if self.proof.options.nodes == 1:
            return nullcontext("")

        def clean_up(remove: Callable[[], None]) -> None:
            with self.proof.progress.stage("remove placement group"):  # when its machines have ended
                login.clean_up(self.run, remove, functools.partial(_note_leftover, self.proof))

        tags = _tags(self.proof, self.cloud, self.run)
        return placement_groups.temporary(self.cloud, key_name(self.run.id), tags, clean_up)


def _tags(proof: Proof, cloud: Cloud, run: runs.Run) -> dict[str, str]:
    """The tags of what is created now; it expires a lifetime from now."""
    plan = proof.plan
    names = {"recipe": plan.get("image", ""), "plan_digest": plan.get("digest", "")} if plan else {}
    return dict(cloud.place.tags) | run.tags(**names)


def _note_leftover(proof: Proof, error: GpuAmiError) -> None:
    proof.progress.note(f"not removed: {error.message}; `gpu-ami sweep` removes it")


def _abandon(
    proof: Proof, recorder: Recorder, under_way: UnderWay, _: object, error: BaseException | None, __: object
) -> None:
    """After Ctrl-C: writes the report, then ends what the threads still do. Nothing else is left to end."""
    # Before anything that may fail or be interrupted again: threads that wait end at once.
    proof.options.cancelled.set()
    try:
        if error is not None:
            recorder.interrupted(error)
    finally:
        under_way.end()


def choose_types(plan: PlanDocument, requested: Sequence[str]) -> list[str]:
    """Instance types to boot: the plan's, or those of them that were requested."""
    planned = [row["name"] for row in plan["instance_types"]]
    unknown = [name for name in requested if name not in planned]
    if unknown:
        raise UsageError(
            f"--instance-type {', '.join(unknown)}: not in the plan", hint=f"the plan has {', '.join(planned)}"
        )
    return list(requested) or planned


def _prove_instance_type(launcher: _Launcher, host: HostRecord) -> None:
    """One machine from its launch to its end, which does not wait for the other machines."""
    proof, instance_type = launcher.proof, host.report.instance_type
    try:
        with ExitStack() as stack:
            if proof.options.cancelled.is_set():
                raise MachineError(f"{instance_type} was not launched: the run was interrupted")
            with proof.progress.stage(f"launch {instance_type}", host.report.name):
                group = stack.enter_context(launcher.placement_group())
                instance_id, *others = stack.enter_context(launcher.launched(host, group))
                if launcher.joining:
                    stack.callback(launcher.joining.leave, [instance_id, *others])
            host.launched, host.others = time.monotonic(), len(others)
            stack.callback(launcher.recorder.save)  # on disk before the machine is terminated
            stack.callback(host.count_time)
            host.update(instance_id=instance_id)
            boot = launcher.boot()
            with machine_group.Peers(boot, host, others) as peers:
                prove_host(proof, boot, host, peers, launcher.joining)
    except GpuAmiError as error:
        record_error(host, error)
    launcher.recorder.save()


def prove_host(
    proof: Proof,
    boot: Boot,
    host: HostRecord,
    peers: machine_group.Peers | None = None,
    joining: cluster.Joining | None = None,
) -> None:
    """Boot one machine, check it, and check it again after each restart; the report has what failed."""
    machine = None
    try:
        with proof.progress.stage(f"boot {host.report.instance_type}", host.report.name):
            machine = boot.follow(host.report.instance_id, host.report.instance_type)
        host.update(host=machine.url, boot=machine.stages)
        check_machine(proof, host, _target(machine), boot.cloud)
    except MachineLost as error:
        record_error(host, error)
        machine = None
    except GpuAmiError as error:
        record_error(host, error)
    finally:
        _keep_console(proof, boot.cloud, host)
    if peers and (peers.instance_ids or joining):
        _prove_together(proof, boot, host, machine, peers, joining=joining)
    try:
        _prove_restarts(proof, boot, host, machine, joining)
    except GpuAmiError as error:
        record_error(host, error)


def _prove_together(
    proof: Proof,
    boot: Boot,
    host: HostRecord,
    machine: Machine | None,
    peers: machine_group.Peers,
    *,
    joining: cluster.Joining | None,
) -> None:
    """The checks of nodes and of all machines, after those that need the first one untouched; then the others end."""
    try:
        if machine is not None:
            machines = [machine, *peers.machines()]
            if joining:
                joining.check(proof, host, _target(machine), machines)
            if peers.instance_ids:
                machine_group.check(
                    proof, host, _target(machine), machines, boot.cloud, file=boot.run.folder / "nodes.json"
                )
    except GpuAmiError as error:
        record_error(host, error)
    finally:
        if peers.instance_ids:
            machine_group.keep_consoles(proof, host, boot.cloud, peers.instance_ids)
            peers.terminate()


def _target(machine: Machine) -> Target:
    return Target(
        machine.url,
        machine.instance_type,
        machine.instance_id,
        machine.key_file,
        machine.known_hosts,
        log_group_suffix=machine.log_group_suffix,
        proxy_command=machine.proxy_command,
    )


_SCARCE = ("p4d*", "p5*", "p6*", "trn*")  # of which EC2 often has no free host when one is stopped


def warn_of_stops(place: Place, instance_types: Sequence[str], requested: Sequence[str]) -> str:
    """A warning where On-Demand machines that are hard to get will be stopped and started; "" else."""
    named = [
        name
        for name in instance_types
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _SCARCE)
        and not restarts.left_out_by(restarts.STOP_START, name, requested, place.capacity)
        and not any(way.reservation for way in capacity.ways_of(place, name))
    ]
    if not named:
        return ""
    return (
        f"stop-start of {', '.join(named)}: EC2 may have no capacity to start them again, and the check is then"
        " UNAVAILABLE; `no_stop_start` of the place leaves it out"
    )


def _prove_restarts(
    proof: Proof, boot: Boot, host: HostRecord, machine: Machine | None, joining: cluster.Joining | None
) -> None:
    """Each restart in turn, whatever the checks have said so far, as long as there is a machine to restart."""
    gone = host.report.error.partition("\n")[0] if machine is None else ""
    for how in restarts.RESTARTS:
        if proof.options.cancelled.is_set():
            return
        refused = boot.cloud.cannot_stop(host.report.instance_id) if how == restarts.STOP_START else ""
        by = restarts.left_out_by(how, host.report.instance_type, proof.options.restarts, boot.cloud.place.capacity)
        if by or machine is None or refused:
            reason = f"not requested ({by})" if by else f"not tried: {gone or refused}"
            host.report = host.report.with_checks(restarts.not_done(how, reason))
            continue
        try:
            machine = _prove_restart(proof, boot, host, machine, how)
            gone = f"{how} did not bring the machine back" if machine is None else ""
            if machine is not None and joining and joining.service.returns:
                joining.check(proof, host, _target(machine), [machine], how)
        finally:
            _keep_console(proof, boot.cloud, host, how)


def _prove_restart(proof: Proof, boot: Boot, host: HostRecord, machine: Machine, how: str) -> Machine | None:
    """One restart and the checks after it: the machine as it is then, None if it did not come back."""
    try:
        with proof.progress.stage(f"{how} {host.report.instance_type}", host.report.name):
            after = restart(boot, machine, how)
    except GpuAmiError as error:
        if proof.options.cancelled.is_set():
            raise
        host.report = host.report.with_checks(restarts.not_back(how, error))
        return None
    came_back = restarts.came_back(how, after.stages, machine.boot_id, after.boot_id, after.url)
    host.report = host.report.with_checks(came_back)
    check_machine(proof, host, _target(after), boot.cloud, how)
    return after


def _keep_console(proof: Proof, cloud: Cloud, host: HostRecord, after: str = "") -> None:
    """The console is evidence whatever the verdict."""
    report = host.report
    try:
        folder = proof.evidence(Target(report.host, report.instance_type), after)
    except MachineError as error:
        proof.progress.note(str(error))
        return
    judged = console.keep(cloud, report.instance_id, folder, after)
    if report.checks:
        host.report = host.report.with_checks(judged)


# Words of an AMI's name or description → its login user. What none of them names is tried as ec2-user.
_USERS = {
    "ubuntu": "ubuntu", "debian": "admin", "rocky": "rocky", "alma": "ec2-user", "rhel": "ec2-user",
    "centos": "centos", "bottlerocket": "ec2-user",
}  # fmt: skip
_DEFAULT_TYPES = {"x86_64": "g5.12xlarge", "arm64": "g5g.xlarge"}


def login_user(image: ImageTypeDef) -> str:
    """The login user of an AMI, by its name and description."""
    told: Any = image
    text = " ".join(str(told.get(key, "")) for key in ("Name", "Description", "PlatformDetails")).lower()
    return next((user for word, user in _USERS.items() if word in text), "ec2-user")


def observe(
    ami: str,
    image: ImageTypeDef,
    cloud: Cloud,
    run: runs.Run,
    progress: Progress,
    *,
    instance_types: Sequence[str] = (),
) -> observing.Observation:
    """Boots it once, waits for the end of the boot, reads it, and terminates it. CloudError, MachineError."""
    require_interface(cloud.place.login.ssh_interface)
    instance_type = (instance_types or [_DEFAULT_TYPES.get(str(image.get("Architecture")), "g5.12xlarge")])[0]
    cancelled = threading.Event()
    tags = dict(cloud.place.tags) | run.tags(recipe=ami)
    with ExitStack() as stack:
        key = stack.enter_context(login.temporary_key(cloud, run, tags))
        with progress.stage(f"launch {instance_type} of {ami}"):
            one = launch.launch_of(
                cloud, run, ami=ami, instance_type=instance_type, key=key, tags=tags, cancelled=cancelled
            )
            instance_id = stack.enter_context(launch.launched(cloud, one, run))
        boot = Boot(cloud, run, login_user(image), progress, cancelled)
        with progress.stage(f"boot {instance_type}"):
            machine = boot.follow(instance_id, instance_type)
        with progress.stage(f"read {instance_id}"):
            return observing.read_host(boot.target(machine)).named(ami)
