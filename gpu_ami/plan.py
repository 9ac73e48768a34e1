"""The plan: everything that a run needs to know, resolved; the only place where a version, URL or path stands.

make_plan(recipe, place) → Plan → plan.json, packer.pkrvars.json, ansible.json
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.place import Mirror, Place

SCHEMA = "gpu-ami/plan/1"
PLAN_FILE, PACKER_FILE, ANSIBLE_FILE = "plan.json", "packer.pkrvars.json", "ansible.json"

# Ubuntu's and RHEL's AMIs name their root device differently from all others.
_ROOT_DEVICES = {"ubuntu": "/dev/sda1", "rhel": "/dev/sda1"}


@dataclass(frozen=True)
class Plan:
    """A resolved recipe. `document` is what plan.json holds (ARCHITECTURE.md, "The plan"); read-only by agreement."""

    document: Mapping[str, Any]

    @property
    def image(self) -> str:
        """The recipe's name."""
        return str(self.document["image"])

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex digits over the canonical JSON of everything else."""
        return str(self.document["digest"])

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    @staticmethod
    def load(path: Path) -> Plan:
        """Reads a plan.json. UsageError where it is not one, or was changed by hand."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{path}: no such file", hint="gpu-ami plan RECIPE writes one") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not a plan: {error}", hint="gpu-ami plan RECIPE writes a new one") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise UsageError(
                f"{path}: expected schema {SCHEMA}, found {found}", hint="gpu-ami plan RECIPE writes a new one"
            )
        if document.get("digest") != digest_of(document):
            raise UsageError(
                f"{path}: its content does not match its digest; it was changed after it was written",
                details=[f"written {document.get('digest')}", f"content {digest_of(document)}"],
                hint="change the recipe (or use --set) and run gpu-ami plan again",
            )
        return Plan(document)

    def write(self, out_dir: Path, place: Place) -> Path:
        """Writes plan.json and, derived from it, packer.pkrvars.json and ansible.json, each whole or not at all.

        Returns the path of plan.json. `packer build -var-file=OUT/packer.pkrvars.json packer/` works with them.
        """
        out_dir.mkdir(parents=True, exist_ok=True)
        write_json(out_dir / ANSIBLE_FILE, ansible_variables(self))
        write_json(out_dir / PACKER_FILE, packer_variables(self, place, out_dir.resolve() / ANSIBLE_FILE))
        write_json(out_dir / PLAN_FILE, self.document)
        return out_dir / PLAN_FILE


def make_plan(recipe: Path, place: Place, overrides: Sequence[str] = ()) -> Plan:
    """Resolves a recipe for a place. overrides: `KEY.PATH=VALUE`, above all layers.

    UsageError lists all mistakes of the recipe at once.
    """
    from gpu_ami.recipes.facts import load_facts
    from gpu_ami.recipes.layers import read_recipe
    from gpu_ami.recipes.resolve import resolve

    facts = load_facts()
    document = resolve(read_recipe(recipe, facts, overrides), facts)
    return Plan(sealed(at_place(_with_recorded_ami(document, place), place)))


def _with_recorded_ami(document: dict[str, Any], place: Place) -> dict[str, Any]:
    """The source AMI that the image's lock records for the region; ids mean something only in AWS itself."""
    from gpu_ami.lock import recorded_ami

    if place.endpoint or place.guest_endpoint or place.source_ami:
        return document
    recorded = recorded_ami(document, place.region)
    return document | {"source_ami": {"id": recorded}} if recorded else document


def canonical_json(document: Any) -> str:
    """One text for one content: keys sorted, no spaces, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest that a plan's document should carry."""
    content = {key: value for key, value in document.items() if key != "digest"}
    return f"sha256:{hashlib.sha256(canonical_json(content).encode()).hexdigest()}"


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its digest, third in the file as a reader expects it."""
    head = {key: document[key] for key in ("schema", "image")}
    return head | {"digest": digest_of(document)} | {key: value for key, value in document.items() if key != "digest"}


def at_place(document: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The document as a place needs it: vendors' URLs at its mirror, the agent at its endpoint, its source AMI."""
    placed: dict[str, Any] = _mirrored(document, place.mirror) if place.mirror else dict(document)
    if place.guest_endpoint:
        placed["cloudwatch_agent"] = _agent_at(placed["cloudwatch_agent"], place.guest_endpoint)
    if place.source_ami:
        placed["source_ami"] = {"id": place.source_ami}
    if place.kernel and place.kernel != placed["kernel"]["version"]:
        placed |= _with_kernel(placed, place)
    return placed


