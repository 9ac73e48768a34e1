"""The proof of machines in service: the telemetry's checks, over SSH, on every machine that answers and runs the plan.

Nothing is installed, restarted or rebooted. The only thing that a machine is made to do is a drill: a line of a process
in the kernel log, which arrives labelled as one (origin userland) and raises no alarm. Left out are checks of what
attach does not do (the kernel's command line, the agent's planned version), and those that a long service disturbs
(restarts of services in this boot, old errors in the agent's log).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from gpu_ami.errors import GpuAmiError
from gpu_ami.fleet.condition import BEHIND, BROKEN, OK, OTHER_PLAN, SILENT, UNPROVEN, Condition, ConditionDocument

if TYPE_CHECKING:
    from validator.results import CheckRecord, HostResults

_LEFT_OUT = (
    "test_kernel_xid_arrives_once", "test_real_fault_arrives", "test_kernel_ring_is_large_enough",
    "test_agent_is_the_planned_version", "test_agent_does_not_restart", "test_parser_does_not_restart",
    "test_agent_log_has_no_error", "test_parser_survives_the_proof",
)  # fmt: skip
_MODULES = ("cloudwatch_agent", "event_parser", "logs", "metrics", "neuron_monitor", "test_drill_")
SELECTION = f"({' or '.join(_MODULES)}) and not ({' or '.join(_LEFT_OUT)})"
# Without these nothing is known of a machine; other checks may have nothing to look at (a log without an event).
_REQUIRED = (
    "event_parser::test_parser_is_running_and_enabled", "event_parser::test_parser_has_a_heartbeat",
    "logs::test_file_arrives_in_its_stream[json_log]",
)  # fmt: skip
_DRILLS = ("xid::test_drill_is_labelled", "neuron_error::test_drill_is_labelled")  # of a plan: its accelerator's
PASS, FAIL = "PASS", "FAIL"
_VERDICTS = {OK: PASS, BEHIND: FAIL, OTHER_PLAN: FAIL, BROKEN: FAIL, SILENT: "UNPROVEN", UNPROVEN: "UNPROVEN"}


class MachineProofDocument(ConditionDocument):
    """A machine, and what was proven of it. checks: how many have each verdict."""

    verdict: Literal["PASS", "FAIL", "UNPROVEN"]
    checks: dict[str, int]
    reasons: list[str]


@dataclass(frozen=True)
class MachineProof:
    """One machine: its condition, the checks that were run on it, and why there are none."""

    condition: Condition
    checks: tuple[CheckRecord, ...] = ()
    error: str = ""
    not_judged: Sequence[str] = field(default=())

    @property
    def failures(self) -> list[str]:
        return [f"{each.id}: {each.first_line}" for each in self.checks if each.verdict == FAIL and not each.waived]

    @property
    def unproven(self) -> list[str]:
        """Required checks that did not pass, and checks that could not be carried out."""
        verdicts = {each.id: each for each in self.checks}
        required = (*_REQUIRED, next((name for name in _DRILLS if name in verdicts), _DRILLS[0]))
        wrong = [each for each in self.checks if each.verdict == "ERROR" and each.id not in required]
        named = [verdicts[name] for name in required if name in verdicts and verdicts[name].verdict != PASS]
        missing = [f"{name}: did not run" for name in required if self.checks and name not in verdicts]
        return [f"{each.id}: {each.first_line}" for each in (*wrong, *named) if each.verdict != FAIL] + missing

    @property
    def verdict(self) -> str:
        """PASS, FAIL or UNPROVEN: of the condition, and then of the checks."""
        of_condition = _VERDICTS[self.condition.state]
        if of_condition != PASS:
            return of_condition
        if self.failures:
            return FAIL
        return "UNPROVEN" if self.error or self.unproven else PASS

    @property
    def reasons(self) -> list[str]:
        return [text for text in (self.condition.reason, self.error) if text] + self.failures + self.unproven

    def to_json(self) -> dict[str, Any]:
        counts = {
            str(one): sum(each.verdict == one for each in self.checks) for one in {c.verdict for c in self.checks}
        }
        return {**self.condition.to_json(), "verdict": self.verdict, "checks": counts, "reasons": self.reasons}


Check = Callable[[Condition], "HostResults"]


def prove(conditions: Sequence[Condition], check: Check | None, at_a_time: int) -> list[MachineProof]:
    """The proof of every machine. check: runs the checks on one machine; None: its condition is all that is judged."""
    with ThreadPoolExecutor(max(1, at_a_time), thread_name_prefix="machine") as pool:
        return list(pool.map(lambda each: _prove(each, check), conditions))


def _prove(condition: Condition, check: Check | None) -> MachineProof:
    proof = MachineProof(condition)
    if condition.state != OK or check is None:
        return proof
    try:
        return replace(proof, checks=tuple(check(condition).checks))
    except GpuAmiError as error:  # the machine was not reached, or its checks did not end: no verdict on it
        partial = getattr(error, "results", None)
        return replace(proof, checks=tuple(partial.checks) if partial else (), error=str(error))


def exit_code(proofs: Sequence[MachineProof]) -> int:
    """0: every machine is proven; 1: one failed; 4: none failed, and one could not be judged."""
    verdicts = {each.verdict for each in proofs}
    return 1 if FAIL in verdicts else 4 if verdicts != {PASS} else 0
