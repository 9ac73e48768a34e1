"""The recipe reference of docs/recipes.md, generated from the grammar and the layers below a recipe.

`python -m gpu_ami.recipes.reference docs/recipes.md` writes it between its two markers; a test compares it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_ami.files import write_text
from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts import VARIABLES, Facts, load_facts, read_yaml
from gpu_ami.recipes.layers import OF_THE_RECIPE, recipe_keys
from validator.schema import Choice, Day, Flag, Integer, Keys, Kind, ListOf, MapOf, Named, Number, OneOrMore, Text

BEGIN = "<!-- generated from gpu_ami/recipes/layers.py: python -m gpu_ami.recipes.reference docs/recipes.md -->"
END = "<!-- end of the generated reference -->"

_VERSION = "version; exact, a branch (`580`), or `newest`"
_DESCRIPTIONS = {
    "description": "one line about the image",
    "flag": "part of the AMI's name, `gpu-ami_<flag>_<driver version>-<time>`",
    "os": "operating system",
    "architecture": "architecture of the image and its instance types",
    "node": "node family; `ec2`: a plain instance",
    "node_version": "version of the orchestrator (EKS, ParallelCluster) or release of the DLAMI",
    "node_variant": "another base AMI of the node family; `nvidia`: EKS's own accelerated AMI, with its drivers",
    "kernel.version": "kernel series",
    "instance_types": "the instance types that the image is for; it is proven on each",
    "roles": "roles in the order of installation; a role runs if the plan has its section",
    "ansible.core": "release of ansible-core; it determines the Python versions that the image can have",
    "accept": (
        "known incompatibilities (`variables/facts/incompatibilities.yml`) to accept, and `unverified-COMPONENT`: a "
        "version that neither facts nor sources tell of; the plan notes each"
    ),
    "refuse_advisories": (
        "refuse a driver or container toolkit without the fix of a security bulletin of this severity or higher "
        "(`variables/facts/advisories.yml`); without it the plan notes them"
    ),
    "boot_seconds": "longest boot that the proof accepts, from the kernel's start to systemd's last job; default: any",
    "source_ami.id": "the AMI to start from",
    "source_ami.owner": "owner of the AMI to start from: account id or alias; the newest that matches `name` is taken",
    "source_ami.name": "name of the AMI to start from, `*` for any characters",
    "source_ami.ssm": "public SSM parameter that holds the AMI's id",
    "build.instance_type": "instance type that builds the image",
    "build.root_volume_gib": "size of the root volume",
    "telemetry.profile": "set of metrics",
    "telemetry.measurements": "metrics instead of the profile's",
    "telemetry.interval_s": "seconds between two data points",
    "telemetry.namespace": "CloudWatch namespace; not one that begins with `AWS/`",
    "telemetry.raw_log_group": "log group of `event_parser.raw_log`",
    "telemetry.json_log_group": "log group of `event_parser.json_log`",
    "telemetry.log_stream": "log stream; the agent replaces `{instance_id}`",
    "telemetry.retention_days": "how long CloudWatch keeps the logs",
}


def descriptions() -> dict[str, str]:
    """Key path → what it means: of the image as a whole, and of each component."""
    described = dict(_DESCRIPTIONS)
    for name, component in components().items():
        described |= {f"{name}.version": _VERSION} if component.is_chosen else {}
        described |= {f"{name}.{key}": meaning for key, meaning in component.meanings.items()}
    return described


def rows(facts: Facts, variables: Path = VARIABLES) -> list[tuple[str, str, str, str, str]]:
    """Key path, description, type, default and example of every key, in the grammar's order."""
    nodes = tuple(sorted(file.stem for file in (variables / "nodes").glob("*.yml")))
    grammar, meanings = recipe_keys(facts, components(), nodes), descriptions()
    return [
        (path, meanings[path], _type(kind), _default(path, variables), _example(path, kind))
        for path, kind in leaves(grammar)
    ]


def leaves(kind: Keys, path: str = "") -> Iterator[tuple[str, Kind]]:
    """Every key that holds a value, with its path."""
    for key, below in kind.keys.items():
        if isinstance(below, Keys):
            yield from leaves(below, f"{path}{key}.")
        else:
            yield f"{path}{key}", below


def reference() -> str:
    """The generated part of docs/recipes.md, markers included."""
    lines = ["| key | meaning | type | default | example |", "|---|---|---|---|---|"]
    for path, description, kind, default, example in rows(load_facts()):
        lines.append(f"| `{path}` | {description} | {kind} | {default} | `{example}` |")
    return "\n".join([BEGIN, "", *lines, "", END])


def with_reference(text: str) -> str:
    """A page with its generated part replaced. ValueError: the page lacks the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN} and {END}")
    return before + reference() + after


def _type(kind: Kind) -> str:
    match kind:
        case Text():
            return "text"
        case Day():
            return "date"
        case Integer():
            return f"whole number, {kind.low} to {kind.high} {kind.unit}".rstrip()
        case Number():
            return "number"
        case Flag():
            return "true or false"
        case Choice():
            return "one of " + ", ".join(f"`{item}`" for item in kind.allowed)
        case Named():
            return f"{kind.what} (`gpu-ami facts` lists them)" if not kind.pattern else f"any {kind.what}"
        case ListOf():
            return f"list: {_type(kind.item)}"
        case OneOrMore():
            return f"{_type(kind.item)}, or a list of such"
        case MapOf():
            return f"mapping of a key such as `{kind.example}` to {_type(kind.item)}"
        case Keys():
            return "mapping"


def _example(path: str, kind: Kind) -> str:
    *parents, key = path.split(".")
    value = _example_value(kind)
    for parent in parents:
        value, key = f"{{{key}: {value}}}", parent
    return f"{parents[0] if parents else key}: {value}"


def _example_value(kind: Kind) -> str:
    match kind:
        case Text() | Named():
            plain = re.fullmatch(r'[\w./*-]+|".*"', kind.example)
            return kind.example if plain else f'"{kind.example}"'
        case Day():
            return kind.example
        case Integer():
            return str(max(kind.low, min(kind.high, 60)))
        case Number():
            return "0.5"
        case Flag():
            return "false"
        case Choice():
            item = kind.allowed[0]
            return f'"{item}"' if isinstance(item, str) and item[0].isdigit() else str(item)
        case ListOf() | OneOrMore():
            return f"[{_example_value(kind.item)}]"
        case MapOf():
            return f"{{{kind.example}: {_example_value(kind.item)}}}"
        case Keys():
            return "{}"


def _default(path: str, variables: Path) -> str:
    if path in OF_THE_RECIPE:
        return "required"
    if path == "roles":
        return "all, in their order"
    value = _value(read_yaml(variables / "defaults.yml"), path)
    if value is not None:
        return f"`{value}`"
    layers = [folder for folder in ("architectures", "os", "nodes") if _in_layers(variables / folder, path)]
    return " or ".join(f"by `variables/{folder}/`" for folder in layers) or "none"


def _in_layers(folder: Path, path: str) -> bool:
    return any(_value(read_yaml(file), path) is not None for file in folder.glob("*.yml"))


def _value(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


if __name__ == "__main__":
    page = Path(sys.argv[1])
    write_text(page, with_reference(page.read_text(encoding="utf-8")))
