"""Keys of a Packer template that have no equivalent in a recipe: of its builders, provisioners and post-processors.

Each is reported to the person who imports the template: the key path, its value where it is no secret, and what
replaces it here. What a script or user data hold is never shown: they may hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping

from gpu_ami.errors import counted
from gpu_ami.importer.place import component_of
from gpu_ami.importer.secrets import NOT_SHOWN, Secrets
from gpu_ami.importer.template import Template, refers_to_variable, step_values

# Read elsewhere (instance_type, ssh_username, the volume's size), or the same in every template of gpu-ami.
_READ = {"type", "name", "instance_type", "ssh_username", "launch_block_device_mappings", "communicator"}
_ASKED_ANYWAY = {"architecture", "root-device-type", "state", "virtualization-type", "name"}
_CONTENT = {"user_data", "user_data_file"}
_INSTEAD = {
    "region": "name it in a --where file",
    "profile": "name it in a --where file",
    "subnet_id": "name it in a --where file",
    "security_group_ids": "name them in a --where file",
    "security_group_id": "name it in a --where file, as security_group_ids",
    "iam_instance_profile": "name it in a --where file, as instance_profile",
    "kms_key_id": "name it in a --where file",
    "ssh_interface": "name it in a --where file",
    "ssh_port": "name it in a --where file",
    "source_ami": "name it in a --where file, or source_ami in the recipe",
    "source_ami_filter": "name owner and name under source_ami in the recipe",
    "tags": "name them in a --where file",
    "run_tags": "name them in a --where file",
    "snapshot_tags": "name them in a --where file",
    "ami_name": "gpu-ami names the AMI gpu-ami_<flag>_<driver version>-<time>",
    "ami_users": "an AMI is private until it is published",
    "ami_groups": "an AMI is private until it is published",
    "ami_regions": "gpu-ami builds in one region",
    "encrypt_boot": "name kms_key_id in a --where file",
    "user_data": "gpu-ami's builder has user data of its own",
    "user_data_file": "gpu-ami's builder has user data of its own",
}
_SECRET = "a secret, its value is not copied"
_CREDENTIAL = re.compile(
    r"(?:aws|amazon|ec2)[_-].*|access_key(_id)?|secret_(access_)?key|(session_)?token", re.IGNORECASE
)
_BOTO3 = "boto3 finds credentials (profile, role, environment)"
_SHOWN = 100


def leftovers(template: Template, taken: Collection[str], root_volume: int | None) -> list[str]:
    """One line for every key that is dropped, in the template's order.

    taken: variables and keys (`builders[0].region`) that were carried over. root_volume: the index of the volume whose
    size was.
    """
    lines = [
        *_other_builders(template),
        *_builder_keys(template, taken, root_volume),
        *_steps(template.provisioners, "provisioners", "write it as an Ansible role of your own, or a file of checks"),
        *_steps(template.post_processors, "post-processors", "gpu-ami writes build.json and certificate.json"),
    ]
    for key, value in template.others.items():
        lines.append(f"{key}: {shown(key, value, template.secrets)} is not carried over")
    return lines


def shown(name: str, value: object, secrets: Secrets) -> str:
    """A value on one line, shortened; not that of a secret."""
    if secrets.hides(name, value):
        return NOT_SHOWN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def unused_variables(template: Template, taken: Collection[str]) -> Iterator[str]:
    """A line for every variable with a value that is carried over nowhere; a secret's is named alone."""
    for name, value in template.variables.items():
        if value in (None, "", [], {}) or name in taken or name in template.environment:
            continue
        if template.secrets.hides(name, value):
            yield f"{name}: {_secret(name)}"
        else:
            yield f"{name}: {shown(name, value, template.secrets)} has no place in a recipe; not carried over"


def _secret(name: str) -> str:
    return f"{_SECRET}: {_BOTO3}" if _CREDENTIAL.fullmatch(name) else _SECRET


def _other_builders(template: Template) -> Iterator[str]:
    for index, builder in enumerate(template.raw_builders):
        kind = builder.get("type", "")
        if index or kind not in ("", "amazon-ebs"):
            name = builder.get("name")
            is_named = name and not template.secrets.hides("", name)
            hint = f"; --only {kind}.{name} takes it" if index and is_named else ""
            text = (
                f"{shown('', kind, template.secrets)} is not carried over: gpu-ami builds with one amazon-ebs builder"
            )
            yield f"builders[{index}]: {text}{hint}"


def _builder_keys(template: Template, taken: Collection[str], root_volume: int | None) -> Iterator[str]:
    for raw, builder in list(zip(template.raw_builders, template.builders, strict=True))[:1]:
        for key, value in raw.items():
            path = f"builders[0].{key}"
            if key in _READ or path in taken or builder.get(key) in (None, "", [], {}) or refers_to_variable(value):
                continue
            instead = _INSTEAD.get(key, "gpu-ami's own Packer template has its own setting")
            if key in _CONTENT or template.secrets.hides(key, [value, builder.get(key)]):
                why = instead if key in _CONTENT else _secret(key)
                yield f"{path}: not carried over: {why}" if key in _CONTENT else f"{path}: {why}"
            elif key == "source_ami_filter":
                yield from _filters(builder.get(key), template.secrets)
            else:
                yield f"{path}: {shown(key, value, template.secrets)} is not carried over: {instead}"
        yield from _volumes(raw, root_volume, template.secrets)


def _filters(value: object, secrets: Secrets) -> Iterator[str]:
    filters = value.get("filters") if isinstance(value, Mapping) else None
    for key, item in filters.items() if isinstance(filters, Mapping) else ():
        if key not in _ASKED_ANYWAY and item not in (None, ""):
            path = f"builders[0].source_ami_filter.filters.{key}"
            yield f"{path}: {shown(key, item, secrets)} is not carried over: a recipe finds its AMI by owner and name"


def _volumes(builder: Mapping[str, object], root_volume: int | None, secrets: Secrets) -> Iterator[str]:
    for index, volume in enumerate(mappings(builder.get("launch_block_device_mappings"))):
        path = f"builders[0].launch_block_device_mappings[{index}]"
        if index != root_volume:
            text = shown(path, dict(volume), secrets)
            yield f"{path}: {text} is not carried over: gpu-ami makes one gp3 root volume"
            continue
        for key in volume:
            if key not in ("device_name", "volume_size", "delete_on_termination") and volume[key] is not None:
                text = shown(key, volume[key], secrets)
                yield f"{path}.{key}: {text} is not carried over: gpu-ami makes one gp3 root volume"


def _steps(steps: list[Mapping[str, object]], key: str, instead: str) -> Iterator[str]:
    for index, step in enumerate(steps):
        secrets = Secrets()
        source = next((step[name] for name in ("script", "scripts", "playbook_file") if name in step), None)
        inline = step.get("inline")
        content = f" {shown('', source, secrets)}" if source is not None else ""
        if inline is not None:
            content = f" {counted(len(inline) if isinstance(inline, list) else 1, 'inline command')}"
        others = sorted({name for _, name, _ in step_values([step], {}) if component_of(name) is None})
        content += f" with {', '.join(others)}" if others else ""
        replaced = "gpu-ami's roles replace it" if "ansible" in str(step.get("type")) else instead
        yield f"{key}[{index}] ({step.get('type', 'no type')}){content}: not carried over: {replaced}"


def mappings(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))
    elif isinstance(value, Mapping):
        yield value
