"""A proof: what its hosts share, one pass of the checks on a host, and the report of all hosts.

`image_proof` launches the hosts of an AMI; `host_proof` checks a host or image files that gpu-ami did not launch.

Reads pytest's output (one verbosity above the default) while the checks run: how many are done, how many are red.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import process
from gpu_ami.cloud import Cloud, Place, aws_errors, log_groups, login, runs
from gpu_ami.errors import CapacityError, GpuAmiError, MachineError, counted
from gpu_ami.plan import cost, site_files
from gpu_ami.progress import Progress
from gpu_ami.report import (
    FAIL,
    UNAVAILABLE,
    UNPROVEN,
    HostReport,
    LeftOut,
    Part,
    Report,
    ReportLayer,
    Stage,
    evidence_folder,
)
from gpu_ami.validate import validator_process
from gpu_ami.validate.machines import ImageUnits, Watch, deadlines, is_at_fault, left_out_by
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.validator_process import ChecksIncomplete, Target
from validator import foreign_names
from validator.plan import LOG_GROUPS
from validator.probes.agent import config as agent_config

if TYPE_CHECKING:
    from subprocess import Popen

    from gpu_ami.cloud import Run
    from gpu_ami.recipes import PlanDocument
    from validator.results import HostResults, Verdict

# An agent that is shutting down sends what it still has, and would create its groups again.
_ENDING_SECONDS = 300.0
_ENDING_SECONDS_AFTER_ERROR = 60.0
POLL_SECONDS = 2.0


@contextmanager
def own_log_groups(
    cloud: Cloud, run: Run, progress: Progress, on_leftover: login.Leftover | None = None
) -> Iterator[None]:
    """Removes the log groups of this run's machines after the block, which ends the machines.

    on_leftover: gets the error if that fails; `gpu-ami sweep` then finds them.
    """
    suffix = log_groups.suffix(cloud.place, run)
    seconds = _ENDING_SECONDS_AFTER_ERROR
    if not suffix:
        yield
        return
    with login.removed_after(run, lambda: _remove(cloud, run, suffix, progress, seconds), on_leftover):
        yield
        seconds = _ENDING_SECONDS


def _remove(cloud: Cloud, run: Run, suffix: str, progress: Progress, seconds: float) -> None:
    groups = log_groups.of_proofs(cloud, suffix)
    if not groups:
        return
    deadline = time.monotonic() + seconds
    with progress.stage("remove log groups"):
        while cloud.shutting_down(run.id) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for group in log_groups.of_proofs(cloud, suffix):
            log_groups.delete(cloud, group)
    progress.note(f"log groups of this proof removed: {', '.join(groups)}")


def described(plan: PlanDocument | None, place: Place | None, run: Run, *, launched: bool) -> str:
    """A sentence for report and certificate: to which log groups the machines of this proof sent.

    launched: by gpu-ami; a machine that somebody else booted is never reconfigured.
    """
    sections: Mapping[str, Any] = plan or {}
    names = [sections[name][key] for name, keys in LOG_GROUPS.items() if name in sections for key in keys]
    if not launched:
        own = ", ".join(names) or "those of its configuration"
        return f"the host's own ({own}): nothing on it was reconfigured, so injected events went there"
    suffix = log_groups.suffix(place, run) if place else ""
    if not suffix:
        return f"the plan's ({', '.join(names)}): injected events went there"
    return (
        f"the proof's own ({', '.join(f'{name}{suffix}' for name in names)}), removed afterwards; metrics went to the"
        f" namespace …{agent_config.NAMESPACE_SUFFIX}. Nothing else of the agent's configuration was changed, and the"
        " image's files were not"
    )


_COLLECTED = re.compile(
    r"^(?:collecting \.\.\. *)?collected (?P<items>\d+) items?\b.*?(?: (?P<selected>\d+) selected)?$"
)
_RESULT = re.compile(r"(?:^| )(?P<outcome>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*\[ *\d+%\]$")


# The validator's option for a machine that is busy beside the checks. A node runs kubelet and containers: an emulated
# one, with one processor, sent no SSH banner within the default of 15 s (2026-11-26).
BUSY = "--connect-timeout=60"


@dataclass
class CheckOutput:
    """total: 0 until pytest has collected."""

    done: int = 0
    total: int = 0
    red: int = 0

    def line(self, text: str) -> None:
        """Reads one line of output."""
        if collected := _COLLECTED.match(text):
            self.total = int(collected["selected"] or collected["items"])
        elif result := _RESULT.search(text):
            self.done += 1
            self.red += result["outcome"] in ("FAILED", "ERROR")


_AGENT_INTERVAL = 60.0
IMAGE_FILES = "image-files"  # name and evidence folder of an image's files in a report


@dataclass(frozen=True)
class ProofOptions:
    """Options of a proof beside plan and AMI.

    checks: the user's own. validator_options: of the validator's command line. restarts: those that are done and
    checked, of restarts.RESTARTS. max_cost: US dollars that the run may cost, builder included; None, NO_LIMIT: none.
    nodes: machines of one type that work together. join: the cluster to be a node of; "" for one of the proof's own,
    None: not asked. boot_seconds: deadline of a host's reboot; None: that of its instance type. no_files, no_machines:
    why the image's files, or machines, are left out; "": they are not. cancelled: set by another thread, it ends the
    proof.
    """

    instance_types: Sequence[str] = ()
    checks: Sequence[Path] = ()
    validator_options: Sequence[str] = ()
    restarts: Sequence[str] = ()
    max_cost: float | None = None
    nodes: int = 1
    join: str | None = None
    boot_seconds: float | None = None
    no_files: str = ""
    no_machines: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)


@dataclass(frozen=True)
class Proof:
    """What all hosts of one proof share.

    plan: None for a host that is checked without one. spent: US dollars that the run had cost before, its builder above
    all. layers: of the image, if its build is known. suite: digest of the checks.
    """

    plan: PlanDocument | None
    plan_file: Path | None
    place: Place | None
    out: Path
    progress: Progress
    options: ProofOptions = field(default_factory=ProofOptions)
    spent: float = 0.0
    layers: Sequence[ReportLayer] = ()
    suite: str = ""
    # Set once the image's files are judged: their evidence stands for them, and machines need not read all.
    files_judged: threading.Event = field(default_factory=threading.Event)

    def units(self) -> ImageUnits:
        """What tells units of the image from the base AMI's, where a plan is known."""
        if self.plan is None or self.plan.get("origin") == "observed":
            return ImageUnits()
        return ImageUnits.of(self.plan, self.plan["roles"], validator_process.roles_folders(self.plan_file))

    def evidence(self, target: Target, after: str = "") -> Path:
        """The folder of a host's evidence, made, for its owner alone. MachineError: it cannot be made."""
        name = target.name or evidence_folder(target.instance_type, target.url)
        try:  # OUT may be a folder that somebody sent
            folder = foreign_names.join(self.out, "evidence", name, *([f"after-{after}"] if after else []))
        except foreign_names.NameRefused as error:
            raise MachineError(str(error), hint="remove it, or name another folder with -o") from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (self.out / "evidence").chmod(0o700)
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
        if self.options.cancelled.is_set():
            raise MachineError(f"{target.url} was not checked: the run was interrupted")
        folder = self.evidence(target, after)
        further = [*self.options.validator_options, *([f"--after={after}"] if after else []), *options]
        if self.files_judged.is_set() and target.name != IMAGE_FILES and not after:
            further.append(f"--image-files={self.out / 'evidence' / IMAGE_FILES}")
        return self.run_checks(target, folder, further, on_start, after)

    def run_checks(
        self,
        target: Target,
        folder: Path,
        options: Sequence[str],
        on_start: Callable[[Popen[bytes]], object] | None = None,
        after: str = "",
        *,
        more_seconds: float = 0.0,
    ) -> HostResults:
        """A validator process with these options, its files in `folder`. ChecksIncomplete, MachineError."""
        checks = [*site_checks(self.plan, self.plan_file), *self.options.checks]
        if self.options.join is not None:
            options = [BUSY, *options]
        command = validator_process.command_line(target, folder, self.plan_file, self.place, options, checks=checks)
        environment = validator_process.environment(self.place)
        output = CheckOutput()

        def read(line: str) -> None:
            output.line(line)
            self.progress.update("checks", step=output.done, total=output.total, red=output.red)

        default, own = deadlines("").arrival_seconds, deadlines(target.instance_type, self.place).arrival_seconds
        more = more_seconds + max(0.0, own - default)
        results = validator_process.run_checks(
            command, environment, target, folder, on_start, on_line=read, more_seconds=more
        )
        self._note_counts(results, target, after)
        return results

    def _note_counts(self, results: HostResults, target: Target, after: str) -> None:
        verdicts = [check.verdict for check in results.checks]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
        where = f"{target.instance_type or target.name or target.url}{f' after {after}' if after else ''}"
        self.progress.note(f"{where}: {counted(len(verdicts), 'check')}: {counts}")

    @property
    def roles(self) -> list[str]:
        """The plan's roles; none without a plan."""
        return _roles(self.plan)

    @property
    def metrics_interval(self) -> float:
        """Seconds between two data points of the agent: the plan's, or the agent's default."""
        return float(self.plan["telemetry"]["interval_s"]) if self.plan else _AGENT_INTERVAL


