"""The layers of a recipe, lowest first: defaults, architecture, operating system, node family, image, command line.

Mappings merge key by key; any other value of a later layer overrides the earlier one. The origin of every
value (file, or `--set`) is kept, for `gpu-ami plan --explain` and for messages.

Recipes are found in the user's folder (the working directory) first, then among those that come with gpu-ami.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import lines_of, located, parse_yaml
from gpu_ami.recipes.components import Registry, build_order, components
from gpu_ami.recipes.facts import (
    ARCHITECTURES,
    UNVERIFIED_NAMES,
    VARIABLES,
    Facts,
    judged,
    load_facts,
    read_yaml,
    with_unknown,
)
from gpu_ami.recipes.rules import NO_KEYS, SEVERITIES, ResolveContext
from gpu_ami.recipes.site import components_of, in_order, require_valid, site_folder, site_roles, unused_role
from gpu_ami.recipes.solver import Solution, with_kernel
from validator.measurement import BY_NAME
from validator.schema import Choice, Integer, Keys, ListOf, Mistake, Named, Text, did_you_mean, key_path

# What a recipe must say itself; everything else may come from the layers below it.
OF_THE_RECIPE = ("flag", "os", "instance_types")


_OTHER_TYPE = "EC2 is asked for a type that the facts lack: `gpu-ami plan --where FILE`"
_OTHER_SYSTEM = "for another system, add a row to site/facts/operating_systems.yml (docs/site.md)"


def recipe_keys(facts: Facts, registry: Registry, nodes: tuple[str, ...]) -> Keys:
    """The grammar, with the names that facts and node families have, and the sections of the components."""
    table = facts.instance_types["instance_types"]
    instance_type = Named("instance type", table, "g5.12xlarge", otherwise=_OTHER_TYPE, refused=_NOT_ACCELERATED)
    of_site = [name for name in registry if name not in components()]
    series = Text('"6.1"', r"\d+\.\d+")
    return Keys(
        {
            "description": Text("Debian 12 for A100", r"[^\x00-\x1f\x7f]{1,200}", "one line of at most 200 characters"),
            "flag": Text("debian12-gpu", r"[a-z0-9][a-z0-9.-]{0,63}", "at most 64 of a-z, 0-9, dots and dashes,"),
            "os": Choice(tuple(facts.operating_systems), otherwise=_OTHER_SYSTEM),
            "architecture": Choice(tuple(ARCHITECTURES), {"amd64": "x86_64", "aarch64": "arm64", "arm": "arm64"}),
            "node": Choice(nodes),
            "node_version": Text('"1.33"', r"\d+(\.\d+){0,2}"),
            "node_variant": Choice(
                tuple(sorted({name for row in facts.node_families.values() for name in row.get("variants", ())}))
            ),
            "kernel": Keys({"version": series}, needed=("version",)),
            "instance_types": ListOf(instance_type),
            "roles": ListOf(Choice((*sorted(build_order()), *of_site))),
            "ansible": Keys({"core": Choice(tuple(facts.ansible["releases"]))}, needed=("core",)),
            "accept": ListOf(Choice((*facts.incompatibilities["rows"], *UNVERIFIED_NAMES))),
            "refuse_advisories": Choice(SEVERITIES),
            "boot_seconds": Integer(10, 3600, "seconds"),
            "source_ami": _source_ami(),
            "build": Keys(
                {"instance_type": _builder(facts), "root_volume_gib": Integer(4, 16384, "GiB")},
                needed=("instance_type", "root_volume_gib"),
            ),
            **{name: one.grammar(facts) for name, one in components().items() if one.keys is not NO_KEYS},
            "telemetry": _telemetry(facts),
            **{name: registry[name].grammar(facts) for name in of_site},
        },
        needed=(*OF_THE_RECIPE, "architecture", "node", "build", "roles", "ansible", "cloudwatch_agent", "telemetry"),
    )


# Of families for which EC2 names no GPU, Neuron device or other accelerator: general, compute, memory, storage, HPC.
_NOT_ACCELERATED = (
    r"(?:[acdhimrtuxz]|im|is|hpc|mac)\d[a-z0-9-]*\.[a-z0-9-]+",
    "its family has no GPU and no Neuron device",
)


def _builder(facts: Facts) -> Named:
    """Any instance type can build an image; of accelerated families the facts know them all."""
    table = facts.instance_types
    others = rf"(?!({'|'.join(table['families'])})\.)[a-z][a-z0-9-]*\.[a-z0-9-]+"
    return Named("instance type", table["instance_types"], "g5.12xlarge", others)


# EC2 API reference, DescribeImages, Owner.N (read 2026-11-29).
_OWNER_ALIASES = ("amazon", "aws-marketplace", "aws-backup-vault", "self")
_OWNER = f"the 12 digits of an account, or {', '.join(_OWNER_ALIASES[:-1])} or {_OWNER_ALIASES[-1]},"


def _source_ami() -> Keys:
    return Keys(
        {
            "id": Text("ami-0123456789abcdef0", r"ami-[0-9a-f]{8,17}"),
            "owner": Text('"136693071363"', rf"\d{{12}}|{'|'.join(_OWNER_ALIASES)}", _OWNER),
            "name": Text("debian-12-amd64-*", r"\S.*"),
            "ssm": Text("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64", r"/[\w./-]+"),
        }
    )


def _telemetry(facts: Facts) -> Keys:
    """What is published: metrics and logs. Further logs are keys of the components that write them."""
    from validator.probes.agent import retention_days  # with pytest, which is not there before pip has run

    group = Text("/ec2/accelerated/accel-event-log", r"[\w./#-]{1,512}")
    return Keys(
        {
            "profile": Choice(tuple(facts.telemetry)),
            "measurements": ListOf(Choice(tuple(BY_NAME))),
            "interval_s": Integer(1, 3600, "seconds"),
            "namespace": Text("CWAgent", r"[\w./#:-]{1,255}"),
            "raw_log_group": group,
            "json_log_group": group,
            "log_stream": Text('"{instance_id}"', r"[^:*\s]{1,512}"),
            "retention_days": Choice(tuple(days for days in retention_days() if days > 0)),
        },
        needed=("profile", "interval_s", "namespace", "raw_log_group", "json_log_group", "log_stream"),
    )


COMMAND_LINE = "--set"


@dataclass(frozen=True)
class Recipe:
    """The merged layers: `values` nested as in the files, `origins` by key path (`telemetry.interval_s`)."""

    name: str
    file: Path
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    sha256: str
    site: Path | None = None  # the folder of the site's own parts

    def origin(self, path: str) -> str:
        """The layer that set the value at a key path, or at the nearest key above it."""
        key = path.partition("[")[0]
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, self.file.name)


@dataclass
class _Layers:
    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def lay(self, document: Any, origin: str, grammar: Keys, file: Path | None = None) -> None:
        """Puts a layer on top; a value that is a mistake is reported, with its line in the file, and left out."""
        mistakes = list(grammar.check(document, ""))
        lines = lines_of(file) if file and mistakes else {}
        for mistake in mistakes:
            role = unused_role(file, mistake.path) if file and mistake.message.startswith("unknown key") else ""
            where = located(origin, lines, mistake.path)
            self.mistakes.append(f"{where}: {mistake.path}: {'unknown key' if role else mistake.message}{role}")
        if isinstance(document, dict):
            _merge(self.values, document, "", origin, self.origins, bad={mistake.path for mistake in mistakes})


def _merge(
    into: dict[str, object],
    layer: Mapping[str, object],
    path: str,
    origin: str,
    origins: dict[str, str],
    *,
    bad: set[str],
) -> None:
    for key, value in layer.items():
        below = key_path(path, key)
        if any(wrong == below or wrong.startswith(f"{below}[") for wrong in bad):
            # Recorded although it is left out: one mistake is not reported a second time as a missing key.
            origins[below] = origin
        elif isinstance(value, dict):
            nested = into.setdefault(key, {})
            if isinstance(nested, dict):
                _merge(nested, value, below, origin, origins, bad=bad)
        else:
            into[key] = value
            origins[below] = origin


def facts_of(recipe: Path) -> Facts:
    """The tables, with the rows of the recipe's site."""
    site = site_folder(recipe)
    folder = site / "facts" if site else None
    return load_facts(site=folder) if folder and folder.is_dir() else load_facts()


