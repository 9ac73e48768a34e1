"""The one door to a place: a region of AWS, or the region that `localregion` registers by an entry point.

Region          a place for the time of one session: open, prepare, publish_source_ami, images, make_room, close
AwsRegion       the region of a `--where` file
RegionProvider  what the entry point names: its Region, and what commands ask of it beside a session
provider        the one that is registered

Nothing past this door asks which of the two it is: what differs is a value of the place, or one of these methods
(tests/test_architecture.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.build import layering as layered_builds
    from gpu_ami.cloud import Cloud, Place, PlaceFile, Run
    from gpu_ami.cloud.preflight import Finding
    from gpu_ami.plan import Plan, cost
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument

ENTRY_POINTS = "gpu_ami.regions"
# How a build gets its machine, where the region can choose.
AUTO, SANDBOX, MACHINE = "auto", "sandbox", "machine"
BUILDERS = (AUTO, SANDBOX, MACHINE)


@dataclass(frozen=True)
class SessionRequest:
    """The place that a command wants to work in.

    where: a place on AWS; None: the region of this machine. agent_package: of the CloudWatch agent, which the region's
    mirror serves instead of its own. conditions: NAME or NAME:SEED (docs/conditions.md), "" for none. log_groups,
    deadlines: override the place's (None: not). builder: of BUILDERS. layering: of the image that is about to be built,
    for which the region prepares while it starts; None: of none.
    """

    where: Path | None = None
    agent_package: Path | None = None
    conditions: str = ""
    log_groups: str | None = None
    deadlines: Mapping[str, int] = field(default_factory=dict)
    builder: str = AUTO
    layering: layered_builds.Layering | None = None

    def applied_to(self, place: Place) -> Place:
        """The place with what the request overrides."""
        deadlines = {**place.deadlines, **self.deadlines}
        return replace(place, log_groups=self.log_groups or place.log_groups, deadlines=deadlines)


def _budget() -> cost.Budget:
    from gpu_ami.plan import cost

    return cost.Budget()


@dataclass(frozen=True)
class Session:
    """A region that is ready, its API, and this run.

    budget: --max-cost, and what the build has cost. builder_note: which kind of builder the region chose; "" where it
    has one kind.
    """

    place: Place
    cloud: Cloud
    run: Run
    progress: Progress
    region: Region
    budget: cost.Budget = field(default_factory=_budget)
    builder_note: str = ""


class Region(Protocol):
    """A place for the time of one session. name: of the place, known before it is open; file: that of --where."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> PlaceFile | None: ...

    @property
    def images(self) -> Path | None:
        """The folder of the region's AMIs where they are files, <images>/<AMI>/disk.raw; None elsewhere."""

    def open(self, run: Run, progress: Progress) -> Session:
        """Makes the region ready for a run. UsageError, CloudError: it cannot be used, with every reason found."""

    def prepare(self, plan: PlanDocument) -> None:
        """Has the plan's packages ready where the region serves packages."""

    def publish_source_ami(self, plan: PlanDocument) -> None:
        """Has the AMI that the plan builds on ready where the region makes such AMIs."""

    def require_programs(self, architecture: str) -> None:
        """GpuAmiError: programs of images of this architecture cannot run here. Asked where there are images."""

    def note_use(self, ami: str, out: Path) -> None:
        """An output folder uses the AMI: it stays while a document there names it."""

    def make_room(self, out: Path) -> None:
        """Removes images that nothing needs before a build into an output folder."""

    def close(self) -> None:
        """Ends what `open` started, also if that failed. May be called twice."""


class AwsRegion:
    """The region of a `--where` file. UsageError: a mistake in the file, or an option that has no meaning on AWS."""

    def __init__(self, request: SessionRequest) -> None:
        from gpu_ami.cloud import load_place, with_session_credentials

        if request.where is None:
            raise ValueError("a region of AWS is named by a file")
        misplaced = {
            "--builder sandbox is": request.builder == SANDBOX,
            "--agent-package is": request.agent_package is not None,
            "--conditions are": bool(request.conditions),
        }
        for option in (option for option, given in misplaced.items() if given):
            its = "they have" if option.endswith("are") else "it has"
            raise UsageError(f"{option} of the local region; {its} no meaning with --where")
        self._place = request.applied_to(with_session_credentials(load_place(request.where)))

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def file(self) -> PlaceFile | None:
        return self._place.file

    @property
    def images(self) -> Path | None:
        return None

    def open(self, run: Run, progress: Progress) -> Session:
        from gpu_ami.cloud import Cloud

        cloud = Cloud(self._place, progress.note)
        examine(cloud, progress)
        return Session(self._place, cloud, run, progress, self)

    def prepare(self, plan: PlanDocument) -> None:
        """AWS's instances install from the vendors' hosts."""

    def publish_source_ami(self, plan: PlanDocument) -> None:
        """AWS has the AMIs that plans build on."""

    def require_programs(self, architecture: str) -> None:
        """No image is read here."""

    def note_use(self, ami: str, out: Path) -> None:
        """AMIs of AWS stay until they expire."""

    def make_room(self, out: Path) -> None:
        """Images take no space of this host."""

    def close(self) -> None:
        """Nothing runs here."""


