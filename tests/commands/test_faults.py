"""`gpu-ami faults` over several machines: one that is spoilt is exchanged, and nothing that it showed is forgotten."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.commands.faults import MACHINES, try_on_machines
from gpu_ami.errors import MachineError
from gpu_ami.faults.catalogue import CleanProof, Fault, Record, Trial
from gpu_ami.faults.trials import NotRestoredError
from gpu_ami.progress import Progress
from tests.observe import foreign_images as foreign

FAULTS = [Fault(name, "b", "break", "mend", "boot::test_a") for name in ("a", "b", "c", "d")]
ARGS = argparse.Namespace(proofs=2, together=False)


class Machines:
    """Machines on which the faults in `spoil` leave a red check behind; `dirty` is red from the beginning."""

    def __init__(self, *spoil: str, dirty: int = -1) -> None:
        self.spoil, self.dirty = spoil, dirty
        self.tried: list[list[str]] = []
        self.ended = 0
        self.proofs: list[int] = []

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Any]:
        self.tried.append([])
        self.proofs.append(0)
        number = len(self.tried) - 1
        try:
            yield SimpleNamespace(
                prove=lambda when: self.prove(when, number),
                proof=SimpleNamespace(progress=Progress("quiet")),
                try_all=self.try_all,
                target=SimpleNamespace(url="ssh://x"),
            )
        finally:
            self.ended += 1

    def prove(self, when: str, number: int) -> CleanProof:
        self.proofs[-1] += 1
        return CleanProof(when, 5, 1.0, {"boot::test_a": "red"} if number == self.dirty else {})

    def try_all(self, chosen: Sequence[Fault], keep: Callable[[CleanProof], None], **_: Any) -> Iterator[Trial]:
        for fault in chosen:
            self.tried[-1].append(fault.id)
            yield Trial(fault.id, "detected", ("boot::test_a",))
            if fault.id in self.spoil:
                keep(CleanProof(f"after {fault.id}", 5, 1.0, {"boot::test_b": "red"}))
                raise NotRestoredError(f"not as good as before after {fault.id}", details=["boot::test_b: red"])


def tried_on(machines: Machines, path: Path) -> Record:
    record = Record("ami-1", "g5.12xlarge")
    try_on_machines(machines.fresh, FAULTS, record, path, ARGS)
    return record


def test_one_machine_does_where_nothing_is_spoilt(tmp_path: Path) -> None:
    machines = Machines()
    record = tried_on(machines, tmp_path / "faults.json")
    assert (machines.tried, machines.proofs, machines.ended) == ([["a", "b", "c", "d"]], [2], 1)
    assert record.is_good(FAULTS)
    assert [one["id"] for one in json.loads((tmp_path / "faults.json").read_text())["trials"]] == ["a", "b", "c", "d"]


def test_a_spoilt_machine_is_exchanged_and_its_alarm_kept(tmp_path: Path) -> None:
    machines = Machines("b")
    record = tried_on(machines, tmp_path / "faults.json")
    assert (machines.tried, machines.proofs, machines.ended) == ([["a", "b"], ["c", "d"]], [2, 1], 2)
    assert not record.is_good(FAULTS)  # a clean proof gave a false alarm
    assert "after b: boot::test_b: red" in record.summary(FAULTS)


def test_the_last_fault_that_spoils_ends_it(tmp_path: Path) -> None:
    with pytest.raises(NotRestoredError, match="after d"):
        tried_on(Machines("d"), tmp_path / "faults.json")


def test_not_every_machine_of_the_place_is_spoilt(tmp_path: Path) -> None:
    machines = Machines("a", "b", "c", "d")
    with pytest.raises(NotRestoredError, match="after d"):
        tried_on(machines, tmp_path / "faults.json")
    assert len(machines.tried) == MACHINES == machines.ended


def test_a_machine_that_is_red_from_the_beginning_ends_it(tmp_path: Path) -> None:
    machines = Machines("a", dirty=1)
    with pytest.raises(MachineError, match="1 check failed before any fault"):
        tried_on(machines, tmp_path / "faults.json")
    assert machines.ended == 2


def test_a_host_that_was_observed_has_no_ami_to_inject_faults_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = foreign.distribution_driver(tmp_path / "root"), tmp_path / "out"
    assert cli.main(["observe", "--root", str(root), "-o", str(out)]) == 0
    assert cli.main(["faults", str(out)]) == 2
    assert "root: observed as a host or as files, not as an AMI" in capsys.readouterr().err
