"""What a machine answers of its telemetry, what CloudWatch has of it, and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from gpu_ami import process
from gpu_ami.cloud import systems_manager
from gpu_ami.errors import GpuAmiError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud
    from gpu_ami.fleet.payload import Bundle
    from gpu_ami.recipes import PlanDocument
    from validator.results import CheckRecord, HostResults

# Heartbeats come every 60 s; the agent sends within 60 s of them; CloudWatch shows events within seconds.
BEHIND_SECONDS = 300.0
OK, SILENT, BEHIND, OTHER_PLAN, BROKEN, UNPROVEN = "ok", "silent", "behind", "other plan", "broken", "unproven"
_NEVER_BEGAN = (systems_manager.SILENT, systems_manager.UNDELIVERABLE, systems_manager.TIMED_OUT)


class FindingDocument(TypedDict):
    """A finding of gpu-ami-diagnose: what was found, and the kind of action."""

    level: Annotated[str, ("action", "watch")]
    text: str
    kind: str


class DiagnosisDocument(TypedDict):
    """What gpu-ami-diagnose found. exit_code: null where nothing is known of the machine's devices.

    findings: the first of `count`. why: what was not read, and the reason.
    """

    exit_code: int | None
    findings: list[FindingDocument]
    count: int
    why: str


class ConditionDocument(TypedDict):
    """A machine. plan, image, origin, agent, agent_version, parser: of the telemetry that it has.

    reason: why it is not ok. command: status of the command that asked it.
    """

    instance_id: str
    instance_type: str
    name: str
    state: Annotated[str, (OK, SILENT, BEHIND, OTHER_PLAN, BROKEN, UNPROVEN)]
    reason: str
    plan: str
    image: str
    origin: Annotated[str, ("", "fleet", "image", "incomplete")]
    agent: str
    agent_version: str
    parser: str
    command: Annotated[str, systems_manager.STATUSES]
    diagnosis: DiagnosisDocument


@dataclass(frozen=True)
class Condition:
    """One machine. state: ok, silent, behind, other plan, broken or unproven; reason: why it is not ok."""

    machine: systems_manager.FleetMachine
    outcome: systems_manager.Outcome
    state: str
    reason: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        machine = {"instance_id": self.machine.instance_id, "instance_type": self.machine.instance_type}
        names = ("plan", "image", "origin", "agent", "agent_version", "parser")
        told = {key: str(self.answer.get(key, "")) for key in names}
        return {**machine, "name": self.machine.name, "state": self.state, "reason": self.reason, **told,
                "command": asdict(self.outcome)["status"], "diagnosis": self.diagnosis}  # fmt: skip

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What gpu-ami-diagnose found on it: exit_code (None: unknown), findings, their count, why: what is unknown."""
        unknown: dict[str, Any] = {"exit_code": None, "findings": [], "count": 0, "why": "the machine did not answer"}
        return dict(self.answer.get("diagnosis", unknown))

    @property
    def findings(self) -> list[str]:
        """The diagnosis in lines; none where every probe was read and found nothing."""
        told = self.diagnosis
        lines = [f"{each['level']}: {each['text']} ({each['kind']})" for each in told["findings"]]
        more = int(told["count"]) - len(lines)
        lines += [f"and {more} more findings: run gpu-ami-diagnose on the machine"] if more > 0 else []
        return lines + ([f"not diagnosed: {told['why']}"] if told["why"] and self.answer else [])


def ask(
    cloud: Cloud,
    bundle: Bundle,
    machines: Sequence[systems_manager.FleetMachine],
    limits: systems_manager.Limits,
    plan: PlanDocument | None = None,
) -> list[Condition]:
    """The condition of each machine. plan: CloudWatch is asked, too, when each was heard of last. CloudError.

    A document that is there is run as it is, whatever plan it is of. Where there is none, a proof makes it; the status
    changes nothing, and says that it could not ask.
    """
    name = bundle.names.document
    if not systems_manager.has_document(cloud, name):
        if plan is None:
            reason = (
                f"not asked: there is no document {name} in {cloud.place.region}; `fleet attach` or `prove` makes it"
            )
            return [
                Condition(each, systems_manager.Outcome(systems_manager.SILENT), UNPROVEN, reason) for each in machines
            ]
        systems_manager.ensure_document(cloud, name, bundle.documents[name])
    # An error of one machine must not keep the others from being asked.
    unlimited = systems_manager.Limits(limits.max_concurrency, "100%", limits.delivery_seconds)
    outcomes = systems_manager.run(cloud, machines, name, {"action": "status"}, unlimited)
    return [judge(cloud, bundle, each, outcomes[each.instance_id], plan) for each in machines]


