"""plan.json: everything that a run needs to know, resolved; the only place where a version, URL or path stands."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast, get_type_hints

from gpu_ami.cloud import Place, login
from gpu_ami.errors import UsageError
from gpu_ami.files import data_dir, read_document, write_json
from gpu_ami.recipes import PlanDocument, ResolvedPlan, SourceAmi, components, section, site
from validator import foreign_names
from validator.plan import OBSERVED
from validator.plan_document import AgentPackage, Builder, root_device
from validator.results import typed_mistakes

SITE_FOLDER = "site"
PACKER_FILE, ANSIBLE_FILE = "packer.pkrvars.json", "ansible.json"

# For a place with an API of its own that is not up. An empty endpoint would mean AWS, and Packer by hand would launch
# there; the template refuses this one by name, and nothing answers under ".invalid" (RFC 2606).
NO_ENDPOINT = "http://region-is-down.invalid"

# ParallelCluster's names of systems are id and version of os-release, but for this one (constants.py, SUPPORTED_OSES).
_PCLUSTER_SYSTEMS = {"amzn": "alinux"}

# Ansible takes values of extra variables as Jinja templates, and Packer's builder its settings as Go templates: both
# evaluate them on this machine, where `lookup('pipe', ...)` runs a program.
_TEMPLATE = re.compile(r"\{[{%#]")
_ROLE = re.compile(r"[a-z][a-z0-9_]*")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # useradd(8)
# Ansible's own (`ansible_connection`: how the machine is reached), and those of the playbooks.
_NOT_OF_ROLES = ("ansible_", "gpu_ami_")


def packer_variables(document: PlanDocument, place: Place, ansible_vars_file: Path) -> dict[str, object]:
    """What `packer/variables.pkr.hcl` declares, but for what is of a single run (run id, expiry, manifest)."""
    source = document["source_ami"]
    where = {
        "region": place.region,
        "profile": place.api.profile or "",
        "custom_endpoint": place.api.endpoint or (NO_ENDPOINT if place.api.guest_endpoint else ""),
        # A place of AWS has no keys of its own (place.py refuses them), so none are written into the file.
        "access_key": place.api.credentials.access_key_id if place.api.credentials else "",
        "secret_key": place.api.credentials.secret_access_key if place.api.credentials else "",
        "subnet_id": place.network.subnet_id or "",
        "security_group_ids": list(place.network.security_group_ids),
        # A builder calls no AWS API, so it gets no rights; only a session through SSM needs the profile.
        "instance_profile": (place.instance_profile or "") if place.login.ssh_interface == "session_manager" else "",
        "kms_key_id": place.kms_key_id or "",
        "ssh_interface": place.login.ssh_interface,
        "ssh_port": place.login.ssh_port,
        **login.bastion(place),
        "tags": dict(place.tags),
    }
    of_plan = {
        "flag": document["flag"],
        "recipe": document["image"],
        "plan_digest": document["digest"],
        "architecture": document["architecture"],
        "source_ami": source.get("id", ""),
        "source_ami_owner": source.get("owner", ""),
        "source_ami_name": source.get("name", ""),
        **{tag: section(document, name).get("version", "") for name, tag in components.version_tags().items()},
        "instance_type": document["build"]["instance_type"],
        "root_device_name": root_device(document["os"]),
        "root_volume_gib": document["build"]["root_volume_gib"],
        "ssh_username": document["os"]["ssh_user"],
        "image_tags": image_tags(document),
    }
    _require_plain(of_plan, "")
    if not _ACCOUNT.fullmatch(document["os"]["ssh_user"]):  # a line of Ansible's inventory holds it
        raise UsageError(f"plan: os.ssh_user: expected the name of an account, got {document['os']['ssh_user']!r}")
    return {
        **of_plan,
        "ansible_vars_file": str(ansible_vars_file),
        **_own_ansible(),
        **_site_roles(document, ansible_vars_file.parent / SITE_FOLDER),
        **where,
    }


def image_tags(document: PlanDocument) -> dict[str, str]:
    """The tags of an image that ParallelCluster's validators of a custom AMI read; none for other images.

    Without them `pcluster create-cluster` warns that the AMI may not be its own, and a tag of another release is an
    error. `list-images` and `delete-image` look for the tag parallelcluster:image_id, which only `build-image` sets: an
    image of ours is never taken for one of theirs. Source: the wheel aws-parallelcluster 3.16.1 of PyPI
    (CustomAmiTagValidator, AmiOsCompatibleValidator, Ec2Client.get_images, describe_image_by_id_tag), read 2026-11-25.
    """
    if "node_parallelcluster" not in document:
        return {}
    system = document["os"]
    name = _PCLUSTER_SYSTEMS.get(system["id"], system["id"]) + system["version"].replace(".", "")
    return {
        "parallelcluster:version": str(section(document, "node_parallelcluster")["version"]),
        "parallelcluster:os": name,
        "parallelcluster:build_status": "available",
    }


def _site_roles(document: PlanDocument, site: Path) -> dict[str, list[str]]:
    settings = roles_path(site) if "site" in document else {}
    return {"ansible_env_vars": [f"{name}={value}" for name, value in settings.items()]} if settings else {}


def roles_path(site: Path) -> dict[str, str]:
    """Ansible's environment that finds the roles of the site beside a plan, and ours; empty where it has none."""
    folder = _joined(site.parent, site.name, "roles")
    return {"ANSIBLE_ROLES_PATH": f"{folder}:{data_dir('roles')}"} if folder.is_dir() else {}


