"""What is known of an image: its plan, report, certificate, build and inventory, from the files that are at hand.

An image is named by plan.json, observation.json, report.json, certificate.json, the folder of its run, its AMI id, or
its files (a raw disk image or a mounted tree). An AMI's files are those under out/ that are of it or of the plan that
its tags name. Missing files are named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.cloud import Cloud, tags_of
from gpu_ami.errors import UsageError
from gpu_ami.files import read_json
from gpu_ami.report import Report
from gpu_ami.report import certificate as certificates
from gpu_ami.report import document as reports
from validator import file_account
from validator.file_account import Inventory

_AMI = re.compile(r"ami-[0-9a-f]+")
PLAN_FILE, BUILD_FILE = "plan.json", "build.json"
PLAN_TAG, RECIPE_TAG = "gpu-ami:plan", "gpu-ami:recipe"


@dataclass
class ImageDescription:
    """What is known of one image. missing: what is not at hand, a sentence each. tags: of the AMI, {} if not asked."""

    name: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    report: Report | None = None
    build: Mapping[str, Any] = field(default_factory=dict)
    inventory: Inventory | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its recipe's name and what it was named by."""
        image = str(self.plan.get("image", "") or self.tags.get(RECIPE_TAG, ""))
        return f"{image} ({self.name})" if image and image != self.name else self.name

    @property
    def ami(self) -> str:
        """Its AMI, "" where there is none or it is not known."""
        if _AMI.fullmatch(self.name):
            return self.name
        return (self.report.image if self.report else "") or str(self.build.get("ami", ""))


def describe(text: str, cloud: Cloud | None = None, runs: Path = Path("out")) -> ImageDescription:
    """What is known of the image that `text` names. UsageError: it names nothing that is there; CloudError.

    cloud: is asked for the tags of an AMI. runs: the folder with the folders of runs.
    """
    path = Path(text)
    if is_files(path):
        return ImageDescription(text, inventory=take_inventory(path))
    if path.is_dir():
        return _of_folder(text, path)
    if path.is_file():
        return _of_file(text, path)
    if _AMI.fullmatch(text):
        return _of_ami(text, cloud, runs)
    hint = "an image is a plan.json, report.json, certificate.json, the folder of a run, an AMI id, or a disk (.raw)"
    raise UsageError(f"{text}: no such file, folder or AMI id", hint=hint)


def is_files(path: Path) -> bool:
    """Whether a path is a raw disk image, or the root of a mounted system."""
    return (path / "etc" / "passwd").is_file() if path.is_dir() else path.suffix in (".raw", ".img")


def take_inventory(path: Path) -> Inventory:
    """The inventory of an image's files. UsageError: they cannot be read."""
    from validator.transport import TransportFault, image_files

    try:
        return file_account.take_over(image_files.Image(path), running=False)
    except TransportFault as fault:
        raise UsageError(fault.message, hint=fault.hint) from fault
    except file_account.NotTaken as reason:
        raise UsageError(f"{path}: {reason}") from reason


def _of_file(text: str, path: Path) -> ImageDescription:
    schema = str((read_json(path) or {}).get("schema", "")).partition("/")[2].partition("/")[0]
    if schema == "plan":
        return _complete(ImageDescription(text, plan=read_json(path) or {}), None)
    if schema == "observation":
        return _complete(ImageDescription(text, plan=_observed_plan(path)), None)
    if schema == "report":
        report = reports.load(path)
        return _complete(ImageDescription(text, plan=report.plan, report=report), path.parent)
    if schema == "certificate":
        certificate = certificates.load(path)
        described = _of_folder(text, path.parent)
        if described.report and certificate.report_sha256 != certificates.report_digest(
            read_json(path.parent / reports.REPORT_FILE) or {}
        ):
            hint = "name the folder of the certificate, with its own report.json"
            raise UsageError(f"{path}: the report.json beside it is another one", hint=hint)
        if not described.report:
            described.missing.append("report.json is not beside the certificate: nothing but the plan is compared")
        return described
    hint = "gpu-ami plan RECIPE writes a plan, gpu-ami observe an observation"
    raise UsageError(f"{text}: not a plan, observation, report or certificate of gpu-ami", hint=hint)


def _observed_plan(path: Path) -> Mapping[str, Any]:
    """The plan of an observation.json: what is in an image that others built."""
    from gpu_ami import observe
    from gpu_ami.recipes import load_facts

    facts, observation = load_facts(), observe.load(path)
    types = observe.instance_types(observation, facts)
    return observe.observed_plan(observation, facts, types, str(observation.document["read_of"])).document


def _of_folder(text: str, folder: Path) -> ImageDescription:
    report = reports.load(folder / reports.REPORT_FILE) if (folder / reports.REPORT_FILE).is_file() else None
    plan = (report.plan if report else None) or read_json(folder / PLAN_FILE) or {}
    build = read_json(folder / BUILD_FILE) or {}
    if not plan and not report and not build:
        raise UsageError(f"{text}: neither plan.json, report.json nor build.json is in it")
    return _complete(ImageDescription(text, plan=plan, report=report, build=build), folder)


def _of_ami(ami: str, cloud: Cloud | None, runs: Path) -> ImageDescription:
    image = cloud.image(ami) if cloud else None
    if cloud and image is None:
        raise UsageError(f"{ami} is not in {cloud.place.region}", hint="--where names the place of another region")
    tags = tags_of(image) if image else {}
    folder = _folder_of(ami, tags.get(PLAN_TAG, ""), runs)
    if folder is None:
        described = ImageDescription(ami, tags=tags)
        described.missing.append(f"no run under {runs}/ is of {ami} or of its plan: its tags alone are compared")
        if not tags:
            hint = "name its folder, or its place with --where, where its tags are"
            raise UsageError(f"nothing is known of {ami}", hint=hint)
        return described
    described = _of_folder(ami, folder)
    described.tags = tags
    if described.report and described.report.image != ami:  # of the same plan, but of another build
        described.missing.append(
            f"{folder}/report.json is of {described.report.image}: checks and files are not {ami}'s"
        )
        described.report, described.inventory, described.build = None, None, {}
    return described


def _folder_of(ami: str, plan_digest: str, runs: Path) -> Path | None:
    """The run that proved or built an AMI, else one of its plan."""
    of_plan = None
    for folder in sorted(path for path in runs.glob("*") if path.is_dir()):
        documents = [read_json(folder / name) or {} for name in (reports.REPORT_FILE, BUILD_FILE)]
        if ami in (documents[0].get("image"), documents[1].get("ami")):
            return folder
        if plan_digest and (read_json(folder / PLAN_FILE) or {}).get("digest") == plan_digest:
            of_plan = folder
    return of_plan


def _complete(described: ImageDescription, folder: Path | None) -> ImageDescription:
    """With the inventory, and with what is missing."""
    hosts = sorted(described.report.hosts if described.report else (), key=lambda host: not host.offline)
    for host in hosts:
        path = folder / "evidence" / host.evidence / file_account.KEPT_FILE if folder else None
        if path is not None and path.is_file():
            described.inventory = file_account.read(path.read_bytes())
            break
    described.missing += _missing(described)
    return described


def _missing(described: ImageDescription) -> Sequence[str]:
    missing = []
    if not described.report:
        missing.append("no report: checks and times are not compared")
    if described.inventory is None:
        missing.append("no inventory of its files: packages, files, units and accounts are not compared")
    return missing
