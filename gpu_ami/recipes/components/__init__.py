"""The components: a file declares one as `COMPONENT`, or a family as `COMPONENTS`, and the registry finds it here.

cuda has cuDNN; nccl nccl-tests and aws-ofi-nccl; neuron neuron-monitor; nvidia_driver the fabric manager and IMEX;
telemetry the CloudWatch agent, the event parser and the drain hook; node the node families.

All else that knows components by name asks the registry: a recipe's keys and their reference, the plan's sections and
their schema, labels, rules, the order of roles, layers, the AMI's tags. A site's role is a component like these.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypedDict

from gpu_ami.errors import UsageError
from gpu_ami.files import data_dir
from gpu_ami.recipes.facts import read_yaml
from gpu_ami.recipes.rules import Component, Observed, of_document
from validator.schema import Choice, Flag, Integer, Keys, Kind, ListOf, MapOf, Text

Registry = Mapping[str, Component]

_KINDS: Mapping[str, Kind] = {
    "str": Text("text"),
    "path": Text("/a/path"),
    "int": Integer(-(2**63), 2**63),
    "bool": Flag(),
    "list": ListOf(Text("text")),
    "dict": MapOf(r"\S+", "key", Text("text")),
}
# Types of argument_specs that are an option's kind; Ansible has more (float, raw, json, bytes), which are text here.
OPTION_TYPES = (*_KINDS, "float", "raw", "json", "jsonarg", "bytes", "bits")


@cache
def components() -> Registry:
    """Those that come with gpu-ami, in the order of the reference and of a plan's sections."""
    found: list[Component] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        declared = importlib.import_module(f"{__name__}.{module.name}")
        found += getattr(declared, "COMPONENTS", None) or (declared.COMPONENT,)
    named = {one.name: one if one.keys is not None else of_role(data_dir("roles"), one) for one in found}
    predecessors = {
        name: (*one.after, *(other.name for other in named.values() if name in other.before))
        for name, one in named.items()
    }
    return {name: named[name] for name in in_order(named, lambda component: predecessors[component.name])}


def in_order(registry: Registry, before: Callable[[Component], Iterable[str]]) -> list[str]:
    """Names in the registry's order, but behind what is `before` them. ValueError: a circle, or no such component."""
    waiting, ordered = list(registry), list[str]()
    while waiting:
        ready = (name for name in waiting if set(before(registry[name])).isdisjoint(waiting))
        name = next(ready, "")
        unknown = [other for one in waiting for other in before(registry[one]) if other not in registry]
        if not name or unknown:
            raise ValueError(f"components before each other, or unknown: {', '.join(unknown or waiting)}")
        waiting.remove(name)
        ordered.append(name)
    return ordered


def chosen(registry: Registry | None = None) -> list[str]:
    """Components with a version, in the order in which they are chosen; without a registry those of gpu-ami."""
    registry = registry or components()
    order = in_order(registry, lambda component: component.chosen_after)
    return [name for name in order if registry[name].is_chosen]


@cache
def build_order() -> tuple[str, ...]:
    """The roles of all components in the order of their installation: that of the layers."""
    order = in_order(components(), lambda component: component.installed_after)
    return tuple(role for roles in layers().values() for role in sorted(roles, key=order.index))


@cache
def layers() -> Mapping[str, tuple[str, ...]]:
    """Layer of a build, the lowest first (variables/layers.yml) → its roles. ValueError: a component of no layer."""
    names = [row["name"] for row in read_yaml(data_dir("variables", "layers.yml"))["layers"]]
    if lost := [name for name, one in components().items() if one.layer and one.layer not in names]:
        raise ValueError(f"components of unknown layers: {', '.join(lost)}")
    order = in_order(components(), lambda component: component.installed_after)
    return {layer: tuple(name for name in order if components()[name].layer == layer) for layer in names}


def version_tags() -> dict[str, str]:
    """Component → the tag of an AMI with its version."""
    return {name: component.version_tag for name, component in components().items() if component.version_tag}


class ArgumentSpec(TypedDict, total=False):
    """An option of a role (Ansible's argument_specs); the keys that are read here."""

    type: str
    choices: list[object]
    required: bool
    default: object
    description: str | list[str]


def of_role(roles: Path, component: Component | str) -> Component:
    """A component whose section has the options of its role's argument_specs. UsageError: they cannot be read."""
    declared = component if isinstance(component, Component) else Component(component)
    specs = _specs(roles / declared.name / "meta" / "argument_specs.yml", declared.name)
    keys = Keys(
        {name: _kind(spec) for name, spec in specs.items()},
        needed=tuple(name for name, spec in specs.items() if spec.get("required")),
    )
    texts = {name: spec.get("description", "") for name, spec in specs.items()}
    meanings = {name: text if isinstance(text, str) else " ".join(text) for name, text in texts.items()}
    defaults = {name: spec["default"] for name, spec in specs.items() if "default" in spec}
    meta = roles / declared.name / "meta"
    observed = declared.observed or _observed(meta / "observed.yml")
    systems = declared.systems or _systems(meta / SYSTEMS_FILE)
    return replace(declared, keys=keys, meanings=meanings, defaults=defaults, observed=observed, systems=systems)


def _observed(path: Path) -> Observed | None:
    """How a site's role says that what it installs is observed; None where it says nothing. UsageError: mistakes."""
    return of_document(read_yaml(path), str(path)) if path.is_file() else None


SYSTEMS_FILE = "systems.yml"
SYSTEMS = ListOf(Text("ubuntu2404", r"[a-z0-9*?.-]+", "an operating system of a recipe, or a pattern of such,"))


def _systems(path: Path) -> tuple[str, ...]:
    """The operating systems of a site's role; none: it says nothing. UsageError: mistakes."""
    if not path.is_file():
        return ()
    document = read_yaml(path)
    if mistakes := [f"{path}: {one.message}" for one in SYSTEMS.check(document, "")]:
        raise UsageError(mistakes[0], details=mistakes[1:])
    return tuple(document)


def _kind(spec: ArgumentSpec) -> Kind:
    if choices := spec.get("choices"):
        return Choice(tuple(choices))
    return _KINDS.get(spec.get("type", "str"), Text("text"))


@cache
def _specs(path: Path, role: str) -> dict[str, ArgumentSpec]:
    """The role's options by key: monitoring_version of role monitoring is `version`."""
    document = read_yaml(path)
    try:
        options = dict(document["argument_specs"]["main"].get("options") or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: expected argument_specs.main.options") from error
    if unprefixed := [name for name in options if not name.startswith(f"{role}_")]:
        raise UsageError(f"{path}: {unprefixed[0]}: expected a name that begins with {role}_")
    return {name.removeprefix(f"{role}_"): option or {} for name, option in options.items()}
