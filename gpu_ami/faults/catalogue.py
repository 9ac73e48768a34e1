"""Seeded faults: defects that can be injected into an image, and the check that must detect each.

The faults are data, `gpu_ami/faults/definitions/<role>.yml`, a list of
    id             unique name
    description    the defect, in one sentence
    inject         sh script, run as root, that creates the defect
    revert         sh script that removes it, also after an incomplete `inject`; backups are kept in /run
    applies        sh script, run as root before `inject`: exit status 0 if the machine has what the defect is about
    caught_by      the check that must fail
    as_found       of an AMI that others built, where caught_by needs a promise of a recipe: the check that must fail in
                   its place, or `findings::ID`, a finding of `gpu-ami observe`
    also           checks (patterns) that may fail too, with the reason as a comment
    last           a number, for a fault whose effect cannot be reverted: tried after all others, lowest first
    alone          true if it removes what other faults need, such as the driver
    live           true if only checks that inject events detect it (the whole proof runs then)
    instance_type  pattern of the instance types on which it can be injected (default: all)

Checks of `inventory` compare every file with its package, so they may fail beside any fault that changes a file.
How the faults are tried: gpu_ami/faults/trials.py. Results are kept in `faults.json` (schema gpu-ami/faults/2).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import parse_yaml
from validator.inputs import parse_json, read_text
from validator.schema import Flag, Integer, Keys, ListOf, Text

SCHEMA = "gpu-ami/faults/2"
DETECTED, MISSED, WRONG_CHECK, COLLATERAL = "detected", "missed", "wrong check", "collateral"
NOT_INJECTED, NOT_REVERTED = "not injected", "not reverted"
NOT_TRIED = "not tried"
OUT_OF_SCOPE = "out of scope"  # this image or instance type cannot have the defect
ANY_FILE = "inventory::"  # its checks compare every file of the machine, so any fault may make them fail
OF_A_NODE = "node_in_"  # checks of tier TN: they run in a pass of their own
A_FINDING = "findings::"  # no check: what `observe` says of an image as found
_OUTCOMES = (DETECTED, MISSED, WRONG_CHECK, COLLATERAL, NOT_INJECTED, NOT_REVERTED, OUT_OF_SCOPE, NOT_TRIED)
_GOOD = (DETECTED, OUT_OF_SCOPE)
_SCRIPT = Text("rm -f /etc/hosts", r"[\s\S]+")
_GRAMMAR = Keys(
    {
        "id": Text("driver-unpinned", r"\S+"),
        "description": Text("the defect, in one sentence", r"[\s\S]+"),
        "inject": _SCRIPT,
        "revert": _SCRIPT,
        "applies": _SCRIPT,
        "caught_by": Text("nvidia_driver::test_versions", r"\S+"),
        "as_found": Text("observed::test_sources_agree", r"\S+"),
        "also": ListOf(Text("logs::*", r"\S+")),
        "last": Integer(1, 1000),
        "alone": Flag(),
        "live": Flag(),
        "instance_type": Text("p4d.*", r"\S+"),
    },
    needed=("id", "description", "inject", "revert", "caught_by"),
)
_RENAMED = {"plant": "inject", "undo": "revert", "breaks": "description"}  # until 2026-11


@dataclass(frozen=True)
class Fault:
    """A defect that can be injected; fields as in the module's docstring."""

    id: str
    description: str
    inject: str
    revert: str
    caught_by: str
    applies: str = ""
    as_found: str = ""
    also: tuple[str, ...] = ()
    live: bool = False
    alone: bool = False
    last: int = 0
    instance_type: str = "*"


@dataclass(frozen=True)
class Trial:
    """Result of one fault. red: failed checks; message: that of the check which detected it; seconds: duration."""

    id: str
    outcome: Annotated[str, _OUTCOMES]
    red: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CleanProof:
    """A whole proof of the machine without a fault. red: false alarms, check id to message."""

    when: str
    checks: int
    seconds: float
    red: Mapping[str, str] = field(default_factory=dict)


class FaultsDocument(TypedDict):
    """faults.json: the last trial of each fault, and every clean proof."""

    schema: Annotated[str, (SCHEMA,)]
    image: str
    instance_type: str
    trials: list[Trial]
    proofs: list[CleanProof]


def load(folder: Path, only: Sequence[str] = (), after: str = "", more: Sequence[Path] = ()) -> list[Fault]:
    """All faults of a folder in the order in which they are tried; those in `only`, or those that come after `after`.

    more: further files, of a site.

    UsageError names every mistake with file and id.
    """
    faults: list[Fault] = []
    mistakes: list[str] = []
    for path in (*sorted(folder.glob("*.yml")), *more):
        for number, row in enumerate(parse_yaml(read_text(path), str(path)) or [], 1):
            wrong = _mistakes(row, f"{path.name}: {_name(row, number)}")
            mistakes += wrong
            if not wrong:
                faults.append(Fault(**(row | {"also": tuple(row.get("also", ()))})))
    ids = [fault.id for fault in faults]
    duplicates = sorted({fault_id for fault_id in ids if ids.count(fault_id) > 1})
    mistakes += [f"{fault_id}: duplicate id" for fault_id in duplicates]
    mistakes += [f"{name}: no fault has this id" for name in (*only, after) if name and name not in ids]
    if mistakes:
        count = counted(len(mistakes), "mistake")
        raise UsageError(f"{folder}: {count}", details=mistakes, hint="gpu-ami faults --list shows all ids")
    ordered = sorted(faults, key=lambda fault: fault.last)
    first = [fault.id for fault in ordered].index(after) + 1 if after else 0
    return [fault for fault in ordered[first:] if not only or fault.id in only]


