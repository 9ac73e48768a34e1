"""The pipeline: recipe → plan → build → proof → certificate. Each function is a stage: one file in, one file out.

`prove` runs all of them; each can be run again from the file of the one before it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import validator
from gpu_ami.build import builder as builders
from gpu_ami.build import image as builds
from gpu_ami.build import layering
from gpu_ami.cloud import Cloud, Place, preflight, runs
from gpu_ami.errors import BuildError, CloudError, GpuAmiError, UsageError
from gpu_ami.files import data_root, home_dir
from gpu_ami.plan import PLAN_FILE, Plan, cost, make_plan, require_digests, resolve_source_ami
from gpu_ami.progress import Progress
from gpu_ami.publish import sharing
from gpu_ami.recipes import facts_of, unknown_types
from gpu_ami.region import Session, SessionRequest, choose, provider, require_no_error
from gpu_ami.report import certificate, document, page, page_machine, writer
from gpu_ami.validate import (
    Proof,
    ProofOptions,
    cluster,
    host_proof,
    image_proof,
    machine_group,
    site_checks,
    validator_process,
)

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from gpu_ami.observe import Observation
    from gpu_ami.release import bom
    from gpu_ami.release import comparison as comparisons

# What decides how an image is judged, beside the checks of the site and the user.
_SUITE = (Path(validator.__file__).parent, Path(image_proof.__file__).parent)
# Written by gpu_ami.release, whose libraries are imported only where there is something to sign or to list.
ENVELOPE_FILE, BOM_FILE = "certificate.dsse.json", page_machine.BOM_FILE


@contextmanager
def open_session(request: SessionRequest, progress: Progress) -> Iterator[Session]:
    """A place to work in; what was started for it ends with the block."""
    region = choose(request)
    with runs.begin(home_dir(), region.name, place_file=region.file) as run, closing(region):
        yield region.open(run, progress)


def _require_usable_cluster(plan: Plan, asked: ProofOptions, session: Session) -> None:
    """Examines the cluster of --join on AWS, so that a missing permission is not reported as an image failure.

    UsageError, CloudError: every error that was found.
    """
    if asked.join is None or not session.place.answers_preflight:
        return
    with session.progress.stage("preflight of the cluster"):
        findings = preflight.examine_cluster(session.cloud, plan.document, asked.join, asked.nodes)
        require_no_error(findings, session.progress)


NOWHERE = Place(name="nowhere", region="us-east-1")


def check_recipe(recipe: Path, overrides: Sequence[str]) -> Plan | None:
    """UsageError with all mistakes of a recipe, before anything is started for it. Returns its plan for NOWHERE.

    None: a recipe with instance types that only EC2 knows is judged at its place.
    """
    if unknown_types(recipe, facts_of(recipe), overrides):
        return None
    return make_plan(recipe, NOWHERE, overrides)


def agent_version(agent_package: Path | None) -> list[str]:
    """The override that makes a plan ask for the release that a given agent package is of."""
    if agent_package is None:
        return []
    return [f"cloudwatch_agent.version={provider().agent_version(agent_package)}"]


def plan_stage(recipe: Path, overrides: Sequence[str], out: Path, session: Session) -> Plan:
    """Recipe → plan.json (and the var-files of Packer and Ansible)."""
    with session.progress.stage(f"plan {recipe.stem}"):
        plan = make_plan(recipe, session.place, overrides)
        require_digests(plan)
        plan.write(out, session.place)
        session.progress.note(f"{plan.digest[:19]}… → {out / PLAN_FILE}")
    return plan


def build_stage(
    plan: Plan,
    out: Path,
    session: Session,
    *,
    fresh: bool,
    source_check: bool = True,
    layered: layering.Layering = layering.FROM_NOTHING,
) -> builds.Build:
    """plan.json → build.json. An AMI that the same plan and roles made here is used again, unless `fresh`.

    layered: whether it starts from layer images, and makes them. source_check: on AWS, first ask the sources of the
    plan whether everything is there (UsageError, CloudError).
    """
    require_digests(plan)
    root = data_root()
    kept = None if fresh else builds.reusable(out, plan, session.cloud, root)
    if kept:
        session.progress.note(f"build: {kept.ami} was made by this plan and these roles; --fresh builds it anew")
        session.region.note_use(kept.ami, out)
        return kept
    checked = None
    if session.place.answers_preflight:
        for finding in sharing.examine_default(session.place, plan.image):
            if finding.level is not preflight.Level.OK:  # the build can go on: another policy may be published by
                session.progress.note(str(finding))
        checked = _check_sources(plan, session, source_check)
    session.region.make_room(out)
    session.region.prepare(plan.document)
    session.region.publish_source_ami(plan.document)
    plan.write(out, session.place)  # the place's endpoint may have moved since the plan was made
    with session.progress.stage(f"build {plan.image}"):
        if session.builder_note:
            session.progress.note(session.builder_note)
        made = build_within(plan, out, session, root, checked, layered=layered)
        session.progress.note(f"{made.ami} → {out / builds.BUILD_FILE}")
    session.region.note_use(made.ami, out)
    return made


def was_built(plan: Plan, out: Path) -> bool:
    """Whether this plan and the roles as they are made the folder's build in the local region: it is used again."""
    return builds.recorded(out, plan, provider().name, data_root()) is not None


