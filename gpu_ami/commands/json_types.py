"""The type of what each command prints under `--json`: `gpu_ami.json_schemas` makes its schema from `RESULTS`.

Records that a command prints as they are have their types where they are made. Here are those of documents that are
put together from several, or that follow from what a person asked. Only `gpu_ami.json_schemas` and tests import this
module: it needs what the commands themselves import late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from gpu_ami import pipeline
from gpu_ami.build import ansible, image, layering
from gpu_ami.cloud import launch_templates, preflight, sweep, systems_manager
from gpu_ami.commands.facts_results import Facts
from gpu_ami.errors import ErrorDocument
from gpu_ami.events import catalogue, output
from gpu_ami.faults import catalogue as faults
from gpu_ami.fleet import condition
from gpu_ami.observe import observation
from gpu_ami.plan import BumpPolicy, Change, Move
from gpu_ami.progress import ProgressLine
from gpu_ami.publish import record
from gpu_ami.recipes import ExplainedValue, PlanDocument
from gpu_ami.region import Prerequisite
from gpu_ami.release import comparison, rebuild, verification
from gpu_ami.report import certificate, document
from gpu_ami.sources import SurveyDocument
from gpu_ami.telemetry import Runbook
from validator import tiers


class NewKey(TypedDict):
    """`key new`: the files of the key, and its id."""

    private: str
    public: str
    key_id: str


class PublicKey(TypedDict):
    """`key public`: the public key as PEM, and its id."""

    public: str
    key_id: str


class Same(TypedDict):
    """`diff --same`. compared: number of paths. expected: paths that differ between any two builds of a plan."""

    same: bool
    differences: list[comparison.Row]
    expected: list[rebuild.Expected]
    compared: int


class MachineOutcome(TypedDict):
    """What became of it on a machine. text: the machine's own words."""

    instance_id: str
    instance_type: str
    name: str
    status: Annotated[str, systems_manager.STATUSES]
    text: str


class FleetChange(TypedDict):
    """`fleet attach`, `fleet detach`. association: of --future, else empty."""

    plan: str
    association: str
    machines: list[MachineOutcome]


class FleetSteps(TypedDict):
    """`fleet attach --dry-run`."""

    dry_run: list[str]


class FleetStatus(TypedDict):
    """`fleet status`."""

    plan: str
    machines: list[condition.ConditionDocument]


class FleetProof(TypedDict):
    """`fleet prove`."""

    plan: str
    machines: list[condition.MachineProofDocument]


class FaultSummary(TypedDict):
    """A fault of `faults --list`."""

    id: str
    description: str
    caught_by: str


class SystemName(TypedDict):
    """An operating system."""

    id: str
    version: str


class RecipeSummary(TypedDict):
    """A recipe. versions: of its components."""

    image: str
    description: str
    os: SystemName
    end_of_life: bool
    node: dict[str, str]
    architecture: Literal["x86_64", "arm64"]
    versions: dict[str, str]
    instance_types: list[str]
    roles: list[str]


class BrokenRecipe(TypedDict):
    """A recipe that does not resolve, and why."""

    image: str
    error: str
    end_of_life: bool


class BuiltModule(TypedDict, total=False):
    """`sources --build`: a row of `builds` in variables/facts/distribution_drivers.yml."""

    kernel: str
    driver: str
    flavour: str
    builds: bool
    error: str
    source: str
    date: str


class BumpDocument(TypedDict):
    """A recipe. before and after of a move are equal where the component stays; why then names the conflict."""

    image: str
    policy: BumpPolicy
    written: bool
    moves: list[Move]
    notes: list[str]


class Remark(TypedDict):
    """What is said of keys of the template or the recipe."""

    keys: list[str]
    message: str


class ImportedPlace(TypedDict, total=False):
    """The place of --where-file."""

    region: str
    subnet_id: str
    security_group_ids: list[str]
    profile: str
    instance_profile: str
    kms_key_id: str
    ssh_interface: str
    ssh_port: int
    source_ami: str


class ImportDocument(TypedDict):
    """The recipe (docs/recipes.md), and what keeps it from resolving."""

    recipe: dict[str, Any]
    place: ImportedPlace
    remarks: list[Remark]
    conflicts: list[str]


class AlarmSummary(TypedDict):
    """An alarm of `runbook` without a word."""

    name: str
    kind: str
    urgency: str
    title: str


class AlarmPattern(TypedDict):
    """`runbook --pattern`: the filter of an alarm's log events."""

    name: str
    pattern: str


