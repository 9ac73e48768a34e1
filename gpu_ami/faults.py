"""Checks of the checks: ways in which an image can be broken, and which check must see each.

The faults are data, `validator/faults/<role>.yml`, a list of
    id             unique name
    breaks         what is wrong then, in a sentence
    plant          sh script, run as root, that breaks it
    undo           sh script that mends it, also where `plant` came only half way; what is put aside lies in /run
    caught_by      the check that must turn red
    also           checks (patterns) that are rightly red too, with the reason as a comment
    last           a number where what it leaves behind cannot be undone: tried after all others, the lowest first
    alone          true where it takes away what other faults are planted in, such as the driver
    live           true where only the checks that provoke something see it (the whole proof runs then)
    instance_type  pattern of the instance types on which it can be planted (default: all)

How they are tried: gpu_ami/fault_trials.py. What came of them is kept in `faults.json` (schema gpu-ami/faults/1).
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError

SCHEMA = "gpu-ami/faults/1"
DETECTED, MISSED, WRONG_CHECK, COLLATERAL = "detected", "missed", "wrong check", "collateral"
NOT_PLANTED, NOT_UNDONE = "not planted", "not undone"
NOT_TRIED = "not tried"
OUT_OF_SCOPE = "out of scope"  # this image or instance type has nothing that could break so
_OUTCOMES = (DETECTED, MISSED, WRONG_CHECK, COLLATERAL, NOT_PLANTED, NOT_UNDONE, OUT_OF_SCOPE, NOT_TRIED)
_GOOD = (DETECTED, OUT_OF_SCOPE)
_REQUIRED = {"id", "breaks", "plant", "undo", "caught_by"}
_KEYS = _REQUIRED | {"also", "live", "alone", "last", "instance_type"}


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
    alone: bool = False
    last: int = 0
    instance_type: str = "*"


@dataclass(frozen=True)
class Trial:
    """What came of one fault. red: the checks that were; message: what the named one said; seconds: the whole trial."""

    id: str
    outcome: str
    red: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CleanProof:
    """A whole proof of the good machine. red: false alarms, each with its message."""

    when: str
    checks: int
    seconds: float
    red: Mapping[str, str] = field(default_factory=dict)


def load(folder: Path, only: Sequence[str] = (), after: str = "") -> list[Fault]:
    """All faults of a folder in the order in which they are tried; those in `only`, or those that come after `after`.

    UsageError names every mistake with file and id.
    """
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
    mistakes += [f"no fault is called {name}" for name in (*only, after) if name and name not in ids]
    if mistakes:
        raise UsageError(f"{folder}: {len(mistakes)} mistakes", details=mistakes, hint="gpu-ami faults --list")
    ordered = sorted(faults, key=lambda fault: fault.last)
    first = [fault.id for fault in ordered].index(after) + 1 if after else 0
    return [fault for fault in ordered[first:] if not only or fault.id in only]


def judge(fault: Fault, red: Mapping[str, str]) -> Trial:
    """Compares the red checks (each with its message) with those that the fault must turn red."""
    caught = sorted(name for name in red if is_named(fault, name))
    if not caught:
        return Trial(fault.id, WRONG_CHECK if red else MISSED, tuple(sorted(red)))
    rest = sorted(set(red) - set(caught))
    strange = [name for name in rest if not any(fnmatch.fnmatchcase(name, pattern) for pattern in fault.also)]
    return Trial(fault.id, COLLATERAL if strange else DETECTED, (*caught, *rest), red[caught[0]])


def is_named(fault: Fault, check: str) -> bool:
    """Whether `check` is the one that must see the fault, with whatever parameters."""
    return check == fault.caught_by or check.startswith(f"{fault.caught_by}[")


@dataclass
class Record:
    """What is known of one image on one instance type: the last trial of each fault, and every clean proof."""

    image: str
    instance_type: str
    trials: dict[str, Trial] = field(default_factory=dict)
    proofs: list[CleanProof] = field(default_factory=list)
    earlier: int = 0  # how many of the proofs are of earlier runs

    @classmethod
    def load(cls, path: Path, image: str, instance_type: str) -> Record:
        """An earlier run's record of the same image on the same instance type; an empty one where there is none."""
        found = cls(image, instance_type)
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return found
        if isinstance(told, dict) and [told.get("image"), told.get("instance_type")] == [image, instance_type]:
            found.trials = {one["id"]: Trial(**one | {"red": tuple(one["red"])}) for one in told["trials"]}
            found.proofs = [CleanProof(**one) for one in told["proofs"]]
            found.earlier = len(found.proofs)
        return found

    def add(self, trial: Trial) -> None:
        self.trials[trial.id] = trial

    def is_good(self, scope: Sequence[Fault]) -> bool:
        """Every fault was detected, and no clean proof of this run gave a false alarm."""
        return all(self.is_seen(fault) for fault in scope) and not self._alarms

    def is_seen(self, fault: Fault) -> bool:
        """Whether the fault was detected, or cannot be had here."""
        return fault.id in self.trials and self.trials[fault.id].outcome in _GOOD

    @property
    def _alarms(self) -> list[CleanProof]:
        return [proof for proof in self.proofs[self.earlier :] if proof.red]

    @property
    def in_a_row(self) -> int:
        """Clean proofs since the last one that gave a false alarm, earlier runs' among them."""
        return next((at for at, proof in enumerate(reversed(self.proofs)) if proof.red), len(self.proofs))

    def to_json(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "image": self.image, "instance_type": self.instance_type}
        trials = [asdict(trial) for trial in self.trials.values()]
        return head | {"trials": trials, "proofs": [asdict(proof) for proof in self.proofs]}

    def summary(self, scope: Sequence[Fault]) -> str:
        """A line a fault, how many had each outcome, and what the clean proofs gave."""
        outcomes = {fault.id: self.trials.get(fault.id, Trial(fault.id, NOT_TRIED)) for fault in scope}
        lines = [f"{one.outcome:12} {one.id:36} {', '.join(one.red) or one.message}" for one in outcomes.values()]
        found = [one.outcome for one in outcomes.values()]
        told = [f"{found.count(name)} {name}" for name in _OUTCOMES if name in (DETECTED, MISSED) or name in found]
        lines += ["", f"{len(found)} faults: {', '.join(told)}"]
        lines += [f"{self.in_a_row} clean proofs in a row without a false alarm"]
        lines += [f"    {proof.when}: {name}: {text}" for proof in self._alarms for name, text in proof.red.items()]
        return "\n".join(lines)
