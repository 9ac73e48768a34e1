"""plan.json: everything that a run needs to know, resolved; the only place where a version, URL or path stands."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from gpu_ami.cloud import Place
from gpu_ami.errors import UsageError
from gpu_ami.files import read_document, write_json
from gpu_ami.plan.outputs import ANSIBLE_FILE, PACKER_FILE, SITE_FOLDER, ansible_variables, packer_variables
from gpu_ami.recipes import PlanDocument, ResolvedPlan, SourceAmi, site
from validator.plan_document import Builder

SCHEMA = "gpu-ami/plan/1"
PLAN_FILE = "plan.json"


class SourcePlan(TypedDict):
    """The sections of a plan that decide its source AMI."""

    source_ami: SourceAmi
    architecture: str
    build: Builder


@dataclass(frozen=True)
class Plan:
    """A resolved recipe. `document` is what plan.json holds (ARCHITECTURE.md, "The plan"); read-only by agreement."""

    document: PlanDocument
    site: Path | None = None  # the folder of the site's own parts, if the document has a section "site"

    @property
    def image(self) -> str:
        """The recipe's name."""
        return self.document["image"]

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex digits over the canonical JSON of everything else."""
        return self.document["digest"]

    def __getitem__(self, key: str) -> Any:
        """A value of the document by a key that is known at run time only; mypy knows the keys of `document`."""
        return cast(Mapping[str, Any], self.document)[key]

    @staticmethod
    def load(path: Path) -> Plan:
        """Reads a plan.json. UsageError where it is not one, or was changed by hand."""
        document = read_document(path, SCHEMA, "plan RECIPE")
        if document.get("digest") != digest_of(document):
            raise UsageError(
                f"{path}: its content does not match its digest; it was changed after it was written",
                details=[f"written {document.get('digest')}", f"content {digest_of(document)}"],
                hint="change the recipe (or use --set) and run gpu-ami plan again",
            )
        site = path.parent / SITE_FOLDER if "site" in document else None
        return Plan(cast(PlanDocument, document), site)  # its digest says that we wrote it

    def write(self, out_dir: Path, place: Place) -> Path:
        """Writes plan.json and, derived from it, packer.pkrvars.json and ansible.json, each whole or not at all.

        Returns the path of plan.json. `packer build -var-file=OUT/packer.pkrvars.json packer/` works with them.
        """
        out_dir.mkdir(parents=True, exist_ok=True)
        self._write_site(out_dir / SITE_FOLDER)
        write_json(out_dir / ANSIBLE_FILE, ansible_variables(self.document))
        write_json(out_dir / PACKER_FILE, packer_variables(self.document, place, out_dir.resolve() / ANSIBLE_FILE))
        write_json(out_dir / PLAN_FILE, self.document)
        return out_dir / PLAN_FILE

    def _write_site(self, folder: Path) -> None:
        """Copies roles, checks and faults of the site, so that every later stage needs the plan's folder alone."""
        if self.site is not None and self.site.resolve() == folder.resolve():
            return
        shutil.rmtree(folder, ignore_errors=True)
        if self.site is None or "site" not in self.document:
            return
        for name in site.files(self.site):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.site / name, folder / name)


def canonical_json(document: Any) -> str:
    """One text for one content: keys sorted, no spaces, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(document: Mapping[str, object]) -> str:
    """The digest that a plan's document should carry."""
    content = {key: value for key, value in document.items() if key != "digest"}
    return f"sha256:{hashlib.sha256(canonical_json(content).encode()).hexdigest()}"


def with_digest(document: ResolvedPlan) -> PlanDocument:
    """The document with its digest, third in the file as a reader expects it."""
    head = {"schema": document["schema"], "image": document["image"], "digest": digest_of(document)}
    return cast(PlanDocument, head | {key: value for key, value in document.items() if key not in head})
