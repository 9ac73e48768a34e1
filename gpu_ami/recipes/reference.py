"""The recipe reference of docs/recipes.md, generated from the grammar and the layers below a recipe.

`python -m gpu_ami.recipes.reference docs/recipes.md` writes it anew between its two markers; a test compares it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_ami.files import write_text
from gpu_ami.recipes.facts import VARIABLES, Facts, load_facts, read_yaml
from gpu_ami.recipes.grammar import OF_THE_RECIPE, recipe_keys
from gpu_ami.recipes.layers import known_roles
from validator.schema import Choice, Day, Flag, Integer, Keys, Kind, ListOf, MapOf, Named, Text

BEGIN = "<!-- generated from gpu_ami/recipes/grammar.py: python -m gpu_ami.recipes.reference docs/recipes.md -->"
END = "<!-- end of the generated reference -->"

_VERSION = "version; exact, a branch (`580`), or `newest`"
DESCRIPTIONS = {
    "description": "one line about the image",
    "flag": "part of the AMI's name, `gpu-ami_<flag>_<driver version>-<time>`",
    "os": "operating system",
    "architecture": "architecture of the image and its instance types",
    "node": "what the image is a node of; `ec2`: a plain instance",
    "node_version": "version of the orchestrator (EKS, ParallelCluster) or release of the DLAMI",
    "kernel.version": "kernel series",
    "instance_types": "the instance types that the image is for; it is proven on each",
    "roles": "roles in the order of installation; a role runs if the plan has its section",
    "ansible.core": "release of ansible-core; it decides which Python the image must have",
    "source_ami.id": "the AMI to start from",
    "source_ami.owner": "owner of the AMI to start from: account id or alias; the newest that matches `name` is taken",
    "source_ami.name": "name of the AMI to start from, `*` for any characters",
    "source_ami.ssm": "public SSM parameter that holds the AMI's id",
    "build.instance_type": "instance type that builds the image",
    "build.root_volume_gib": "size of the root volume",
    "nvidia_driver.version": _VERSION,
    "nvidia_driver.flavour": "kernel module; `boot` installs both and loads one at boot, by the GPU",
    "nvidia_driver.gsp": "false: GSP firmware off (proprietary module only)",
    "nvidia_driver.source": (
        "`vendor`: NVIDIA's repository, the default; `distribution`: the system's own archive; "
        "`grid`: AWS's bucket with NVIDIA's GRID driver"
    ),
    "nvidia_driver.sha256": "digest of the GRID driver's installer, as you have checked it (AWS publishes none)",
    "nvidia_driver.virtual_applications": "true: GRID virtual applications instead of a virtual workstation",
    "fabric_manager.version": "the driver's version; installed by itself where an instance type has an NVSwitch",
    "imex.version": "the driver's version; installed by itself where memory spans machines",
    "cuda.version": _VERSION,
    "cuda.forward_compatibility": "true: install cuda-compat if the driver is too old for the toolkit",
    "cudnn.version": _VERSION,
    "nccl.version": _VERSION,
    "efa.version": "version of the EFA installer; exact, a branch, or `newest`",
    "efa.mode": "`minimal`: the kernel module and rdma-core alone, without libfabric and Open MPI",
    "ofi_nccl.version": "version of aws-ofi-nccl beside the EFA installer's; exact, a branch, or `newest`",
    "gdrcopy.version": _VERSION,
    "dcgm.version": _VERSION,
    "container_toolkit.version": _VERSION,
    "container_toolkit.runtime": "container runtime that is configured; default: the base AMI's, else docker",
    "neuron.version": "release of the Neuron SDK; exact, a branch, or `newest`",
    "mkl.version": _VERSION,
    "lustre.key_fingerprint": "fingerprint of the repository's key that you trust (Ubuntu only)",
    "tuning.clocks": "false: leave the application clocks as they are",
    "tuning.memlock": "false: leave the limit of locked memory as it is",
    "tuning.network": "false: leave the network's sysctl settings as they are",
    "tuning.sysctl": "further kernel settings",
    "tuning.mig": "MIG profiles of each GPU, by instance type; `gpu-ami plan` lists those that fit",
    "cloudwatch_agent.version": "`newest` or a release; with a build number (`1.300071.0b1766`) exactly that file",
    "event_parser.raw_log": "file with the kernel's Xid and SXid lines",
    "event_parser.json_log": "file with the events as JSON lines",
    "event_parser.log_buf_len": "size of the kernel's log buffer",
    "event_parser.seed_metrics_s": "seconds between points of `AcceleratorMetrics` and `EFAMetrics`; none without",
    "neuron_monitor.namespace": "CloudWatch namespace of neuron-monitor's metrics; not one that begins with `AWS/`",
    "neuron_monitor.dimensions": "their dimensions; `neuron_runtime_tag` makes series for each application",
    "neuron_monitor.high_resolution": "true: stored by the second, with `telemetry.interval_s` below 60; costs more",
    "neuron_monitor.log": "file with the metrics as embedded metric documents",
    "neuron_monitor.log_group": "log group of `neuron_monitor.log`",
    "drain_hook.enabled": "true: a service runs the scripts of `/etc/gpu-ami/drain.d` at notices ([fleet](fleet.md))",
    "drain_hook.notices": "notices that run them; a recommendation may never, an event may only in days come true",
    "drain_hook.timeout_s": "seconds for all scripts of a notice together",
    "drain_hook.log": "file with notices and what the scripts did, as JSON lines",
    "drain_hook.log_group": "log group of `drain_hook.log`",
    "telemetry.profile": "set of metrics",
    "telemetry.measurements": "metrics instead of the profile's",
    "telemetry.interval_s": "seconds between two data points",
    "telemetry.namespace": "CloudWatch namespace; not one that begins with `AWS/`",
    "telemetry.raw_log_group": "log group of `event_parser.raw_log`",
    "telemetry.json_log_group": "log group of `event_parser.json_log`",
    "telemetry.log_stream": "log stream; the agent replaces `{instance_id}`",
    "telemetry.retention_days": "how long CloudWatch keeps the logs",
}


def rows(facts: Facts, variables: Path = VARIABLES) -> list[tuple[str, str, str, str, str]]:
    """Key path, description, type, default and example of every key, in the grammar's order."""
    nodes = tuple(sorted(file.stem for file in (variables / "nodes").glob("*.yml")))
    grammar = recipe_keys(facts, known_roles(variables), nodes)
    return [
        (path, DESCRIPTIONS[path], _type(kind), _default(path, variables), _example(path, kind))
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
        case Flag():
            return "true or false"
        case Choice():
            return "one of " + ", ".join(f"`{item}`" for item in kind.allowed)
        case Named():
            return f"{kind.what} (`gpu-ami facts` lists them)" if not kind.pattern else f"any {kind.what}"
        case ListOf():
            return f"list: {_type(kind.item)}"
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
        case Flag():
            return "false"
        case Choice():
            item = kind.allowed[0]
            return f'"{item}"' if isinstance(item, str) and item[0].isdigit() else str(item)
        case ListOf():
            return f"[{_example_value(kind.item)}]"
        case MapOf():
            return f"{{{kind.example}: {_example_value(kind.item)}}}"
        case Keys():
            return "{}"


def _default(path: str, variables: Path) -> str:
    if path in OF_THE_RECIPE:
        return "required"
    value = _value(read_yaml(variables / "defaults.yml"), path)
    if value is not None:
        return "all, in their order" if path == "roles" else f"`{value}`"
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
