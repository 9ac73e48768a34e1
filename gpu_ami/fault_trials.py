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
import time
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
_SLACK_SECONDS = 60.0  # beyond the agent's interval: what has not come then was cut off


class Spoilt(MachineError):
    """The machine is not as good as before: whatever is tried on it now proves nothing."""


class Rig:
    """One machine, and the faults that are planted in it. A context: its connection goes when the block ends."""

    def __init__(self, proof: Proof, target: Target) -> None:
        self.proof = proof
        self.target = target
        self.known: list[str] = []  # ids of the checks that the good machine was proved with
        self._connection: Connection | None = None

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def prove(self, when: str) -> CleanProof:
        """The whole proof, with evidence. Red checks are false alarms."""
        started = time.monotonic()
        found = self.proof.check(self.target)
        self.known = [str(one["id"]) for one in found.checks]
        return CleanProof(when, len(found.checks), round(time.monotonic() - started, 1), _red(found.checks))

    def try_all(self, chosen: Sequence[Fault], keep: Callable[[CleanProof], None]) -> Iterator[Trial]:
        """One trial after the other; `keep` gets the proofs between them. Spoilt ends it.

        What cannot be undone comes last, after the proof that says that all else was.
        """
        lasting = [fault for fault in chosen if fault.last]
        tried = 0
        for fault in (one for one in chosen if not one.last):
            trial = self.try_one(fault)
            tried += trial.outcome != faults.OUT_OF_SCOPE
            yield trial
            if trial.outcome not in (faults.DETECTED, faults.OUT_OF_SCOPE):
                self._require_good(f"after {fault.id}", keep)
        if tried:
            self._require_good(f"after {tried} faults", keep)
        for fault in lasting:
            yield self.try_one(fault)

    def try_one(self, fault: Fault) -> Trial:
        """Plants one fault, checks, undoes it."""
        named = [name for name in self.known if faults.is_named(fault, name)]
        if not named or not fnmatch.fnmatchcase(self.target.instance_type, fault.instance_type):
            why = f"only on {fault.instance_type}" if named else f"the plan has no {fault.caught_by}"
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
                except MachineError as error:  # the others can still be tried: what was done of it is undone
                    trial = Trial(fault.id, faults.NOT_PLANTED, (), str(error))
                else:
                    trial = faults.judge(fault, self._red_with(fault))
        except NotUndone as error:
            return dataclasses.replace(trial, outcome=faults.NOT_UNDONE, message=str(error))
        return trial

    @contextlib.contextmanager
    def _undone(self, fault: Fault) -> Iterator[None]:
        """The machine is mended after the block, however the block ends: Ctrl-C too."""
        try:
            yield
        finally:
            try:
                self._script(fault.undo)
            except MachineError as error:
                raise NotUndone(error.message, details=error.details) from error

    def _red_with(self, fault: Fault) -> dict[str, str]:
        options = [*self.proof.options, *self.options(fault)]
        trial = dataclasses.replace(self.proof, out=self.proof.out / "trials" / fault.id, options=options)
        return _red(trial.check(self.target).checks)

    def options(self, fault: Fault) -> list[str]:
        """The validator's options for a trial: how long it waits, and what it leaves out."""
        interval = float(self.proof.plan.get("telemetry", {}).get("interval_s", 60))
        given = ["--no-evidence", f"--arrival-seconds={interval + _SLACK_SECONDS:g}"]
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
            hint = "the machine is ended; --after ID goes on with a fresh one"
            raise Spoilt(f"the machine is not as good as before {when}", details=details, hint=hint)

    def _script(self, text: str) -> None:
        """Runs a script as root. MachineError: it ended with another status than 0, or the host could not be asked."""
        from validator.ssh_faults import SshError

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


def _red(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(one["id"]): str(one.get("message", "")) for one in checks if one["verdict"] in _RED}


def folder() -> Path:
    """Where the faults are."""
    import validator

    return Path(validator.__file__).parent / "faults"
