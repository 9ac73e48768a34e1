"""The proof: boot the image on each instance type, run the validator on every machine side by side, keep the evidence.

After a reboot, and after stop and start, the validator runs again for the checks that must survive it. Each machine is
terminated as soon as its own proof has ended; the report is on disk before that.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import process
from gpu_ami.cloud import Cloud, Place, runs
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, MachineError, UsageError, counted
from gpu_ami.plan import cost, site_files
from gpu_ami.progress import Progress
from gpu_ami.report import FAIL, UNAVAILABLE, UNPROVEN, HostReport, Report, Stage, evidence_folder
from gpu_ami.validate import console, hosts, validator_process
from gpu_ami.validate import machine as machines
from gpu_ami.validate import restarts as restarting
from gpu_ami.validate.check_output import CheckOutput
from gpu_ami.validate.recorder import HostRecord, Recorder
from gpu_ami.validate.validator_process import ChecksIncomplete, Target
from gpu_ami.validate.watch import Watch
from validator.transport import parse_url

if TYPE_CHECKING:
    from subprocess import Popen

    from gpu_ami.recipes import PlanDocument
    from validator.results import HostResults, Verdict


_AGENT_INTERVAL = 60.0
IMAGE_FILES = "image-files"  # name and evidence folder of an image's files in a report


@dataclass
class Proof:
    """What all hosts of one proof share.

    plan: None for a host that is checked without one. restarts: those that are done and checked, of restarts.RESTARTS.
    max_cost: US dollars after which the machines end.
    """

    plan: PlanDocument | None
    plan_file: Path | None
    place: Place | None
    out: Path
    progress: Progress
    checks: Sequence[Path] = ()
    options: Sequence[str] = ()
    restarts: Sequence[str] = ()
    cancelled: threading.Event = field(default_factory=threading.Event)
    max_cost: float | None = None

    def evidence(self, target: Target, after: str = "") -> Path:
        """The folder of a host's evidence, made. MachineError: it cannot be made."""
        folder = self.out / "evidence" / (target.name or evidence_folder(target.instance_type, target.url))
        folder = folder / f"after-{after}" if after else folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"{folder}: {error.strerror}") from error
        return folder

    def check(
        self,
        target: Target,
        after: str = "",
        options: Sequence[str] = (),
        on_start: Callable[[Popen[bytes]], object] | None = None,
    ) -> HostResults:
        """Runs the checks on one host; `after` a restart, those that must survive it. options: for this host alone.

        MachineError: the host could not be checked; ChecksIncomplete has the checks that had ended.
        """
        if self.cancelled.is_set():
            raise MachineError(f"{target.url} was not checked: the run was interrupted")
        folder = self.evidence(target, after)
        further = [*self.options, *([f"--after={after}"] if after else []), *options]
        checks = [*self.site_checks(), *self.checks]
        command = validator_process.command_line(target, folder, self.plan_file, self.place, further, checks)
        environment = validator_process.environment(self.place)
        output = CheckOutput()

        def read(line: str) -> None:
            output.line(line)
            self.progress.update("checks", step=output.done, total=output.total, red=output.red)

        results = validator_process.run_checks(command, environment, target, folder, on_start, read)
        self._note_counts(results, target, after)
        return results

    def _note_counts(self, results: HostResults, target: Target, after: str) -> None:
        verdicts = [check.verdict for check in results.checks]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
        where = f"{target.instance_type or target.name or target.url}{f' after {after}' if after else ''}"
        self.progress.note(f"{where}: {counted(len(verdicts), 'check')}: {counts}")

    def site_checks(self) -> list[Path]:
        """Checks of the site beside the plan: those of the plan's roles, and those of no role."""
        return site_files(self.plan_file.parent, "checks", "test_{}.py", self.roles) if self.plan_file else []

    @property
    def roles(self) -> list[str]:
        """The plan's roles; none without a plan."""
        return self.plan.get("roles", []) if self.plan else []

    @property
    def metrics_interval(self) -> float:
        """Seconds between two data points of the agent: the plan's, or the agent's default."""
        return float(self.plan["telemetry"]["interval_s"]) if self.plan else _AGENT_INTERVAL


