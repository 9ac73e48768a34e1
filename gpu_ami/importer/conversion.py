"""A Packer template → a recipe's document, a `--where` file's, and remarks.

The value of a variable may be a version, a package, a file name or `latest`. Region, network and AMI id go to a
`--where` file. What cannot be converted is reported, not guessed: the key path of a builder, provisioner or
post-processor, its value where it is no secret, and what replaces it here. A secret is named, never copied; what a
script or user data hold is never shown: they may hold anything.

Names of variables of the system and the network are those of well-known templates; a component names its own
(Component): aws-samples/aws-efa-nccl-baseami-pipeline 9d8a9273 (nvidia-efa-ami_base/*.yml); awslabs/amazon-eks-ami
4550a9a8 (templates/al2023); aws/amazon-ecs-ami f2c020ed (variables.pkr.hcl). Read 2026-11-25.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.cloud import takes
from gpu_ami.errors import counted
from gpu_ami.importer.secrets import NOT_SHOWN, Secrets
from gpu_ami.importer.template import (
    Template,
    is_resolved,
    read_template,
    refers_to_variable,
    step_values,
    variables_in,
)
from gpu_ami.recipes import Facts, components
from gpu_ami.recipes.rules import TemplateVariable
from validator.plan_document import root_device

_DEFAULT_TYPES = {"x86_64": ["g5.12xlarge", "p4d.24xlarge"], "arm64": ["g5g.xlarge"]}
_SYSTEMS = {
    r"al2022|al2023|amzn2023|amazon-linux-202": "al2023",
    r"al2(?!\d)|amzn2|amazon-linux-2": "al2",
    r"(ubuntu|ul)[-_]?18|bionic": "ubuntu1804",
    r"(ubuntu|ul)[-_]?20|focal": "ubuntu2004",
    r"(ubuntu|ul)[-_]?22|jammy": "ubuntu2204",
    r"(ubuntu|ul)[-_]?24|noble": "ubuntu2404",
    r"debian[-_]?13|trixie": "debian13",
    r"debian[-_]?12|bookworm": "debian12",
}
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "arm64": "arm64", "aarch64": "arm64"}
# Names of a file that say nothing of its image.
_NO_NAMES = {"template", "packer", "main", "ami", "image", "aws", "build", "builder", "base", "."}


@dataclass
class Imported:
    """A recipe's document, the `--where` file's, and remarks: what was not carried over, assumed, or needs a look."""

    recipe: dict[str, object] = field(default_factory=dict)
    place: dict[str, object] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def import_template(path: Path, facts: Facts, variable_files: Sequence[Path] = (), only: str = "") -> Imported:
    """UsageError: not a template, or no such builder. Everything else that could not be carried over is a remark."""
    template = read_template(path, variable_files, only)
    conversion = _Conversion(template, facts)
    imported = conversion.imported()
    imported.remarks = [" ".join(template.secrets.censored(line).split()) for line in dict.fromkeys(imported.remarks)]
    return imported


class _Conversion:
    def __init__(self, template: Template, facts: Facts) -> None:
        self._template = template
        self._facts = facts
        self._recipe: dict[str, object] = {}
        self._remarks: list[str] = []
        self._taken: set[str] = set()
        self._builder = template.builders[0] if template.builders else {}
        self._raw = template.raw_builders[0] if template.raw_builders else {}
        for key in ("instance_type", "ssh_username", "source_ami_filter"):
            self._taken |= variables_in(self._raw.get(key))

    def imported(self) -> Imported:
        flag = self._recipe["flag"] = self._flag()
        system = self._recipe["os"] = self._system(flag)
        self._architecture()
        self._node(flag)
        self._instance_types()
        root_volume = self._build(system)
        self._description()
        self._components()
        place = place_of(self._template)
        self._taken |= place.taken
        self._source_ami("source_ami" in place.values)
        self._remarks += [*self._template.remarks, *unused_variables(self._template, self._taken), *place.remarks]
        self._remarks += leftovers(self._template, self._taken, root_volume)
        self._remarks += self._assumed()
        row = self._facts.operating_systems[system]
        if row.get("cost"):
            self._remarks.append(f"os: {system} reached its end of life on {row['end_of_life']}: {row['cost']}")
        return Imported(self._recipe, place.values, self._remarks)

    def _flag(self) -> str:
        text = self._variable("flag")
        path = self._template.path.resolve()
        names = [path.name.split(".")[0] if not path.is_dir() else path.name, path.parent.name]
        stem = next((name for name in names if name.lower() not in _NO_NAMES), names[0])
        if text and self._template.secrets.hides("", text):
            self._remarks.append("flag: it holds a secret, so it is not copied")
            text = ""
        flag = re.sub(r"[^a-z0-9.-]+", "-", (text or stem).lower()).strip("-.")[:64] or "imported"
        if text and flag != text:
            self._remarks.append(f"flag: {text!r} becomes {flag!r}")
        return flag

    def _system(self, flag: str) -> str:
        """The operating system: from the source AMI's name, the file's name or the flag, else from the login user."""
        path = self._template.path
        named = {path.stem.lower(): "the name", flag: "the name", path.resolve().parent.name.lower(): "the folder"}
        source = self._filter()[1]
        for text, what in [*list(named.items())[:2], (source.lower(), "the source AMI"), *list(named.items())[2:]]:
            for pattern, name in _SYSTEMS.items():
                if text and re.search(pattern, text):
                    self._remarks.append(f"os: {name} is assumed from {what} {text!r}")
                    return name
        users = [builder.get("ssh_username") for builder in self._template.builders]
        guess = "ubuntu2204" if "ubuntu" in users else "debian12" if "admin" in users else "al2023"
        self._remarks.append(f"os: neither file name nor flag names a system; {guess} is assumed from the login user")
        return guess

    def _architecture(self) -> None:
        source = self._builder.get("source_ami_filter")
        filters = source.get("filters") if isinstance(source, dict) else None
        asked = filters.get("architecture") if isinstance(filters, dict) else None
        row = self._facts.instance_types["instance_types"].get(str(self._builder.get("instance_type")))
        for text in (self._variable(*ARCHITECTURE), asked, row and row.get("architecture")):
            if str(text) in _ARCHITECTURES:
                self._recipe["architecture"] = _ARCHITECTURES[str(text)]
                return

    def _node(self, flag: str) -> None:
        """The node family: by the variables' names, else from the file's name and the flag."""
        name = f"{self._template.path.stem} {flag}".lower()
        variables = self._template.variables
        if re.search(r"(?<![a-z])eks(?![a-z])", name) or any(variable in variables for variable in KUBERNETES):
            text = self._variable(*KUBERNETES)
            version = re.match(r"v?(\d+\.\d+)", text) or re.search(r"eks-?(\d+\.\d+)", name)
            self._recipe["node"] = "eks"
            if version:
                self._recipe["node_version"] = version[1]
            self._remarks.append("node: EKS base AMIs are Amazon Linux 2023 now: check os and node_version")
        elif re.search(r"(?<![a-z])ecs(?![a-z])", name) or any(variable in variables for variable in ECS):
            self._recipe["node"] = "ecs"
            self._remarks.append("node: ecs is assumed from the name of file, flag or variables")
        elif "pyxis" in name or "slurm" in name:
            self._remarks.append(
                "node: enroot, pyxis and Slurm are not carried over; see the parallelcluster node family"
            )

    def _builder_type(self) -> str:
        value = self._builder.get("instance_type")
        named = str(value) if value not in (None, "") and is_resolved(value) else self._variable(*INSTANCE_TYPE)
        self._taken |= {name for name in INSTANCE_TYPE if name in self._template.variables}
        return named if re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", named) else ""

    def _instance_types(self) -> None:
        """The instance types of the image: the builder's if it has a GPU, else placeholders to be replaced."""
        builder, table = self._builder_type(), self._facts.instance_types
        row = table["instance_types"].get(builder)
        unknown = row is None and builder.partition(".")[0] in table["families"]
        if (row and ("gpu" in row or "neuron" in row)) or unknown:
            self._recipe["instance_types"] = [builder]
            self._remarks.append(
                f"instance_types: only the builder's ({builder}) is known; name those that the image is for"
            )
            return
        placeholders = _DEFAULT_TYPES[str(self._recipe.get("architecture", "x86_64"))]
        self._recipe["instance_types"] = list(placeholders)
        builds = f" ({builder} builds the image)" if builder else ""
        self._remarks.append(
            f"instance_types: the template names no GPU type{builds}; {', '.join(placeholders)} are placeholders"
        )

    def _build(self, system: str) -> int | None:
        """The section `build`; returns the index of the volume that is the root volume."""
        section: dict[str, object] = {}
        builder = self._builder_type()
        if builder:
            section["instance_type"] = builder
        index, size = self._root_volume(system)
        if size is not None:
            section["root_volume_gib"] = size
        if section:
            self._recipe["build"] = section
        return index if size is not None else None

    def _root_volume(self, system: str) -> tuple[int | None, int | None]:
        """The volume with the root device of the source AMI: its index, and its size if that is a number.

        A volume with another device name is a second one: EC2 keeps the root volume of the AMI beside it.
        """
        volumes = list(mappings(self._builder.get("launch_block_device_mappings")))
        root = str(self._builder.get("ami_root_device_name") or root_device(self._facts.operating_systems[system]))
        for index, volume in enumerate(volumes):
            if volume.get("device_name") in (root, None, ""):
                raw = list(mappings(self._raw.get("launch_block_device_mappings")))[index]
                self._taken |= variables_in(raw.get("volume_size"))
                size = str(volume.get("volume_size", ""))
                return index, int(size) if size.isdigit() and 4 <= int(size) <= 16384 else None
        if volumes:
            self._remarks.append(
                f"build.root_volume_gib: no volume has the root device of the source AMI ({root} on {system})"
            )
        return None, None

    def _description(self) -> None:
        description = self._template.description or self._variable(*DESCRIPTION) or self._builder.get("ami_description")
        if description in (None, ""):
            return
        text = str(description).strip()
        self._taken |= set(DESCRIPTION) | {"builders[0].ami_description"}
        is_line = isinstance(description, str) and 0 < len(text) <= 200 and "\n" not in text and is_resolved(text)
        if is_line and not self._template.secrets.hides("", text):
            self._recipe["description"] = text
        else:
            what = shown("", description, self._template.secrets)
            self._remarks.append(f"description: {what} is not carried over: expected one line of at most 200")

    def _components(self) -> None:
        for name, value in self._template.variables.items():
            found = component_of(name)
            if found is None or name in self._taken or value in (None, "") or not is_resolved(value):
                continue
            self._taken.add(name)
            self._component(name, *found, str(value))
        for path, name, value in step_values(self._template.provisioners, self._template.variables):
            found = component_of(name)
            if found and value not in (None, "") and not isinstance(value, dict | list) and is_resolved(value):
                self._component(f"{path}.{name}", *found, str(value))
                self._taken |= {variable for variable, text in self._template.variables.items() if text == value}

    def _component(self, name: str, component: str, reader: TemplateVariable, text: str) -> None:
        """Writes the version that `text`, the value of a variable, names; what it names besides is a remark."""
        if self._template.secrets.hides(name, text):
            self._remarks.append(f"{name}: it holds a secret; not carried over")
            return
        read = reader.read(text)
        known = self._recipe.get(component)
        if read.version and known and known != {"version": read.version}:
            self._remarks.append(f"{name}: {text!r} is a second version of {component}; not carried over")
            return
        if read.version:
            self._recipe[component] = {"version": read.version}
        self._remarks += [f"{name}: {remark}" for remark in read.remarks]
        self._remarks += [f"{name}: {word!r} is not understood; not carried over" for word in read.others]

    def _source_ami(self, has_id: bool) -> None:
        owner, name = self._filter()
        self._taken |= {variable for variable in (*FILTER_NAME, *FILTER_OWNERS) if variable in self._template.variables}
        if not name or has_id:
            return
        if "node" in self._recipe:
            self._remarks.append(
                f"source_ami: {name!r} is not carried over: a {self._recipe['node']} node starts from AWS's AMI for it"
            )
        elif not re.fullmatch(r"\d{12}|[a-z][a-z-]*", owner):
            self._remarks.append(f"source_ami: {name!r} is not carried over: its owner is not known")
        elif not self._template.secrets.hides("", name):
            self._recipe["source_ami"] = {"owner": owner, "name": name}

    def _filter(self) -> tuple[str, str]:
        """Owner and name of the source AMI: of the builder's filter, else of the variables that are named so."""
        source = self._builder.get("source_ami_filter")
        filters = source.get("filters") if isinstance(source, dict) else None
        name = filters.get("name") if isinstance(filters, dict) else None
        owners = source.get("owners") if isinstance(source, dict) else None
        owner = owners[0] if isinstance(owners, list) and owners else owners
        name = name if name and is_resolved(name) else self._variable(*FILTER_NAME)
        owner = owner if owner and is_resolved(owner) else self._variable(*FILTER_OWNERS)
        return str(owner or "").split(",")[0].strip(), str(name or "")

    def _variable(self, *names: str) -> str:
        """The first of the variables that has a value, as text."""
        for name in names:
            value = self._template.variables.get(name)
            if value not in (None, "") and not isinstance(value, list | dict) and is_resolved(value):
                self._taken.add(name)
                return str(value)
        return ""

    def _assumed(self) -> Iterator[str]:
        """Values of the recipe that the template does not contain."""
        build = self._recipe.get("build")
        section = build if isinstance(build, dict) else {}
        if "architecture" not in self._recipe:
            yield "architecture: x86_64 is assumed"
        if "node" not in self._recipe:
            yield "node: ec2 is assumed (a plain instance, no orchestrator)"
        if "instance_type" not in section:
            yield "build.instance_type: the default of the operating system is assumed"
        if "root_volume_gib" not in section:
            yield "build.root_volume_gib: the default of operating system and node family is assumed"
        yield "telemetry: metrics and log groups of variables/defaults.yml are assumed"