def explain_layers(plan: Plan, out: Path, session: Session) -> list[layering.LayerState]:
    """The layers of a plan: which have an image in the place, and what changed since the last build in the folder."""
    session.region.publish_source_ami(plan.document)
    base = resolve_source_ami(session.cloud, plan.document)["id"]
    before = builds.load(out).layers if (out / builds.BUILD_FILE).exists() else ()
    return layering.explain(session.cloud, layering.cut(plan, base, session.place, data_root()), before)


def build_within(
    plan: Plan,
    out: Path,
    session: Session,
    root: Path,
    checked: Mapping[str, object] | None,
    *,
    layered: layering.Layering = layering.FROM_NOTHING,
) -> builds.Build:
    """The build, ended when the builder has cost what --max-cost allows (CloudError). Its cost is in the budget."""
    builder, budget = plan["build"]["instance_type"], session.budget
    limit, started = budget.seconds_left(builder), time.monotonic()
    asked: dict[str, Any] = {"layered": layered} | ({} if limit is None else {"max_seconds": limit})
    try:
        return builds.build_image(
            plan, out, session.cloud, session.run, root, progress=session.progress, source_check=checked, **asked
        )
    except BuildError as error:
        if limit is None or time.monotonic() - started < limit:
            raise
        message = f"--max-cost {budget.max_cost:g}: the builder ({builder}) has run for {limit:.0f} s and was ended"
        raise CloudError(message, details=[cost.basis(), *error.details], hint="raise it") from error
    finally:
        budget.spent += cost.MachineTime(builder, time.monotonic() - started, budget.own).usd or 0.0


def _check_sources(plan: Plan, session: Session, wanted: bool) -> dict[str, Any]:
    """What the build record keeps of the sources: date and digests of the indexes, or that they were not asked."""
    from gpu_ami import sources

    if not wanted:
        sources.require_verified(plan.document, None)
        return {"skipped": True}

    with session.progress.stage(f"sources of {plan.image}"):
        resolve_ami = functools.partial(resolve_source_ami, session.cloud, plan.document)
        survey = sources.survey(
            plan.document,
            sources.Client(sources.Cache()),
            resolve_ami=resolve_ami,
            with_archive=session.place.mirror is None,
        )
        sources.require(survey)
        sources.require_verified(plan.document, survey)
    return {"date": survey.date, "indexes": {index.url: index.digest for index in survey.indexes}}


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build (build_stage)."""

    fresh: bool = False
    source_check: bool = True
    layered: layering.Layering = layering.FROM_NOTHING


@dataclass(frozen=True)
class CertificateOptions:
    """Options of a certificate.

    signers: keys that sign it. scans: command lines of scanners; waivers: accept what they find.
    """

    signers: Sequence[Signer] = ()
    scans: Sequence[Sequence[str]] = ()
    waivers: Path | None = None


class ProofPlanDocument(TypedDict):
    """What `--dry-run` prints under --json. builder: None: an AMI that exists. cluster: "": one of the proof's own."""

    image: str
    builder: str | None
    layers: str | None
    instance_types: list[str]
    nodes: int
    cluster: str | None
    image_files: bool
    restarts: list[str]
    checks: list[str]
    validator_options: list[str]
    expected_usd: float
    unknown_prices: list[str]
    max_cost: float | None


