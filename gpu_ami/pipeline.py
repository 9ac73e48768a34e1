"""The pipeline: recipe → plan → build → proof → certificate. Each function is a stage: one file in, one file out.

`prove` runs all of them; each can be run again from the file of the one before it.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import validator
from gpu_ami.build import builder as builders
from gpu_ami.build import image as builds
from gpu_ami.build import layering
from gpu_ami.cloud import Cloud, Place, load_place, preflight, runs, with_session_credentials
from gpu_ami.errors import BuildError, CloudError, GpuAmiError, UsageError
from gpu_ami.files import data_root, home_dir
from gpu_ami.plan import PLAN_FILE, Plan, cost, make_plan, resolve_source_ami
from gpu_ami.progress import Progress
from gpu_ami.recipes import PlanDocument
from gpu_ami.report import certificate, document, page, page_machine, writer
from gpu_ami.validate import (
    Proof,
    carried,
    cluster,
    host_proof,
    image_proof,
    machine_group,
    site_checks,
    validator_process,
)
from gpu_ami.validate.machines import restarts as restart

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from gpu_ami.release import bom
    from gpu_ami.release import comparison as comparisons
    from gpu_ami.release import keys as release_keys

# What decides how an image is judged, beside the checks of the site and the user.
_SUITE = (Path(validator.__file__).parent, Path(image_proof.__file__).parent)
# Written by gpu_ami.release, whose libraries are imported only where there is something to sign or to list.
ENVELOPE_FILE, BOM_FILE = "certificate.dsse.json", page_machine.BOM_FILE


@dataclass(frozen=True)
class Session:
    """A place that is ready, its API, and this run.

    prepare_mirror: adds a plan's packages to the place's mirror; publish_source_ami: registers its source AMI there.
    images: the folder of the place's AMIs, where they are files. budget: --max-cost, and what the build has cost.
    builder_note: what kind of builder the place has, for who builds; "" where there is one kind.
    make_room: removes images that nothing needs before a build into an output folder, where the place keeps images.
    """

    place: Place
    cloud: Cloud
    run: runs.Run
    progress: Progress
    prepare_mirror: Callable[[PlanDocument], object] = lambda _plan: None
    publish_source_ami: Callable[[PlanDocument], object] = lambda _plan: None
    images: Path | None = None
    budget: cost.Budget = field(default_factory=cost.Budget)
    builder_note: str = ""
    make_room: Callable[[Path], object] = lambda _out: None


@contextmanager
def open_session(
    where: Path | None,
    progress: Progress,
    agent_package: Path | None = None,
    conditions: str = "",
    log_groups: str = "",
    deadlines: Mapping[str, int] | None = None,
    builder: str = builders.AUTO,
    layered: layering.Layering | None = None,
) -> Iterator[Session]:
    """A place to work in: the `--where` file's, or the local region, which goes down again if it was not up before.

    log_groups, deadlines: override the place's (Place.log_groups, Place.deadlines). builder: of builders.BUILDERS.
    layered: of the image that is about to be built, for which the local region prepares while it starts; None: of none.
    """
    home = home_dir()
    if where:
        if builder == builders.SANDBOX:
            raise UsageError("--builder sandbox is of the local region; it has no meaning with --where")
        if agent_package:
            raise UsageError("--agent-package is served by the local region's mirror; it has no meaning with --where")
        if conditions:
            raise UsageError("--conditions are of the local region; they have no meaning with --where")
        place = _overridden(with_session_credentials(load_place(where)), log_groups, deadlines)
        cloud = Cloud(place)
        if place.endpoint is None:
            _require_usable(cloud, progress)
        with runs.begin(home, place.name) as run:
            yield Session(place, cloud, run, progress)
        return
    if builder == builders.MACHINE or conditions:
        layered = None  # nothing is prepared for builders that are booted
    with runs.begin(home, "local") as run, _local_region(home, progress, conditions, layered) as region_place:
        from localregion import region
        from localregion.mirror import mirror

        place = _overridden(region_place, log_groups, deadlines)
        sandbox, builder_note = builders.choose(builder, place.conditions)
        place = replace(place, sandbox_builder=sandbox)

        def prepare_mirror(plan: PlanDocument | None) -> object:
            return mirror.ensure(home, plan=plan, agent_package=agent_package, progress=progress)

        prepare_mirror(None)
        publish_source_ami = functools.partial(region.publish_source_ami, home=home, progress=progress)
        offered = (prepare_mirror, publish_source_ami, home / "images")

        def make_room(out: Path) -> object:
            from localregion import housekeeping

            return housekeeping.make_room(home, sorted(out.parent.glob("*")), progress)

        yield Session(place, Cloud(place), run, progress, *offered, builder_note=builder_note, make_room=make_room)


def _overridden(place: Place, log_groups: str, deadlines: Mapping[str, int] | None) -> Place:
    """The place with what the command line overrides."""
    within = {**place.deadlines, **(deadlines or {})}
    return replace(place, log_groups=log_groups or place.log_groups, deadlines=within)


def _require_usable(cloud: Cloud, progress: Progress) -> None:
    """Examines a place on AWS before anything is created there. UsageError, CloudError: every error that was found."""
    with progress.stage(f"preflight {cloud.place.name}"):
        _require_no_error(preflight.examine(cloud), progress)


def _require_usable_cluster(plan: Plan, asked: ProofOptions, session: Session) -> None:
    """Examines the cluster of --join on AWS: what it or the nodes' role lacks is not to fail as a check of the image.

    UsageError, CloudError: every error that was found.
    """
    if asked.join is None or session.place.endpoint is not None:
        return
    with session.progress.stage("preflight of the cluster"):
        findings = preflight.examine_cluster(session.cloud, plan.document, asked.join, asked.nodes)
        _require_no_error(findings, session.progress)


def _require_no_error(findings: Sequence[preflight.Finding], progress: Progress) -> None:
    for finding in findings:
        if finding.level is preflight.Level.WARNING:
            progress.note(str(finding))
    preflight.require(findings)


@contextmanager
def _local_region(
    home: Path, progress: Progress, conditions: str, layered: layering.Layering | None
) -> Iterator[Place]:
    from localregion import region
    from localregion.state import FROM_BASE, FROM_LAYER

    build = "" if layered is None else FROM_BASE if layered.mode == layering.NONE else FROM_LAYER
    place = region.up(home, embedded=True, progress=progress, conditions=conditions, build=build)
    try:
        yield place
    finally:
        region.release(home)


def running_local_place(home: Path) -> Place | None:
    """The local region's place if it is up; None otherwise (nothing is started for a host that runs already)."""
    from localregion import region

    return region.local_place(home) if region.is_up(home) else None


