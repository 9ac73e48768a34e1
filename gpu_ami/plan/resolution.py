"""A recipe becomes a plan: resolved by the facts, with the source AMI that its lock records, carried to its place.

Adapts a plan to a place: URLs of its mirror, the agent's endpoint, its source AMI, its kernel.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpu_ami.cloud import Cloud, Mirror, Place, aws_errors, unknown_region
from gpu_ami.errors import CloudError, UsageError, counted
from gpu_ami.plan.document import Plan, SourcePlan, with_digest
from gpu_ami.plan.lock import locks_folder, recorded_ami
from gpu_ami.recipes import (
    CloudWatchAgent,
    PlanDocument,
    ResolvedPlan,
    facts_of,
    load_facts,
    read_recipe,
    resolve,
    site_roles_of,
    unknown_types,
)
from gpu_ami.recipes.facts import with_described
from validator import plan_document
from validator.agent_document import AgentLogs
from validator.plan_document import package_system

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef, InstanceTypeInfoTypeDef


def at_place(document: ResolvedPlan, place: Place) -> ResolvedPlan:
    """The document for a place: vendors' URLs become the mirror's, the agent uses its endpoint and source AMI."""
    placed: ResolvedPlan = _mirrored(document, place.mirror) if place.mirror else copy.copy(document)
    if place.api.guest_endpoint:
        placed["cloudwatch_agent"] = _agent_at(placed["cloudwatch_agent"], place.api.guest_endpoint)
    if place.source_ami:
        placed["source_ami"] = {"id": place.source_ami}
    if notes := [note for note in (unknown_region(place), system_packages(document, place)) if note]:
        placed["notes"] = [*placed["notes"], *notes]
    system = f"{document['os']['id']} {document['os']['version']}"
    booted = place.machines.kernels.get(system, place.machines.kernel)
    if booted and booted != placed["kernel"]["version"]:
        _change_kernel(placed, place, booted)
    return placed


def system_packages(document: ResolvedPlan | PlanDocument, place: Place) -> str:
    """What roles of a site can install from the operating system's own archive in a place with a mirror; else ""."""
    of_site = site_roles_of(document)
    if not of_site or place.mirror is None or not place.mirror.distributions:
        return ""
    system, archives = document["os"], place.mirror.distributions
    roles = f"{counted(len(of_site), 'role')} of the site ({', '.join(of_site)})"
    if package_system(system) == "rpm":
        return (
            f"not proven here: packages of {system['id']} {system['version']} that {roles} may install: {place.name}"
            " has none of that archive, and such an installation fails there"
        )
    own = [name for name in archives if name.lower() == f"{system['id']} {system['version']}"]
    stands_in = (*own, *archives)[0]
    return f"{roles}: packages of the operating system are those of {stands_in}'s archive on the day of the build" + (
        "" if own else f", not {system['id']} {system['version']}'s"
    )


def _change_kernel(document: ResolvedPlan, place: Place, booted: str) -> None:
    """The series that the system's machines boot there, whatever the image's own AMI boots, and a note.

    The packages stay those of the planned series: the place's base images have them by their names.
    """
    assumed = document["kernel"]["version"]
    note = f"not proven here: kernel {assumed}; machines of {place.name} boot {booted}"
    document["kernel"] = {**document["kernel"], "version": booted}
    document["kernel"].pop("follows", None)
    for name, section in cast(dict[str, Any], document).items():
        if isinstance(section, dict) and assumed in section.get("kernel_packages", {}):
            packages = {**section["kernel_packages"], booted: section["kernel_packages"][assumed]}
            document[name] = {**section, "kernel_packages": packages}  # type: ignore[literal-required]
    document["notes"] = [*document["notes"], note]


def _agent_at(agent: CloudWatchAgent, endpoint: str) -> CloudWatchAgent:
    """The agent's two documents for a guest that reaches AWS's API at `endpoint` alone.

    The Auto Scaling group's name is an EC2 tag, which the agent asks for at AWS's own address whatever the override
    says, and it publishes no metric until it has an answer (plugins/processors/ec2tagger): that dimension goes.
    """
    logs: AgentLogs = {**agent["config"]["logs"], "endpoint_override": endpoint}
    placed: CloudWatchAgent = {**agent, "config": {**agent["config"], "logs": logs}}
    if agent["gpu_config"]:  # empty if the plan measures no GPU
        metrics = agent["gpu_config"]["metrics"]
        planned = metrics["append_dimensions"].items()
        dimensions = {name: value for name, value in planned if name != "AutoScalingGroupName"}
        placed["gpu_config"] = {"metrics": {**metrics, "append_dimensions": dimensions, "endpoint_override": endpoint}}
    return placed


