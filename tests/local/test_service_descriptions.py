"""Each file of botocore's is read once, whichever session asks; one that is missing is asked for again."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

from gpu_ami.local import service_descriptions


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed for the whole process is set back."""
    monkeypatch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
    monkeypatch.setattr(service_descriptions, "_kept", {})


def test_a_file_is_read_once_a_process(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text('{"version": 3}')
    service_descriptions.read_once()
    first = JSONFileLoader().load_file(str(tmp_path / "endpoints"))
    (tmp_path / "endpoints.json").unlink()
    assert first == {"version": 3}
    assert JSONFileLoader().load_file(str(tmp_path / "endpoints")) is first


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    service_descriptions.read_once()
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) is None
    (tmp_path / "absent.json").write_text("{}")
    assert JSONFileLoader().load_file(str(tmp_path / "absent")) == {}
