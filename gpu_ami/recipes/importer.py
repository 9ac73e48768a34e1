"""Converts the `variables` block of a former pipeline's Packer JSON template to a recipe.

The value of a variable may be a version, a package, a file name or `latest`. Region, network and AMI id go to a
`--where` file. What cannot be converted is reported, not guessed.

The template's variables: aws-samples/aws-efa-nccl-baseami-pipeline 9d8a9273, nvidia-efa-ami_base/*.yml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import UsageError
from gpu_ami.files import parse_yaml
from gpu_ami.recipes.facts import NEWEST, Facts, parts
from gpu_ami.recipes.template_leftovers import environment_lines, leftovers, root_volume_gib, shown
from validator import inputs

_DEFAULT_TYPES = ["g5.12xlarge", "p4d.24xlarge"]
_SYSTEMS = {
    r"al2022|al2023|amazon-linux-202": "al2023",
    r"al2|amzn2|amazon-linux-2": "al2",
    r"(ubuntu|ul)[-_]?18": "ubuntu1804",
    r"(ubuntu|ul)[-_]?20": "ubuntu2004",
    r"(ubuntu|ul)[-_]?22": "ubuntu2204",
    r"(ubuntu|ul)[-_]?24": "ubuntu2404",
}
_PLACE = {
    "region": "region",
    "subnet_id": "subnet_id",
    "security_groupids": "security_group_ids",
    "build_ami": "source_ami",
}


@dataclass
class Imported:
    """A recipe's document, the `--where` file's, and remarks: what was not carried over, assumed, or needs a look."""

    recipe: dict[str, object] = field(default_factory=dict)
    place: dict[str, object] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def import_template(path: Path, facts: Facts) -> Imported:
    """UsageError: not a template. Everything else that could not be carried over is a remark."""
    template = _read(path)
    variables = _variables(template)
    imported = Imported()
    flag = imported.recipe["flag"] = _flag(variables.pop("flag", ""), path, imported)
    system = imported.recipe["os"] = _system(path, flag, template, imported)
    _node(f"{path.stem} {flag}".lower(), imported)
    _instance_types(template, facts, imported)
    builder = _builder(template)
    if builder:
        imported.recipe["build"] = builder
    description = template.get("description")
    if isinstance(description, str) and 0 < len(description.strip()) <= 200 and "\n" not in description.strip():
        imported.recipe["description"] = description.strip()
    elif description:
        imported.remarks.append(
            f"description: {shown(description)} is not carried over: expected one line of at most 200"
        )
    for name, convert in _CONVERT.items():
        if "{{" not in variables.get(name, ""):
            text = variables.pop(name, "")
            if text:
                convert(text, imported)
    imported.remarks += environment_lines(variables)
    variables = {name: value for name, value in variables.items() if "{{" not in value}
    _to_place(variables, imported)
    imported.remarks += [
        f"{name}: {value!r} has no place in a recipe; not carried over" for name, value in variables.items()
    ]
    imported.remarks += leftovers(template)
    imported.remarks += _assumed(builder, imported)
    row = facts.operating_systems[system]
    if row.get("cost"):
        imported.remarks.append(f"os: {system} reached its end of life on {row['end_of_life']}: {row['cost']}")
    return imported


def _read(path: Path) -> dict[str, object]:
    try:
        text = inputs.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read: {error}", hint="gpu-ami import takes a Packer JSON template"
        ) from error
    try:
        template = json.loads(text)
    except ValueError:
        template = parse_yaml(text, str(path))
    if not isinstance(template, dict) or not isinstance(template.get("variables"), dict):
        raise UsageError(f"{path}: no `variables` block", hint="gpu-ami import takes a Packer JSON template")
    return template


def _variables(template: Mapping[str, object]) -> dict[str, str]:
    variables = template["variables"]
    return {str(key): str(value).strip() for key, value in variables.items()} if isinstance(variables, dict) else {}


def _flag(text: str, path: Path, imported: Imported) -> str:
    flag = re.sub(r"[^a-z0-9.-]+", "-", (text or path.stem).lower()).strip("-.")[:64] or "imported"
    if text and flag != text:
        imported.remarks.append(f"flag: {text!r} becomes {flag!r}")
    return flag


def _system(path: Path, flag: str, template: Mapping[str, object], imported: Imported) -> str:
    """The operating system: from the file's name or the flag, else from the login user."""
    for text in (path.stem.lower(), flag):
        for pattern, name in _SYSTEMS.items():
            if re.search(pattern, text):
                imported.remarks.append(f"os: {name} is assumed from the name {text!r}")
                return name
    users = [builder.get("ssh_username") for builder in _builders(template)]
    guess = "ubuntu2204" if "ubuntu" in users else "al2023"
    imported.remarks.append(f"os: neither file name nor flag names a system; {guess} is assumed from the login user")
    return guess


