"""Checks of the checks: plant a fault in a good machine, see that the named check turns red and no other, undo it.

The faults are data, `validator/faults/<role>.yml`, a list of
    id          unique name
    breaks      what is wrong then, in a sentence
    plant       sh script, run as root, that breaks it
    undo        sh script that mends it; whatever it puts aside lies under /run
    caught_by   the check that must turn red
    also        checks (patterns) that are rightly red too, with the reason as a comment
    last        true where what it leaves behind cannot be undone: tried after all others
    live        true where only the checks that provoke something see it (the whole proof runs then)
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import MachineError, UsageError
from gpu_ami.proof import Proof, Target

_KEYS = {"id", "breaks", "plant", "undo", "caught_by", "also", "live", "last"}
_REQUIRED = _KEYS - {"also", "live", "last"}
_RED = ("FAIL", "FLAKY")
_SCRIPT_SECONDS = 120.0


@dataclass(frozen=True)
class Fault:
    """One way in which an image can be broken; fields as in the module's docstring."""

    id: str
    breaks: str
    plant: str
    undo: str
    caught_by: str
    also: tuple[str, ...] = ()
    live: bool = False
    last: bool = False


@dataclass(frozen=True)
class Trial:
    """What came of one fault. outcome: detected, wrong check, missed, collateral (red without cause), not planted."""

    fault: Fault
    outcome: str
    red: tuple[str, ...]
    message: str = ""


class NotPlanted(MachineError):
    """A fault's script failed: nothing was shown of its check."""


def load(folder: Path, only: Sequence[str] = ()) -> list[Fault]:
    """All faults of a folder, or those whose id is in `only`. UsageError names every mistake with file and id."""
    import yaml

    faults: list[Fault] = []
    mistakes: list[str] = []
    for path in sorted(folder.glob("*.yml")):
        for number, row in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], 1):
            name = f"{path.name}: {row.get('id', f'fault {number}')}"
            wrong = [f"{name}: unknown key {key}" for key in sorted(set(row) - _KEYS)]
            wrong += [f"{name}: {key} is missing" for key in sorted(_REQUIRED - set(row))]
            mistakes += wrong
            if not wrong:
                faults.append(Fault(**(row | {"also": tuple(row.get("also", ()))})))
    ids = [fault.id for fault in faults]
    mistakes += [f"{name}: the id is used twice" for name in sorted({one for one in ids if ids.count(one) > 1})]
    mistakes += [f"no fault is called {name}" for name in only if name not in ids]
    if mistakes:
        raise UsageError(f"{folder}: {len(mistakes)} mistakes", details=mistakes, hint="gpu-ami faults --list")
    chosen = [fault for fault in faults if not only or fault.id in only]
    return sorted(chosen, key=lambda fault: fault.last)


def try_all(proof: Proof, target: Target, faults: Sequence[Fault]) -> Iterator[Trial]:
    """Plants each fault in turn on one good machine. MachineError: the machine was not good to begin with."""
    before = _red(proof.check(target).checks)
    if before:
        raise MachineError(
            f"{target.url}: {len(before)} checks are red before any fault is planted",
            details=[f"{name}: {message}" for name, message in before.items()],
            hint="a fault proves something only on a machine whose checks all pass: gpu-ami validate",
        )
    for fault in faults:
        with proof.progress.stage(f"fault {fault.id}"):
            try:
                with planted(target, fault):
                    trial = judge(fault, _red(_checked(proof, target, fault)))
            except NotPlanted as error:  # the other faults can still be tried: what was done of it has been undone
                trial = Trial(fault, "not planted", (), str(error))
            proof.progress.note(f"{trial.outcome}: {', '.join(trial.red) or 'no check is red'}")
        yield trial


def _checked(proof: Proof, target: Target, fault: Fault) -> list[dict[str, Any]]:
    # A pipeline that was cut will not deliver later: two minutes instead of the quarter of an hour that AWS may need.
    options = [*proof.options, "--arrival-seconds=120"]
    options = options if fault.live else [*options, "-m", "not live"]
    return Proof(
        proof.plan, proof.plan_file, proof.place, proof.out, proof.progress, proof.checks, options
    ).check(target).checks  # fmt: skip


@contextmanager
def planted(target: Target, fault: Fault) -> Iterator[None]:
    """The machine is broken inside the block and mended after it, however the block ends."""
    try:
        try:
            _script(target, f"set -e\n{fault.plant}", f"fault {fault.id} could not be planted")
        except MachineError as error:
            raise NotPlanted(error.message, details=error.details) from error
        yield
    finally:
        _script(target, fault.undo, f"fault {fault.id} could not be undone")


def _script(target: Target, text: str, failure: str) -> None:
    from validator import ssh

    found = ssh.parse_url(target.url, key_file=target.key_file, known_hosts=target.known_hosts)
    with ssh.connect(found) as connection:
        done = connection.run("sudo -n sh -s", timeout=_SCRIPT_SECONDS, input=text.encode())
    if done.rc != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise MachineError(failure, details=[f"ended with {done.rc}", *said.splitlines()[-5:]])


def _red(checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(one["id"]): str(one.get("message", "")) for one in checks if one["verdict"] in _RED}


def judge(fault: Fault, red: Mapping[str, str]) -> Trial:
    """Compares the red checks with those that the fault must turn red."""
    allowed = (fault.caught_by, *fault.also)
    strange = sorted(name for name in red if not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed))
    caught = sorted(name for name in red if name == fault.caught_by or name.startswith(f"{fault.caught_by}["))
    if not caught:
        return Trial(fault, "wrong check" if red else "missed", tuple(sorted(red)))
    outcome = "collateral" if strange else "detected"
    return Trial(fault, outcome, (*caught, *sorted(set(red) - set(caught))), red[caught[0]])
