"""For every test: a home of its own, no AWS account that could be met by mistake, Ctrl-C, and what counts as slow."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import socketserver
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore import endpoint
from werkzeug.serving import BaseWSGIServer

from gpu_ami import cli
from tests import aws_clients, json_documents, slow
from validator import cloudwatch

# jsonschema would make 38 grammars of IRIs with it, two seconds in each process; no schema here has an IRI.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
aws_clients.share()
# What `make test-all LINT=` hands to pytest: a `make` that a test starts would look for the outer one's jobs, and would
# leave out linters, too.
_OF_MAKE = (
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTEST_XDIST_AUTO_NUM_WORKERS"),
    *re.findall(r"(\w+)=", os.environ.get("MAKEFLAGS", "")),
)
# A server that is told to stop looks for that every 0.5 s if nothing else is said.
for _server in (socketserver.BaseServer, BaseWSGIServer):
    _server.serve_forever.__defaults__ = (0.02,)

# What a command prints under --json in any test is as its schema says.
cli.print_outcome = json_documents.checked(cli.print_outcome)

# A shell starts what runs in the background (`make test &`) with SIGINT ignored, and every program started from it
# inherits that: tests of Ctrl-C would wait for programs that never hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what comes out now into the golden files")


# Tests import checks, whose markers `-p validator.plugin` would bring.
_MARKERS_OF_CHECKS = (
    "accounted",
    "after_live(section)",
    "asked(option)",
    "beside_live",
    "live",
    "needs(what)",
    "offline",
    "planned(section)",
    "survives",
    "tier(name)",
    "without(section)",
)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--update-golden with -n: two processes would write one file; leave -n out")
    for name in _MARKERS_OF_CHECKS:
        config.addinivalue_line("markers", f"{name}: see validator/plugin.py, validator/checks/conftest.py")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses a fixture which starts a slow program is slow, and so is one of a sandbox or a machine."""
    for item in items:
        marked = any(item.get_closest_marker(name) for name in ("sandbox", "real", "machine"))
        if marked or slow.FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What collection has made lives until the end: the garbage collector need not look at it again."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much a fuzz has tried (record_property("tried", …)), also where workers ran it."""
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "tried":
                terminalreporter.write_line(str(value))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def _new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder whose name begins so. pytest's mktemp lists all folders of the session to find the next number:
    5 ms each after 6,000 tests, of which most would make two."""
    parent, numbers = tmp_path_factory.mktemp("t", numbered=False), itertools.count()

    def make(name: str) -> Path:
        folder = parent / f"{name}{next(numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    return make


@pytest.fixture
def tmp_path(_new_folder: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own. Its name is short: paths of sockets in it have at most 107 characters."""
    return _new_folder(re.sub(r"\W", "_", request.node.name)[:24])


@pytest.fixture(autouse=True)
def _apart(_new_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("machine"):
        return  # machines share the home, and the base image in it, of whoever runs them
    monkeypatch.setenv("GPU_AMI_HOME", str(_new_folder("home")))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("PCLUSTER", "")  # of another release than the recipes', or slow
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL", *_OF_MAKE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _slow_is_marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that is not marked slow starts none of the slow programs; stand-ins in a temporary folder may be."""
    if any(request.node.get_closest_marker(name) for name in ("slow", "machine", "sandbox")):
        yield
        return
    with slow.watch(tmp_path_factory.getbasetemp()) as started:
        yield
    if started:
        pytest.fail(f"starts {', '.join(sorted(set(started)))}: mark it slow (@pytest.mark.slow, tests/slow.py)")


@pytest.fixture(autouse=True)
def _retries_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's pauses before a retry are not what the fast tests are about.

    A stand-in that is not asked, because what it replaces has another name by now, costs seconds and not minutes.
    """
    if not any(request.node.get_closest_marker(name) for name in ("slow", "machine", "sandbox")):
        monkeypatch.setattr(endpoint, "time", SimpleNamespace(sleep=lambda _seconds: None, time=time.time))
        monkeypatch.setattr(cloudwatch, "RETRY_SECONDS", 20.0)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The home that the code under test finds."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("GPU_AMI_HOME", str(folder))
    yield folder
