"""How faults are tried: what runs, what is reverted, and when a machine is no longer good. The machine is a fake."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.faults import trials as fault_trials
from gpu_ami.faults.catalogue import CleanProof, Fault, Trial
from gpu_ami.faults.trials import FaultSession, NotRestoredError
from gpu_ami.progress import Progress
from gpu_ami.validate import Proof, Target
from validator.results import FAIL, PASS, CheckRecord, Verdict, WaiverRecord, WaiverState
from validator.transport.errors import ConnectionDropped

CHECKS = ["boot::test_a", "logs::test_arrives[raw]", "logs::test_arrives[json]", "logs::test_alone", "xid::test_xid"]
TARGET = Target("ssh://admin@127.0.0.1:2222", "g5.12xlarge")


def fault(**fields: Any) -> Fault:
    known = {"id": "x", "description": "b", "inject": "break it", "revert": "mend it", "caught_by": "boot::test_a"}
    return Fault(**(known | fields))


@dataclasses.dataclass
class Machine:
    """A machine on which a script breaks something: script → the checks that are red from then on."""

    breaks: dict[str, set[str]]
    fails: dict[str, BaseException | int] = dataclasses.field(default_factory=dict)
    red: set[str] = dataclasses.field(default_factory=set)
    scripts: list[str] = dataclasses.field(default_factory=list)
    options: list[list[str]] = dataclasses.field(default_factory=list)
    checks: list[str] = dataclasses.field(default_factory=lambda: list(CHECKS))

    def run(self, command: str, timeout: float, input: bytes) -> Any:
        assert command == "sudo -n sh -s"
        text = input.decode().removeprefix("set -e\n")
        self.scripts.append(text)
        failure = self.fails.get(text, 0)
        if isinstance(failure, BaseException):
            raise failure
        self.red = self.breaks.get(text, self.red)
        return SimpleNamespace(rc=failure, stdout=b"", stderr=b"sh: 1: no such luck\n")

    def check(self, proof: Proof, target: Target, *, options: Sequence[str] = ()) -> Any:
        self.options.append([*proof.options.validator_options, *options])
        return SimpleNamespace(checks=[a_record(name, FAIL if name in self.red else PASS) for name in self.checks])


def a_record(name: str, verdict: str, message: str = "it is") -> CheckRecord:
    return CheckRecord(name, name.partition("::")[0], "T1", "", Verdict(verdict), message=message)


@pytest.fixture
def machine() -> Machine:
    return Machine({"break it": {"boot::test_a"}, "mend it": set()})


@pytest.fixture
def session(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FaultSession:
    monkeypatch.setattr(Proof, "check", lambda proof, target, options=(): machine.check(proof, target, options=options))
    monkeypatch.setattr(FaultSession, "connect", lambda session: machine)
    made = FaultSession(Proof({"telemetry": {"interval_s": 10}}, None, None, tmp_path, Progress("quiet")), TARGET)
    assert dataclasses.replace(made.prove("first"), seconds=0.0) == CleanProof("first", len(CHECKS), 0.0)
    return made


def test_a_fault_is_injected_judged_and_reverted(session: FaultSession, machine: Machine) -> None:
    trial = session.try_one(fault())
    assert (trial.outcome, trial.red, trial.message) == ("detected", ("boot::test_a",), "it is")
    assert machine.scripts == ["break it", "mend it"]


def test_checks_of_a_node_run_for_faults_that_they_alone_see(
    session: FaultSession, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, passes = "node_in_slurm::test_munge", list[list[str]]()

    def run_checks(_: Proof, target: Target, folder: Path, options: list[str]) -> Any:
        passes.append(options)
        assert folder.name == "node"
        return SimpleNamespace(checks=(a_record(name, FAIL if "boot::test_a" in machine.red else PASS),))

    monkeypatch.setattr(Proof, "run_checks", run_checks)
    session.join = tmp_path / "join.json"
    assert len(session.prove("again").red) == 0 and name in session.known and len(passes) == 1
    assert session.try_one(fault()).outcome == "detected" and len(passes) == 1, "no check of a node sees it"
    trial = session.try_one(fault(caught_by=name, also=("boot::test_a",)))
    assert (trial.outcome, trial.red) == ("detected", (name, "boot::test_a"))
    assert f"--join={tmp_path / 'join.json'}" in passes[1] and "not live" not in passes[1]


def test_what_cannot_be_injected_is_reverted(session: FaultSession, machine: Machine) -> None:
    machine.fails = {"break it": 1}
    trial = session.try_one(fault())
    assert trial.outcome == "not injected"
    assert "no such luck" in trial.message
    assert machine.scripts == ["break it", "mend it"]


def test_a_lost_connection_is_a_fault_not_injected(session: FaultSession, machine: Machine) -> None:
    machine.fails = {"break it": ConnectionDropped("it went away", "")}
    assert session.try_one(fault()).outcome == "not injected"


def test_what_cannot_be_reverted_is_said(session: FaultSession, machine: Machine) -> None:
    machine.fails = {"mend it": 1}
    trial = session.try_one(fault())
    assert (trial.outcome, trial.red) == ("not reverted", ("boot::test_a",))
    assert "no such luck" in trial.message


def test_an_interrupt_reverts_nothing(session: FaultSession, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Proof, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.try_one(fault())
    assert machine.scripts == ["break it"]  # who launched the machine ends it


@pytest.mark.parametrize("fields", [{"caught_by": "efa::test_a"}, {"instance_type": "p4d.*"}])
def test_a_fault_that_does_not_apply_is_out_of_scope(
    session: FaultSession, machine: Machine, fields: dict[str, str]
) -> None:
    assert session.try_one(fault(**fields)).outcome == "out of scope"
    assert not machine.scripts


def test_a_fault_of_what_the_machine_lacks_is_out_of_scope(session: FaultSession, machine: Machine) -> None:
    asked = fault(applies="has it")
    machine.fails = {"has it": 1}
    trial = session.try_one(asked)
    assert (trial.outcome, trial.message) == ("out of scope", "the machine lacks what it is about: has it")
    assert [trial.outcome for trial in session.try_all([asked, fault(id="y")], lambda proof: None, together=True)] == [
        "out of scope",
        "detected",
    ]
    assert machine.scripts.count("has it") == 1 and machine.scripts.count("break it") == 1

    machine.fails = {}
    assert session.try_one(dataclasses.replace(asked, id="z")).outcome == "detected"

    machine.fails = {"has it": ConnectionDropped("it went away", "")}
    with pytest.raises(MachineError, match="it went away"):
        session.try_one(dataclasses.replace(asked, id="another"))


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ["-m", "not live"]),
        ({"live": True}, []),
        ({"also": ("boot::*",)}, ["-m", "not live"]),
        ({"also": ("logs::*",)}, ["-m", "not live", "-k", "not (test_alone or test_arrives)"]),
        ({"caught_by": "logs::test_arrives", "also": ("logs::*",)}, ["-m", "not live", "-k", "not (test_alone)"]),
    ],
)
def test_a_trial_runs_what_can_tell_something(
    session: FaultSession, fields: dict[str, Any], options: list[str]
) -> None:
    assert session.options(fault(**fields)) == ["--no-evidence", "--arrival-seconds=70", *options]


def trials(session: FaultSession, *faults: Fault) -> tuple[list[Trial], list[CleanProof]]:
    proofs: list[CleanProof] = []
    return list(session.try_all(faults, proofs.append)), proofs


def test_a_clean_proof_ends_the_faults_that_can_be_reverted(session: FaultSession, machine: Machine) -> None:
    lasting = fault(id="z", inject="stain it", revert="true", last=1)
    machine.breaks["stain it"] = {"boot::test_a"}
    tried, proofs = trials(session, fault(), fault(id="y"), fault(id="other", caught_by="efa::test_a"), lasting)
    assert [trial.outcome for trial in tried] == ["detected", "detected", "out of scope", "detected"]
    assert [(proof.when, dict(proof.red)) for proof in proofs] == [("after 2 faults", {})]
    assert machine.scripts[-2:] == ["stain it", "true"]


def test_a_machine_that_stays_broken_ends_the_trials(session: FaultSession, machine: Machine) -> None:
    machine.breaks |= {"break it": {"logs::test_alone"}, "mend it": {"logs::test_alone"}}
    proofs: list[CleanProof] = []
    rest = session.try_all([fault(), fault(id="y")], proofs.append)
    assert next(rest).outcome == "wrong check"
    with pytest.raises(NotRestoredError, match="not as it was before: after x") as caught:
        next(rest)
    assert caught.value.details == ("logs::test_alone: it is",)
    assert proofs[0].red == {"logs::test_alone": "it is"}


def test_a_missed_fault_is_followed_by_a_clean_proof(session: FaultSession, machine: Machine) -> None:
    machine.breaks = {}
    tried, proofs = trials(session, fault())
    assert [trial.outcome for trial in tried] == ["missed"]
    assert [proof.when for proof in proofs] == ["after x", "after 1 faults"]


def test_a_waived_check_is_no_false_alarm_and_shows_no_fault(
    session: FaultSession, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiver = WaiverRecord("logs::test_alone", "ours listens", "team", "2027-01-31", {}, WaiverState.USED)
    failing = dataclasses.replace(a_record("logs::test_alone", FAIL), waived=waiver)

    def check(_proof: Proof, _target: Target, options: Sequence[str] = ()) -> Any:
        return SimpleNamespace(checks=[failing, a_record("boot::test_a", FAIL if machine.red else PASS)])

    monkeypatch.setattr(Proof, "check", check)
    assert session.prove("again").red == {}
    assert session.try_one(fault()).outcome == "detected"
    assert session.try_one(fault(id="y", caught_by="logs::test_alone")).outcome == "out of scope"


B = {"id": "b", "inject": "break b", "revert": "mend b", "caught_by": "logs::test_alone"}
C = {"id": "c", "inject": "break c", "revert": "mend c", "caught_by": "boot::test_c"}
D = {"id": "d", "inject": "cp a /run/kept", "revert": "mend d", "caught_by": "boot::test_d"}
E = {"id": "e", "inject": "mv a /run/kept", "revert": "mend e", "caught_by": "boot::test_e"}


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ([{}, C], [["x", "c"]]),
        ([{}, C | {"caught_by": "boot::test_a"}], [["x"], ["c"]]),
        ([{}, C | {"also": ("boot::test_*",)}], [["x"], ["c"]]),
        ([D, E, {}], [["d", "x"], ["e"]]),
        ([{}, C | {"alone": True}, D], [["x", "d"], ["c"]]),
        (
            [D | {"inject": "mount --bind /a /usr/bin/daemon"}, E | {"inject": "systemctl stop daemon"}, {}],
            [["d", "x"], ["e"]],
        ),
        ([{}, B, C], [["x", "c"], ["b"]]),
        ([{}, C | {"live": True}, D], [["x", "d"], ["c"]]),
        ([{}, C | {"caught_by": "efa::test_a"}, D], [["x", "d"], ["c"]]),
        ([{}, C | {"caught_by": "inventory::test_i"}, D], [["x", "d"], ["c"]]),
    ],
)
def test_what_cannot_be_told_apart_is_not_tried_together(
    session: FaultSession, fields: list[dict[str, Any]], groups: list[list[str]]
) -> None:
    session.known += ["boot::test_c", "boot::test_d", "boot::test_e", "inventory::test_i"]
    grouped = session.groups([fault(**each) for each in fields])
    assert sorted([member.id for member in group] for group in grouped) == sorted(groups)


class Together(Machine):
    """Each plant adds what it breaks, each undo takes it away again."""

    def run(self, command: str, timeout: float, input: bytes) -> Any:
        before = set(self.red)
        done = super().run(command, timeout, input)
        text = input.decode().removeprefix("set -e\n")
        if done.rc:
            self.red = before
        elif text.startswith("mend"):
            self.red = before - self.breaks.get(text.replace("mend", "break"), set())
        else:
            self.red = before | self.breaks.get(text, set())
        return done


@pytest.fixture
def several(session: FaultSession, monkeypatch: pytest.MonkeyPatch) -> Together:
    made = Together({"break it": {"boot::test_a"}, "break c": {"xid::test_xid"}}, checks=[*CHECKS, "boot::test_c"])
    monkeypatch.setattr(Proof, "check", lambda proof, target, options=(): made.check(proof, target, options=options))
    monkeypatch.setattr(FaultSession, "connect", lambda session: made)
    return made


def together(session: FaultSession) -> tuple[dict[str, str], list[CleanProof]]:
    proofs: list[CleanProof] = []
    group = [fault(), fault(**(C | {"caught_by": "boot::test_c"}))]
    session.known.append("boot::test_c")
    return {trial.id: trial.outcome for trial in session.try_all(group, proofs.append, together=True)}, proofs


def test_several_are_detected_at_once(session: FaultSession, several: Together) -> None:
    session.known += ["boot::test_c"]
    several.breaks["break c"] = {"boot::test_c"}
    outcomes, proofs = together(session)
    assert outcomes == {"x": "detected", "c": "detected"}
    assert several.scripts == ["break it", "break c", "mend c", "mend it"]
    assert [proof.when for proof in proofs] == ["after 2 faults"]


def test_what_is_missed_among_several_is_tried_alone(session: FaultSession, several: Together) -> None:
    session.known += ["boot::test_c"]
    several.breaks["break c"] = set()
    outcomes, _ = together(session)
    assert outcomes == {"x": "detected", "c": "missed"}
    assert several.scripts[-2:] == ["break c", "mend c"]


def test_a_red_check_that_nobody_explains_has_all_tried_alone(session: FaultSession, several: Together) -> None:
    session.known += ["boot::test_c"]
    outcomes, _ = together(session)
    assert outcomes == {"x": "detected", "c": "wrong check"}
    assert several.scripts == ["break it", "break c", "mend c", "mend it", "break it", "mend it", "break c", "mend c"]


def test_an_agent_that_was_started_has_read_its_configuration_before_the_next_fault(
    session: FaultSession, several: Together
) -> None:
    several.breaks = {"break it": {"boot::test_a"}}
    stopped = fault(revert="rm /run/kept; systemctl start amazon-cloudwatch-agent")
    with pytest.raises(NotRestoredError):
        list(session.try_all([stopped, fault(revert="systemctl start other")], lambda _: None))
    reverted = [text for text in several.scripts if "start" in text]
    assert reverted[0].startswith(stopped.revert) and "amazon-cloudwatch-agent.toml" in reverted[0]
    assert reverted[1:] == ["systemctl start other"]


def test_the_half_that_nothing_surprises_is_not_tried_one_by_one(session: FaultSession, several: Together) -> None:
    names = [f"boot::test_{letter}" for letter in "pqrs"]
    session.known += names
    several.checks = [*CHECKS, *names]
    group = [
        fault(id=letter, inject=f"break {letter}", revert=f"mend {letter}", caught_by=f"boot::test_{letter}")
        for letter in "pqrs"
    ]
    several.breaks = {f"break {letter}": {f"boot::test_{letter}"} for letter in "pqrs"}
    several.breaks["break s"] = {"boot::test_s", "boot::test_a"}
    outcomes = {trial.id: trial.outcome for trial in session.try_all(group, lambda _: None, together=True)}
    assert outcomes == {"p": "detected", "q": "detected", "r": "detected", "s": "collateral"}
    tried = [text.removeprefix("break ") for text in several.scripts if text.startswith("break")]
    assert "".join(tried) == "pqrs" + "pq" + "rs" + "r" + "s"


def test_one_that_cannot_be_injected_has_all_tried_alone(session: FaultSession, several: Together) -> None:
    session.known += ["boot::test_c"]
    several.fails = {"break c": 1}
    outcomes, _ = together(session)
    assert outcomes == {"x": "detected", "c": "not injected"}


def test_a_failed_revert_keeps_the_results_of_the_others(session: FaultSession, several: Together) -> None:
    session.known += ["boot::test_c"]
    several.breaks["break c"] = {"boot::test_c"}
    several.fails = {"mend c": 1}
    trials: list[Trial] = []
    proofs: list[CleanProof] = []
    group = [fault(), fault(**(C | {"caught_by": "boot::test_c"}))]
    with pytest.raises(NotRestoredError, match="boot::test_c"):
        trials += session.try_all(group, proofs.append, together=True)
    assert several.scripts[-2:] == ["mend c", "mend it"]


def test_a_host_that_could_not_be_asked_shows_nothing(session: FaultSession, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"verdict": "UNPROVEN", "message": "transport error: it sent no SSH banner"}
    gone = SimpleNamespace(checks=[a_record(name, **fields) for name in CHECKS])
    monkeypatch.setattr(Proof, "check", lambda proof, target, options=(): gone)
    trial = session.try_one(fault())
    assert (trial.outcome, trial.message) == ("not tried", fields["message"])


def test_a_connection_is_made_again_after_it_was_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Machine] = []

    class Dropping(Machine):
        alive = True

        def close(self) -> None:
            self.alive = False

    def connect(_target: object) -> Machine:
        made.append(Dropping({}, {} if made else {"break it": ConnectionDropped("it went away", "")}))
        return made[-1]

    monkeypatch.setattr("validator.transport.ssh.connect", connect)
    with FaultSession(Proof({}, None, None, tmp_path, Progress("quiet")), TARGET) as session:
        with pytest.raises(MachineError, match="it went away"):
            session.restore_script("break it")
        session.restore_script("mend it")
        session.restore_script("mend it")
    assert [machine.scripts for machine in made] == [["break it"], ["mend it", "mend it"]]


def test_the_faults_lie_beside_the_checks() -> None:
    assert (fault_trials.folder() / "xid.yml").exists()


INVENTORY = ["inventory::test_units_are_declared", "inventory::test_packaged_files_are_unchanged"]


@pytest.mark.parametrize(
    ("caught_by", "skipped"),
    [
        ("boot::test_a", ["-k", "not (inventory)"]),
        (INVENTORY[0], ["-k", "not (test_packaged_files_are_unchanged)"]),
        (INVENTORY[1], []),
    ],
)
def test_checks_that_read_every_file_run_only_where_a_fault_names_them(
    session: FaultSession, caught_by: str, skipped: list[str]
) -> None:
    session.known += INVENTORY
    assert session.options(fault(caught_by=caught_by))[4:] == skipped


def test_a_group_runs_what_one_of_its_faults_needs(session: FaultSession) -> None:
    session.known += INVENTORY
    assert session.options(fault(caught_by=INVENTORY[0]), fault(caught_by=INVENTORY[1]))[4:] == []


@pytest.fixture
def as_found(session: FaultSession, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> FaultSession:
    """A machine of an AMI that others built: a finding that is always there, and one that the fault causes."""
    machine.breaks |= {"unhold": {"findings::not-held"}}

    def observe(_: FaultSession) -> dict[str, str]:
        return {name: "it is" for name in {"findings::nouveau"} | machine.red if name.startswith("findings::")}

    monkeypatch.setattr(FaultSession, "observe", observe)
    plan: Any = {"origin": "observed", "telemetry": {"interval_s": 10}}
    session.proof = dataclasses.replace(session.proof, plan=plan)
    session.prove("as found")
    return session


def test_a_finding_detects_a_fault_of_an_image_as_found(as_found: FaultSession) -> None:
    trial = as_found.try_one(fault(inject="unhold", caught_by="findings::not-held"))
    assert (trial.outcome, trial.red, trial.message) == ("detected", ("findings::not-held",), "it is")
    assert as_found.try_one(fault()).red == ("boot::test_a",), "findings are read for faults that they alone show"


def test_a_finding_that_was_there_before_shows_no_fault(as_found: FaultSession) -> None:
    trial = as_found.try_one(fault(caught_by="findings::nouveau"))
    assert (trial.outcome, trial.message) == ("out of scope", "findings::nouveau shows nothing on this machine")


def test_an_image_with_a_plan_has_no_findings(session: FaultSession) -> None:
    assert session.try_one(fault(caught_by="findings::not-held")).outcome == "out of scope"


def test_faults_with_one_finding_are_tried_one_after_the_other(as_found: FaultSession) -> None:
    faults = [fault(id=name, inject=f"rm /etc/{name}", caught_by="findings::not-held") for name in ("x", "y")]
    assert [[each.id for each in group] for group in as_found.groups(faults)] == [["x"], ["y"]]


@pytest.mark.parametrize(("metrics", "seconds"), [({}, 130), ({"force_flush_interval": 5}, 75)])
def test_an_agent_that_others_configured_has_its_own_time_to_send(
    as_found: FaultSession, metrics: dict[str, int], seconds: int
) -> None:
    plan: Any = {**(as_found.proof.plan or {}), "cloudwatch_agent": {"config": {"metrics": metrics}}}
    as_found.proof = dataclasses.replace(as_found.proof, plan=plan)
    assert f"--arrival-seconds={seconds}" in as_found.options(fault())
