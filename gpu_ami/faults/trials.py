"""Tries faults on one machine: inject a fault, run the checks, revert it, next.

Checks that wait for CloudWatch are skipped where the fault's `also` names them, and checks that inject events run only
for faults that nothing else detects. After a fault whose outcome is not `detected`, and at the end, a whole proof shows
whether the machine is as it was before; if it is not, later trials on it would prove nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import MachineError
from gpu_ami.faults import catalogue
from gpu_ami.faults.catalogue import CleanProof, Fault, Trial
from gpu_ami.validate import Proof, Target
from validator.plan import OBSERVED

if TYPE_CHECKING:
    from validator.results import CheckRecord
    from validator.transport import Connection, Finished

_RED = ("FAIL", "FLAKY")
_SCRIPT_SECONDS = 240.0
_READS_ALL = "test_packaged_files_are_unchanged"
_WAITING = ("logs", "metrics", "neuron_error", "xid")  # they wait until a deadline for data that a fault holds back
# What a script touches: files, entries of /run by their first name, and units that are arguments of systemctl.
_TOUCHED = re.compile(
    r"(/run/[\w.-]+|/(?:etc|opt|var|usr|root|home|proc|sys|tmp)/[\w./@-]+)"
    r"|\bsystemctl\b[^;|&\n)\"]*?\s([\w@-]+)(?:\.service)?\s*(?=[;|&\n)\"]|$)"
)
# systemctl returns before the agent has read its configuration, which the next fault may be about to change.
_STARTS_AGENT = re.compile(r"\bstart amazon-cloudwatch-agent\b")
_AGENT_HAS_READ = """
since=$(date -d "$(systemctl show -p ActiveEnterTimestamp --value amazon-cloudwatch-agent)" +%s) || exit 0
cd /opt/aws/amazon-cloudwatch-agent/etc
for i in $(seq 120); do
    [ "$(stat -c %Y amazon-cloudwatch-agent.toml || echo 0)" -ge "$since" ] && break
    sleep 0.5