@dataclass(frozen=True)
class ProofPlan:
    """What will be proven, decided before anything is launched, and then carried out as it is (`decide`).

    builder: instance type that builds the image; None where an AMI that exists is proven. layers: mode of its layers.
    image_files: whether the image's files are also read in this place.
    """

    image: str
    options: ProofOptions
    instance_types: tuple[str, ...]
    expected: cost.Estimate
    image_files: bool
    builder: str | None = None
    layers: str | None = None

    def to_json(self) -> ProofPlanDocument:
        options = self.options
        return {
            "image": self.image,
            "builder": self.builder,
            "layers": self.layers,
            "instance_types": list(self.instance_types),
            "nodes": options.nodes,
            "cluster": options.join,
            "image_files": self.image_files,
            "restarts": list(options.restarts),
            "checks": [str(path) for path in options.checks],
            "validator_options": list(options.validator_options),
            "expected_usd": self.expected.usd,
            "unknown_prices": list(self.expected.unknown),
            "max_cost": None if options.max_cost == cost.NO_LIMIT else options.max_cost,
        }

    def text(self) -> str:
        options = self.options
        own = "one that the proof starts" if options.join == "" else options.join
        builds = f"{self.builder} (layers: {self.layers})" if self.builder else "none: an AMI that exists is proven"
        rows = {
            "image": self.image,
            "build": builds,
            "machines": (
                f"none: {options.no_machines}"
                if options.no_machines
                else f"{options.nodes} of each: {', '.join(self.instance_types)}"
            ),
            "cluster": own or "none",
            "image files": (
                "checked" if self.image_files else f"not checked: {options.no_files or 'this place keeps no images'}"
            ),
            "restarts": ", ".join(options.restarts) or "none",
            "further checks": ", ".join(map(str, options.checks)) or "none",
            "options": " ".join(options.validator_options) or "none",
            "cost": self.expected.text,
            "limit": "none" if options.max_cost in (None, cost.NO_LIMIT) else f"{options.max_cost:g} USD (--max-cost)",
        }
        return "\n".join(f"{name:<16}{text}" for name, text in rows.items())


def decide(plan: Plan, options: ProofOptions, session: Session, building: BuildOptions | None = None) -> ProofPlan:
    """What will be proven; notes what it is expected to cost, where machines are billed.

    building: of the image that is built first; None: it exists. UsageError, before anything is launched: machines that
    cannot work together or join the cluster, or more than --max-cost allows, also where machines are emulated and cost
    nothing, so that a rehearsal refuses what AWS would.
    """
    instance_types = image_proof.choose_types(plan.document, options.instance_types)
    cluster.require(plan.document, options.join, session.cloud)
    machine_group.require(plan.document, session.place, instance_types, options.nodes)
    if options.nodes > 1:
        machine_group.require_traffic(session.cloud, plan.document)
    _require_usable_cluster(plan, options, session)
    place, budget = session.place, session.budget
    launched = [] if options.no_machines else instance_types
    expected = cost.estimate(plan.document, launched, build=building is not None, nodes=options.nodes, own=place.prices)
    if place.machines.billed:
        telemetry = cost.telemetry(plan.document, launched)
        stopping = image_proof.warn_of_stops(place, launched, options.restarts)
        for line in (expected.text, _if_killed(place), telemetry, stopping):
            if line:
                session.progress.note(line)
    budget.max_cost, budget.own = options.max_cost, place.prices
    cost.require_within(expected, options.max_cost, budget.spent, is_billed=place.machines.billed)
    builder = plan["build"]["instance_type"] if building else None
    layers = building.layered.mode if building else None
    files = session.region.images is not None and not options.no_files
    return ProofPlan(plan.image, options, tuple(instance_types), expected, files, builder, layers)


