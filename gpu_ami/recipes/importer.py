"""Reads the `variables` block of a former pipeline's Packer JSON template and writes a recipe of it.

What a template said in one string may be a version, a package, a file name or `latest`; what has no place in a recipe
(region, network, AMI id) belongs into a `--where` file, and is said so. Nothing is carried over by guessing.

The template's variables: aws-samples/aws-efa-nccl-baseami-pipeline 9d8a9273, nvidia-efa-ami_base/*.yml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.files import parse_yaml
from gpu_ami.recipes.facts import Facts
from gpu_ami.recipes.template_leftovers import environment_lines, leftovers, root_volume_gib, shown
from gpu_ami.recipes.versions import NEWEST, parts

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
    """A recipe's document, the `--where` file that belongs to it, and what was left behind or should be looked at."""

    recipe: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def import_template(path: Path, facts: Facts) -> Imported:
    """UsageError: not a template. Everything else that could not be carried over is a remark."""
    template = _read(path)
    variables = {str(key): str(value).strip() for key, value in template["variables"].items()}
    found = Imported()
    found.recipe["flag"] = _flag(variables.pop("flag", ""), path, found)
    found.recipe["os"] = _system(path, found.recipe["flag"], template, found)
    _node(path, found)
    _instance_types(template, facts, found)
    size = root_volume_gib(template)
    if size is not None:
        found.recipe["build"] = found.recipe.get("build", {}) | {"root_volume_gib": size}
    description = template.get("description")
    if isinstance(description, str) and 0 < len(description.strip()) <= 200 and "\n" not in description.strip():
        found.recipe["description"] = description.strip()
    elif description:
        found.remarks.append(f"description: {shown(description)} is not carried over: expected one line of at most 200")
    for name, convert in _CONVERT.items():
        if "{{" not in variables.get(name, ""):
            text = variables.pop(name, "")
            if text:
                convert(text, found)
    found.remarks += environment_lines(variables)
    variables = {name: value for name, value in variables.items() if "{{" not in value}
    _to_place(variables, found)
    found.remarks += [
        f"{name}: {value!r} has no place in a recipe; not carried over" for name, value in variables.items()
    ]
    found.remarks += leftovers(template)
    found.remarks += _assumed(template, found)
    if found.recipe.get("os") and facts.operating_systems[found.recipe["os"]].get("cost"):
        row = facts.operating_systems[found.recipe["os"]]
        found.remarks.append(f"os: {found.recipe['os']} reached its end of life on {row['end_of_life']}: {row['cost']}")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
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


def _flag(text: str, path: Path, found: Imported) -> str:
    flag = re.sub(r"[^a-z0-9.-]+", "-", (text or path.stem).lower()).strip("-.")[:64] or "imported"
    if text and flag != text:
        found.remarks.append(f"flag: {text!r} becomes {flag!r}")
    return flag


def _system(path: Path, flag: str, template: Mapping[str, Any], found: Imported) -> str:
    """From the file's name or the flag; the login user as the last resort."""
    for text in (path.stem.lower(), flag):
        for pattern, name in _SYSTEMS.items():
            if re.search(pattern, text):
                found.remarks.append(f"os: {name} is assumed from the name {text!r}")
                return name
    users = [one.get("ssh_username") for one in _builders(template)]
    guess = "ubuntu2204" if "ubuntu" in users else "al2023"
    found.remarks.append(
        f"os: neither file name nor flag says which system this is; {guess} is a guess by the login user"
    )
    return guess


def _node(path: Path, found: Imported) -> None:
    name = f"{path.stem} {found.recipe['flag']}".lower()
    if "ecs" in name:
        found.recipe["node"] = "ecs"
        found.remarks.append("node: ecs is assumed from the name of file or flag")
    elif "eks" in name:
        asked = re.search(r"eks-?(\d+\.\d+)", name)
        found.recipe["node"] = "eks"
        if asked:
            found.recipe["node_version"] = asked[1]
        found.remarks.append("node: EKS base AMIs are Amazon Linux 2023 now; os and node_version will need a look")
    elif "pyxis" in name or "slurm" in name:
        found.remarks.append("node: enroot, pyxis and Slurm are not carried over; see the parallelcluster node family")


def _assumed(template: Mapping[str, Any], found: Imported) -> list[str]:
    """Values that the recipe gets though the template does not say them."""
    lines = ["architecture: x86_64 is assumed"]
    if "node" not in found.recipe:
        lines.append("node: ec2 is assumed (a plain instance, no orchestrator)")
    build = found.recipe.get("build", {})
    if "instance_type" not in build:
        lines.append("build.instance_type: the default of the operating system is assumed")
    if "root_volume_gib" not in build:
        lines.append("build.root_volume_gib: the default of operating system and node family is assumed")
    if "telemetry" not in found.recipe:
        lines.append("telemetry: metrics and log groups of variables/defaults.yml are assumed")
    return lines