def _with_kernel(document: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The kernel's section and a note, where machines of the place boot another series than the image's own AMI."""
    from gpu_ami.recipes.facts import load_facts
    from gpu_ami.recipes.surroundings import kernel_section

    system, assumed = document["os"], document["kernel"]["version"]
    rows = load_facts().operating_systems.values()
    row = next(row for row in rows if (row["id"], row["version"]) == (system["id"], system["version"]))
    note = f"not proven here: kernel {assumed}; machines of {place.name} boot {place.kernel}"
    section = kernel_section(row, str(place.kernel), document["architecture"])
    return {"kernel": section, "notes": [*document["notes"], note]}


def _agent_at(agent: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    """The agent's two documents for a guest that reaches AWS's API at `endpoint` alone.

    The Auto Scaling group's name is an EC2 tag, which the agent asks for at AWS's own address whatever the override
    says, and it publishes no metric until it has an answer (plugins/processors/ec2tagger): that dimension goes.
    """
    override = {"endpoint_override": endpoint}
    config, gpu_config = agent["config"], agent["gpu_config"]
    placed = dict(agent) | {"config": config | {"logs": config["logs"] | override}}
    if gpu_config:  # none where the plan measures no GPU
        metrics = gpu_config["metrics"]
        asked = metrics["append_dimensions"].items()
        dimensions = {name: value for name, value in asked if name != "AutoScalingGroupName"}
        placed["gpu_config"] = gpu_config | {"metrics": metrics | {"append_dimensions": dimensions} | override}
    return placed


def _mirrored(value: Any, mirror: Mirror) -> Any:
    """`https://HOST/PATH` in `url` and `*_url` becomes `{mirror}/HOST/PATH`, signed with the mirror's key; a tag's
    commit becomes the one that the mirror's git repository has.

    `sources` are citations, not addresses to fetch from; they have no such keys.
    """
    if isinstance(value, list):
        return [_mirrored(item, mirror) for item in value]
    if not isinstance(value, dict):
        return value
    placed = {key: _mirrored_entry(key, item, mirror) for key, item in value.items()}
    if {"url", "tag", "commit"} <= value.keys():
        placed["commit"] = mirror.commit(value["url"], value["tag"]) or value["commit"]
    return placed


def _mirrored_entry(key: str, item: Any, mirror: Mirror) -> Any:
    if (key == "url" or key.endswith("_url")) and isinstance(item, str) and item.startswith("https://"):
        return f"{mirror.url.rstrip('/')}/{item.removeprefix('https://')}"
    return mirror.key_fingerprint if key == "key_fingerprint" else _mirrored(item, mirror)


def packer_variables(plan: Plan, place: Place, ansible_vars_file: Path) -> dict[str, Any]:
    """What `packer/variables.pkr.hcl` declares, but for what is of a single run (run id, expiry, manifest)."""
    document = plan.document
    source = document["source_ami"]
    versions = {key: document.get(key, {}).get("version", "") for key in ("cuda", "cudnn", "nccl", "efa", "mkl")}
    where = {
        "region": place.region,
        "profile": place.profile or "",
        "custom_endpoint": place.endpoint or "",
        "subnet_id": place.subnet_id or "",
        "security_group_ids": list(place.security_group_ids),
        # A builder calls no AWS API, so it gets no rights; only a session through SSM needs the profile.
        "instance_profile": (place.instance_profile or "") if place.ssh_interface == "session_manager" else "",
        "kms_key_id": place.kms_key_id or "",
        "ssh_interface": place.ssh_interface,
        "ssh_port": place.ssh_port,
        "tags": dict(place.tags),
    }
    return {
        "flag": document["flag"],
        "recipe": document["image"],
        "plan_digest": plan.digest,
        "architecture": document["architecture"],
        "source_ami": source.get("id", ""),
        "source_ami_owner": source.get("owner", ""),
        "source_ami_name": source.get("name", ""),
        "nvidia_version": document.get("nvidia_driver", {}).get("version", ""),
        "cuda_version": versions["cuda"],
        "cudnn_version": versions["cudnn"],
        "nccl_version": versions["nccl"],
        "efa_version": versions["efa"],
        "intel_mkl_version": versions["mkl"],
        "instance_type": document["build"]["instance_type"],
        "root_device_name": _ROOT_DEVICES.get(document["os"]["id"], "/dev/xvda"),
        "root_volume_gib": document["build"]["root_volume_gib"],
        "ssh_username": document["os"]["ssh_user"],
        "ansible_vars_file": str(ansible_vars_file),
        **_own_ansible(),
        **where,
    }


def _own_ansible() -> dict[str, str]:
    """The ansible-playbook beside our interpreter, so that Packer by hand finds it without an activated environment."""
    own = Path(sys.executable).with_name("ansible-playbook")
    return {"ansible_command": str(own)} if own.exists() else {}


def ansible_variables(plan: Plan) -> dict[str, Any]:
    """For each role r, key k of `plan[r]` is the variable `r_k`; and `gpu_ami_roles`, the roles in order."""
    variables: dict[str, Any] = {"gpu_ami_roles": list(plan["roles"])}
    for role in plan["roles"]:
        variables |= {f"{role}_{key}": value for key, value in plan.document.get(role, {}).items()}
    return variables


def write_json(path: Path, document: Any) -> None:
    """Whole or not at all: a reader never sees half a file, nor does a crash leave one."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