def _if_killed(place: Place) -> str:
    """What ends the machines if this process does not."""
    hours = runs.LIFETIME.total_seconds() / 3600
    text = f"if this process is killed: machines shut down by themselves {hours:g} h after their launch"
    if place.dead_man_role:
        return f"{text}, and EventBridge Scheduler ends those that hang (dead_man_role)"
    return f"{text}; one that hangs runs until `gpu-ami sweep` (no dead_man_role)"


def require_rest(plan: Plan, decided: ProofPlan, session: Session) -> None:
    """UsageError: what the build has cost leaves less than the machines of the proof need (--max-cost)."""
    options = decided.options
    place = session.place
    rest = cost.estimate(plan.document, decided.instance_types, build=False, nodes=options.nodes, own=place.prices)
    cost.require_within(rest, options.max_cost, session.budget.spent, is_billed=place.machines.billed)


def validate_stage(plan: Plan, ami: str, out: Path, session: Session, decided: ProofPlan) -> document.Report:
    """plan.json + an AMI → report.json, junit.xml, evidence/, as it was decided."""
    if decided.options.no_machines:
        return validate_files_stage(plan, ami, out, session, decided.options)
    session.region.note_use(ami, out)
    proof = proof_of(plan, ami, out, session, decided.options)
    no_files = decided.options.no_files
    files = host_proof.Files(None, no_files) if no_files else _files_of(plan, ami, session)
    look = functools.partial(host_proof.check, proof, files.path) if files.path else None
    types = decided.instance_types
    with session.progress.stage(f"prove {ami} on {', '.join(types)}"):
        return image_proof.prove_image(proof, session.cloud, session.run, ami, types, files=look, no_files=files.reason)


def validate_files_stage(plan: Plan, ami: str, out: Path, session: Session, asked: ProofOptions) -> document.Report:
    """plan.json + the files of an AMI → report.json, junit.xml, evidence/ of tier T0; nothing is booted.

    CloudError: the files cannot be read here.
    """
    session.region.note_use(ami, out)
    proof = proof_of(plan, ami, out, session, asked)
    files = _files_of(plan, ami, session)
    if files.path is None:
        raise CloudError(f"the files of {ami} cannot be checked: {files.reason}")
    check = functools.partial(host_proof.check, proof, files.path)
    return host_proof.prove_files(proof, session.run, check, ami)


def observe_stage(ami: str, session: Session, instance_types: Sequence[str] = (), *, boot: bool = False) -> Observation:
    """What is in an AMI: of its files where the place keeps them, else of one machine that is booted for it.

    UsageError: no such AMI. CloudError, MachineError, CapacityError.
    """
    from gpu_ami import observe

    image = session.cloud.image(ami)
    if image is None:
        hint = "--where names the place of another region"
        raise UsageError(f"{ami} is not in {session.cloud.place.region}", hint=hint)
    images = session.region.images
    disk = images / ami / "disk.raw" if images else None
    if disk and disk.is_file() and not boot:
        with session.progress.stage(f"read the files of {ami}"):
            return observe.read_files(disk).named(ami)
    return image_proof.observe(ami, image, session.cloud, session.run, session.progress, instance_types=instance_types)


