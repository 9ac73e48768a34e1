"""The documents of a plan: sizes, names, and what AWS reads in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpu_ami.fleet import documents
from gpu_ami.local.backends.systems_manager.documents import AWS_DOCUMENTS, MAX_BYTES, steps
from tests.fleet.service_machines import write_plan


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> documents.Bundle:
    return documents.bundle(write_plan(tmp_path_factory.mktemp("plan")))


def test_no_document_is_larger_than_systems_manager_takes(bundle: documents.Bundle) -> None:
    sizes = {name: len(json.dumps(content, indent=1).encode()) for name, content in bundle.documents.items()}
    assert max(sizes.values()) <= MAX_BYTES - 4096, sizes  # the rest is for what AWS adds


def test_references_are_to_the_document_s_own_parameters(bundle: documents.Bundle) -> None:
    for content in bundle.documents.values():
        used = set(re.findall(r"\{\{\s*(\S+?)\s*\}\}", json.dumps(content)))
        assert used <= set(content.get("parameters", {}))
        assert json.dumps(content).count("{{") == (1 if used else 0)


def test_machines_to_come_get_every_step_in_order(bundle: documents.Bundle) -> None:
    known = {**AWS_DOCUMENTS, **bundle.documents}
    planned = steps(bundle.documents[bundle.names.future], {}, known.__getitem__)
    files = [f"files{number}" for number in range(1, bundle.parts + 1)]
    assert [step.name for step in planned] == ["prepare", "agent", *files, "install", "configure", "gpus"]
    assert all(step.inputs.get("onFailure") == "exit" for step in planned if step.name != "configure")
    assert f"ssm:{bundle.names.gpu}" in "".join(planned[-1].inputs["runCommand"])


def test_parameters_are_the_plan_s_configuration(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    made = documents.bundle(plan)
    assert json.loads(made.parameters[made.names.base]) == plan.document["cloudwatch_agent"]["config"]
    assert json.loads(made.parameters[made.names.gpu]) == plan.document["cloudwatch_agent"]["gpu_config"]
    assert all(name.startswith("AmazonCloudWatch-") for name in made.parameters)


def test_names_are_those_that_systems_manager_takes(bundle: documents.Bundle) -> None:
    assert [name for name in bundle.documents if not re.fullmatch(r"[a-zA-Z0-9_.-]{3,128}", name)] == []