def read_recipe(path: Path, facts: Facts, overrides: Sequence[str] = (), variables: Path = VARIABLES) -> Recipe:
    """Reads a recipe and what lies below it. UsageError lists all mistakes of all layers."""
    image = read_yaml(path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with judged(facts):
        return layered(path, image, sha256, facts, overrides, variables=variables)


def layered(
    path: Path, image: Any, sha256: str, facts: Facts, overrides: Sequence[str] = (), *, variables: Path = VARIABLES
) -> Recipe:
    """A recipe's document and what lies below it."""
    site = site_folder(path)
    if site:
        require_valid(site, components())
    own = [role for role in site_roles(site) if isinstance(image, dict) and role in image]
    grammar = _grammar(facts, variables, site)
    settings, mistakes = _parse_overrides(overrides, grammar)
    layers = _Layers(mistakes=[*_name_mistakes(path), *mistakes])
    layers.lay(_layer(variables / "defaults.yml"), "defaults.yml", grammar)
    layers.lay({"roles": list(build_order())}, "components", grammar)
    laid: set[str] = set()
    for kind, key in (("architectures", "architecture"), ("os", "os"), ("nodes", "node")):
        name = _named(key, settings, image, layers.values)
        below = variables / kind / f"{name}.yml"
        if name is not None and re.fullmatch(r"\w{1,64}", name) and below.is_file():
            laid.add(kind)
            layers.lay(_layer(below), f"{kind}/{name}.yml", grammar)
    for name, component in components_of(site).items():
        if component.defaults and isinstance(image, dict) and name in image:
            layers.lay({name: component.defaults}, f"{'site/' if name in own else ''}roles/{name}", grammar)
    layers.lay(image, path.name, grammar, path)
    if settings:
        layers.lay(settings, COMMAND_LINE, grammar)
    gaps = [gap for gap in grammar.missing(layers.values) if _is_new(gap, layers.origins, laid)]
    lines = lines_of(path) if gaps else {}
    layers.mistakes += [f"{located(path.name, lines, gap.path)}: {gap.path}: {gap.message}" for gap in gaps]
    if layers.mistakes:
        raise_mistakes(path, layers.mistakes)
    if own:
        roles = layers.values["roles"]
        assert isinstance(roles, list)  # checked by the grammar
        layers.values["roles"] = in_order(roles, [role for role in image if role in own])
    return Recipe(path.stem, path, layers.values, layers.origins, sha256, site)


def _name_mistakes(path: Path) -> Iterator[str]:
    """A file's name without its ending is the image's: in tags, names of instances, folders and pages."""
    if not re.fullmatch(r"[^\x00-\x1f\x7f.][^\x00-\x1f\x7f]{0,127}", path.stem):
        expected = "at most 128 characters, no control characters, no dot at the beginning"
        yield f"{path.name!r}: the file's name is the image's: expected {expected}; rename the file"


@lru_cache(maxsize=64)
def _layer(path: Path) -> Any:
    return read_yaml(path)


_grammars: dict[tuple[int, Path, Path | None, tuple[str, ...]], tuple[Facts, Keys]] = {}


def _grammar(facts: Facts, variables: Path, site: Path | None = None) -> Keys:
    """One grammar a process for each set of tables: it is the same for every recipe."""
    key = (id(facts), variables, site, site_roles(site))
    if key not in _grammars:
        nodes = tuple(sorted(file.stem for file in (variables / "nodes").glob("*.yml")))
        _grammars[key] = facts, recipe_keys(facts, components_of(site), nodes)  # kept: its id stays its own
    return _grammars[key][1]


def unknown_types(path: Path, facts: Facts, overrides: Sequence[str] = ()) -> list[str]:
    """Instance types of a recipe, or of `--set instance_types`, that the facts do not know and that look like one."""
    document = read_yaml(path)
    named = document.get("instance_types") if isinstance(document, dict) else None
    for override in overrides:
        key, _, text = override.partition("=")
        named = _override_value(text, Keys({}), ["instance_types"]) if key.strip() == "instance_types" else named
    known = facts.instance_types["instance_types"]
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return [
        name for name in names if name not in known and re.fullmatch(r"[a-z][a-z0-9-]{1,30}\.[a-z0-9-]{2,30}", name)
    ]


def _is_new(gap: Mistake, origins: Mapping[str, str], laid: set[str]) -> bool:
    parts = gap.path.split(".")
    if any(".".join(parts[:count]) in origins for count in range(1, len(parts) + 1)):
        return False
    # Without architecture, operating system and node family, keys that their layers would have set are not missing.
    return gap.path in OF_THE_RECIPE or laid == {"architectures", "os", "nodes"}


def raise_mistakes(path: Path, mistakes: Sequence[str]) -> None:
    """One UsageError for all of them."""
    raise UsageError(
        f"{path}: {counted(len(mistakes), 'mistake')}",
        details=mistakes,
        hint="gpu-ami plan RECIPE --explain shows where each value comes from; variables/recipes/ has examples",
    )


def _named(key: str, *documents: Any) -> str | None:
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get(key), str):
            return str(document[key])
    return None