def prove_observed(
    ami: str,
    out: Path,
    opened: AbstractContextManager[Session],
    asked: ProofOptions,
    certifying: CertificateOptions,
    *,
    write_plan: Callable[[Observation], Plan],
) -> tuple[document.Report, certificate.Certificate]:
    """An AMI that others built → observation, proof and certificate, all `as found`.

    write_plan: writes what was observed into `out`, plan.json among it. The session ends before the certificate.
    """
    with opened as session:
        observation = observe_stage(ami, session, asked.instance_types)
        plan = write_plan(observation)
        report = validate_stage(plan, ami, out, session, decide(plan, asked, session))
    sign_report(report, out)
    report = scan_stage(report, out, certifying.scans, certifying.waivers)
    return report, certify_stage(report, out, certifying.signers)


def _files_of(plan: Plan, ami: str, session: Session) -> host_proof.Files:
    """The files of an AMI in a place that keeps images; programs of the image's architecture run on this host then."""
    images = session.region.images
    if images:
        try:
            session.region.require_programs(plan.document["architecture"])
        except GpuAmiError as error:
            return host_proof.Files(None, "; ".join(filter(None, [error.message, error.hint])))
    return host_proof.find(images, ami)


def proof_of(plan: Plan, ami: str, out: Path, session: Session, asked: ProofOptions) -> Proof:
    """The proof of an AMI in the session's place, with the layers of its build."""
    plan_file, built = out / PLAN_FILE, _layers_of(ami, out)
    suite = layering.files_digest([*_SUITE, *site_checks(plan.document, plan_file), *asked.checks])
    return Proof(
        plan.document, plan_file, session.place, out, session.progress, asked,
        spent=session.budget.spent, layers=built, suite=suite,
    )  # fmt: skip


def _layers_of(ami: str, out: Path) -> list[document.ReportLayer]:
    """The layers of an image that was built in this folder; none where another one is proven."""
    made = builds.load(out) if (out / builds.BUILD_FILE).exists() else None
    if made is None or made.ami != ami:
        return []
    return [
        document.ReportLayer(str(row["name"]), str(row["digest"]), layering.roles_of(row["parts"]))
        for row in made.layers
    ]


def propose(
    recipe: Path,
    overrides: Sequence[str],
    opened: AbstractContextManager[Session],
    options: ProofOptions,
    building: BuildOptions,
) -> ProofPlan:
    """What `prove` would do; nothing is written, built or launched."""
    with opened as session:
        return decide(make_plan(recipe, session.place, overrides), options, session, building)


def prove(
    recipe: Path,
    overrides: Sequence[str],
    out: Path,
    opened: AbstractContextManager[Session],
    asked: ProofOptions,
    *,
    building: BuildOptions,
    certifying: CertificateOptions,
) -> tuple[document.Report, certificate.Certificate]:
    """All stages: recipe → plan → build → proof → certificate. The session ends before the certificate is written."""
    with opened as session:
        plan = plan_stage(recipe, overrides, out, session)
        decided = decide(plan, asked, session, building)
        made = build_stage(plan, out, session, **vars(building))
        require_rest(plan, decided, session)
        report = validate_stage(plan, made.ami, out, session, decided)
    sign_report(report, out)
    report = scan_stage(report, out, certifying.scans, certifying.waivers)
    return report, certify_stage(report, out, certifying.signers)


def sign_report(report: document.Report, out: Path, signers: Sequence[Signer] = ()) -> None:
    """report.json of this run → report.dsse.json, with this machine's key and those of --sign."""
    from gpu_ami.release import report_signature

    report_signature.sign(report, out, signers)


