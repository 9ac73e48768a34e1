"""The build: Packer and Ansible turn a plan into an AMI; build.json remembers which plan and which roles made it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpu_ami.build import layering, packer
from gpu_ami.build.ansible import Converged
from gpu_ami.build.builder import Builder
from gpu_ami.cloud import Cloud, Place, capacity, login, runs
from gpu_ami.errors import UsageError
from gpu_ami.files import read_document, write_json
from gpu_ami.plan import Plan, resolve_source_ami
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

SCHEMA = "gpu-ami/build/1"
BUILD_FILE = "build.json"
# playbooks/image.yml fetches it from the builder, before the first role.
INVENTORY_FILE = "base-inventory.jsonl.gz"
WRITTEN_FILE = "written-files.json"
# What a build consists of beside its plan: a change in any of these makes another image.
_SOURCES = ("packer", "playbooks", "roles")


class SourceCheck(TypedDict):
    """What `gpu-ami sources` found before a build. indexes: address → digest of its signed file."""

    date: str
    indexes: dict[str, str]


class SkippedSourceCheck(TypedDict):
    """A build for which the sources were not asked (--no-source-check)."""

    skipped: bool


@dataclass(frozen=True)
class Build:
    """One AMI and where it came from. snapshots: ids behind it; sources: digest of template, playbooks and roles.

    ansible: how many tasks ran (`ok`), which `changed` something, the `slowest`, all their `seconds`.
    source_ami, source_ami_name: what it was built on; source_ami_through: how it was found.
    base_inventory: digest of the file beside this one, or "".
    source_check: what `gpu-ami sources` found before the build (date and digests of the indexes), or that it was
    skipped; None in a place that is not AWS. attempts: to launch builders (gpu_ami.cloud.capacity.Attempt).
    layers: of the image, the lowest first, and the layer images that it was built on (layering.records).
    sandbox: the roles ran in a sandbox of the host, not on a booted builder. cost_usd: of all builders at On-Demand
    prices; None where a price is unknown.
    """

    ami: str
    snapshots: tuple[str, ...]
    plan_digest: str
    sources: str
    place: str
    region: str
    run: str
    finished: str
    ansible: Annotated[Mapping[str, object] | None, Converged | None] = None
    source_ami: str = ""
    base_inventory: str = ""
    source_check: Annotated[Mapping[str, object] | None, SourceCheck | SkippedSourceCheck | None] = None
    source_ami_name: str = ""
    source_ami_through: str = ""
    attempts: tuple[Annotated[Mapping[str, object], capacity.Attempt], ...] = ()
    layers: tuple[Annotated[Mapping[str, object], layering.LayerRecord], ...] = ()
    sandbox: bool = False
    cost_usd: float | None = None

    def write(self, folder: Path) -> None:
        write_json(folder / BUILD_FILE, {"schema": SCHEMA, **asdict(self)})


def load(folder: Path) -> Build:
    """Reads build.json. UsageError where it is not there or not one."""
    data = read_document(folder / BUILD_FILE, SCHEMA, "build")
    data.pop("schema")
    lists = {key: tuple(data.get(key, ())) for key in ("snapshots", "attempts", "layers")}
    try:
        return Build(**(data | lists))
    except TypeError as error:  # of another version of gpu-ami, or written by hand
        raise UsageError(f"{folder / BUILD_FILE}: {error}", hint="`gpu-ami build` writes a new one") from error


def sources_digest(root: Path) -> str:
    """`sha256:` over names and contents of everything that provisioning reads."""
    return layering.files_digest(root / folder for folder in _SOURCES)


def recorded(folder: Path, plan: Plan, place: str, root: Path) -> Build | None:
    """The build in `folder`, if the same plan and the same roles made it in a place of that name.

    A file that cannot be read is of no build: the next one replaces it.
    """
    try:
        build = load(folder)
    except UsageError:
        return None
    same = (build.plan_digest, build.sources, build.place) == (plan.digest, sources_digest(root), place)
    return build if same else None


def reusable(folder: Path, plan: Plan, cloud: Cloud, root: Path) -> Build | None:
    """The build in `folder`, if the same plan and the same roles made it here and its AMI is still available.

    One of a booted builder is as good as one of a sandbox, but not the other way round.
    """
    build = recorded(folder, plan, cloud.place.name, root)
    if build is None or (build.sandbox and not cloud.place.machines.sandbox_builder):
        return None
    image = cloud.image(build.ami)
    return build if image and image.get("State") == "available" else None


def build_image(  # noqa: PLR0913
    plan: Plan,
    folder: Path,
    cloud: Cloud,
    run: runs.Run,
    root: Path,
    *,
    progress: Progress,
    source_check: Mapping[str, object] | None = None,
    max_seconds: float = packer.BUILD_SECONDS,
    layered: layering.Layering = layering.FROM_NOTHING,
) -> Build:
    """Builds the AMI of a plan whose files are in `folder`. source_check: kept in build.json.

    max_seconds: of Packer. layered: whether it starts from layer images, and makes them. BuildError: Packer or Ansible
    failed. CapacityError, CloudError: AWS refused a call.
    """
    login.require_packer_login(cloud.place)
    # A build that fails leaves no AMI that a later stage could mistake for its own.
    (folder / BUILD_FILE).unlink(missing_ok=True)
    for name in (INVENTORY_FILE, WRITTEN_FILE):
        (folder / name).unlink(missing_ok=True)
    # Looked up here: Packer's own filter knows neither SSM parameters nor the root device's name.
    source_ami = resolve_source_ami(cloud, plan.document)
    progress.note(f"source AMI {source_ami['id']} ({source_ami['name']})")
    builder = Builder(plan, folder, cloud, run, root, progress, max_seconds)
    stack = layering.cut(plan, source_ami["id"], cloud.place, root)
    images = layering.prepare(builder, layered, stack, source_ami)
    variables = {**layering.start(stack, images, source_ami), **_expiry(cloud.place)}
    made, image = builder.make(variables, f"recipe {plan.image}, plan {plan.digest}")
    with runs.recording(run, made.ami):
        build = Build(
            ami=made.ami,
            snapshots=snapshots_of(image),
            plan_digest=plan.digest,
            sources=sources_digest(root),
            place=cloud.place.name,
            region=cloud.place.region,
            run=run.id,
            finished=runs.as_text(runs.now()),
            ansible=asdict(made.converged) if made.converged else None,
            source_ami=source_ami["id"],
            base_inventory=_inventory_digest(folder),
            source_check=source_check,
            source_ami_name=source_ami["name"],
            source_ami_through=source_ami["through"],
            attempts=tuple(asdict(attempt) for attempt in builder.attempts),
            layers=tuple(layering.records(stack, images)),
            sandbox=cloud.place.machines.sandbox_builder,
            cost_usd=_cost(builder),
        )
        build.write(folder)
        run.note_image(made.ami)
    return build


def _cost(builder: Builder) -> float | None:
    parts = [machine.usd for machine in builder.machines]
    return None if None in parts else round(sum(usd for usd in parts if usd is not None), 4)


def _expiry(place: Place) -> dict[str, str]:
    """Packer's variable for the expiry of an AMI that is not published; `publish` takes it back (gpu_ami.publish)."""
    if not place.image_days:
        return {}
    return {"image_expires": runs.as_text(runs.now() + timedelta(days=place.image_days))}


def _inventory_digest(folder: Path) -> str:
    path = folder / INVENTORY_FILE
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else ""


def snapshots_of(image: ImageTypeDef) -> tuple[str, ...]:
    """Return the ids of the snapshots behind an AMI."""
    devices = image.get("BlockDeviceMappings", [])
    return tuple(device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {}))