def _roles(plan: PlanDocument | None) -> list[str]:
    return plan.get("roles", []) if plan else []


def site_checks(plan: PlanDocument | None, plan_file: Path | None) -> list[Path]:
    """Checks of the site beside the plan: those of the plan's roles, and those of no role."""
    return site_files(plan_file.parent, "checks", "test_{}.py", _roles(plan)) if plan_file else []


def check_files(proof: Proof, host: HostRecord, files: Callable[[], HostReport]) -> None:
    """The pass of the checks on an image's files: its report is the host's."""
    host.report = files()
    if not host.report.error:
        proof.files_judged.set()


class MachineLost(MachineError):
    """The instance was paused, stopped or terminated while it was checked: no further pass is tried on it.

    is_unavailable: EC2 took its capacity back, as from a Spot Instance.
    """

    def __init__(self, instance_type: str, reason: str, code: str) -> None:
        """reason: a sentence; code: of EC2's StateReason, "" for none."""
        why = aws_errors.from_state_reason(f"{instance_type}: {reason}", code, "")
        super().__init__(why.message, hint=why.hint, code=code)
        self.is_unavailable = isinstance(why, CapacityError)


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
        with proof.progress.stage(stage, host.report.name), watch or nullcontext():
            _add_results(host, proof.check(target, after, on_start=on_start), after)
    except ChecksIncomplete as error:
        _add_results(host, error.results, after)
        if watch and watch.reason:
            raise MachineLost(target.instance_type, watch.reason, watch.code) from error
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