def _node(name: str, imported: Imported) -> None:
    """The node family, from the file's name and the flag."""
    if "ecs" in name:
        imported.recipe["node"] = "ecs"
        imported.remarks.append("node: ecs is assumed from the name of file or flag")
    elif "eks" in name:
        version = re.search(r"eks-?(\d+\.\d+)", name)
        imported.recipe["node"] = "eks"
        if version:
            imported.recipe["node_version"] = version[1]
        imported.remarks.append("node: EKS base AMIs are Amazon Linux 2023 now: check os and node_version")
    elif "pyxis" in name or "slurm" in name:
        imported.remarks.append(
            "node: enroot, pyxis and Slurm are not carried over; see the parallelcluster node family"
        )


def _assumed(builder: Mapping[str, object], imported: Imported) -> list[str]:
    """Values of the recipe that the template does not contain."""
    lines = ["architecture: x86_64 is assumed"]
    if "node" not in imported.recipe:
        lines.append("node: ec2 is assumed (a plain instance, no orchestrator)")
    if "instance_type" not in builder:
        lines.append("build.instance_type: the default of the operating system is assumed")
    if "root_volume_gib" not in builder:
        lines.append("build.root_volume_gib: the default of operating system and node family is assumed")
    if "telemetry" not in imported.recipe:
        lines.append("telemetry: metrics and log groups of variables/defaults.yml are assumed")
    return lines


def _builders(template: Mapping[str, object]) -> list[Mapping[str, object]]:
    builders = template.get("builders")
    return [builder for builder in builders if isinstance(builder, dict)] if isinstance(builders, list) else []


def _builder_type(template: Mapping[str, object]) -> str:
    types = (str(builder["instance_type"]) for builder in _builders(template) if "instance_type" in builder)
    return next(types, "")


def _builder(template: Mapping[str, object]) -> dict[str, object]:
    """The recipe's section `build`: the builder's instance type and volume size, where the template has them."""
    section: dict[str, object] = {}
    instance_type, size = _builder_type(template), root_volume_gib(template)
    if re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", instance_type):
        section["instance_type"] = instance_type
    if size is not None:
        section["root_volume_gib"] = size
    return section


def _instance_types(template: Mapping[str, object], facts: Facts, imported: Imported) -> None:
    """The instance types of the image: the builder's if it has a GPU, else placeholders to be replaced."""
    builder = _builder_type(template)
    row = facts.instance_types["instance_types"].get(builder)
    if row and "gpu" in row:
        imported.recipe["instance_types"] = [builder]
        imported.remarks.append(
            f"instance_types: only the builder's ({builder}) is known; name those that the image is for"
        )
    else:
        imported.recipe["instance_types"] = list(_DEFAULT_TYPES)
        listed = ", ".join(_DEFAULT_TYPES)
        imported.remarks.append(f"instance_types: the template names no GPU type; {listed} are placeholders")


def _driver(text: str, imported: Imported) -> None:
    """`515.86.01`, `NVIDIA-Linux-x86_64-515.86.01.run`, `cuda-drivers-fabricmanager-520`, `latest`."""
    exact, package = re.search(r"\d{3}(?:\.\d+){1,2}", text), re.search(r"-(\d{3})(?:-\w+)?$", text)
    if text == "latest":
        _version(imported, "nvidia_driver", NEWEST, f"nvidia_version: 'latest' becomes {NEWEST}; the lock will pin it")
    elif exact:
        _version(imported, "nvidia_driver", exact[0])
    elif package:
        remark = f"nvidia_version: package {text} becomes branch {package[1]}; the lock will pin a release of it"
        _version(imported, "nvidia_driver", package[1], remark)
        if "fabricmanager" in text:
            imported.remarks.append(
                "nvidia_version: fabric manager comes by itself where an instance type has an NVSwitch"
            )
    else:
        _not_understood(imported, "nvidia_version", text)