def recipe_text(imported: Imported, source: Path) -> str:
    """The recipe as YAML, with its remarks on top."""
    import yaml

    lines = [
        f"# Imported from {' '.join(source.resolve().name.split())}.",
        *(f"# {remark}" for remark in imported.remarks),
        "",
    ]
    return "\n".join(lines) + yaml.safe_dump(
        imported.recipe, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
    )


def place_text(imported: Imported) -> str:
    """The `--where` file as YAML."""
    import yaml

    return yaml.safe_dump(imported.place, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


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


# Keys of an amazon-ebs builder → of a --where file.
BUILDER_KEYS: Mapping[str, str] = {
    "region": "region",
    "profile": "profile",
    "subnet_id": "subnet_id",
    "security_group_ids": "security_group_ids",
    "security_group_id": "security_group_ids",
    "iam_instance_profile": "instance_profile",
    "kms_key_id": "kms_key_id",
    "ssh_interface": "ssh_interface",
    "ssh_port": "ssh_port",
    "source_ami": "source_ami",
}


@dataclass
class ImportedPlace:
    """values: of the `--where` file. taken: variables and builder keys that went there. remarks: what did not."""

    values: dict[str, object] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)


def place_of(template: Template) -> ImportedPlace:
    """The builder's values, else the variables of these names; what has another shape than AWS's is a remark."""
    place = ImportedPlace()
    for name, key, value in _candidates(template):
        if template.secrets.hides(name, value):
            continue  # reported with the other secrets
        converted = _converted(key, value)
        if not takes(key, converted):
            place.remarks.append(f"{name}: {str(value)!r} is no {key} of a --where file; not carried over")
        else:
            place.values.setdefault(key, converted)
        place.taken.add(name)
    if place.values:
        place.remarks.append(
            f"{', '.join(place.values)}: written to the --where file: a recipe does not say where it is built"
        )
    return place


