"""The build: Packer and Ansible turn a plan into an AMI; build.json remembers which plan and which roles made it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.build import packer
from gpu_ami.cloud import Cloud, aws_errors, capacity, key_name, login, runs
from gpu_ami.errors import BuildError, CloudError, GpuAmiError
from gpu_ami.files import read_document, write_json
from gpu_ami.plan import Plan, resolve_source_ami
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

SCHEMA = "gpu-ami/build/1"
BUILD_FILE = "build.json"
# playbooks/image.yml fetches it from the builder, before the first role.
INVENTORY_FILE = "base-inventory.jsonl.gz"
# What a build consists of beside its plan: a change in any of these makes another image.
_SOURCES = ("packer", "playbooks", "roles")
_NO_LOGIN = "Timeout waiting for SSH"  # Packer's message
# Waits after which Packer is started again where AWS throttled a call that Packer does not retry.
_THROTTLED_SECONDS = (5.0, 15.0, 45.0)
_IGNORED = {"__pycache__", ".pytest_cache"}


@dataclass(frozen=True)
class Build:
    """One AMI and where it came from. snapshots: ids behind it; sources: digest of template, playbooks and roles.

    ansible: how many tasks ran (`ok`), which `changed` something, the `slowest`, all their `seconds`.
    source_ami, source_ami_name: what it was built on; source_ami_through: how it was found.
    base_inventory: digest of the file beside this one, or "".
    source_check: what `gpu-ami sources` found before the build (date and digests of the indexes), or that it was
    skipped; None in a place that is not AWS. attempts: to launch the builder (gpu_ami.cloud.capacity.Attempt).
    """

    ami: str
    snapshots: tuple[str, ...]
    plan_digest: str
    sources: str
    place: str
    region: str
    run: str
    finished: str
    ansible: Mapping[str, object] | None = None
    source_ami: str = ""
    base_inventory: str = ""
    source_check: Mapping[str, object] | None = None
    source_ami_name: str = ""
    source_ami_through: str = ""
    attempts: tuple[Mapping[str, object], ...] = ()

    def write(self, folder: Path) -> None:
        write_json(folder / BUILD_FILE, {"schema": SCHEMA, **asdict(self)})


def load(folder: Path) -> Build:
    """Reads build.json. UsageError where it is not there or not one."""
    data = read_document(folder / BUILD_FILE, SCHEMA, "build")
    data.pop("schema")
    return Build(**(data | {"snapshots": tuple(data["snapshots"]), "attempts": tuple(data.get("attempts", ()))}))


def sources_digest(root: Path) -> str:
    """`sha256:` over names and contents of everything that provisioning reads."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not _IGNORED & set(path.parts):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def reusable(folder: Path, plan: Plan, cloud: Cloud, root: Path) -> Build | None:
    """The build in `folder`, if the same plan and the same roles made it here and its AMI is still available."""
    if not (folder / BUILD_FILE).exists():
        return None
    build = load(folder)
    same = (build.plan_digest, build.sources, build.place) == (plan.digest, sources_digest(root), cloud.place.name)
    image = cloud.image(build.ami) if same else None
    return build if image and image.get("State") == "available" else None