def record_error(host: HostRecord, error: GpuAmiError) -> None:
    """What kept a machine from being checked. Only an error that shows a defect of the image blames the image."""
    unavailable = isinstance(error, CapacityError) or (isinstance(error, MachineLost) and error.is_unavailable)
    verdict: Verdict = UNAVAILABLE if unavailable else UNPROVEN
    host.update(error=str(error), error_verdict=FAIL if is_at_fault(error) else verdict)


def _left_out(proof: Proof, reports: Sequence[HostReport]) -> tuple[LeftOut, ...]:
    """What the command line left out of the proof, beside instance types."""
    parts = []
    options = list(proof.options.validator_options)
    if "-k" in options:
        parts.append(LeftOut(Part.CHECKS, "", f"-k {options[options.index('-k') + 1]!r}"))
    needed = dict.fromkeys(how for report in reports for how in report.restarts)
    parts += [LeftOut(Part.RESTART, how, "--restarts") for how in needed if how not in proof.options.restarts]
    capacity = proof.place.capacity if proof.place else None
    for kind, how in dict.fromkeys((report.instance_type, how) for report in reports for how in report.restarts):
        if how in proof.options.restarts and (by := left_out_by(how, kind, proof.options.restarts, capacity)):
            parts.append(LeftOut(Part.RESTART, f"{how} of {kind}", by))
    roles = [str(role) for role in proof.roles]
    if "--provoke-xid" not in options and any(report.lacks_kernel_xid(roles) for report in reports):
        parts.append(LeftOut(Part.KERNEL_XID, "", "without --provoke-xid"))
    return tuple(parts)


def assemble(
    proof: Proof, run: runs.Run, ami: str, reports: Sequence[HostReport], incomplete: str = "", *, no_files: str = ""
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
        simulated=place.machines.simulated if place else False,
        run=run.id,
        started=run.started,
        finished=runs.as_text(runs.now()),
        hosts=tuple(reports),
        stages=tuple(Stage.from_json(stage) for stage in tuple(proof.progress.times)),
        unproven_instance_types=tuple(name for name in planned if name not in booted),
        no_files=no_files,
        incomplete=incomplete,
        conditions=place.conditions if place else "",
        hypervisor=(place.machines.hypervisor if place else None) or "",
        price_basis=cost.basis() if any(report.machine_seconds for report in reports) else "",
        layers=tuple(proof.layers),
        suite=proof.suite,
        left_out=_left_out(proof, reports),
        log_groups="" if offline else described(proof.plan, place, run, launched=bool(ami)),
    )
