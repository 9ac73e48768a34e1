"""plan.json: digest, reader, writer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.plan.document import Plan, canonical_json, digest_of
from gpu_ami.plan.resolution import make_plan
from tests.plan.conftest import AWS, DEBIAN, LOCAL


def test_digest_covers_everything_else() -> None:
    document = dict(make_plan(DEBIAN, AWS).document)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["digest"])
    for key in document:
        if key not in ("digest", "schema", "image"):
            assert digest_of({**document, key: "changed"}) != document["digest"], key
    assert digest_of(dict(reversed(document.items()))) == document["digest"]
    assert canonical_json({"b": "ü", "a": [1]}) == '{"a":[1],"b":"ü"}'


def test_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(DEBIAN, LOCAL)
    path = plan.write(tmp_path / "out" / "x", LOCAL)
    assert Plan.load(path).document == plan.document
    assert sorted(file.name for file in path.parent.iterdir()) == ["ansible.json", "packer.pkrvars.json", "plan.json"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"schema": "gpu-ami/plan/0"}', "expected schema 'gpu-ami/plan/1', got 'gpu-ami/plan/0'"),
        ('{"schema": "gpu-ami/plan/1", "digest": "sha256:0"}', "does not match its digest"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Plan.load(path)
    with pytest.raises(UsageError, match="no such file"):
        Plan.load(tmp_path / "other.json")
