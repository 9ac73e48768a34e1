"""One command on many machines: real output, and refusals that blame no machine."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud.fleet import Limits, Outcome, Selection, machines, run_command
from gpu_ami.errors import CloudError
from localregion.backends import Refused
from tests.fleet.service_machines import Fleet

ALL = Selection(tags={"fleet": "train"})
SAY = {
    "schemaVersion": "2.2",
    "parameters": {"code": {"type": "String"}},
    "mainSteps": [
        {
            "action": "aws:runShellScript",
            "name": "says",
            "inputs": {"runCommand": ['echo \'{"is": "here"}\'', "echo broken >&2", "exit {{ code }}"]},
        }
    ],
}


def run(in_service: Fleet, code: str = "0", **more: Any) -> dict[str, Outcome]:
    run_command.ensure_document(in_service.cloud, "say", SAY)
    found = machines.find(in_service.cloud, ALL)
    return run_command.run(in_service.cloud, found, "say", {"code": code}, Limits("5", "100%", 30), **more)


def test_each_machine_has_its_own_outcome(in_service: Fleet) -> None:
    fine, silent = in_service.add(), in_service.add(start=False)
    in_service.wait()
    seen: list[tuple[int, int]] = []
    outcomes = run(in_service, on_update=lambda done, total: seen.append((done, total)))
    assert outcomes[fine.instance_id].answer == {"is": "here"} and outcomes[silent.instance_id].status == "Silent"
    assert seen[-1] == (2, 2)
    failed = run(in_service, "7")[fine.instance_id]
    assert (failed.status, failed.text, failed.code) == ("Failed", "broken", 7) and failed.answer == {}


def test_a_throttled_look_is_repeated(in_service: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    in_service.add()
    in_service.wait()
    monkeypatch.setattr(run_command, "_invocations", throttled(run_command._invocations))
    assert [outcome.status for outcome in run(in_service).values()] == ["Success"]


def throttled(plain: Any) -> Any:
    """As the client answers when botocore's own attempts are used up: the first look of a command is empty."""
    looks = iter([[]])
    return lambda *arguments: next(looks, None) or plain(*arguments)


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
def test_a_refused_command_is_no_machine_s_fault(in_service: Fleet, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_service.add()
    in_service.wait()
    service = in_service.world.systems_manager
    plain = service.answer

    def refuse(name: str, *arguments: object) -> object:
        if name == "ssm:SendCommand":
            raise Refused(code, "no")
        return plain(name, *arguments)

    monkeypatch.setattr(service, "answer", refuse)
    with pytest.raises(CloudError, match=code) as caught:
        run(in_service)
    assert caught.value.exit_code == 4


def test_a_machine_that_never_ends_has_a_deadline(in_service: Fleet) -> None:
    machine = in_service.add()
    in_service.wait()
    slow = {**SAY, "mainSteps": [{**SAY["mainSteps"][0], "inputs": {"runCommand": ["sleep 2"]}}], "parameters": {}}  # type: ignore[dict-item,index]
    run_command.ensure_document(in_service.cloud, "slow", slow)
    found = machines.find(in_service.cloud, ALL)
    outcomes = run_command.run(in_service.cloud, found, "slow", {}, seconds=1.0)
    assert outcomes[machine.instance_id] == Outcome("TimedOut", "no result before the deadline")


@pytest.mark.parametrize(
    ("script", "calls"), [("echo here", 0), ("echo here; echo odd >&2", 1), ("yes | head -n 2000", 1)]
)
def test_output_that_the_list_has_is_not_asked_for_again(in_service: Fleet, script: str, calls: int) -> None:
    """A hundred machines and nine steps would be nine hundred calls, which AWS throttles."""
    machine = in_service.add()
    in_service.wait()
    run_command.ensure_document(in_service.cloud, "short", {**SAY, "parameters": {}, "mainSteps": [
        {"action": "aws:runShellScript", "name": "says", "inputs": {"runCommand": [script]}}]})  # fmt: skip
    asked: list[str] = []
    in_service.cloud.client("ssm").meta.events.register(
        "before-call.ssm.GetCommandInvocation", lambda **_: asked.append("call")
    )
    outcome = run_command.run(in_service.cloud, machines.find(in_service.cloud, ALL), "short", {}, Limits())
    assert len(asked) == calls
    said = outcome[machine.instance_id]
    assert (
        said.status == "Success"
        and "odd" not in said.text
        and len(said.text.split()) == (2000 if "yes" in script else 1)
    )
