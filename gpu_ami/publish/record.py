"""The record of a publication: `publication.json` in the image's folder, or `rollback.json` of a rollback.

It is written before the first change and after each step, so it says how far a run came that was ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict, cast

from gpu_ami.errors import ErrorDocument, GpuAmiError
from gpu_ami.files import read_json, write_json
from gpu_ami.publish.steps import Step

SCHEMA = "gpu-ami/publication/1"
PUBLICATION_FILE, ROLLBACK_FILE = "publication.json", "rollback.json"
TO_DO, DONE, FAILED = "to do", "done", "failed"
PLANNED, PUBLISHED, INCOMPLETE, INTERRUPTED = "planned", "published", "incomplete", "interrupted"


class PublishedImage(TypedDict):
    """The AMI that is published, or that a rollback goes back to."""

    ami: str
    name: str
    version: str
    recipe: str
    region: NotRequired[str]
    level: NotRequired[str]
    plan_digest: NotRequired[str]
    certificate_sha256: NotRequired[str]


class StepDocument(TypedDict):
    """A step and its result."""

    name: str
    text: str
    outcome: Annotated[str, (TO_DO, DONE, FAILED)]


class RegionDocument(TypedDict):
    """A region. ami: the AMI there, "" until it is copied. parameters: SSM parameter → the AMI that it names.

    notices: what differs from the policy and was not changed. error: why the region goes no further, null where
    nothing failed.
    """

    region: str
    ami: str
    parameters: dict[str, str]
    steps: list[StepDocument]
    notices: list[str]
    error: ErrorDocument | None


class PublicationDocument(TypedDict):
    """The record of `gpu-ami publish` (docs/release.md): publication.json, or rollback.json of --to.

    state: planned (--dry-run), published, incomplete (a region failed, or the run was killed) or interrupted. Steps of
    earlier runs of the same image come first.
    """

    schema: Annotated[str, (SCHEMA,)]
    action: Annotated[str, ("publish", "rollback")]
    state: Annotated[str, (PLANNED, PUBLISHED, INCOMPLETE, INTERRUPTED)]
    image: PublishedImage
    policy_sha256: str
    started: str
    written: str
    regions: list[RegionDocument]


def now_text() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass
class RegionRecord:
    """A region. earlier: steps that an earlier run carried out. error: why it goes no further."""

    region: str
    ami: str = ""
    steps: list[Step] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    earlier: list[StepDocument] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    error: ErrorDocument | None = None

    def expect(self, steps: Sequence[Step]) -> None:
        self.steps, self.outcomes = list(steps), [TO_DO] * len(steps)

    def fail(self, error: GpuAmiError) -> None:
        self.error = error.to_json()

    @property
    def is_complete(self) -> bool:
        return self.error is None and all(outcome == DONE for outcome in self.outcomes)

    def to_json(self) -> RegionDocument:
        now: list[StepDocument] = [
            {"name": step.name, "text": step.text, "outcome": outcome}
            for step, outcome in zip(self.steps, self.outcomes, strict=True)
        ]
        return {
            "region": self.region,
            "ami": self.ami,
            "parameters": self.parameters,
            "steps": [*self.earlier, *now],
            "notices": self.notices,
            "error": self.error,
        }


@dataclass
class Record:
    """A publication. action: publish or rollback. file: where it is written, None for a dry run."""

    action: str
    image: dict[str, str]
    policy_sha256: str
    regions: list[RegionRecord]
    file: Path | None
    started: str = field(default_factory=now_text)
    is_interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        return all(region.is_complete for region in self.regions)

    @property
    def failed(self) -> list[RegionRecord]:
        return [region for region in self.regions if region.error is not None]

    @property
    def state(self) -> str:
        if self.is_interrupted:
            return INTERRUPTED
        if self.file is None and not self.failed:
            return PLANNED
        return PUBLISHED if self.is_complete else INCOMPLETE

    def to_json(self) -> PublicationDocument:
        return {
            "schema": SCHEMA,
            "action": self.action,
            "state": self.state,
            "image": cast("PublishedImage", self.image),
            "policy_sha256": self.policy_sha256,
            "started": self.started,
            "written": now_text(),
            "regions": [region.to_json() for region in self.regions],
        }

    def write(self) -> None:
        if self.file is not None:
            write_json(self.file, self.to_json())

    def resume(self) -> None:
        """Takes over the steps that earlier runs of the same image carried out."""
        before = (read_json(self.file) if self.file else None) or {}
        image = before.get("image")
        if before.get("schema") != SCHEMA or not isinstance(image, dict) or image.get("ami") != self.image["ami"]:
            return
        self.started = str(before.get("started", self.started))
        earlier = _carried_out(before.get("regions"))
        for region in self.regions:
            region.earlier = earlier.get(region.region, [])

    def text(self) -> str:
        lines = []
        for region in self.regions:
            lines.append(f"{region.region}  {region.ami or 'no AMI yet'}")
            rows = zip(region.steps, region.outcomes, strict=True)
            lines += [f"  {outcome:6}  {step.text}" for step, outcome in rows] or ["  nothing to do"] * (
                region.error is None
            )
            lines += [f"  notice  {notice}" for notice in region.notices]
            if region.error is not None:
                lines += [f"  failed  {region.error['error']}", *(f"          {row}" for row in _rest(region.error))]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        name = self.image["name"]
        todo = sum(outcome != DONE for region in self.regions for outcome in region.outcomes)
        if self.failed:
            failed = ", ".join(region.region for region in self.failed)
            again = "" if self.file is None else "; run the same command again, it goes on from here"
            return f"INCOMPLETE: {name}: {failed} failed{again}"
        if self.file is None:
            return f"{name}: {todo} steps to do" if todo else f"{name}: nothing to do"
        verb = "published" if self.action == "publish" else "rolled back to"
        return f"{verb}: {name} in {', '.join(region.region for region in self.regions)}"


def _carried_out(regions: object) -> dict[str, list[StepDocument]]:
    """Region → its steps that were carried out. The file may be of others: what is no step is left out."""
    found: dict[str, list[StepDocument]] = {}
    for row in regions if isinstance(regions, list) else []:
        if not isinstance(row, dict):
            continue
        region, steps = row.get("region"), row.get("steps")
        if isinstance(region, str) and isinstance(steps, list):
            found[region] = [done for step in steps if (done := _step_done(step)) is not None]
    return found


def _step_done(step: object) -> StepDocument | None:
    if not isinstance(step, dict) or step.get("outcome") != DONE:
        return None
    name, text = step.get("name"), step.get("text")
    return {"name": name, "text": text, "outcome": DONE} if isinstance(name, str) and isinstance(text, str) else None


def _rest(error: ErrorDocument) -> list[str]:
    return [*error["details"], *([f"→ {error['hint']}"] if error["hint"] else [])]