def _mirrored(value: Any, mirror: Mirror) -> Any:
    """`https://HOST/PATH` in `url` and `*_url` becomes `{mirror}/HOST/PATH`, signed with the mirror's key; a tag's
    commit becomes the one that the mirror's git repository has, and the digest of an unsigned installer its replica's.

    A repository with a `keyring` is an operating system's own archive: it keeps its signatures, and so its key.
    `sources` are citations, not addresses to fetch from; they have no such keys.
    """
    if isinstance(value, list):
        return [_mirrored(item, mirror) for item in value]
    if not isinstance(value, dict):
        return value
    if "keyring" in value:
        base = (mirror.archives or mirror.url).rstrip("/")
        further = [_mirrored(item, mirror) for item in value.get("further", ())]
        return {**value, "url": f"{base}/{value['url'].removeprefix('https://')}"} | (
            {"further": further} if further else {}
        )
    placed = {key: _mirrored_entry(key, item, mirror) for key, item in value.items()}
    if {"url", "tag", "commit"} <= value.keys():
        placed["commit"] = mirror.commit(value["url"], value["tag"]) or value["commit"]
    if value.get("source") == "grid" and (digest := mirror.digest(value["url"], value["version"])):
        placed["sha256"] = digest
    return placed


def _mirrored_entry(key: str, item: Any, mirror: Mirror) -> Any:
    if (key == "url" or key.endswith("_url")) and isinstance(item, str) and item.startswith("https://"):
        return f"{mirror.url.rstrip('/')}/{item.removeprefix('https://')}"
    return mirror.key_fingerprint if key == "key_fingerprint" else _mirrored(item, mirror)


def require_digests(document: Plan) -> None:
    """UsageError: the plan downloads a program that nothing verifies, and it would run as root in the image."""
    driver = plan_document.section(document.document, "nvidia_driver", plan_document.NvidiaDriver)
    if driver.get("source") != "grid" or driver.get("sha256"):
        return
    url = driver["url"]
    raise UsageError(
        f"{document.image}: nvidia_driver.sha256: expected the digest of {url.rpartition('/')[2]}, got none: AWS"
        " publishes neither a digest nor a signature of it, and the build runs it as root",
        hint=f"download it where you trust the network to AWS (curl --proto =https -fO {url}), compare its size with"
        " the bucket's (gpu-ami sources), and write what `sha256sum` prints into the recipe:"
        " nvidia_driver: {source: grid, sha256: …}",
    )


def make_plan(recipe: Path, place: Place, overrides: Sequence[str] = ()) -> Plan:
    """Resolves a recipe for a place. overrides: `KEY.PATH=VALUE`, above all layers.

    Instance types that the facts do not know are looked up in EC2, where the place is AWS.
    UsageError lists all mistakes of the recipe at once.
    """
    facts, unasked = facts_of(recipe), ""
    if (names := unknown_types(recipe, facts, overrides)) and place.answers_preflight:
        try:
            described = describe_types(Cloud(place), names)
        except CloudError as error:
            unasked = f"EC2 was asked for {', '.join(names)}: {error.message}"
        else:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            facts = with_described(facts, described, place.region, today)
    try:
        layered = read_recipe(recipe, facts, overrides)
        document = resolve(layered, facts)
    except UsageError as error:
        if unasked:
            raise UsageError(error.message, details=[*error.details, unasked], hint=error.hint) from error
        raise
    return Plan(with_digest(at_place(_with_recorded_ami(document, place, locks_folder(recipe)), place)), layered.site)


def describe_types(cloud: Cloud, names: Sequence[str]) -> list[InstanceTypeInfoTypeDef]:
    """What EC2 says of instance types. UsageError: the region does not know one."""
    filters: list[FilterTypeDef] = [{"Name": "instance-type", "Values": list(names)}]
    with aws_errors.translated(f"describing {', '.join(names)}"):
        pages = cloud.ec2.get_paginator("describe_instance_types").paginate(Filters=filters)
        rows = [row for page in pages for row in page["InstanceTypes"]]
    if missing := [name for name in names if name not in {row["InstanceType"] for row in rows}]:
        raise UsageError(
            f"instance_types: {', '.join(missing)}: neither in the facts nor known to EC2 in {cloud.place.region}",
            hint="correct the name, or plan for a region that has the type; `gpu-ami facts FAMILY` lists known types",
        )
    return rows