class TelemetryFiles(TypedDict):
    """The plan's image, and the files that were written."""

    image: str
    files: list[str]


class DashboardPage(TypedDict):
    """`dashboard --page`: the file that was written."""

    file: str


class DashboardFile(DashboardPage):
    """The file of the dashboard's JSON, and how many widgets it has."""

    widgets: int


class AgentFinding(TypedDict):
    """A defect of an agent configuration: error (agent or service reject it or ignore a part) or warning."""

    file: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    line: int | None


class CheckSummary(TypedDict):
    """A check, and what it promises."""

    id: str
    role: str
    tier: Annotated[str, tuple(tier.name for tier in tiers.TIERS)]
    needs: str
    promise: str
    tried_on: Literal["hardware", "transcript", "replica", "own"]
    tried_with: list[str]


class RecordedTranscript(TypedDict):
    """The file that record --transcript wrote, and the machine's instance type."""

    transcript: str
    machine: str


class PlanChange(TypedDict):
    """A value of the plan that differs from that of the lock in the commit."""

    path: str
    before: object
    now: object


class AffectedDocument(TypedDict):
    """An image that the change affects. build: false where only what proves it has changed. reasons: at least one."""

    image: str
    recipe: str
    digest: str
    instance_types: list[str]
    build: bool
    reasons: list[str]
    changes: list[PlanChange]


class Shard(TypedDict):
    """A proof on one instance type."""

    image: str
    recipe: str
    instance_type: str


class MatrixDocument(TypedDict):
    """What a change affects."""

    images: list[AffectedDocument]
    shards: list[Shard]


class ImageBuilderComponent(TypedDict):
    """`image-builder`: the component's document, or the file that it was written to."""

    component: str


class ObservedSource(observation.ReadingDetails):
    """One source of a component: `where` it was read, its `version`; of packages name and full version."""

    source: str
    where: str
    version: NotRequired[str]


class ObservedComponent(TypedDict):
    """A component that is in an image; `agrees`: whether all its sources name the same version."""

    name: str
    version: str
    agrees: bool
    disagreement: str
    packages: dict[str, str]
    held: list[str]
    sources: list[ObservedSource]


class ObservedFinding(TypedDict):
    """A rule that the image breaks, or what is not known of it; `level`: problem, warning or note."""

    id: str
    level: str
    component: str
    text: str
    source: str
    advice: str


class Observed(TypedDict):
    """`observe`: what is in an image; `differences`: from the recipe of --against."""

    read_of: str
    components: list[ObservedComponent]
    absent: list[str]
    findings: list[ObservedFinding]
    differences: list[str]


# By the command's name; what every command may print first.
RESULTS: Mapping[str, Any] = {
    "error": ErrorDocument,
    "progress": ProgressLine,
    "prove": certificate.Certificate | pipeline.ProofPlanDocument,
    "plan": PlanDocument | list[ExplainedValue] | dict[str, list[Change]] | list[Change] | list[str],
    "sources": list[SurveyDocument] | list[BuiltModule],
    "build": image.Build | list[layering.LayerState],
    "validate": document.Report | pipeline.ProofPlanDocument,
    "observe": Observed,
    "image-builder": ImageBuilderComponent,
    "certify": certificate.Certificate,
    "verify": verification.FindingsDocument,
    "publish": record.PublicationDocument | verification.FindingsDocument,
    "key": NewKey | PublicKey,
    "diff": comparison.Comparison | Same,
    "sweep": list[sweep.Swept],
    "attach": ansible.Converged,
    "fleet": FleetChange | FleetSteps | FleetStatus | FleetProof,
    "launch-template": list[launch_templates.LaunchTemplate],
    "checks": list[CheckSummary],
    "faults": list[FaultSummary] | faults.FaultsDocument,
    "record": document.Report | RecordedTranscript,
    "merge": certificate.Certificate,
    "matrix": MatrixDocument,
    "doctor": list[Prerequisite] | list[preflight.Finding],
    "init": list[str],
    "recipes": list[RecipeSummary | BrokenRecipe],
    "facts": Facts,
    "bump": list[BumpDocument],
    "import": ImportDocument,
    "events": output.EventDocument | output.LeftOutDocument,
    "xid": list[catalogue.Explanation],
    "runbook": Runbook | list[AlarmSummary] | AlarmPattern,
    "telemetry": TelemetryFiles,
    "dashboard": DashboardFile | DashboardPage,
    "lint-agent": list[AgentFinding],
}