def _cuda(text: str, imported: Imported) -> None:
    """`cuda-toolkit-11-8 nvidia-gds-11-8`: several packages in one string."""
    versions, others = [], []
    for word in text.split():
        toolkit = re.fullmatch(r"cuda(?:-toolkit)?-(\d+)-(\d+)", word) or re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", word)
        if toolkit:
            versions.append(f"{toolkit[1]}.{toolkit[2]}")
        elif word in ("latest", "cuda", "cuda-toolkit"):
            versions.append(NEWEST)
        else:
            others.append(word)
    if versions:
        chosen = max(versions, key=lambda version: (version == NEWEST, parts(version)))
        _version(imported, "cuda", chosen)
        if len(versions) > 1:
            others_text = ", ".join(version for version in versions if version != chosen)
            imported.remarks.append(f"cuda_version: several toolkits; {chosen} is carried over, {others_text} is not")
    for word in others:
        _not_understood(imported, "cuda_version", word)


def _cudnn(text: str, imported: Imported) -> None:
    """`libcudnn8`, `libcudnn8=8.6.0.163-1+cuda11.8`, `libcudnn9-cuda-12`, `8.6.0`."""
    full, package = re.search(r"(\d+\.\d+\.\d+)", text), re.match(r"libcudnn(\d+)", text)
    if full:
        _version(imported, "cudnn", full[1])
    elif package:
        remark = f"cudnn_version: package {text} becomes branch {package[1]}; the lock will pin a release of it"
        _version(imported, "cudnn", package[1], remark)
    elif text == "latest":
        _version(imported, "cudnn", NEWEST)
    else:
        _not_understood(imported, "cudnn_version", text)


def _nccl(text: str, imported: Imported) -> None:
    """A git tag: `v2.12.7-1`."""
    tag = re.match(r"v?(\d+\.\d+\.\d+)", text)
    if tag:
        _version(imported, "nccl", tag[1])
    elif text == "latest":
        _version(imported, "nccl", NEWEST)
    else:
        _not_understood(imported, "nccl_version", text)


def _efa(text: str, imported: Imported) -> None:
    """A file name: `aws-efa-installer-1.25.1.tar.gz`, `aws-efa-installer-latest.tar.gz`."""
    version = re.search(r"(\d+\.\d+\.\d+)", text)
    if version:
        _version(imported, "efa", version[1])
    elif "latest" in text:
        _version(imported, "efa", NEWEST, f"efa_pkg: 'latest' becomes {NEWEST}; the lock will pin it")
    else:
        _not_understood(imported, "efa_pkg", text)


def _mkl(text: str, imported: Imported) -> None:
    version = re.search(r"(\d{4}\.\d+-\d+)", text)
    if version:
        remark = "intel_mkl_version: carried over, although no template of the former pipeline installed it"
        _version(imported, "mkl", version[1], remark)
    else:
        _not_understood(imported, "intel_mkl_version", text)


def _version(imported: Imported, component: str, version: str, remark: str = "") -> None:
    imported.recipe[component] = {"version": version}
    if remark:
        imported.remarks.append(remark)


def _not_understood(imported: Imported, name: str, text: str) -> None:
    imported.remarks.append(f"{name}: {text!r} is not understood; not carried over")


_CONVERT: dict[str, Callable[[str, Imported], None]] = {
    "nvidia_version": _driver,
    "cuda_version": _cuda,
    "cudnn_version": _cudnn,
    "nccl_version": _nccl,
    "efa_pkg": _efa,
    "intel_mkl_version": _mkl,
}


def _to_place(variables: dict[str, str], imported: Imported) -> None:
    for name, key in _PLACE.items():
        text = variables.pop(name, "")
        if text and "{{" not in text:
            imported.place[key] = [item.strip() for item in text.split(",")] if key == "security_group_ids" else text
    if imported.place:
        imported.remarks.append(
            f"{', '.join(imported.place)}: written to the --where file: a recipe does not say where it is built"
        )


def recipe_text(imported: Imported, source: Path) -> str:
    """The recipe as YAML, with its remarks on top."""
    import yaml

    lines = [f"# Imported from {source.name}.", *(f"# {remark}" for remark in imported.remarks), ""]
    return "\n".join(lines) + yaml.safe_dump(
        imported.recipe, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )


def place_text(imported: Imported) -> str:
    """The `--where` file as YAML."""
    import yaml

    return yaml.safe_dump(imported.place, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