def examine(cloud: Cloud, progress: Progress) -> None:
    """The preflight of a place, where it answers one. UsageError, CloudError: every error that it found."""
    from gpu_ami.cloud import preflight

    if cloud.place.answers_preflight:
        with progress.stage(f"preflight {cloud.place.name}"):
            require_no_error(preflight.examine(cloud), progress)


def require_no_error(findings: Sequence[Finding], progress: Progress) -> None:
    """Notes the warnings of a preflight. UsageError, CloudError: every error that it found."""
    from gpu_ami.cloud import preflight

    for finding in findings:
        if finding.level is preflight.Level.WARNING:
            progress.note(str(finding))
    preflight.require(findings)


@dataclass(frozen=True)
class Prerequisite:
    """One thing that this machine needs. needed_for: who has no recipe of arm64 needs nothing for them.

    found: for people; of a program also its path, and of Packer its version and plugins ("" and () if not known).
    """

    name: str
    ok: bool
    found: str
    remedy: str
    needed_for: Annotated[str, ("every build", "the local region", "recipes of arm64")]
    path: str = ""
    version: str = ""
    plugins: tuple[str, ...] = ()

    @property
    def is_always_needed(self) -> bool:
        """Whether the machine is incomplete without it, whatever it builds."""
        return self.needed_for in ("every build", "the local region")


class RegionProvider(Protocol):
    """What the entry point names. commands: module of each command of its own. json_types: of what these print."""

    name: str
    commands: Mapping[str, str]

    def json_types(self) -> Mapping[str, Any]: ...

    def region(self, request: SessionRequest) -> Region:
        """UsageError: an extra of the package is not installed, or what was asked for is not possible."""

    def place(self) -> Place:
        """The place as a plan needs it; nothing is started. It has an endpoint while the region is up."""

    def running(self) -> Place | None:
        """The place if the region is up."""

    def hold(self, progress: Progress) -> Place:
        """The place of the region, which stays up while this process runs. UsageError: it is not up."""

    def clean_leftovers(self) -> list[str]:
        """Removes what a killed region left; a line for each. Does nothing while it is up."""

    def require_base_image(self, plan: PlanDocument) -> None:
        """UsageError: the region has no base image for the plan."""

    def prerequisites(self) -> list[Prerequisite]:
        """What this machine needs, and lacks; starts nothing."""

    def missing_packages(self, findings: Sequence[Prerequisite]) -> list[str]:
        """Debian packages that bring what is missing."""

    def agent_version(self, package: Path) -> str:
        """The version of a CloudWatch agent's .deb."""

    def download_agent(self, facts: Mapping[str, Any], progress: Progress) -> Path:
        """The vendor's agent, downloaded and verified. facts: URL, key and fingerprint."""

    def mirrored(
        self, plans: Sequence[PlanDocument], progress: Progress
    ) -> AbstractContextManager[Callable[[str], str]]:
        """Where the sources of these plans are found from this host while the block runs: a function of their URLs."""

    def require_module(self, plan: Plan) -> None:
        """UsageError: the plan has no driver whose module can be built here, or this is not root."""

    def build_module(self, plan: Plan, progress: Progress) -> dict[str, Any]:
        """What DKMS makes of the plan's driver on its base image: a row of distribution_drivers.yml."""


@functools.cache
def provider() -> RegionProvider:
    """The region of this machine. UsageError: none is registered."""
    from importlib.metadata import entry_points

    found = list(entry_points(group=ENTRY_POINTS)) or _of_the_checkout()
    if not found:
        hint = "install gpu-ami again, or name a place on AWS: --where FILE"
        raise UsageError(f"no region is registered (entry points {ENTRY_POINTS})", hint=hint)
    loaded: RegionProvider = found[0].load()
    return loaded


def _of_the_checkout() -> list[Any]:
    """The entry points of pyproject.toml: a checkout that was installed before it had them need not be again."""
    import tomllib
    from importlib.metadata import EntryPoint

    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if not file.is_file():
        return []
    declared = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
    return [EntryPoint(name, value, ENTRY_POINTS) for name, value in declared.get(ENTRY_POINTS, {}).items()]


def running_place(where: Path | None) -> Place | None:
    """The place of a `--where` file; else the region of this machine if it is up. Nothing is started."""
    if where is None:
        return provider().running()
    from gpu_ami.cloud import load_place

    return load_place(where)


def choose(request: SessionRequest) -> Region:
    """The region that a request names."""
    return AwsRegion(request) if request.where else provider().region(request)
