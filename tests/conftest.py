"""For every test: a home of its own, no AWS account that could be met by mistake, and Ctrl-C that is heard."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell starts what runs in the background (`make test &`) with SIGINT ignored, and every program started from it
# inherits that: tests of Ctrl-C would wait for programs that never hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what comes out now into the golden files")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--update-golden with -n: two processes would write one file; leave -n out")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


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