def _parse_overrides(overrides: Sequence[str], grammar: Keys) -> tuple[dict[str, object], list[str]]:
    """`telemetry.interval_s=30` as a layer; values are read as YAML, or kept as text where the key takes text."""
    settings: dict[str, object] = {}
    mistakes = []
    for override in overrides:
        path, equals, text = override.partition("=")
        parts = path.strip().split(".")
        if not equals or not all(parts):
            mistakes.append(f"{COMMAND_LINE}: {override}: expected KEY=VALUE, such as telemetry.interval_s=30")
            continue
        deepest = settings
        for part in parts[:-1]:
            nested = deepest.setdefault(part, {})
            if not isinstance(nested, dict):
                nested = deepest[part] = {}
            deepest = nested
        deepest[parts[-1]] = _override_value(text, grammar, parts)
    return settings, mistakes


def _override_value(text: str, grammar: Keys, parts: Sequence[str]) -> Any:
    from validator.schema import Text

    kind: Any = grammar
    for part in parts:
        kind = kind.keys.get(part) if isinstance(kind, Keys) else None
    if isinstance(kind, Text):
        return text  # 12.4 is a version, not a number
    try:
        return parse_yaml(text, COMMAND_LINE)
    except UsageError:
        return text


_USER_FOLDERS = (Path("recipes"), Path("site", "recipes"))


