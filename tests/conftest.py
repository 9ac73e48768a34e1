"""For every test: a home of its own, and no AWS account that could be met by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _apart(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if request.node.get_closest_marker("machine"):
        return  # machines share the home, and the base image in it, of whoever runs them
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The home that the code under test finds."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("GPU_AMI_HOME", str(folder))
    yield folder