def certify_stage(
    report: document.Report,
    out: Path,
    signers: Sequence[Signer] = (),
    cloud: Cloud | None = None,
    comparison: comparisons.Comparison | None = None,
    *,
    origin: certificate.ReportOrigin | None = None,
) -> certificate.Certificate:
    """report.json → certificate.json and certificate.md (for a PASS); bom.cdx.json, report.html, summary.md.

    signers: keys that sign the certificate (certificate.dsse.json). cloud: where the AMI's snapshots are looked up if
    no build.json says them. comparison: with the image before, for report.html. origin: of a report.json that
    another run left; None: of this run. A signature of other files is removed.
    """
    statement = certificate.certify(report, *_of_build(report, out), origin or certificate.ReportOrigin())
    _write_bom(report, out)
    statement.write(out)
    page.write(report, statement if statement.is_issued else None, out, comparison)
    writer.write_summary(report, statement, out)
    if (out / ENVELOPE_FILE).exists():
        from gpu_ami.release import statement as envelope

        if not envelope.is_current(out):
            (out / ENVELOPE_FILE).unlink()
    if signers and statement.is_issued:
        _sign(report, statement, out, signers, cloud)
    return statement


def _write_bom(report: document.Report, out: Path) -> bom.Sources | None:
    """bom.cdx.json, where the evidence says what the image is made of; one of an earlier proof is removed."""
    if not any(out.glob("evidence/*/materials.json")):
        (out / BOM_FILE).unlink(missing_ok=True)
        return None
    from gpu_ami.release import bom  # imports CycloneDX's library, which takes a while

    return bom.write(report, out, validator_process.roles_folders(out / PLAN_FILE))


def scan_stage(
    report: document.Report,
    out: Path,
    scans: Sequence[Sequence[str]],
    waivers: Path | None = None,
    origin: certificate.ReportOrigin | None = None,
) -> document.Report:
    """The report with a check for each scanner that was run on bom.cdx.json, written again; as it is without one.

    scans: command lines (release/scan.py). waivers: accept what a scanner found, each until its last day.
    origin: as certify_stage has it; a report of a known one is signed again.
    """
    if not scans or not report.hosts:
        return report
    from gpu_ami.release import scan

    sources = _write_bom(report, out)
    records = [scan.run(words, out) for words in scans]
    updated = scan.add(report, sources.host if sources else report.hosts[0], records, waivers)
    writer.write(updated, out)
    if origin is None or not (origin.unsigned or origin.refused):
        sign_report(updated, out)
    return updated


def _sign(
    report: document.Report,
    statement: certificate.Certificate,
    out: Path,
    signers: Sequence[Signer],
    cloud: Cloud | None,
) -> None:
    from gpu_ami.release import statement as envelope
    from gpu_ami.release import statement as statements
    from gpu_ami.release import verification_place

    snapshots: Sequence[str] = ()
    made = builds.load(out) if (out / builds.BUILD_FILE).exists() else None
    if made is not None and made.ami == report.image:
        snapshots = made.snapshots
    elif cloud is not None and report.image:
        image = cloud.persistent(functools.partial(cloud.image, report.image))
        snapshots = verification_place.snapshots_of(image) if image else ()
    envelope.sign(statements.of_folder(out, statement, report, snapshots).to_bytes(), signers, out)


def _of_build(report: document.Report, out: Path) -> tuple[list[str], str, list[certificate.CertifiedLayer]]:
    """What the record of the image's build says: remarks on what it leaves unproven, the source AMI, and its layers.

    Nothing where another image was proven.
    """
    made = builds.load(out) if (out / builds.BUILD_FILE).exists() else None
    if made is None or made.ami != report.image:
        return [], "", []
    how = "; ".join(text for text in (made.source_ami_name, made.source_ami_through) if text)
    source_ami = f"{made.source_ami} ({how})" if how and made.source_ami else made.source_ami
    skipped = (made.source_check or {}).get("skipped")
    remarks = ["sources: not asked before the build (--no-source-check)"] if skipped else []
    remarks += [builders.NOT_BOOTED] if made.sandbox else []
    rows = [row for row in made.layers if row["from_image"]]
    keys = ("name", "digest", "ami", "created")
    return remarks, source_ami, [certificate.CertifiedLayer(*(str(row[key]) for key in keys)) for row in rows]