def _builders(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    builders = template.get("builders")
    return [one for one in builders if isinstance(one, dict)] if isinstance(builders, list) else []


def _instance_types(template: Mapping[str, Any], facts: Facts, found: Imported) -> None:
    """The template knows only its builder; an image is for instance types that somebody has to name."""
    builder = next((str(one["instance_type"]) for one in _builders(template) if "instance_type" in one), "")
    row = facts.instance_types["instance_types"].get(builder)
    if row and "gpu" in row:
        found.recipe["instance_types"] = [builder]
        found.remarks.append(
            f"instance_types: only the builder's ({builder}) is known; name those that the image is for"
        )
    else:
        found.recipe["instance_types"] = list(_DEFAULT_TYPES)
        listed = ", ".join(_DEFAULT_TYPES)
        found.remarks.append(f"instance_types: the template names no GPU type; {listed} are placeholders")
    if re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", builder):
        found.recipe["build"] = {"instance_type": builder}


def _driver(text: str, found: Imported) -> None:
    """`515.86.01`, `NVIDIA-Linux-x86_64-515.86.01.run`, `cuda-drivers-fabricmanager-520`, `latest`."""
    exact, package = re.search(r"\d{3}(?:\.\d+){1,2}", text), re.search(r"-(\d{3})(?:-\w+)?$", text)
    if text == "latest":
        _version(found, "nvidia_driver", NEWEST, f"nvidia_version: 'latest' becomes {NEWEST}; the lock will pin it")
    elif exact:
        _version(found, "nvidia_driver", exact[0])
    elif package:
        remark = f"nvidia_version: package {text} becomes branch {package[1]}; the lock will pin a release of it"
        _version(found, "nvidia_driver", package[1], remark)
        if "fabricmanager" in text:
            found.remarks.append(
                "nvidia_version: fabric manager comes by itself where an instance type has an NVSwitch"
            )
    else:
        _left(found, "nvidia_version", text)


def _cuda(text: str, found: Imported) -> None:
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
        chosen = max(versions, key=lambda one: (one == NEWEST, parts(one)))
        _version(found, "cuda", chosen)
        if len(versions) > 1:
            left = ", ".join(one for one in versions if one != chosen)
            found.remarks.append(f"cuda_version: several toolkits; {chosen} is carried over, {left} is not")
    for word in others:
        _left(found, "cuda_version", word)


def _cudnn(text: str, found: Imported) -> None:
    """`libcudnn8`, `libcudnn8=8.6.0.163-1+cuda11.8`, `libcudnn9-cuda-12`, `8.6.0`."""
    full, package = re.search(r"(\d+\.\d+\.\d+)", text), re.match(r"libcudnn(\d+)", text)
    if full:
        _version(found, "cudnn", full[1])
    elif package:
        remark = f"cudnn_version: package {text} becomes branch {package[1]}; the lock will pin a release of it"
        _version(found, "cudnn", package[1], remark)
    elif text == "latest":
        _version(found, "cudnn", NEWEST)
    else:
        _left(found, "cudnn_version", text)


def _nccl(text: str, found: Imported) -> None:
    """A git tag: `v2.12.7-1`."""
    tag = re.match(r"v?(\d+\.\d+\.\d+)", text)
    if tag:
        _version(found, "nccl", tag[1])
    elif text == "latest":
        _version(found, "nccl", NEWEST)
    else:
        _left(found, "nccl_version", text)


def _efa(text: str, found: Imported) -> None:
    """A file name: `aws-efa-installer-1.25.1.tar.gz`, `aws-efa-installer-latest.tar.gz`."""
    version = re.search(r"(\d+\.\d+\.\d+)", text)
    if version:
        _version(found, "efa", version[1])
    elif "latest" in text:
        _version(found, "efa", NEWEST, f"efa_pkg: 'latest' becomes {NEWEST}; the lock will pin it")
    else:
        _left(found, "efa_pkg", text)


def _mkl(text: str, found: Imported) -> None:
    version = re.search(r"(\d{4}\.\d+-\d+)", text)
    if version:
        remark = "intel_mkl_version: no template of the former pipeline installed it; it is carried over all the same"
        _version(found, "mkl", version[1], remark)
    else:
        _left(found, "intel_mkl_version", text)


def _version(found: Imported, component: str, version: str, remark: str = "") -> None:
    found.recipe[component] = {"version": version}
    if remark:
        found.remarks.append(remark)


def _left(found: Imported, name: str, text: str) -> None:
    found.remarks.append(f"{name}: {text!r} is not understood; not carried over")


_CONVERT: dict[str, Callable[[str, Imported], None]] = {
    "nvidia_version": _driver,
    "cuda_version": _cuda,
    "cudnn_version": _cudnn,
    "nccl_version": _nccl,
    "efa_pkg": _efa,
    "intel_mkl_version": _mkl,
}


def _to_place(variables: dict[str, str], found: Imported) -> None:
    for name, key in _PLACE.items():
        text = variables.pop(name, "")
        if text and "{{" not in text:
            found.place[key] = [one.strip() for one in text.split(",")] if key == "security_group_ids" else text
    if found.place:
        found.remarks.append(f"{', '.join(found.place)}: where to build belongs in a --where file, not into a recipe")


def recipe_text(found: Imported, source: Path) -> str:
    """The recipe as YAML, with its remarks on top."""
    import yaml

    lines = [f"# Imported from {source.name}.", *(f"# {remark}" for remark in found.remarks), ""]
    return "\n".join(lines) + yaml.safe_dump(
        found.recipe, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )


def place_text(found: Imported) -> str:
    """The `--where` file as YAML."""
    import yaml

    return yaml.safe_dump(found.place, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