def prove_image(
    proof: Proof,
    cloud: Cloud,
    run: runs.Run,
    ami: str,
    instance_types: Sequence[str],
    files: Callable[[], HostReport] | None = None,
    no_files: str = "",
) -> Report:
    """Boots `ami` once on each instance type, side by side, checks every machine, and writes the report.

    files: checks the image's files meanwhile; no_files: why not. An error of one machine ends in its own report; Ctrl-C
    ends all of them, and the report says so.
    """
    machines.require_interface(cloud.place.ssh_interface)
    recorder = Recorder(functools.partial(assemble, proof, run, ami, no_files=no_files), proof.out, proof.progress)
    with recorder.recording(), ExitStack() as stack:
        note_leftover = functools.partial(_note_leftover, proof)
        key = stack.enter_context(machines.temporary_key(cloud, run, _tags(proof, cloud, run), note_leftover))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(instance_types) + 1))
        futures: list[Future[Any]] = []
        # Before the pool waits for its threads, or Ctrl-C would wait for what their validators wait for.
        stack.push(functools.partial(_abandon, proof, recorder, futures))
        launcher = _Launcher(proof, cloud, run, recorder, ami, key)
        if files:
            futures.append(
                pool.submit(_check_files, recorder.add(HostReport("", host=IMAGE_FILES, offline=True)), files)
            )
        for instance_type in instance_types:
            host = recorder.add(HostReport(instance_type, restarts=restarting.RESTARTS))
            futures.append(pool.submit(_prove_instance_type, launcher, host))
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
    if proof.max_cost is None:
        return
    spent = cost.spent_usd([host.machine_time for host in recorder.hosts if host.machine_time])
    if spent >= proof.max_cost:
        raise CloudError(
            f"--max-cost {proof.max_cost:g}: the machines have cost {spent:.2f} USD",
            details=[cost.basis()],
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

    def boot(self) -> machines.Boot:
        assert self.proof.plan  # an image is launched for a plan
        user = self.proof.plan["os"]["ssh_user"]
        return machines.Boot(self.cloud, self.run, user, self.proof.progress, self.proof.cancelled)

    def launched(self, host: HostRecord) -> AbstractContextManager[str]:
        """The id of an instance that is terminated with the block; one that cannot be is named in the host's report."""

        def note_leftover(error: GpuAmiError) -> None:
            host.update(left_behind=str(error))
            _note_leftover(self.proof, error)

        instance_type = host.report.instance_type
        efa, roles = efa_interfaces(self.proof.plan, instance_type), self.proof.roles
        tags = _tags(self.proof, self.cloud, self.run)
        return machines.launched(
            self.cloud, self.ami, instance_type, self.key, self.run, tags, efa, note_leftover, roles
        )


def _tags(proof: Proof, cloud: Cloud, run: runs.Run) -> dict[str, str]:
    """The tags of what is created now; it expires a lifetime from now."""
    plan = proof.plan
    names = {"recipe": plan.get("image", ""), "plan_digest": plan.get("digest", "")} if plan else {}
    return dict(cloud.place.tags) | run.tags(**names)


def _note_leftover(proof: Proof, error: GpuAmiError) -> None:
    proof.progress.note(f"not removed: {error.message}; `gpu-ami sweep` removes it")


def _abandon(
    proof: Proof, recorder: Recorder, futures: Sequence[Future[Any]], _: object, error: BaseException | None, __: object
) -> None:
    """After Ctrl-C: writes the report, then ends what the threads still do. Nothing else is left to end."""
    proof.cancelled.set()  # before anything that may fail or be interrupted again: threads that wait end at once
    if error is not None:
        recorder.interrupted(error)
    while not all(future.done() for future in futures):
        process.stop_all()  # again, for a thread may have been about to start one
        time.sleep(0.1)


def efa_interfaces(plan: PlanDocument | None, instance_type: str) -> int:
    """How many EFA interfaces to launch with: the type's where the plan has EFA, else none."""
    if not plan or "efa" not in plan:
        return 0
    return next((row["efa_interfaces"] for row in plan["instance_types"] if row["name"] == instance_type), 0)


def _check_files(host: HostRecord, files: Callable[[], HostReport]) -> None:
    host.report = files()


def _prove_instance_type(launcher: _Launcher, host: HostRecord) -> None:
    """One machine from its launch to its end, which does not wait for the other machines."""
    proof, instance_type = launcher.proof, host.report.instance_type
    try:
        with ExitStack() as stack:
            if proof.cancelled.is_set():
                raise MachineError(f"{instance_type} was not launched: the run was interrupted")
            with proof.progress.stage(f"launch {instance_type}"):
                instance_id = stack.enter_context(launcher.launched(host))
            host.launched = time.monotonic()
            stack.callback(launcher.recorder.save)  # on disk before the machine is terminated
            stack.callback(host.count_time)
            host.update(instance_id=instance_id)
            _prove_host(proof, launcher.boot(), host)
    except GpuAmiError as error:
        record_error(host, error)
    launcher.recorder.save()


def _prove_host(proof: Proof, boot: machines.Boot, host: HostRecord) -> None:
    machine = None
    try:
        with proof.progress.stage(f"boot {host.report.instance_type}"):
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
    try:
        _prove_restarts(proof, boot, host, machine)
    except GpuAmiError as error:
        record_error(host, error)


def _target(machine: machines.Machine) -> Target:
    return Target(machine.url, machine.instance_type, machine.instance_id, machine.key_file, machine.known_hosts)


class MachineLost(MachineError):
    """The instance was paused, stopped or terminated while it was checked: no further pass is tried on it."""


def check_machine(proof: Proof, host: HostRecord, target: Target, cloud: Cloud | None = None, after: str = "") -> None:
    """One pass of the checks, its results in the host's report, whatever ends it.

    cloud: watches the instance meanwhile. MachineLost, ChecksIncomplete (what had been judged is in the report),
    MachineError.
    """
    stage = f"check {target.instance_type or target.url}{f' after {after}' if after else ''}"
    folder = proof.evidence(target, after)
    started: list[Popen[bytes]] = []

    def on_start(validator: Popen[bytes]) -> None:
        started.append(validator)
        host.partial = functools.partial(validator_process.partial_results, folder, target.url)

    def stop(_reason: str) -> None:
        for validator in started:
            process.stop(validator)

    watch = Watch(cloud, target.instance_id, stop) if cloud else None
    try:
        with proof.progress.stage(stage), watch or nullcontext():
            _add_results(host, proof.check(target, after, on_start=on_start), after)
    except ChecksIncomplete as error:
        _add_results(host, error.results, after)
        if watch and watch.reason:
            raise MachineLost(f"{target.instance_type}: {watch.reason}") from error
        raise
    except KeyboardInterrupt:  # the validator ran in the main thread: what it had judged is in its journal
        if host.partial:
            _add_results(host, host.partial(), after)
        raise
    finally:
        host.partial = None


def _add_results(host: HostRecord, results: HostResults, after: str) -> None:
    host.partial = None
    host.report = host.report.with_results_after(results, after) if after else host.report.with_results(results)


def _prove_restarts(proof: Proof, boot: machines.Boot, host: HostRecord, machine: machines.Machine | None) -> None:
    """Each restart in turn, whatever the checks have said so far, as long as there is a machine to restart."""
    gone = host.report.error.partition("\n")[0] if machine is None else ""
    for how in restarting.RESTARTS:
        if proof.cancelled.is_set():
            return
        if how not in proof.restarts or machine is None:
            reason = f"not tried: {gone}" if how in proof.restarts else "not requested (--restarts)"
            host.report = host.report.with_checks(restarting.not_done(how, reason))
            continue
        try:
            machine = _prove_restart(proof, boot, host, machine, how)
            gone = f"{how} did not bring the machine back" if machine is None else ""
        finally:
            _keep_console(proof, boot.cloud, host, how)


def _prove_restart(
    proof: Proof, boot: machines.Boot, host: HostRecord, machine: machines.Machine, how: str
) -> machines.Machine | None:
    """One restart and the checks after it: the machine as it is then, None if it did not come back."""
    try:
        with proof.progress.stage(f"{how} {host.report.instance_type}"):
            after = restarting.restart(boot, machine, how)
    except GpuAmiError as error:
        if proof.cancelled.is_set():
            raise
        host.report = host.report.with_checks(restarting.not_back(how, error))
        return None
    came_back = restarting.came_back(how, after.stages, machine.boot_id, after.boot_id, after.url)
    host.report = host.report.with_checks(came_back)
    check_machine(proof, host, _target(after), boot.cloud, how)
    return after


def record_error(host: HostRecord, error: GpuAmiError) -> None:
    """What kept a machine from being checked. Only an error that shows a defect of the image blames the image."""
    verdict: Verdict = UNAVAILABLE if isinstance(error, CapacityError) else UNPROVEN
    host.update(error=str(error), error_verdict=FAIL if machines.is_at_fault(error) else verdict)


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


def prove_host(proof: Proof, run: runs.Run, target: Target) -> Report:
    """Checks a machine that somebody else booted; it is rebooted only if that was requested, and never stopped."""
    host = HostReport(target.instance_type, target.instance_id, target.url)
    return _prove_one(proof, run, host, functools.partial(_check_host, proof, target))


def prove_files(proof: Proof, run: runs.Run, check: Callable[[], HostReport]) -> Report:
    """Checks an image's files alone."""
    return _prove_one(
        proof, run, HostReport("", host=IMAGE_FILES, offline=True), lambda host: _check_files(host, check)
    )


def _prove_one(proof: Proof, run: runs.Run, report: HostReport, check: Callable[[HostRecord], None]) -> Report:
    recorder = Recorder(functools.partial(assemble, proof, run, ""), proof.out, proof.progress)
    host = recorder.add(report)
    with recorder.recording():
        try:
            check(host)
        except GpuAmiError as error:
            record_error(host, error)
    return recorder.complete()


def _check_host(proof: Proof, target: Target, host: HostRecord) -> None:
    with proof.progress.stage(f"connect to {target.url}"):
        hosts.require_reachable(target.url, target.key_file)
    check_machine(proof, host, target)
    if restarting.REBOOT in proof.restarts:
        host.update(restarts=(restarting.REBOOT,))
        _reboot_host(proof, host, target)
    else:
        reason = "not requested: gpu-ami did not launch this machine (--reboot reboots it)"
        host.report = host.report.with_checks(restarting.not_done(restarting.REBOOT, reason))
    reason = "not tried: gpu-ami does not stop a machine that it did not launch"
    host.report = host.report.with_checks(restarting.not_done(restarting.STOP_START, reason))


def _reboot_host(proof: Proof, host: HostRecord, target: Target) -> None:
    own = target.key_file is None  # without a key named, the user expects what ssh would do
    known = {"key_file": target.key_file, "known_hosts": target.known_hosts, "agent": own, "search_keys": own}
    try:
        with proof.progress.stage(f"{restarting.REBOOT} {target.url}"):
            back = restarting.reboot_host(parse_url(target.url, **known), proof.cancelled, target.instance_type)
    except MachineError as error:
        host.report = host.report.with_checks(restarting.not_back(restarting.REBOOT, error))
        return
    host.report = host.report.with_checks(restarting.came_back(restarting.REBOOT, *back, target.url))
    check_machine(proof, host, target, after=restarting.REBOOT)


def assemble(
    proof: Proof, run: runs.Run, ami: str, reports: Sequence[HostReport], incomplete: str = "", no_files: str = ""
) -> Report:
    """The report of all hosts; instance types of the plan that no host stands for are named."""
    # With image files alone, no machine was requested: the tiers say that none was booted.
    offline = all(report.offline for report in reports)
    planned = [row["name"] for row in proof.plan.get("instance_types", [])] if proof.plan and not offline else []
    booted = {report.instance_type for report in reports}
    place = proof.place
    return Report(
        plan=dict(proof.plan) if proof.plan else {},
        image=ami,
        place=place.name if place else "",
        region=place.region if place else "",
        simulated=place.simulated if place else False,
        run=run.id,
        started=run.started,
        finished=runs.as_text(runs.now()),
        hosts=tuple(reports),
        stages=tuple(Stage.from_json(stage) for stage in tuple(proof.progress.times)),
        unproven_instance_types=tuple(name for name in planned if name not in booted),
        no_files=no_files,
        incomplete=incomplete,
        conditions=place.conditions if place else "",
        price_basis=cost.basis() if any(report.machine_seconds for report in reports) else "",
    )


def choose_types(plan: PlanDocument, requested: Sequence[str]) -> list[str]:
    """Instance types to boot: the plan's, or those of them that were requested."""
    planned = [row["name"] for row in plan["instance_types"]]
    unknown = [name for name in requested if name not in planned]
    if unknown:
        raise UsageError(
            f"--instance-type {', '.join(unknown)}: not in the plan", hint=f"the plan has {', '.join(planned)}"
        )
    return list(requested) or planned