def recipe_folders(own: Path = VARIABLES / "recipes") -> tuple[Path, ...]:
    """The folders in which an image's name is looked up, in order; the user's need not exist."""
    return (*_USER_FOLDERS, own)


def new_recipe_folder(own: Path = VARIABLES / "recipes") -> Path:
    """Where a new recipe is written: variables/recipes in a checkout's top-level folder, elsewhere recipes/."""
    return own if Path.cwd() == own.parents[1] else _USER_FOLDERS[0]


def all_recipes() -> list[Path]:
    """Every recipe, ordered by image name; of two with one name, the user's. UsageError: there is none."""
    by_image: dict[str, Path] = {}
    for folder in reversed(recipe_folders()):
        by_image |= {path.stem: path for path in folder.glob("*.yml")}
    if not by_image:
        raise UsageError(
            f"no recipes found; searched {_searched()}", hint="reinstall gpu-ami; gpu-ami init DIR writes a recipe"
        )
    return [by_image[image] for image in sorted(by_image)]


def find_recipe(recipe: Path) -> Path:
    """The file of a recipe that is named by its path or by its image's name (`ubuntu2204-compute`).

    UsageError: an image's name that no folder has. A path is returned as it is: whoever reads the file reports it.
    """
    if recipe.is_file() or len(recipe.parts) != 1 or recipe.suffix in (".yml", ".yaml"):
        return recipe
    for folder in recipe_folders():
        if (file := folder / f"{recipe.name}.yml").is_file():
            return file
    near = did_you_mean(recipe.name, [path.stem for path in all_recipes()])
    raise UsageError(
        f"no image {recipe.name!r}{near}",
        details=[f"searched {_searched()}"],
        hint="gpu-ami recipes lists the images; a recipe file is given by its path",
    )


def _searched() -> str:
    return ", ".join(str(folder) for folder in recipe_folders())


@dataclass(frozen=True)
class ExplainedValue:
    """One value of a recipe, or a conflict of one.

    key: its path (`telemetry.interval_s`). value: as YAML has it; None in a conflict. pinned: the version that a
    constraint stands for, if it is not the value. layer: the file that sets it, `--set`, or `base AMI`. source: where
    the pinned version or the conflict's rule stands; "" if neither applies. conflict: what it does not go together
    with, and nearest: what would end that; "" if there is none.
    """

    key: str
    value: object
    pinned: str | None
    layer: str
    source: str
    conflict: str = ""
    nearest: str = ""

    @property
    def text(self) -> str:
        """The value, and what it is pinned to, or the conflict, in one line."""
        if self.conflict:
            return f"CONFLICT: {self.conflict}"
        shown = ", ".join(map(str, self.value)) if isinstance(self.value, list) else str(self.value)
        return f"{shown} (pinned: {self.pinned})" if self.pinned else shown


def explain(recipe: Recipe, facts: Facts) -> list[ExplainedValue]:
    """Every value in the order of the layers' keys, then what the base AMI brings along, then the conflicts."""
    facts, _ = with_unknown(facts, recipe.values)
    context = ResolveContext(recipe.values, facts, components_of(recipe.site))
    context, solution = with_kernel(context)
    values = [_explained(recipe, facts, solution, key, value) for key, value in _leaves(recipe.values, "")]
    keys = {explained.key for explained in values}
    values += [
        ExplainedValue(f"{component}.version", version, None, "base AMI", context.base_ami_source)
        for component, version in _provided(context).items()
        if f"{component}.version" not in keys
    ]
    return values + [
        ExplainedValue(
            conflict.path, None, None, recipe.origin(conflict.path), conflict.source, conflict.text, conflict.nearest
        )
        for conflict in solution.conflicts
    ]


def _provided(context: ResolveContext) -> Mapping[str, str]:
    """Components of the base AMI → version; of the driver all branches, if it has several."""
    branches = "; ".join(map(str, context.driver_branches))
    return {**context.provided, "nvidia_driver": branches} if branches else context.provided


def _explained(recipe: Recipe, facts: Facts, solution: Solution, key: str, value: object) -> ExplainedValue:
    component, _, field = key.partition(".")
    version = solution.versions.get(component) if field == "version" else None
    source = facts.releases(component)[version]["source"] if version else ""
    return ExplainedValue(key, value, version if version != value else None, recipe.origin(key), source)


def _leaves(values: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        below = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _leaves(value, below)
        else:
            yield below, value