def site_files(folder: Path, kind: str, pattern: str, roles: Sequence[str]) -> list[Path]:
    """Files of a kind (checks, faults) in site/ beside a plan: those of the plan's roles, and those of no site role.

    pattern: the file's name with {} for the role's, such as test_{}.py.
    """
    others = {pattern.format(path.name) for path in site_folder(folder, "roles").glob("*/") if path.name not in roles}
    found = site_folder(folder, kind)
    names = [path.name for path in sorted(found.glob(pattern.format("*"))) if path.name not in others]
    return [_joined(found, name) for name in names]


def site_folder(folder: Path, kind: str) -> Path:
    """site/KIND beside a plan, which may be one that somebody sent. UsageError: a link leads elsewhere."""
    return _joined(folder, SITE_FOLDER, kind)


def _joined(folder: Path, *names: str) -> Path:
    try:
        return foreign_names.join(folder, *names)
    except foreign_names.NameRefused as error:
        hint = "`gpu-ami plan` copies a site's files beside the plan: plan the recipe again, or remove it"
        raise UsageError(str(error), hint=hint) from error


def _own_ansible() -> dict[str, str]:
    """The ansible-playbook beside our interpreter, so that Packer by hand finds it without an activated environment."""
    own = Path(sys.executable).with_name("ansible-playbook")
    return {"ansible_command": str(own)} if own.exists() else {}


def ansible_variables(document: PlanDocument) -> dict[str, object]:
    """For each role r, key k of its section is the variable `r_k`; and `gpu_ami_roles`, the roles in order.

    UsageError: a name or value with which a recipe or plan of others would run programs on this machine.
    """
    variables: dict[str, object] = {"gpu_ami_roles": list(document["roles"])}
    for role in document["roles"]:
        if not _ROLE.fullmatch(role):
            raise UsageError(f"plan: roles: expected names of letters, digits and underscores, got {role!r}")
        values = section(document, role)
        _require_plain(values, role)
        of_role = {f"{role}_{key}": value for key, value in values.items()}
        if taken := [name for name in of_role if name.startswith(_NOT_OF_ROLES)]:
            hint = "rename the role" if "site" in document else ""
            raise UsageError(f"plan: roles: {role}: {taken[0]} is not a role's variable but Ansible's own", hint=hint)
        variables |= of_role
    return variables


def _require_plain(value: object, path: str) -> None:
    """UsageError: a text in `value`, which is at `path` of a plan, would be evaluated as a template."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_plain(str(key), f"{path} (name of a key)" if path else "name of a key")
            _require_plain(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, item in enumerate(value):
            _require_plain(item, f"{path}.{number}")
    elif isinstance(value, str) and _TEMPLATE.search(value):
        raise UsageError(
            f"plan: {path}: expected text without {{{{, {{% and {{#, got {value[:200]!r}",
            hint="Ansible and Packer would evaluate it as a template on this machine: write the value itself",
        )


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
        # Whoever changes a plan can renew its digest as well.
        if wrong := _wrong_types(document):
            raise UsageError(
                f"{path}: it is not a plan as gpu-ami writes it", details=wrong,
                hint="run gpu-ami plan RECIPE again",
            )  # fmt: skip
        site = path.parent / SITE_FOLDER if "site" in document else None
        return Plan(cast(PlanDocument, document), site)

    def write(self, out_dir: Path, place: Place) -> Path:
        """Writes plan.json and, derived from it, packer.pkrvars.json and ansible.json, each whole or not at all.

        Returns the path of plan.json. `packer build -var-file=OUT/packer.pkrvars.json packer/` works with them.
        """
        ansible_variables(self.document)  # what these two refuse is refused before anything is written
        packer_variables(self.document, place, out_dir.resolve() / ANSIBLE_FILE)
        out_dir.mkdir(parents=True, exist_ok=True)
        self._write_site(out_dir / SITE_FOLDER)
        write_json(out_dir / ANSIBLE_FILE, ansible_variables(self.document))
        write_json(out_dir / PACKER_FILE, packer_variables(self.document, place, out_dir.resolve() / ANSIBLE_FILE))
        write_json(out_dir / PLAN_FILE, self.document)
        return out_dir / PLAN_FILE

    def _write_site(self, folder: Path) -> None:
        """Copies the site's parts, so that every later stage needs the plan's folder alone."""
        if self.site is not None and self.site.resolve() == folder.resolve():
            return
        shutil.rmtree(folder, ignore_errors=True)
        if self.site is None:
            return
        alarms = [Path(site.ALARMS_FILE)] if (self.site / site.ALARMS_FILE).is_file() else []  # no part of an image
        for name in [*(site.files(self.site) if "site" in self.document else ()), *alarms]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.site / name, folder / name)


# What every stage reads. Of the others, a plan of an older release may lack what a newer one writes.
_OF_EVERY_PLAN = ("image", "roles", "instance_types")


def _wrong_types(document: Mapping[str, object]) -> list[str]:
    """Values of plan.json that are missing or of another type, at any depth."""
    found = [f"{key}: missing" for key in _OF_EVERY_PLAN if key not in document]
    own: dict[str, Any] = get_type_hints(PlanDocument)
    if document.get("origin") == OBSERVED:  # its configuration is the image's, which may lack what ours has
        own["cloudwatch_agent"] = AgentPackage
    of_roles = {name: one.section for name, one in components.components().items() if one.section}
    for key, value in document.items():
        kind = own.get(key) or of_roles.get(key)
        # A section that the base AMI provides has its version alone, and what says where that is.
        provided = isinstance(value, Mapping) and "provided_by" in value
        if kind is not None:
            found += typed_mistakes(kind, value, key, missing=not provided)
        elif key in _plan_roles(document) and not isinstance(value, Mapping):
            found.append(f"{key}: expected a section, found {str(value)[:60]!r}")
    return found


def _plan_roles(document: Mapping[str, object]) -> Sequence[object]:
    roles = document.get("roles")
    return roles if isinstance(roles, list) else ()


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