def check_recipe(recipe: Path, overrides: Sequence[str]) -> None:
    """UsageError with all mistakes of a recipe, before anything is started for it."""
    make_plan(recipe, Place(name="nowhere", region="us-east-1"), overrides)


def agent_version(agent_package: Path | None) -> list[str]:
    """The override that makes a plan ask for the release that a given agent package is of."""
    if agent_package is None:
        return []
    from localregion.mirror import deb

    version = deb.control_field(agent_package, "Version")
    release = re.match(r"\d+\.\d+\.\d+", version)
    if not release:
        raise UsageError(f"--agent-package {agent_package}: version {version!r}, expected one like 1.300071.0b1234-1")
    return [f"cloudwatch_agent.version={release[0]}"]


def plan_stage(recipe: Path, overrides: Sequence[str], out: Path, session: Session) -> Plan:
    """Recipe → plan.json (and the var-files of Packer and Ansible)."""
    with session.progress.stage(f"plan {recipe.stem}"):
        plan = make_plan(recipe, session.place, overrides)
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
    root = data_root()
    kept = None if fresh else builds.reusable(out, plan, session.cloud, root)
    if kept:
        session.progress.note(f"build: {kept.ami} was made by this plan and these roles; --fresh builds it anew")
        _note_use(kept.ami, out, session)
        return kept
    checked = _check_sources(plan, session, source_check) if session.place.endpoint is None else None
    session.make_room(out)
    session.prepare_mirror(plan.document)
    session.publish_source_ami(plan.document)
    plan.write(out, session.place)  # the place's endpoint may have moved since the plan was made
    with session.progress.stage(f"build {plan.image}"):
        if session.builder_note:
            session.progress.note(session.builder_note)
        made = _build_within(plan, out, session, root, checked, layered)
        session.progress.note(f"{made.ami} → {out / builds.BUILD_FILE}")
    _note_use(made.ami, out, session)
    return made


