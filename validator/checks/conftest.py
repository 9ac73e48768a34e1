"""Fixtures and options of the checks: the host as root and the golden file of its instance type."""

from pathlib import Path
from typing import Any

import pytest

from validator import selection
from validator.observe import unproven
from validator.plan_document import PlanDocument
from validator.plugin import RUN, as_root
from validator.probes import Declared, MachineUnderTest, SinceImage, footprints, hardware
from validator.probes import since_image as probe
from validator.probes.cluster import joined
from validator.transport import backend

# Systems on whose image files the account was seen to leave nothing unexplained (docs/file-account.md).
_ACCOUNTED = frozenset({("debian", "12"), ("debian", "13"), ("ubuntu", "24.04"), ("ubuntu", "22.04"), ("amzn", "2023")})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("validator")
    text = f"folder of golden files; the first that has the instance type counts (repeatable) [{hardware.FOLDER}]"
    group.addoption("--golden", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "folder of the checks of this image's files in the same proof: what has not changed since is not read again"
    group.addoption("--image-files", metavar="DIR", type=Path, help=text)
    group.addoption(
        "--account-files", action="store_true", help="explain every file on running machines and other systems, too"
    )
    group.addoption(
        "--provoke-xid", action="store_true", help="cause a real fault on an idle GPU and follow its Xid to CloudWatch"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "accounted: needs a complete file account, or --account-files")
    config.addinivalue_line("markers", "beside_live: no live check affects it, so it runs beside them")
    config.addinivalue_line("markers", "asked(option): deselected without this option")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects checks that cause a real fault, unless the option is set."""
    deselected = [item for item in items if not _is_asked(item, config)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]


def _is_asked(item: pytest.Item, config: pytest.Config) -> bool:
    if item.get_closest_marker("accounted") and not config.getoption("account_files") and not _is_accounted(item):
        return False
    return all(config.getoption(str(marker.args[0])) for marker in item.iter_markers("asked"))


def _is_accounted(item: pytest.Item) -> bool:
    """Whether rules and footprints are known to explain every file of an honest image of this kind."""
    run = item.config.stash.get(RUN, None)
    if run is None or run.plan is None:
        return False
    system = run.plan["os"]
    _, host = selection.host_of(item)
    offline = isinstance(getattr(host, "backend", None), backend.ImageBackend)
    return offline and (system["id"], system["version"]) in _ACCOUNTED


@pytest.fixture(scope="module")
def host(_testinfra_host: Any) -> Any:
    """The host, with commands run by one root shell."""
    return as_root(_testinfra_host)


@pytest.fixture(scope="session")
def log_group_suffix(request: pytest.FixtureRequest) -> str:
    """What this host's agent appends to the names of the planned log groups; "" outside of a proof's own machines."""
    return str(request.config.getoption("log_group_suffix"))


@pytest.fixture(scope="module")
def golden_file(machine: MachineUnderTest, request: pytest.FixtureRequest) -> hardware.Golden | None:
    """The golden file of the machine's instance type; None if there is none."""
    return hardware.find_golden(machine.instance_type, *request.config.getoption("golden"))


@pytest.fixture(scope="session")
def image_files(request: pytest.FixtureRequest) -> probe.ImageFiles | None:
    """What this proof's pass over the image's files has judged; None without one."""
    folder: Path | None = request.config.getoption("image_files")
    return probe.load(folder) if folder else None


@pytest.fixture(scope="session")
def machines_since_image() -> dict[Any, SinceImage]:
    """By host: each is asked once in a run."""
    return {}


@pytest.fixture(scope="module")
def since_image(
    _testinfra_host: Any,
    image_files: probe.ImageFiles | None,
    machines_since_image: dict[Any, SinceImage],
    request: pytest.FixtureRequest,
) -> SinceImage | None:
    """What the machine still has of its image; None where the image's files were not judged."""
    if image_files is None:
        return None
    machine = request.getfixturevalue("machine")
    return machines_since_image.setdefault(_testinfra_host, SinceImage(image_files, machine))


@pytest.fixture(scope="module")
def board(host: Any, plan: PlanDocument) -> None:
    """UNPROVEN, with the reason, on a machine whose boards the installed driver cannot drive."""
    hardware.require_board(host, plan)


@pytest.fixture(scope="session")
def cluster_file(request: pytest.FixtureRequest) -> joined.Joined:
    """What --join says."""
    path = request.config.getoption("join")
    return joined.read(path) if path else unproven("no cluster was asked for: --join")


@pytest.fixture(scope="session")
def declared_programs(request: pytest.FixtureRequest) -> Declared:
    """What the planned roles declare; nothing without a plan, as these checks need none."""
    plan = request.config.stash[RUN].plan
    return footprints.load(request.config.getoption("roles_path"), plan) if plan is not None else Declared((), ())