def _candidates(template: Template) -> Iterator[tuple[str, str, object]]:
    for key, value in (template.builders[0] if template.builders else {}).items():
        if key in BUILDER_KEYS and value not in (None, "", []) and is_resolved(value):
            yield f"builders[0].{key}", BUILDER_KEYS[key], value
    for key, names in PLACE.items():
        for name in names:
            value = template.variables.get(name)
            if value not in (None, "", []) and is_resolved(value):
                yield name, key, value


def _converted(key: str, value: object) -> object:
    if key == "security_group_ids":
        items = value if isinstance(value, list) else str(value).split(",")
        return [str(item).strip() for item in items if str(item).strip()]
    return int(str(value)) if key == "ssh_port" and str(value).isdigit() else str(value)


# `_al2023` and the like at the end name a system of several.
_SYSTEM_SUFFIX = re.compile(r"_(al\d+|amzn\d*|ubuntu_?\d*|ul\d+|debian\d*|rhel\d*)$")
KUBERNETES = ("kubernetes_version", "k8s_version", "eks_version", "kubernetes_semver", "eks_kubernetes_version")
ECS = ("ecs_agent_version", "ecs_init_rev", "ecs_version")
ARCHITECTURE = ("arch", "architecture")
DESCRIPTION = ("ami_description",)
FILTER_NAME = ("source_ami_filter_name", "source_ami_name", "source_ami_filter", "base_ami_name")
FILTER_OWNERS = ("source_ami_owners", "source_ami_owner", "source_ami_owner_id", "base_ami_owner")
INSTANCE_TYPE = ("instance_type", "builder_instance_type", "build_instance_type", "aws_instance_type")
# Key of a --where file → variables.
PLACE: Mapping[str, tuple[str, ...]] = {
    "region": ("region", "aws_region", "build_region"),
    "profile": ("aws_profile",),
    "subnet_id": ("subnet_id", "aws_subnet_id"),
    "security_group_ids": ("security_groupids", "security_group_ids", "security_group_id", "security_groups"),
    "instance_profile": ("iam_instance_profile", "instance_profile"),
    "kms_key_id": ("kms_key_id", "kms_key"),
    "ssh_interface": ("ssh_interface",),
    "source_ami": ("build_ami", "source_ami", "source_ami_id", "base_ami", "base_ami_id"),
}


def component_of(variable: str) -> tuple[str, TemplateVariable] | None:
    """The component whose version a variable holds, and what reads it."""
    name = _SYSTEM_SUFFIX.sub("", variable.lower().replace("-", "_"))
    declared = [(one.name, one.template) for one in components.components().values() if one.template]
    return next(((key, template) for key, template in declared if re.fullmatch(template.names, name)), None)