def _note_use(ami: str, out: Path, session: Session) -> None:
    """Where the place keeps images as files: the image stays while a document in the output folder names it."""
    if session.images:
        from localregion import housekeeping

        housekeeping.note(session.images, ami, out)


def was_built(plan: Plan, out: Path) -> bool:
    """Whether this plan and the roles as they are made the folder's build in the local region: it is used again."""
    return builds.recorded(out, plan, "local", data_root()) is not None


def explain_layers(plan: Plan, out: Path, session: Session) -> list[layering.LayerState]:
    """The layers of a plan: which have an image in the place, and what changed since the last build in the folder."""
    session.publish_source_ami(plan.document)
    base = resolve_source_ami(session.cloud, plan.document)["id"]
    before = builds.load(out).layers if (out / builds.BUILD_FILE).exists() else ()
    return layering.explain(session.cloud, layering.cut(plan, base, session.place, data_root()), before)


def _build_within(
    plan: Plan,
    out: Path,
    session: Session,
    root: Path,
    checked: Mapping[str, object] | None,
    layered: layering.Layering = layering.FROM_NOTHING,
) -> builds.Build:
    """The build, ended when the builder has cost what --max-cost allows (CloudError). Its cost is in the budget."""
    builder, budget = plan["build"]["instance_type"], session.budget
    limit, started = budget.seconds_left(builder), time.monotonic()
    asked: dict[str, Any] = {"layered": layered} | ({} if limit is None else {"max_seconds": limit})
    try:
        return builds.build_image(plan, out, session.cloud, session.run, root, session.progress, checked, **asked)
    except BuildError as error:
        if limit is None or time.monotonic() - started < limit:
            raise
        message = f"--max-cost {budget.max_cost:g}: the builder ({builder}) has run for {limit:.0f} s and was ended"
        raise CloudError(message, details=[cost.basis(), *error.details], hint="raise it") from error
    finally:
        budget.spent += cost.MachineTime(builder, time.monotonic() - started).usd or 0.0


def _check_sources(plan: Plan, session: Session, wanted: bool) -> dict[str, Any]:
    """What the build record keeps of the sources: date and digests of the indexes, or that they were not asked."""
    if not wanted:
        return {"skipped": True}
    from gpu_ami import sources

    with session.progress.stage(f"sources of {plan.image}"):
        resolve_ami = functools.partial(resolve_source_ami, session.cloud, plan.document)
        survey = sources.survey(plan.document, sources.Client(sources.Cache()), resolve_ami=resolve_ami)
        sources.require(survey)
    return {"date": survey.date, "indexes": {index.url: index.digest for index in survey.indexes}}


