"""plan.json as the checks read it: a check that reads a missing key is UNPROVEN, with the key's path as the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from validator.inputs import read_text
from validator.observe import unproven

if TYPE_CHECKING:
    from validator.plan_document import InstanceType, PlanDocument

SCHEMA = "gpu-ami/plan/1"
# plan.json's `origin` where it was made of what an image has (gpu-ami observe): it promises nothing.
OBSERVED = "observed"
# The keys of a plan that name a log group, by their section.
LOG_GROUPS = {
    "telemetry": ("raw_log_group", "json_log_group"),
    "neuron_monitor": ("log_group",),
    "drain_hook": ("log_group",),
}


class _Object(dict[str, object]):
    """A JSON object of the plan. `path` is its place in the document: "" or "nvidia_driver."."""

    def __init__(self, content: Mapping[str, object], path: str) -> None:
        super().__init__({key: _with_paths(value, f"{path}{key}") for key, value in content.items()})
        self._path = path

    def __missing__(self, key: str) -> NoReturn:
        unproven(f"the plan has no {self._path}{key}")


def _with_paths(value: object, path: str) -> object:
    if isinstance(value, dict):
        return _Object(value, f"{path}.")
    if isinstance(value, list):
        return [_with_paths(item, f"{path}[{_label(item, index)}]") for index, item in enumerate(value)]
    return value


def _label(item: object, index: int) -> object:
    return item.get("name", index) if isinstance(item, dict) else index


def load_plan(path: Path, log_group_suffix: str = "") -> PlanDocument:
    """plan.json for checks. ValueError if the file is not a plan.

    log_group_suffix: appended to the log groups of LOG_GROUPS, for a machine that sends to groups of a proof. The
    agent's configuration in the plan stays that of the image.
    """
    document = json.loads(read_text(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path}: expected schema {SCHEMA}, got {schema}")
    if log_group_suffix:
        for name, keys in LOG_GROUPS.items():
            section = document.get(name)
            if isinstance(section, dict):
                named = {key: f"{section[key]}{log_group_suffix}" for key in keys if key in section}
                document[name] = section | named
    return as_plan(document)


def as_plan(document: Mapping[str, object]) -> PlanDocument:
    """A copy of the document in which `[key]` of a missing key ends the check as UNPROVEN. `get` and `in` are a dict's.

    The types are those of the resolver, which wrote the file: only its schema's name is compared.
    """
    return cast("PlanDocument", _Object(document, ""))


def planned_instance_type(plan: PlanDocument, name: str) -> InstanceType:
    """The planned facts of an instance type. UNPROVEN if the plan does not have it."""
    for instance_type in plan["instance_types"]:
        if instance_type["name"] == name:
            return instance_type
    unproven(f"the plan does not have instance type {name}")
