"""What our own checks share: the host as root, the golden file of its instance type, and options of theirs alone."""

from pathlib import Path
from typing import Any

import pytest

from validator import oracle
from validator.machine import MachineUnderTest
from validator.plugin import as_root


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("validator")
    group.addoption("--golden", metavar="DIR", type=Path, default=oracle.FOLDER, help="golden files [%(default)s]")
    group.addoption("--provoke-xid", action="store_true", help="provoke a real fault on an idle GPU, and follow it")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "asked(option): left out unless this option is given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What provokes something beyond a drill runs only where somebody asks for it."""
    left_out = [item for item in items if not _is_asked(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_asked(item: pytest.Item, config: pytest.Config) -> bool:
    return all(config.getoption(str(marker.args[0])) for marker in item.iter_markers("asked"))


@pytest.fixture(scope="module")
def host(_testinfra_host: Any) -> Any:
    """The host, through one root shell."""
    return as_root(_testinfra_host)


@pytest.fixture(scope="module")
def golden_file(machine: MachineUnderTest, request: pytest.FixtureRequest) -> oracle.Golden | None:
    """What was recorded of the machine's instance type; None where nobody has."""
    return oracle.find_golden(machine.instance_type, request.config.getoption("golden"))
