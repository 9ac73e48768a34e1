"""A folder of others: publication.json and certificate.json may hold anything, and end no command with a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.test_damaged_files import altered
from tests.publish.conftest import HOME, LATEST, OTHER, Account

ROW = {"name": "copy", "text": "copy it", "outcome": "done"}
REGIONS: dict[str, Any] = {
    "a number": 5,
    "a number as a region": [1],
    "a region's name is a list": [{"region": ["us-east-1"], "steps": [ROW]}],
    "steps are a number": [{"region": HOME, "steps": 1}],
    "a step is a text": [{"region": HOME, "steps": ["copy"]}],
    "a step's text is an object": [{"region": HOME, "steps": [ROW | {"text": {}}]}],
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_record_of_others_is_written_anew(name: str, account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    image = {"ami": account.images(HOME)[0]["ImageId"]}
    record = {"schema": "gpu-ami/publication/1", "state": "incomplete", "image": image}
    (out / "publication.json").write_text(json.dumps(record | {"regions": REGIONS[name]}))
    assert account.publish(out) == 0, capsys.readouterr()
    written = account.record(out)
    assert written["state"] == "published" and [row["region"] for row in written["regions"]] == [HOME, OTHER]
    assert all(step["text"] != ROW["text"] for row in written["regions"] for step in row["steps"])


@pytest.mark.parametrize("image", [None, [], {}, "x", {"name": ["demo"]}], ids=json.dumps)
def test_a_rollback_names_a_certificate_of_another_shape(
    image: Any, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    out = account.build()
    certificate = account.record(out, "certificate.json")
    (out / "certificate.json").write_text(json.dumps(certificate | {"image": image}))
    assert account.publish(out, "--to", "previous") == 2
    said = capsys.readouterr().err
    assert "certificate.json" in said and "Traceback" not in said, said
    assert LATEST not in account.parameters(HOME)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_altered_files_of_a_published_image(seed: int, account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command ends with one of its exit codes; what was published stays as it is."""
    out, source = account.build(), random.Random(seed)
    assert account.publish(out) == 0
    before = account.parameters(OTHER)
    for name in ("publication.json", "certificate.json"):
        document = account.record(out, name)
        (out / name).write_text(json.dumps(altered(document, source), default=str))
        for words in ((), ("--to", "previous"), ("--dry-run",)):
            code, said = account.publish(out, *words), capsys.readouterr()
            assert code in (0, 2, 6) and "Traceback" not in said.out + said.err, (words, said)
        (out / name).write_text(json.dumps(document))
    assert account.parameters(OTHER) == before


def test_a_rollback_record_of_others_is_not_read(account: Account) -> None:
    account.build()
    out = account.build(2)
    first = Path("out/demo-1")
    assert account.publish(first) == 0 and account.publish(out) == 0
    (out / "rollback.json").write_text('{"schema": "gpu-ami/publication/1", "image": 3, "regions": 4}')
    assert account.publish(out, "--to", "previous") == 0
    assert account.record(out, "rollback.json")["action"] == "rollback"
