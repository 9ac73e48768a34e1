"""Tries faults on one good machine: plant one, see which checks turn red, undo it, next.

Only what can tell something runs: the checks that wait for CloudWatch are left out where they would rightly be red
too, and those that provoke something run where only they see the fault. After a fault whose outcome is not `detected`,
and at the end, a whole proof says whether the machine is as good as before; where it is not, nothing that is tried on
it afterwards would prove anything.
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
from typing import TYPE_CHECKING, Any

from gpu_ami import faults
from gpu_ami.errors import MachineError
from gpu_ami.faults import CleanProof, Fault, Trial
from gpu_ami.proof import Proof, Target

if TYPE_CHECKING:
    from validator.ssh import Connection

_RED = ("FAIL", "FLAKY")
_SCRIPT_SECONDS = 240.0
_WAITING = ("logs", "metrics", "xid")  # they wait for what a fault keeps from coming
# What a script touches: files, whatever lies under /run by its first name, and units that systemctl is told of.
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
_AT_ONCE = 12  # one that surprises costs seven more trials
_SLACK_SECONDS = 40.0  # beyond three of the agent's intervals: one to begin, one to measure, one to send


class Spoilt(MachineError):
    """The machine is not as good as before: whatever is tried on it now proves nothing."""


class Rig:
    """One machine, and the faults that are planted in it. A context: its connection goes when the block ends."""

    def __init__(self, proof: Proof, target: Target) -> None:
        self.proof = proof
        self.target = target
        self.known: list[str] = []  # ids of the checks that have judged the good machine
        self._connection: Connection | None = None

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def prove(self, when: str) -> CleanProof:
        """The whole proof; the first keeps evidence too. Red checks are false alarms."""
        started = time.monotonic()
        options = [*self.proof.options, *(["--no-evidence"] if self.known else [])]
        found = dataclasses.replace(self.proof, options=options).check(self.target)
        self.known = [str(one["id"]) for one in found.checks if one["verdict"] != "UNPROVEN"]
        return CleanProof(when, len(found.checks), round(time.monotonic() - started, 1), _red(found.checks))

    def try_all(
        self, chosen: Sequence[Fault], keep: Callable[[CleanProof], None], *, together: bool = False
    ) -> Iterator[Trial]:
        """One trial after the other; `keep` gets the proofs between them. Spoilt ends it.

        together: several that cannot be confused at once; what comes out otherwise than it should is tried again alone,
        and a group with a red check that none of its faults explains by halves.
        What cannot be undone comes last, after the proof that says that all else was.
        """
        lasting = [fault for fault in chosen if fault.last]
        mendable = [fault for fault in chosen if not fault.last]
        tried = 0
        waiting = deque(self.groups(mendable) if together else [[fault] for fault in mendable])
        while waiting:
            alone = group = waiting.popleft()
            if len(group) > 1:
                found, undone = self.try_together(group)
                yield from found
                alone = [fault for fault in group if fault.id not in {trial.id for trial in found}]
                tried += len(found)
                if alone or not undone:
                    self._require_good(f"after {len(group)} faults at once", keep)
                if not found:  # one of them turns red what nobody explains: it is in one half alone
                    half = len(group) // 2
                    waiting.extendleft([list(group[half:]), list(group[:half])])
                    continue
            for fault in alone:
                trial = self.try_one(fault)
                tried += trial.outcome != faults.OUT_OF_SCOPE
                yield trial
                if trial.outcome not in (faults.DETECTED, faults.OUT_OF_SCOPE):
                    self._require_good(f"after {fault.id}", keep)
        if tried:
            self._require_good(f"after {tried} faults", keep)
        for fault in lasting:
            yield self.try_one(fault)

    def groups(self, chosen: Sequence[Fault]) -> list[list[Fault]]:
        """Faults that can be told apart, and mended apart, though they are there at the same time."""
        made: list[tuple[list[Fault], set[str]]] = []
        for fault in chosen:
            touched = self._touched(fault)
            alone = fault.live or fault.alone or not touched
            alone |= any(name.partition("::")[0] in _WAITING for name in touched)
            open_ones = [one for one in made if not alone and len(one[0]) < _AT_ONCE and "" not in one[1]]
            place = next((one for one in open_ones if one[1].isdisjoint(touched)), None)
            if place is None:
                made.append(([fault], {""} if alone else touched))
            else:
                place[0].append(fault)
                place[1].update(touched)
        return [group for group, _ in made]

    def _touched(self, fault: Fault) -> set[str]:
        """The checks that may be red with it, its files and units; nothing where it is out of scope."""
        if self._beyond(fault):
            return set()
        allowed = {name for name in self.known if any(fnmatch.fnmatchcase(name, one) for one in fault.also)}
        named = {name for name in self.known if faults.is_named(fault, name)}
        touched = {found[1] or found[2] for found in _TOUCHED.finditer(fault.plant)}
        # A unit is not started again while another fault has exchanged its program.
        programs = {Path(one).name for one in touched if Path(one).parent.name in ("bin", "sbin")}
        return allowed | named | touched | programs

    def try_together(self, group: Sequence[Fault]) -> tuple[list[Trial], bool]:
        """The trials of those that came out as they should, and whether all were undone.

        No trial counts where a check is red that nobody explains.
        """
        started = time.monotonic()
        name = f"{len(group)} faults: {', '.join(fault.id for fault in group)}"
        found: list[Trial] = []
        undone = True
        with self.proof.progress.stage(name):
            try:
                with contextlib.ExitStack() as stack:
                    planted = [fault for fault in group if self._planted(fault, stack)]
                    found = self._judged(planted, self._red_with(planted[0])) if planted else []
            except NotUndone as error:  # the clean proof after them says whether it matters
                self.proof.progress.note(str(error))
                undone = False
            except MachineError as error:
                self.proof.progress.note(str(error))
        seconds = round((time.monotonic() - started) / len(group), 1)
        return [dataclasses.replace(trial, seconds=seconds) for trial in found], undone

    def _judged(self, planted: Sequence[Fault], red: Mapping[str, str]) -> list[Trial]:
        found = [faults.judge(fault, _own(fault, red)) for fault in planted]
        strange = sorted(set(red) - {check for trial in found for check in trial.red})
        self.proof.progress.note(f"red: {', '.join(red)}{f'; unexplained: {strange}' if strange else ''}")
        return [] if strange else [trial for trial in found if trial.outcome == faults.DETECTED]

    def _planted(self, fault: Fault, stack: contextlib.ExitStack) -> bool:
        try:
            self._script(f"set -e\n{fault.plant}")
        except MachineError as error:  # alone it may be planted yet
            self.proof.progress.note(f"{fault.id}: {error}")
            with contextlib.suppress(MachineError):
                self._mend(fault)
            return False
        stack.enter_context(self._undone(fault))
        return True

    def _beyond(self, fault: Fault) -> str:
        """Why this image on this instance type cannot have the fault; "" where it can."""
        if not any(faults.is_named(fault, name) for name in self.known):
            return f"this machine gives {fault.caught_by} nothing to judge"
        fits = fnmatch.fnmatchcase(self.target.instance_type, fault.instance_type)
        return "" if fits else f"only on {fault.instance_type}"

    def try_one(self, fault: Fault) -> Trial:
        """Plants one fault, checks, undoes it."""
        why = self._beyond(fault)
        if why:
            return Trial(fault.id, faults.OUT_OF_SCOPE, (), why)
        started = time.monotonic()
        with self.proof.progress.stage(f"fault {fault.id}"):
            trial = self._tried(fault)
            self.proof.progress.note(f"{trial.outcome}: {', '.join(trial.red) or trial.message or 'no check is red'}")
        return dataclasses.replace(trial, seconds=round(time.monotonic() - started, 1))

    def _tried(self, fault: Fault) -> Trial:
        trial = Trial(fault.id, faults.NOT_UNDONE)
        try:
            with self._undone(fault):
                try:
                    self._script(f"set -e\n{fault.plant}")
                    trial = faults.judge(fault, self._red_with(fault))
                except MachineError as error:  # the others can still be tried: what was done of it is undone
                    trial = Trial(
                        fault.id,
                        faults.NOT_TRIED if isinstance(error, NotAsked) else faults.NOT_PLANTED,
                        (),
                        str(error),
                    )
        except NotUndone as error:
            return dataclasses.replace(trial, outcome=faults.NOT_UNDONE, message=str(error))
        return trial

    @contextlib.contextmanager
    def _undone(self, fault: Fault) -> Iterator[None]:
        """The machine is mended after the block, unless Ctrl-C ends it with whatever is planted in it."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._mend(fault)
            raise
        self._mend(fault)

    def _mend(self, fault: Fault) -> None:
        try:
            self._script(fault.undo)
        except MachineError as error:
            raise NotUndone(f"fault {fault.id} could not be undone: {error.message}", details=error.details) from error

    def _red_with(self, fault: Fault) -> dict[str, str]:
        options = [*self.proof.options, *self.options(fault)]
        trial = dataclasses.replace(self.proof, out=self.proof.out / "trials" / fault.id, options=options)
        checks = trial.check(self.target).checks
        if checks and all(_unasked(one) for one in checks):
            raise NotAsked(str(checks[0]["message"]))
        return _red(checks)

    def options(self, fault: Fault) -> list[str]:
        """The validator's options for a trial: how long it waits, and what it leaves out."""
        interval = float(self.proof.plan.get("telemetry", {}).get("interval_s", 60))
        given = ["--no-evidence", f"--arrival-seconds={3 * interval + _SLACK_SECONDS:g}"]
        if not fault.live:
            given += ["-m", "not live"]
        rightly_red = {
            name.partition("::")[2].partition("[")[0]
            for name in self.known
            if name.partition("::")[0] in _WAITING
            and any(fnmatch.fnmatchcase(name, pattern) for pattern in fault.also)
            and not faults.is_named(fault, name)
        }
        return [*given, "-k", f"not ({' or '.join(sorted(rightly_red))})"] if rightly_red else given

    def _require_good(self, when: str, keep: Callable[[CleanProof], None]) -> None:
        with self.proof.progress.stage(f"clean proof {when}"):
            proof = self.prove(when)
        keep(proof)
        if proof.red:
            details = [f"{name}: {message}" for name, message in proof.red.items()]
            hint = "the machine is ended; --resume goes on with a fresh one"
            raise Spoilt(f"the machine is not as good as before {when}", details=details, hint=hint)

    def _script(self, text: str) -> None:
        """Runs a script as root. MachineError: it ended with another status than 0, or the host could not be asked."""
        from validator.ssh_faults import SshError

        text += _AGENT_HAS_READ if _STARTS_AGENT.search(text) else ""
        try:
            done = self._connect().run("sudo -n sh -s", timeout=_SCRIPT_SECONDS, input=text.encode())
        except SshError as error:
            self._disconnect()  # the fault may have cost the connection: the next script makes a new one
            raise MachineError(str(error)) from error
        if done.rc != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise MachineError(f"the script ended with {done.rc}", details=said.splitlines()[-5:])

    def _connect(self) -> Connection:
        from validator import ssh

        if self._connection is None or not self._connection.alive:
            found = ssh.parse_url(self.target.url, key_file=self.target.key_file, known_hosts=self.target.known_hosts)
            self._connection = ssh.connect(found)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class NotUndone(MachineError):
    """A fault's `undo` failed."""


class NotAsked(MachineError):
    """The host could not be reached for the checks: nothing was shown of any."""


def _unasked(check: Mapping[str, Any]) -> bool:
    return check["verdict"] == "UNPROVEN" and str(check["message"]).startswith("the host could not be asked")


def _own(fault: Fault, red: Mapping[str, str]) -> dict[str, str]:
    patterns = (fault.caught_by, f"{fault.caught_by}[[]*", *fault.also)
    return {name: text for name, text in red.items() if any(fnmatch.fnmatchcase(name, one) for one in patterns)}


def _red(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(one["id"]): str(one.get("message", "")) for one in checks if one["verdict"] in _RED}


def folder() -> Path:
    """Where the faults are."""
    import validator

    return Path(validator.__file__).parent / "faults"
