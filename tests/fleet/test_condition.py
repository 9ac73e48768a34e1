"""Condition of running machines, and the documents that ask for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud.systems_manager import FleetMachine, Outcome
from gpu_ami.fleet import condition, payload
from localregion.backends.systems_manager.documents import AWS_DOCUMENTS, MAX_BYTES, steps
from tests.fleet.service_machines import write_plan

# What the answer of a machine, and CloudWatch, say of it.


GOOD = {
    "origin": "fleet", "plan": "sha256:1", "image": "x", "agent": "active", "parser": "active",
    "parser_status": {"heartbeat_age_s": 10, "heartbeat_period_s": 60},
}  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "answer", "state", "reason"),
    [
        (Outcome("Success"), GOOD, "ok", ""),
        (Outcome("Success"), {**GOOD, "origin": "image", "plan": ""}, "ok", ""),
        (Outcome("Silent", "its SSM Agent is silent"), {}, "silent", "its SSM Agent is silent"),
        (Outcome("Undeliverable", "Undeliverable"), {}, "silent", "Undeliverable"),
        (Outcome("TimedOut", "DeliveryTimedOut"), {}, "silent", "DeliveryTimedOut"),
        (Outcome("Cancelled", "Terminated"), {}, "unproven", "Terminated"),
        (Outcome("Failed", "python3: not found"), {}, "broken", "python3: not found"),
        (Outcome("Success", "no JSON"), {}, "broken", "no JSON"),
        (Outcome("Success"), {**GOOD, "origin": "", "plan": ""}, "other plan", "nothing is attached to it"),
        (
            Outcome("Success"), {**GOOD, "origin": "incomplete", "plan": ""}, "other plan",
            "an attachment did not complete: run `gpu-ami fleet attach` again, or detach",
        ),
        (Outcome("Success"), {**GOOD, "plan": "sha256:2"}, "other plan", "it runs sha256:2 (x), expected sha256:1"),
        (Outcome("Success"), {**GOOD, "agent": "failed"}, "broken", "agent is failed"),
        (Outcome("Success"), {**GOOD, "parser_status": {}}, "broken", "the event parser has written no status"),
        (
            Outcome("Success"), {**GOOD, "parser_status": {"heartbeat_age_s": 400.0}}, "behind",
            "the event parser's last heartbeat was 400 s ago, expected within 125 s",
        ),
    ],
)  # fmt: skip
def test_a_machine_is_judged_by_its_answer(outcome: Outcome, answer: Any, state: str, reason: str) -> None:
    assert condition.condition_of_answer(outcome, answer, "sha256:1") == (state, reason)


FINDING = {"level": "action", "text": "GPU 2: the GPU is lost", "kind": "stop_start"}


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ({"diagnosis": {"exit_code": 0, "findings": [], "count": 0, "why": ""}}, []),
        (
            {"diagnosis": {"exit_code": 1, "findings": [FINDING], "count": 3, "why": "efa: no answer"}},
            [
                "action: GPU 2: the GPU is lost (stop_start)",
                "and 2 more findings: run gpu-ami-diagnose on the machine",
                "not diagnosed: efa: no answer",
            ],
        ),
        ({}, []),  # silent: its state says so
    ],
)
def test_findings_of_the_diagnosis_are_lines(answer: Any, lines: list[str]) -> None:
    machine = FleetMachine("i-0123456789abcdef0", "g5.12xlarge", "running")
    told = condition.Condition(machine, Outcome("Success"), "ok", "", answer)
    assert told.findings == lines and set(told.diagnosis) == {"exit_code", "findings", "count", "why"}


# The documents of a plan: sizes, names, and what AWS reads in them.


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> payload.Bundle:
    return payload.bundle(write_plan(tmp_path_factory.mktemp("plan")))


def test_no_document_is_larger_than_systems_manager_takes(bundle: payload.Bundle) -> None:
    sizes = {name: len(json.dumps(content, indent=1).encode()) for name, content in bundle.documents.items()}
    assert max(sizes.values()) <= MAX_BYTES - 4096, sizes  # the rest is for what AWS adds


def test_references_are_to_the_document_s_own_parameters(bundle: payload.Bundle) -> None:
    for content in bundle.documents.values():
        used = set(re.findall(r"\{\{\s*(\S+?)\s*\}\}", json.dumps(content)))
        assert used <= set(content.get("parameters", {}))
        assert json.dumps(content).count("{{") == (1 if used else 0)


def test_machines_to_come_get_every_step_in_order(bundle: payload.Bundle) -> None:
    known = {**AWS_DOCUMENTS, **bundle.documents}
    planned = steps(bundle.documents[bundle.names.future], {}, known.__getitem__)
    files = [f"files{number}" for number in range(1, bundle.parts + 1)]
    assert [step.name for step in planned] == ["prepare", "agent", *files, "install", "configure", "gpus"]
    assert all(step.inputs.get("onFailure") == "exit" for step in planned if step.name != "configure")
    assert f"ssm:{bundle.names.gpu}" in "".join(planned[-1].inputs["runCommand"])


def test_parameters_are_the_plan_s_configuration(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    made = payload.bundle(plan)
    assert json.loads(made.parameters[made.names.base]) == plan.document["cloudwatch_agent"]["config"]
    assert json.loads(made.parameters[made.names.gpu]) == plan.document["cloudwatch_agent"]["gpu_config"]
    assert all(name.startswith("AmazonCloudWatch-") for name in made.parameters)


def test_names_are_those_that_systems_manager_takes(bundle: payload.Bundle) -> None:
    assert [name for name in bundle.documents if not re.fullmatch(r"[a-zA-Z0-9_.-]{3,128}", name)] == []