@dataclass(frozen=True)
class ProofOptions:
    """Options of a proof beside plan and AMI: instance types, the user's checks, options of the validator, restarts.

    max_cost: US dollars that the run may cost, its builder included; None for no limit. earlier: a proof whose checks
    need not run on what has not changed since. cancelled: set by another thread, it ends the proof. nodes: machines of
    one type that work together. join: the cluster to be a node of; "" for one of the proof's own, None: not asked.
    """

    instance_types: Sequence[str] = ()
    checks: Sequence[Path] = ()
    options: Sequence[str] = ()
    restarts: Sequence[str] = restart.RESTARTS
    max_cost: float | None = None
    earlier: carried.Earlier | None = None
    cancelled: threading.Event | None = None
    nodes: int = 1
    join: str | None = None


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build (build_stage)."""

    fresh: bool = False
    source_check: bool = True
    layered: layering.Layering = layering.FROM_NOTHING


@dataclass(frozen=True)
class CertificateOptions:
    """Options of a certificate.

    since: the proof that it goes on from, "" for none; trusted: keys one of which must have signed that one's
    certificate. signers: keys that sign this one. scans: command lines of scanners; waivers: accept what they find.
    """

    since: str = ""
    trusted: Sequence[release_keys.TrustedKey] = ()
    signers: Sequence[Signer] = ()
    scans: Sequence[Sequence[str]] = ()
    waivers: Path | None = None


def check_cost(plan: Plan, asked: ProofOptions, session: Session, *, build: bool) -> None:
    """Notes what a run is expected to cost, where machines are billed.

    UsageError, before anything is launched: machines that cannot work together or join the cluster, or more than
    --max-cost allows, also where machines are emulated and cost nothing, so that a rehearsal refuses what AWS would.
    """
    instance_types = image_proof.choose_types(plan.document, asked.instance_types)
    cluster.require(plan.document, asked.join, session.cloud)
    machine_group.require(plan.document, session.place, instance_types, asked.nodes)
    if asked.nodes > 1:
        machine_group.require_traffic(session.cloud, plan.document)
    _require_usable_cluster(plan, asked, session)
    expected = cost.estimate(plan.document, instance_types, build=build, nodes=asked.nodes)
    if session.place.billed:
        session.progress.note(expected.text)
    session.budget.max_cost = asked.max_cost
    cost.require_within(expected, asked.max_cost, session.budget.spent)


def validate_stage(plan: Plan, ami: str, out: Path, session: Session, asked: ProofOptions) -> document.Report:
    """plan.json + an AMI → report.json, junit.xml, evidence/."""
    instance_types = image_proof.choose_types(plan.document, asked.instance_types)
    check_cost(plan, asked, session, build=False)
    _note_use(ami, out, session)
    proof = _proof_of(plan, ami, out, session, asked)
    for note in proof.carried.notes:
        session.progress.note(note)
    files = _files_of(plan, ami, session)
    look = functools.partial(host_proof.check, proof, files.path) if files.path else None
    with session.progress.stage(f"prove {ami} on {', '.join(instance_types)}"):
        return image_proof.prove_image(proof, session.cloud, session.run, ami, instance_types, look, files.reason)


def validate_files_stage(plan: Plan, ami: str, out: Path, session: Session, asked: ProofOptions) -> document.Report:
    """plan.json + the files of an AMI → report.json, junit.xml, evidence/ of tier T0; nothing is booted.

    CloudError: the files cannot be read here.
    """
    _note_use(ami, out, session)
    proof = _proof_of(plan, ami, out, session, asked)
    files = _files_of(plan, ami, session)
    if files.path is None:
        raise CloudError(f"the files of {ami} cannot be checked: {files.reason}")
    check = functools.partial(host_proof.check, proof, files.path)
    return host_proof.prove_files(proof, session.run, check, ami)


def _files_of(plan: Plan, ami: str, session: Session) -> host_proof.Files:
    """The files of an AMI in a place that keeps images; programs of the image's architecture run on this host then."""
    from localregion import architectures

    if session.images:
        try:
            architectures.require_programs(plan.document["architecture"])
        except GpuAmiError as error:
            return host_proof.Files(None, "; ".join(filter(None, [error.message, error.hint])))
    return host_proof.find(session.images, ami)


def _proof_of(plan: Plan, ami: str, out: Path, session: Session, asked: ProofOptions) -> Proof:
    """The proof of an AMI in the session's place, with the layers of its build and what an earlier proof has."""
    plan_file, built = out / PLAN_FILE, _layers_of(ami, out)
    suite = layering.files_digest([*_SUITE, *site_checks(plan.document, plan_file), *asked.checks])
    return Proof(
        plan.document,
        plan_file,
        session.place,
        out,
        session.progress,
        asked.checks,
        asked.options,
        asked.restarts,
        cancelled=asked.cancelled or threading.Event(),
        max_cost=asked.max_cost,
        spent=session.budget.spent,
        layers=built,
        suite=suite,
        carried=_carried(plan, asked.earlier, built, suite),
        nodes=asked.nodes,
        join=asked.join,
    )