def _with_recorded_ami(document: ResolvedPlan, place: Place, locks: Path) -> ResolvedPlan:
    """The source AMI that the image's lock records for the region; ids mean something only in AWS itself."""
    if place.api.endpoint or place.api.guest_endpoint or place.source_ami:
        return document
    recorded = recorded_ami(document, place.region, locks)
    return {**document, "source_ami": {"id": recorded}} if recorded else document


def resolve_source_ami(cloud: Cloud, plan: SourcePlan) -> dict[str, str]:
    """The AMI that a plan's `source_ami` resolves to in the region now: id, name, created, through, root_device.

    An SSM public parameter is asked where there is one, else the newest of the owner's with the name, deprecated ones
    too: public AMIs of an ended release are deprecated, and hidden from a plain search (EC2, "Deprecate an AMI").
    UsageError: none, or its root volume is larger than the plan's.
    """
    source = plan["source_ami"]
    if "id" in source:
        ami, through = source["id"], "id"
    elif "ssm" in source:
        ami, through = _parameter(cloud, source["ssm"]), f"ssm:{source['ssm']}"
    else:
        ami, through = _newest(cloud, plan), f"{source['owner']}:{source['name']}"
    image = cloud.image(ami)
    if image is None:
        raise UsageError(f"source AMI {ami} ({through}) is not in {cloud.place.region}")
    root_device = image.get("RootDeviceName", "")
    _require_room(image, root_device, plan)
    return {
        "id": ami,
        "name": image.get("Name", ""),
        "created": image.get("CreationDate", ""),
        "through": through,
        "root_device": root_device,
    }


def _require_room(image: ImageTypeDef, root_device: str, plan: SourcePlan) -> None:
    """EC2 refuses a root volume smaller than the AMI's snapshot (InvalidBlockDeviceMapping)."""
    devices = image.get("BlockDeviceMappings", [])
    sizes = {device.get("DeviceName"): device.get("Ebs", {}).get("VolumeSize", 0) for device in devices}
    needed, planned = sizes.get(root_device, 0), plan["build"]["root_volume_gib"]
    if needed > planned:
        raise UsageError(
            f"build.root_volume_gib: expected at least {needed} (source AMI {image.get('ImageId')}), got {planned}",
            hint=f"set build.root_volume_gib to {needed} or more in the recipe",
        )


def _parameter(cloud: Cloud, name: str) -> str:
    ssm = cloud.client("ssm")
    with aws_errors.translated(f"looking up the source AMI (SSM parameter {name})"):
        try:
            return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except ssm.exceptions.ParameterNotFound as error:
            hint = "set source_ami in the --where file, or owner and name in the recipe"
            raise UsageError(f"no SSM parameter {name} in {cloud.place.region}", hint=hint) from error


def _newest(cloud: Cloud, plan: SourcePlan) -> str:
    source = plan["source_ami"]
    partition = cloud.ec2.meta.partition
    owner = load_facts().ami_owners.get(source["owner"], {}).get(partition, source["owner"])
    with aws_errors.translated(f"looking up the source AMI ({owner}:{source['name']})"):
        pages = cloud.ec2.get_paginator("describe_images").paginate(
            Owners=[owner],
            IncludeDeprecated=True,
            Filters=[
                {"Name": "name", "Values": [source["name"]]},
                {"Name": "architecture", "Values": [plan["architecture"]]},
                {"Name": "state", "Values": ["available"]},
            ],
        )
        images = [image for page in pages for image in page["Images"]]
    if not images:
        hint = "set source_ami in the --where file"
        if partition != "aws" and owner.isdigit() and owner == source["owner"]:
            hint += f": in {partition} the publisher has another account than {owner}"
        raise UsageError(
            f"no AMI of {owner} named {source['name']} ({plan['architecture']}) in {cloud.place.region}",
            hint=hint,
        )
    return str(max(images, key=lambda image: image.get("CreationDate", ""))["ImageId"])