def judge(
    cloud: Cloud,
    bundle: Bundle,
    machine: systems_manager.FleetMachine,
    outcome: systems_manager.Outcome,
    plan: PlanDocument | None,
) -> Condition:
    """What its answer and CloudWatch say of one machine. What AWS refuses to tell makes it unproven."""
    answer = outcome.answer
    state, reason = condition_of_answer(outcome, answer, bundle.digest)
    if state == OK and plan is not None:
        try:
            state, reason = _of_cloudwatch(cloud, machine, plan)
        except GpuAmiError as error:
            state, reason = UNPROVEN, "; ".join([error.message, *error.details])
    return Condition(machine, outcome, state, reason, answer)


def condition_of_answer(outcome: systems_manager.Outcome, answer: Mapping[str, Any], digest: str) -> tuple[str, str]:
    if outcome.status in _NEVER_BEGAN:
        return SILENT, outcome.text
    if outcome.status == systems_manager.CANCELLED:
        return UNPROVEN, outcome.text
    if outcome.status != systems_manager.SUCCESS or not answer:
        return BROKEN, outcome.text or "the program on the machine printed no answer"
    if not answer["origin"]:
        return OTHER_PLAN, "nothing is attached to it"
    if answer["origin"] == "incomplete":
        return OTHER_PLAN, "an attachment did not complete: run `gpu-ami fleet attach` again, or detach"
    if answer["origin"] == "fleet" and answer["plan"] != digest:
        return OTHER_PLAN, f"it runs {answer['plan']} ({answer['image']}), expected {digest}"
    inactive = [f"{name} is {answer[name]}" for name in ("agent", "parser") if answer[name] != "active"]
    if inactive:
        return BROKEN, ", ".join(inactive)
    return _of_parser(answer.get("parser_status", {}))


def _of_parser(status: Mapping[str, Any]) -> tuple[str, str]:
    age, period = status.get("heartbeat_age_s"), float(status.get("heartbeat_period_s", 60))
    if age is None:
        return BROKEN, "the event parser has written no status"
    if age > 2 * period + 5:
        return BEHIND, f"the event parser's last heartbeat was {age:.0f} s ago, expected within {2 * period + 5:.0f} s"
    return OK, ""


def _of_cloudwatch(cloud: Cloud, machine: systems_manager.FleetMachine, plan: PlanDocument) -> tuple[str, str]:
    telemetry = plan["telemetry"]
    group, stream = telemetry["json_log_group"], telemetry["log_stream"].replace("{instance_id}", machine.instance_id)
    newest = systems_manager.newest_event(cloud, group, stream)
    if newest is None:
        return SILENT, f"log group {group} has no event of the last day in stream {stream}"
    age = time.time() - newest
    if age > BEHIND_SECONDS:
        return (
            BEHIND,
            f"its newest event in log group {group} is {age:.0f} s old, expected at most {BEHIND_SECONDS:.0f} s",
        )
    return OK, ""


_LEFT_OUT = (
    "test_kernel_xid_arrives_once", "test_real_fault_arrives", "test_kernel_ring_is_large_enough",
    "test_agent_is_the_planned_version", "test_agent_does_not_restart", "test_parser_does_not_restart",
    "test_agent_log_has_no_error", "test_parser_survives_the_proof",
)  # fmt: skip
_MODULES = ("cloudwatch_agent", "event_parser", "logs", "metrics", "neuron_monitor", "test_drill_")
SELECTION = f"({' or '.join(_MODULES)}) and not ({' or '.join(_LEFT_OUT)})"
# Without these nothing is known of a machine; other checks may have nothing to look at (a log without an event).
REQUIRED = (
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
        required = (*REQUIRED, next((name for name in _DRILLS if name in verdicts), _DRILLS[0]))
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
    with process.job_pool(max(1, at_a_time), "machine") as submit:
        return [job.result() for job in [submit(_prove, each, check) for each in conditions]]


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