def _carried(
    plan: Plan, earlier: carried.Earlier | None, built: Sequence[document.ReportLayer], suite: str
) -> carried.Carried:
    """The checks that need not run again; none without an earlier proof."""
    if earlier is None:
        return carried.NOTHING
    return carried.carry_over(earlier, dict(plan.document), built, suite, layering.load_definition().max_age)


def _layers_of(ami: str, out: Path) -> list[document.ReportLayer]:
    """The layers of an image that was built in this folder; none where another one is proven."""
    made = builds.load(out) if (out / builds.BUILD_FILE).exists() else None
    if made is None or made.ami != ami:
        return []
    return [
        document.ReportLayer(str(row["name"]), str(row["digest"]), layering.roles_of(row["parts"]))
        for row in made.layers
    ]


def find_earlier(
    source: str, plan: Plan, place: Place, trusted: Sequence[release_keys.TrustedKey] = ()
) -> carried.Earlier:
    """The proof that `prove --changed` goes on from. UsageError names why it is refused.

    source: a report, certificate, folder or AMI. trusted: keys one of which must have signed its certificate.
    """
    folder = carried.find(source)
    if trusted:
        from gpu_ami.release import verification

        asked = verification.Requirements(certificate.REHEARSED)
        findings, _ = verification.verify(folder, trusted, asked, runs.now())
        for point in findings.refused:
            raise UsageError(f"--since {source}: refused: {point.name}: {point.text}", hint=point.hint)
    max_age = layering.load_definition().max_age
    return carried.load(source, folder, image=plan.image, simulated=place.simulated, max_age=max_age)


def prove(
    recipe: Path,
    overrides: Sequence[str],
    out: Path,
    opened: AbstractContextManager[Session],
    asked: ProofOptions,
    building: BuildOptions,
    certifying: CertificateOptions,
) -> tuple[document.Report, certificate.Certificate]:
    """All stages: recipe → plan → build → proof → certificate. The session ends before the certificate is written."""
    with opened as session:
        plan = plan_stage(recipe, overrides, out, session)
        if certifying.since:
            earlier = find_earlier(certifying.since, plan, session.place, certifying.trusted)
            asked = replace(asked, earlier=earlier)
        check_cost(plan, asked, session, build=True)
        made = build_stage(plan, out, session, **vars(building))
        report = validate_stage(plan, made.ami, out, session, asked)
    report = scan_stage(report, out, certifying.scans, certifying.waivers)
    return report, certify_stage(report, out, certifying.signers)


def certify_stage(
    report: document.Report,
    out: Path,
    signers: Sequence[Signer] = (),
    cloud: Cloud | None = None,
    comparison: comparisons.Comparison | None = None,
) -> certificate.Certificate:
    """report.json → certificate.json and certificate.md (for a PASS); bom.cdx.json, report.html, summary.md.

    signers: keys that sign the certificate (certificate.dsse.json). cloud: where the AMI's snapshots are looked up if
    no build.json says them. comparison: with the image before, for report.html. A signature of another certificate is
    removed.
    """
    statement = certificate.certify(report, *_of_build(report, out))
    _write_bom(report, out)
    old = _bytes_of(out / certificate.CERTIFICATE_FILE)
    statement.write(out)
    page.write(report, statement if statement.is_issued else None, out, comparison)
    writer.write_summary(report, statement, out)
    if _bytes_of(out / certificate.CERTIFICATE_FILE) != old:
        (out / ENVELOPE_FILE).unlink(missing_ok=True)
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
    report: document.Report, out: Path, scans: Sequence[Sequence[str]], waivers: Path | None = None
) -> document.Report:
    """The report with a check for each scanner that was run on bom.cdx.json, written again; as it is without one.

    scans: command lines (release/scan.py). waivers: accept what a scanner found, each until its last day.
    """
    if not scans or not report.hosts:
        return report
    from gpu_ami.release import scan

    sources = _write_bom(report, out)
    records = [scan.run(words, out) for words in scans]
    updated = scan.add(report, sources.host if sources else report.hosts[0], records, waivers)
    writer.write(updated, out)
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
        image = cloud.image(report.image)
        snapshots = verification_place.snapshots_of(image) if image else ()
    envelope.sign(statements.of_folder(out, statement, report, snapshots).to_bytes(), signers, out)


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


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
