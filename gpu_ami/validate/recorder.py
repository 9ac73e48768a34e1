"""Keeps report.json on disk while a proof runs, so that whatever ends the run leaves what was judged before.

Until the proof is complete, the report says that it is incomplete and why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.plan import cost
from gpu_ami.report import writer

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.progress import Progress
    from gpu_ami.report import HostReport, Report
    from validator.results import HostResults

RUNNING = "the proof had not completed when this report was written"
SAVE_SECONDS = 5.0


class HostRecord:
    """One host of a proof that runs: `report` is what is known so far.

    partial: reads the pass that is running. launched: when its instance was launched (time.monotonic()); None before.
    others: instances that were launched with it, for checks of several machines.
    """

    def __init__(self, report: HostReport, prices: Mapping[str, float] = cost.NO_PRICES) -> None:
        self.report, self._prices = report, prices
        self.partial: Callable[[], HostResults] | None = None
        self.launched: float | None = None
        self.others = 0
        self._others_ended: float | None = None
        self._ended: cost.MachineTime | None = None

    def update(self, **changes: object) -> None:
        """Replaces fields of the report."""
        self.report = replace(self.report, **changes)  # type: ignore[arg-type]

    @property
    def machine_time(self) -> cost.MachineTime | None:
        """How long its instance, and those launched with it, have run for this proof; None before the launch."""
        if self._ended or self.launched is None:
            return self._ended
        now = time.monotonic()
        of_others = self.others * ((self._others_ended or now) - self.launched)
        return cost.MachineTime(self.report.instance_type, now - self.launched + of_others, self._prices)

    def end_others(self) -> None:
        """The instances that were launched with it are terminated: their time ends here."""
        self._others_ended = time.monotonic()

    def count_time(self) -> None:
        """The instance is about to be terminated: its time ends here."""
        self._ended = self.machine_time
        self.report = self._with_cost(self.report)

    def _with_cost(self, report: HostReport) -> HostReport:
        used = self.machine_time
        if used is None:
            return report
        usd = None if used.usd is None else round(used.usd, 4)
        return replace(report, machine_seconds=round(used.seconds, 3), cost_usd=usd)

    @property
    def current(self) -> HostReport:
        """With the checks of the running pass that have ended, and what the machine has cost so far."""
        partial = self.partial
        return self._with_cost(self.report.with_checks(*partial().checks) if partial else self.report)


class Recorder:
    """The report of a proof that runs.

    assemble: makes the report of the hosts, with the reason why it is incomplete. Writing is repeated every few seconds
    within `recording`, and after each pass by whoever calls `save`.
    """

    def __init__(self, assemble: Callable[[Sequence[HostReport], str], Report], out: Path, progress: Progress) -> None:
        self.hosts: list[HostRecord] = []
        self._assemble, self._out, self._progress = assemble, out, progress
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reason = RUNNING
        self._error = ""

    def add(self, report: HostReport, prices: Mapping[str, float] = cost.NO_PRICES) -> HostRecord:
        """prices: of the place, for the cost of its instance."""
        self.hosts.append(HostRecord(report, prices))
        return self.hosts[-1]

    def save(self) -> Report:
        """Writes the report as it is now, and returns it.

        A disk that is full must not end the proof: it is noted, and tried again.
        """
        with self._lock:
            report = self._report()
            try:
                writer.write(report, self._out)
                self._error = ""
            except OSError as error:
                if not self._error:
                    self._progress.note(f"{self._out}: the report cannot be written yet: {error.strerror}")
                self._error = str(error.strerror)
            return report

    def _report(self) -> Report:
        return self._assemble([host.current for host in self.hosts], self._reason)

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Saves every few seconds; an error or Ctrl-C within the block is written into the report before it goes on."""
        saver = threading.Thread(target=self._save_regularly, name="save the report", daemon=True)
        self.save()
        saver.start()
        try:
            yield self
        except BaseException as error:
            self.interrupted(error)
            raise
        finally:
            self._ended.set()
            saver.join()

    def interrupted(self, error: BaseException) -> None:
        """Writes why the proof ends before its end."""
        if self._reason == RUNNING:
            self._reason = _reason(error)
        self.save()

    def _save_regularly(self) -> None:
        while not self._ended.wait(SAVE_SECONDS):
            self.save()

    def complete(self) -> Report:
        """The report of a proof that has come to its end, on disk. CloudError: it cannot be written."""
        self._reason = ""
        report = self.save()
        if self._error:
            raise CloudError(
                f"{self._out}: the report cannot be written: {self._error}", hint="free some space, and run it again"
            )
        return report


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "the run was interrupted"
    if isinstance(error, GpuAmiError):
        return f"the run ended early: {error.message}"
    return f"the run ended early: {type(error).__name__}: {error}"