def build_image(
    plan: Plan,
    folder: Path,
    cloud: Cloud,
    run: runs.Run,
    root: Path,
    progress: Progress,
    source_check: Mapping[str, object] | None = None,
    max_seconds: float = packer.BUILD_SECONDS,
) -> Build:
    """Builds the AMI of a plan whose files are in `folder`. source_check: kept in build.json. max_seconds: of Packer.

    BuildError: Packer or Ansible failed. CapacityError, CloudError: AWS refused a call.
    """
    login.require_packer_login(cloud.place)
    ways = capacity.ways_of_builder(cloud.place, plan.document["build"]["instance_type"])
    # A build that fails leaves no AMI that a later stage could mistake for its own.
    (folder / BUILD_FILE).unlink(missing_ok=True)
    (folder / INVENTORY_FILE).unlink(missing_ok=True)
    source_ami = resolve_source_ami(cloud, plan.document)
    progress.note(f"source AMI {source_ami['id']} ({source_ami['name']})")
    builders: list[str] = []

    def on_builder(instance_id: str) -> None:
        builders.append(instance_id)
        run.note_builder(instance_id)
        cloud.end_at(instance_id, run.expiry())
        cloud.harden(instance_id)

    builder_type = plan.document["build"]["instance_type"]
    # Looked up here: Packer's own filter knows neither SSM parameters nor the root device's name.
    variables = _variables(cloud, source_ami)

    def build_in(_way: capacity.Way, subnet_id: str) -> packer.Made:
        with _ingress_on_silence(cloud):
            return run_packer(subnet_id)

    def run_packer(subnet_id: str) -> packer.Made:
        for seconds in _THROTTLED_SECONDS:
            had = len(builders)
            try:
                return start_packer(subnet_id)
            except CloudError as error:
                if len(builders) > had or not aws_errors.is_throttled(error.code):
                    raise
                progress.note(f"{error.message} before Packer had a builder: again in {seconds:.0f} s")
                time.sleep(seconds)
        return start_packer(subnet_id)

    def start_packer(subnet_id: str) -> packer.Made:
        return packer.build(
            root / "packer",
            folder,
            cloud.place,
            run_id=run.id,
            expires=run.expiry(),
            key_name=f"{key_name(run.id)}-builder",
            progress=progress,
            on_builder=on_builder,
            timeout=min(max_seconds, packer.BUILD_SECONDS),
            source=variables | ({"subnet_id": subnet_id} if cloud.place.subnet_ids else {}),
        )

    search = cloud.search(builder_type, ways)
    attempts: list[capacity.Attempt] = []
    search.on_attempt = attempts.append
    made = search.run(build_in)
    for attempt in search.attempts:
        progress.note(str(attempt))
    for builder in builders:  # Packer has terminated it; after a build that failed, the schedule ends what is left
        cloud.forget_end(builder)
    image = _complete(cloud, plan, made.ami)
    build = Build(
        ami=made.ami,
        snapshots=_snapshots(image),
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
        attempts=tuple(asdict(attempt) for attempt in attempts),
    )
    build.write(folder)
    return build


def _complete(cloud: Cloud, plan: Plan, ami: str) -> ImageTypeDef:
    """The new image as soon as EC2 lists it: described, and launched with IMDSv2 alone. BuildError: not listed."""
    cloud.created(ami)
    cloud.require_imds_v2(ami)
    cloud.describe_image(ami, f"recipe {plan.image}, plan {plan.digest}")
    image = cloud.wait_for_image(ami)
    if image is None:
        raise BuildError(f"{ami}, which Packer reported, does not appear in {cloud.place.region}")
    return image


@contextmanager
def _ingress_on_silence(cloud: Cloud) -> Iterator[None]:
    """CloudError with the builder's security groups where Packer's SSH login got no answer and they let nobody in."""
    try:
        yield
    except BuildError as error:
        if _NO_LOGIN not in error.message or login.proxy_command(cloud.place, ""):
            raise
        try:
            ingress = cloud.ingress(cloud.place.security_group_ids or [cloud.default_security_group()])
        except GpuAmiError:
            raise error from None
        if not ingress.is_closed:
            raise BuildError(error.message, details=[*error.details, str(ingress)], hint=error.hint) from error
        text = f"Packer's SSH login to the builder timed out: {ingress}"
        raise CloudError(text, details=error.details, hint=ingress.remedy) from error


def _inventory_digest(folder: Path) -> str:
    path = folder / INVENTORY_FILE
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else ""


def _variables(cloud: Cloud, source_ami: Mapping[str, str]) -> dict[str, str]:
    """Packer's variables that are known at the build only.

    Without security groups, Packer would make one that is open to the world; the builder gets the VPC's default group,
    as the machines of a proof do.
    """
    variables = {"source_ami": source_ami["id"], "root_device_name": source_ami["root_device"]}
    if cloud.place.security_group_ids:
        return variables
    return variables | {"security_group_ids": json.dumps([cloud.default_security_group()])}


def _snapshots(image: ImageTypeDef) -> tuple[str, ...]:
    devices = image.get("BlockDeviceMappings", [])
    return tuple(device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {}))