done
"""
_AT_ONCE = 12  # an unexpected result in a group of twelve costs seven more trials
_FLUSH_SECONDS = 60  # the agent's default of metrics.force_flush_interval
_SLACK_SECONDS = 40.0  # in addition to three intervals of the agent: one to start, one to measure, one to send


class NotRestoredError(MachineError):
    """The machine is not as it was before: further trials on it would prove nothing."""


class FaultSession:
    """One machine and the faults that are injected into it. A context manager: closes its connection at the end.

    join: the file of `--join`, for the faults that only checks of a node in its cluster see; None: the image has none.
    """

    def __init__(self, proof: Proof, target: Target, join: Path | None = None) -> None:
        self.proof = proof
        self.target = target
        self.join = join
        self.known: list[str] = []  # ids of the checks that gave a verdict on the machine without a fault
        self.findings: set[str] = set()  # of `observe`, on the machine without a fault
        self._applies: dict[str, bool] = {}  # ids of faults with a script `applies`
        self._connection: Connection | None = None

    def __enter__(self) -> FaultSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def prove(self, when: str) -> CleanProof:
        """Runs the whole proof; the first one also keeps evidence. Failed checks are false alarms."""
        started = time.monotonic()
        options = ["--no-evidence"] if self.known else []
        checks = self.proof.check(self.target, options=options).checks
        checks = (*checks, *self._node_checks(self.proof))
        self.known = [check.id for check in checks if check.verdict != "UNPROVEN" and not check.waived]
        if self._is_as_found:
            self.findings = set(self.observe())
        return CleanProof(when, len(checks), round(time.monotonic() - started, 1), _red(checks))

    def try_all(
        self, chosen: Sequence[Fault], keep: Callable[[CleanProof], None], *, together: bool = False
    ) -> Iterator[Trial]:
        """Tries the faults one after the other; `keep` gets the proofs between them. NotRestoredError ends it.

        together: inject several distinguishable faults at the same time. A fault that was not detected in a group is
        tried again alone; a group with a failed check that none of its faults explains is divided in two.
        Faults that cannot be reverted come last, after the proof which shows that all others were reverted.
        """
        lasting = [fault for fault in chosen if fault.last]
        reversible = [fault for fault in chosen if not fault.last]
        tried = 0
        waiting = deque(self.groups(reversible) if together else [[fault] for fault in reversible])
        while waiting:
            alone = group = waiting.popleft()
            if len(group) > 1:
                trials, reverted = self.try_together(group)
                yield from trials
                alone = [fault for fault in group if fault.id not in {trial.id for trial in trials}]
                tried += len(trials)
                if alone or not reverted:
                    self._require_good(f"after {len(group)} faults at the same time", keep)
                if not trials:  # a failed check that no fault of the group explains: try each half
                    half = len(group) // 2
                    waiting.extendleft([list(group[half:]), list(group[:half])])
                    continue
            for fault in alone:
                trial = self.try_one(fault)
                tried += trial.outcome != catalogue.OUT_OF_SCOPE
                yield trial
                if trial.outcome not in (catalogue.DETECTED, catalogue.OUT_OF_SCOPE):
                    self._require_good(f"after {fault.id}", keep)
        if tried:
            self._require_good(f"after {tried} faults", keep)
        for fault in lasting:
            yield self.try_one(fault)

    def groups(self, chosen: Sequence[Fault]) -> list[list[Fault]]:
        """Groups of faults that can be distinguished and reverted although they are injected at the same time."""
        by_inventory = [fault for fault in chosen if fault.caught_by.startswith(catalogue.ANY_FILE)]
        others = [fault for fault in chosen if fault not in by_inventory]
        return [*self._groups(others), *self._groups(by_inventory)]

    def _groups(self, chosen: Sequence[Fault]) -> list[list[Fault]]:
        groups: list[tuple[list[Fault], set[str]]] = []  # the faults of each, and what they touch
        for fault in chosen:
            touched = self._touched(fault)
            alone = fault.live or fault.alone or not touched or fault.caught_by.startswith(catalogue.OF_A_NODE)
            alone |= any(name.partition("::")[0] in _WAITING for name in touched)
            candidates = [] if alone else [each for each in groups if len(each[0]) < _AT_ONCE and "" not in each[1]]
            group = next((each for each in candidates if each[1].isdisjoint(touched)), None)
            if group is None:
                groups.append(([fault], {""} if alone else touched))
            else:
                group[0].append(fault)
                group[1].update(touched)
        return [faults for faults, _ in groups]

    def _touched(self, fault: Fault) -> set[str]:
        """The checks that it may make fail, its files and units; empty if it is out of scope."""
        if self._beyond(fault):
            return set()
        allowed = {name for name in self.known if any(fnmatch.fnmatchcase(name, also) for also in fault.also)}
        named = {fault.caught_by, *(name for name in self.known if catalogue.is_named(fault, name))}
        touched = {match[1] or match[2] for match in _TOUCHED.finditer(fault.inject)}
        # A unit is not restarted while another fault has replaced its program.
        programs = {Path(name).name for name in touched if Path(name).parent.name in ("bin", "sbin")}
        return allowed | named | touched | programs

    def try_together(self, group: Sequence[Fault]) -> tuple[list[Trial], bool]:
        """The trials of the faults that were detected, and whether all faults of the group were reverted.

        No trial counts if a check failed that no fault of the group explains.
        """
        started = time.monotonic()
        name = f"{len(group)} faults: {', '.join(fault.id for fault in group)}"
        trials: list[Trial] = []
        reverted = True
        with self.proof.progress.stage(name):
            try:
                with contextlib.ExitStack() as stack:
                    injected = [fault for fault in group if self._inject(fault, stack)]
                    trials = self._judged(injected, self._red_with(*injected)) if injected else []
            except NotReverted as error:  # the clean proof after the group shows whether it matters
                self.proof.progress.note(str(error))
                reverted = False
            except MachineError as error:
                self.proof.progress.note(str(error))
        seconds = round((time.monotonic() - started) / len(group), 1)
        return [dataclasses.replace(trial, seconds=seconds) for trial in trials], reverted

    def _judged(self, injected: Sequence[Fault], red: Mapping[str, str]) -> list[Trial]:
        trials = [catalogue.judge(fault, _own(fault, red)) for fault in injected]
        unexplained = sorted(set(red) - {check for trial in trials for check in trial.red})
        note = f"failed: {', '.join(red)}{f'; unexplained: {unexplained}' if unexplained else ''}"
        self.proof.progress.note(note)
        return [] if unexplained else [trial for trial in trials if trial.outcome == catalogue.DETECTED]

    def _inject(self, fault: Fault, stack: contextlib.ExitStack) -> bool:
        try:
            self.restore_script(f"set -e\n{fault.inject}")
        except MachineError as error:  # it may still be possible to inject it alone
            self.proof.progress.note(f"{fault.id}: {error}")
            with contextlib.suppress(MachineError):
                self._revert(fault)
            return False
        stack.enter_context(self._reverted(fault))
        return True

    def _beyond(self, fault: Fault) -> str:
        """Why the fault does not apply to this image and instance type; "" if it applies."""
        if fault.caught_by.startswith(catalogue.A_FINDING):
            if not self._is_as_found or fault.caught_by in self.findings:
                return f"{fault.caught_by} shows nothing on this machine"
        elif not any(catalogue.is_named(fault, name) for name in self.known):
            return f"{fault.caught_by} gives no verdict on this machine"
        if not fnmatch.fnmatchcase(self.target.instance_type, fault.instance_type):
            return f"only on {fault.instance_type}"
        return "" if self._has_object(fault) else f"the machine lacks what it is about: {fault.applies.strip()}"

    def _has_object(self, fault: Fault) -> bool:
        """Result of the fault's script `applies`, which runs once."""
        if fault.applies and fault.id not in self._applies:
            self._applies[fault.id] = self._run(fault.applies).rc == 0
        return self._applies.get(fault.id, True)

    def try_one(self, fault: Fault) -> Trial:
        """Injects one fault, runs the checks, reverts it."""
        why = self._beyond(fault)
        if why:
            return Trial(fault.id, catalogue.OUT_OF_SCOPE, (), why)
        started = time.monotonic()
        with self.proof.progress.stage(f"fault {fault.id}"):
            trial = self._tried(fault)
            self.proof.progress.note(f"{trial.outcome}: {', '.join(trial.red) or trial.message or 'no check failed'}")
        return dataclasses.replace(trial, seconds=round(time.monotonic() - started, 1))

    def _tried(self, fault: Fault) -> Trial:
        trial = Trial(fault.id, catalogue.NOT_REVERTED)
        try:
            with self._reverted(fault):
                try:
                    self.restore_script(f"set -e\n{fault.inject}")
                    trial = catalogue.judge(fault, self._red_with(fault))
                except NotJudged as error:
                    trial = Trial(fault.id, catalogue.NOT_TRIED, (), str(error))
                except MachineError as error:  # an incomplete injection is reverted, so other faults can be tried
                    trial = Trial(fault.id, catalogue.NOT_INJECTED, (), str(error))
        except NotReverted as error:
            return dataclasses.replace(trial, outcome=catalogue.NOT_REVERTED, message=str(error))
        return trial

    @contextlib.contextmanager
    def _reverted(self, fault: Fault) -> Iterator[None]:
        """Reverts the fault after the block. After Ctrl-C it does not: the machine is terminated anyway."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._revert(fault)
            raise
        self._revert(fault)

    def _revert(self, fault: Fault) -> None:
        try:
            self.restore_script(fault.revert)
        except MachineError as error:
            message = f"fault {fault.id} could not be reverted: {error.message}"
            raise NotReverted(message, details=error.details) from error

    def _red_with(self, *faults: Fault) -> dict[str, str]:
        trial = dataclasses.replace(self.proof, out=self.proof.out / "trials" / faults[0].id)
        checks = trial.check(self.target, options=self.options(*faults)).checks
        if any(fault.caught_by.startswith(catalogue.OF_A_NODE) for fault in faults):
            checks = (*checks, *self._node_checks(trial))
        if checks and all(_is_unreachable(check) for check in checks):
            raise NotJudged(checks[0].message)
        return _red(checks) | self._new_findings(faults)

    @property
    def _flush_seconds(self) -> float:
        """How long an agent that others configured keeps metrics before it sends them; our recipes' sends at once."""
        plan = self.proof.plan
        if not plan or not self._is_as_found or "cloudwatch_agent" not in plan:
            return 0.0
        metrics = plan["cloudwatch_agent"]["config"].get("metrics")
        flush = metrics.get("force_flush_interval") if isinstance(metrics, Mapping) else None
        return float(flush or _FLUSH_SECONDS)

    @property
    def _is_as_found(self) -> bool:
        return bool(self.proof.plan and self.proof.plan.get("origin") == OBSERVED)

    def observe(self) -> dict[str, str]:
        """What `gpu-ami observe` finds on the machine, but for its notes: findings::ID → text."""
        from gpu_ami import observe
        from gpu_ami.recipes import load_facts
        from validator.transport import ssh

        target = self.target
        url = ssh.parse_url(target.url, key_file=target.key_file, known_hosts=target.known_hosts)
        facts, observation = load_facts(), observe.read_host(url, wait=False)
        context = observe.context_of(observation, facts, [target.instance_type])
        found = observe.findings_of(observation, facts, context)
        return {f"{catalogue.A_FINDING}{one.id}": one.text for one in found if one.level is not observe.Level.NOTE}

    def _new_findings(self, faults: Sequence[Fault]) -> dict[str, str]:
        """Findings that the faults must cause, and that the machine did not have before."""
        asked = {fault.caught_by for fault in faults if fault.caught_by.startswith(catalogue.A_FINDING)}
        return {name: text for name, text in self.observe().items() if name in asked} if asked else {}

    def _node_checks(self, proof: Proof) -> Sequence[CheckRecord]:
        """The checks of tier TN, in a pass of their own; none where the image joins no cluster."""
        if self.join is None:
            return ()
        folder = proof.evidence(dataclasses.replace(self.target, name="node"))
        return proof.run_checks(
            self.target, folder, [*proof.options.validator_options, f"--join={self.join}", "--no-evidence"]
        ).checks

    def options(self, *faults: Fault) -> list[str]:
        """The validator's options for a trial of these faults: its deadline, and the checks that it skips."""
        seconds = 3 * self.proof.metrics_interval + self._flush_seconds + _SLACK_SECONDS
        options = ["--no-evidence", f"--arrival-seconds={seconds:g}"]
        if not any(fault.live for fault in faults):
            options += ["-m", "not live"]
        skipped = {
            name.partition("::")[2].partition("[")[0]
            for name in self.known
            if name.partition("::")[0] in _WAITING
            and any(fnmatch.fnmatchcase(name, pattern) for fault in faults for pattern in fault.also)
            and not any(catalogue.is_named(fault, name) for fault in faults)
        }
        if any(name.startswith(catalogue.ANY_FILE) for name in self.known):
            skipped |= self._skipped_inventory(faults)
        return [*options, "-k", f"not ({' or '.join(sorted(skipped))})"] if skipped else options

    @staticmethod
    def _skipped_inventory(faults: Sequence[Fault]) -> set[str]:
        """Checks of the inventory that a trial does not need: they read every file, which takes a minute."""
        if not any(fault.caught_by.startswith(catalogue.ANY_FILE) for fault in faults):
            return {catalogue.ANY_FILE.removesuffix("::")}
        return set() if any(fault.caught_by.endswith(_READS_ALL) for fault in faults) else {_READS_ALL}

    def _require_good(self, when: str, keep: Callable[[CleanProof], None]) -> None:
        with self.proof.progress.stage(f"clean proof {when}"):
            proof = self.prove(when)
        keep(proof)
        if proof.red:
            details = [f"{name}: {message}" for name, message in proof.red.items()]
            hint = "the machine is terminated; --resume continues on a new one"
            raise NotRestoredError(f"the machine is not as it was before: {when}", details=details, hint=hint)

    def restore_script(self, text: str) -> None:
        """Runs a script as root. MachineError: its exit status is not 0, or the host could not be reached."""
        done = self._run(text + (_AGENT_HAS_READ if _STARTS_AGENT.search(text) else ""))
        if done.rc != 0:
            output = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise MachineError(f"the script exited with status {done.rc}", details=output.splitlines()[-5:])

    def _run(self, text: str) -> Finished:
        from validator.transport import SshError

        try:
            return self.connect().run("sudo -n sh -s", timeout=_SCRIPT_SECONDS, input=text.encode())
        except SshError as error:
            self._disconnect()  # the fault may have closed the connection: the next script opens a new one
            raise MachineError(str(error)) from error

    def connect(self) -> Connection:
        """Return the open connection to the machine, or a new one where it was lost."""
        from validator.transport import ssh

        if self._connection is None or not self._connection.alive:
            url = ssh.parse_url(self.target.url, key_file=self.target.key_file, known_hosts=self.target.known_hosts)
            self._connection = ssh.connect(url)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class NotReverted(MachineError):
    """The script `revert` of a fault failed."""


class NotJudged(MachineError):
    """The checks could not reach the host: no check gave a verdict."""


def _is_unreachable(check: CheckRecord) -> bool:
    return check.verdict == "UNPROVEN" and check.message.startswith("transport error: ")


def _own(fault: Fault, red: Mapping[str, str]) -> dict[str, str]:
    return {
        check: message
        for check, message in red.items()
        if catalogue.is_named(fault, check) or catalogue.is_expected(fault, check)
    }


def _red(checks: Sequence[CheckRecord]) -> dict[str, str]:
    return {check.id: check.message for check in checks if check.verdict in _RED and not check.waived}


def folder() -> Path:
    """Directory of the fault definitions."""
    return Path(__file__).parent / "definitions"