def judged_as_found(faults: Sequence[Fault], observed: Sequence[str]) -> list[Fault]:
    """The faults as an image shows them of which no recipe promises anything. observed: its components."""
    return [
        replace(fault, caught_by=fault.as_found)
        if fault.as_found and fault.caught_by.partition("::")[0] in observed
        else fault
        for fault in faults
    ]


def _name(row: Any, number: int) -> str:
    return str(row["id"]) if isinstance(row, dict) and "id" in row else f"fault {number}"


def _mistakes(row: Any, name: str) -> list[str]:
    renamed = {old: new for old, new in _RENAMED.items() if isinstance(row, dict) and old in row}
    mistakes = [f"{name}: {old}: the key is now called {new}" for old, new in renamed.items()]
    others = {key: value for key, value in row.items() if key not in renamed} if isinstance(row, dict) else row
    wrong = [*_GRAMMAR.check(others, ""), *_GRAMMAR.missing(others)]
    return mistakes + [f"{name}: {each.path}: {each.message}" for each in wrong if each.path not in renamed.values()]


def judge(fault: Fault, red: Mapping[str, str]) -> Trial:
    """Compares the failed checks (id to message) with those that the fault must make fail."""
    detected_by = sorted(name for name in red if is_named(fault, name))
    if not detected_by:
        return Trial(fault.id, WRONG_CHECK if red else MISSED, tuple(sorted(red)))
    others = sorted(set(red) - set(detected_by))
    unexplained = [name for name in others if not is_expected(fault, name)]
    return Trial(fault.id, COLLATERAL if unexplained else DETECTED, (*detected_by, *others), red[detected_by[0]])


def is_named(fault: Fault, check: str) -> bool:
    """Whether `check` is the one that must detect the fault, with any parameters."""
    return check == fault.caught_by or check.startswith(f"{fault.caught_by}[")


def is_expected(fault: Fault, check: str) -> bool:
    """Whether `check` may fail beside the one that must: it is named in `also`, or it compares every file."""
    if check.startswith(ANY_FILE) and not fault.caught_by.startswith(ANY_FILE):
        return True
    return any(fnmatch.fnmatchcase(check, pattern) for pattern in fault.also)


@dataclass
class Record:
    """Results of one image on one instance type: the last trial of each fault, and every clean proof."""

    image: str
    instance_type: str
    trials: dict[str, Trial] = field(default_factory=dict)
    proofs: list[CleanProof] = field(default_factory=list)
    earlier: int = 0  # number of proofs from earlier runs

    @classmethod
    def load(cls, path: Path, image: str, instance_type: str) -> Record:
        """An earlier run's record of the same image and instance type; an empty one if there is none.

        UsageError: the file has another schema.
        """
        record = cls(image, instance_type)
        try:
            document = parse_json(read_text(path))
        except (OSError, ValueError):
            return record
        if not isinstance(document, dict):
            return record
        if document.get("schema") != SCHEMA:
            raise UsageError(
                f"{path}: schema: expected {SCHEMA}, got {document.get('schema')}",
                hint="remove the file: gpu-ami faults writes a new one",
            )
        if [document.get("image"), document.get("instance_type")] == [image, instance_type]:
            record.trials = {row["id"]: Trial(**row | {"red": tuple(row["red"])}) for row in document["trials"]}
            record.proofs = [CleanProof(**row) for row in document["proofs"]]
            record.earlier = len(record.proofs)
        return record

    def add(self, trial: Trial) -> None:
        self.trials[trial.id] = trial

    def is_good(self, scope: Sequence[Fault]) -> bool:
        """Every fault was detected, and no clean proof of this run gave a false alarm."""
        return all(self.is_seen(fault) for fault in scope) and not self._alarms

    def is_seen(self, fault: Fault) -> bool:
        """Whether the fault was detected, or does not apply to this image and instance type."""
        return fault.id in self.trials and self.trials[fault.id].outcome in _GOOD

    @property
    def _alarms(self) -> list[CleanProof]:
        return [proof for proof in self.proofs[self.earlier :] if proof.red]

    @property
    def in_a_row(self) -> int:
        """Number of clean proofs since the last false alarm, earlier runs included."""
        newest_first = enumerate(reversed(self.proofs))
        return next((count for count, proof in newest_first if proof.red), len(self.proofs))

    def to_json(self) -> dict[str, object]:
        """As FaultsDocument."""
        head = {"schema": SCHEMA, "image": self.image, "instance_type": self.instance_type}
        trials = [asdict(trial) for trial in self.trials.values()]
        return head | {"trials": trials, "proofs": [asdict(proof) for proof in self.proofs]}

    def summary(self, scope: Sequence[Fault]) -> str:
        """One line per fault, the number of faults per outcome, and the result of the clean proofs."""
        trials = [self.trials.get(fault.id, Trial(fault.id, NOT_TRIED)) for fault in scope]
        lines = [f"{trial.outcome:12} {trial.id:36} {', '.join(trial.red) or trial.message}" for trial in trials]
        outcomes = [trial.outcome for trial in trials]
        shown = [name for name in _OUTCOMES if name in (DETECTED, MISSED) or name in outcomes]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in shown)
        proofs = counted(self.in_a_row, "clean proof")
        lines += ["", f"{counted(len(trials), 'fault')}: {counts}"]
        lines += [f"{proofs} in a row without a false alarm"]
        lines += [f"    {proof.when}: {name}: {text}" for proof in self._alarms for name, text in proof.red.items()]
        return "\n".join(lines)
