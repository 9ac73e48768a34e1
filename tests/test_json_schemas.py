"""docs/schemas/: generated from the records, true of real output, and refusing what is none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_ami.json_schemas import SCHEMAS as GENERATED
from gpu_ami.json_schemas import schema_text
from gpu_ami.report import certificate, writer
from gpu_ami.report.document import Report
from tests.report.examples import a_host, a_report, everything, offline, unavailable_host

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"
REPORTS = [everything(), a_report(), a_report(a_host()), a_report(offline(hygiene="PASS"), unavailable_host())]


@pytest.mark.parametrize("kind", sorted(GENERATED.keys() - {"commands"}))
def test_committed_schema_is_that_of_the_records(kind: str) -> None:
    """If a change is intended: python -m gpu_ami.json_schemas NAME > docs/schemas/NAME.json."""
    assert (SCHEMAS / f"{kind}.json").read_text(encoding="utf-8") == schema_text(kind)


def mistakes(kind: str, data: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(GENERATED[kind]())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(data)]


@pytest.mark.parametrize("report", REPORTS)
def test_schema_holds_of_files_as_written(report: Report, tmp_path: Path) -> None:
    assert mistakes("report", json.loads(writer.write(report, tmp_path).read_text())) == []
    for path in certificate.certify(report).write(tmp_path)[:1]:
        assert mistakes("certificate", json.loads(path.read_text())) == []
    assert mistakes("certificate", certificate.certify(report).to_json()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "ERROR_"}, "is not one of"),
        ({"schema": "gpu-ami/report/1"}, "'gpu-ami/report/2' was expected"),
        ({"more": 1}, "'more' was unexpected"),
        ({"hosts": {}}, "is not of type 'array'"),
        ({"incomplete": None}, "is not of type 'string'"),
    ],
)
def test_schema_refuses_what_is_no_report(change: dict[str, Any], message: str) -> None:
    data = copy.deepcopy(everything().to_json()) | change
    assert message in "\n".join(mistakes("report", data))


def test_schema_refuses_a_check_without_its_verdict() -> None:
    data = everything().to_json()
    del data["hosts"][0]["checks"][0]["verdict"]
    assert mistakes("report", data) == ["$.hosts[0].checks[0]: 'verdict' is a required property"]
