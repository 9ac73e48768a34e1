"""Keys of a Packer template that have no equivalent in a recipe: of its builders, provisioners and post-processors.

Each is reported to the person who imports the template: the key path, its value, and what replaces it here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

# Read elsewhere (instance_type, ssh_username, the volume's size), or the same in every template of gpu-ami.
_READ = {"type", "name", "instance_type", "ssh_username", "launch_block_device_mappings", "communicator"}
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
}
_TOP_LEVEL = {"variables", "builders", "provisioners", "post-processors", "description"}
_USER_VARIABLE = re.compile(r"\{\{\s*user\s+[`'\"](\w+)[`'\"]\s*\}\}")
_SHOWN = 100


def leftovers(template: Mapping[str, object]) -> list[str]:
    """One line for every key that is dropped, in the template's order."""
    lines = [
        *_other_builders(template),
        *_builder_keys(template),
        *_steps(template, "provisioners", "write it as an Ansible role of your own, or a file of checks"),
        *_steps(template, "post-processors", "gpu-ami writes build.json and certificate.json"),
    ]
    for key in template.keys() - _TOP_LEVEL:
        lines.append(f"{key}: {shown(template[key])} is not carried over")
    return lines


def environment_lines(variables: Mapping[str, str]) -> list[str]:
    """Variables whose value a template takes from the environment, so that the file does not contain it."""
    return [
        f"{name}: {value!r} is read from the environment; not carried over: set it in the recipe or in a --where file"
        for name, value in variables.items()
        if re.search(r"\{\{\s*env\b", value)
    ]


def root_volume_gib(template: Mapping[str, object]) -> int | None:
    """The builder's volume size, if it maps a single volume whose size is a number."""
    for builder in _mappings(template.get("builders")):
        volumes = list(_mappings(builder.get("launch_block_device_mappings")))
        if len(volumes) == 1 and str(volumes[0].get("volume_size", "")).isdigit():
            return int(str(volumes[0]["volume_size"]))
    return None


def shown(value: object) -> str:
    """A value on one line, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def _other_builders(template: Mapping[str, object]) -> Iterator[str]:
    for index, builder in enumerate(_mappings(template.get("builders"))):
        kind = builder.get("type", "")
        if index or kind not in ("", "amazon-ebs"):
            yield f"builders[{index}]: {kind!r} is not carried over: gpu-ami builds with one amazon-ebs builder"


def _builder_keys(template: Mapping[str, object]) -> Iterator[str]:
    for builder in list(_mappings(template.get("builders")))[:1]:
        for key, value in builder.items():
            if key not in _READ and not _is_imported_variable(value):
                instead = _INSTEAD.get(key, "gpu-ami's own Packer template has its own setting")
                yield f"builders[0].{key}: {shown(value)} is not carried over: {instead}"
        yield from _volumes(builder)


def _volumes(builder: Mapping[str, object]) -> Iterator[str]:
    volumes = list(_mappings(builder.get("launch_block_device_mappings")))
    for index, volume in enumerate(volumes):
        dropped = [key for key in volume if key not in ("device_name", "volume_size", "delete_on_termination")]
        if len(volumes) > 1 or not str(volume.get("volume_size", "0")).isdigit():
            dropped = list(volume)
        for key in dropped:
            path = f"builders[0].launch_block_device_mappings[{index}].{key}"
            yield f"{path}: {shown(volume[key])} is not carried over: gpu-ami makes one gp3 root volume"


def _steps(template: Mapping[str, object], key: str, instead: str) -> Iterator[str]:
    for index, step in enumerate(_mappings(template.get(key))):
        source = next((step[name] for name in ("inline", "script", "scripts", "playbook_file") if name in step), None)
        content = f" {shown(source)}" if source is not None else ""
        replaced = "gpu-ami's roles replace it" if "ansible" in str(step.get("type")) else instead
        yield f"{key}[{index}] ({step.get('type', 'no type')}){content}: not carried over: {replaced}"


def _is_imported_variable(value: object) -> bool:
    """`{{user `region`}}`: the variable has a line of its own."""
    if isinstance(value, list):
        return bool(value) and all(_is_imported_variable(item) for item in value)
    return isinstance(value, str) and _USER_VARIABLE.fullmatch(value.strip()) is not None


def _mappings(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))
