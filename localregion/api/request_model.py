"""What a request to EC2 may name, by botocore's model: filters, and the values of enumerated parameters.

botocore checks names and types of parameters before it sends a request, but neither filters nor values, and moto
accepts most of them: a filter that EC2 does not have would be found on a real account alone. The names of an
operation's filters are in the model's documentation. Wording of the refusals: EC2 API reference, "Error codes".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

# A filter stands at the start of an entry of the list; values that it may have are in a list inside the entry.
_FILTER = re.compile(r"<li>\s*<p>\s*<code>([^<]+)</code>")


@functools.cache
def _model() -> Mapping[str, Any]:
    from botocore.loaders import Loader

    return Loader().load_service_model("ec2", "service-2")  # type: ignore[no-any-return]


def _members(operation: str) -> Mapping[str, Any]:
    model = _model()
    shape = model["operations"].get(operation, {}).get("input", {}).get("shape")
    return model["shapes"][shape].get("members", {}) if shape else {}


@functools.cache
def filters(operation: str) -> frozenset[str]:
    """Names of an operation's filters; `tag:*` for `tag:<key>`. Empty: the model lists none."""
    text = _members(operation).get("Filters", {}).get("documentation", "")
    names = _FILTER.findall(_outermost(text))
    return frozenset("tag:*" if name.startswith("tag:") or name == "tag" else name.strip() for name in names)


def _outermost(text: str) -> str:
    """The documentation of filters without the lists of their values."""
    depth, kept = 0, []
    for part in re.split(r"(</?ul>)", text):
        depth += {"<ul>": 1, "</ul>": -1}.get(part, 0)
        if depth <= 1:
            kept.append(part)
    return "".join(kept)


def mistakes(operation: str, parameters: Mapping[str, str]) -> Iterator[str]:
    """EC2's message for each filter that it does not have and each value that is not of its enumeration.

    parameters: flat, as in the query protocol (`Filter.1.Name`, `InstanceType`).
    """
    known = filters(operation)
    for key, value in parameters.items():
        if known and re.fullmatch(r"Filter\.\d+\.Name", key):
            if value not in known and not (value.startswith("tag:") and "tag:*" in known):
                yield f"The filter '{value}' is invalid"
        elif value not in _enumerations(operation).get(key, {value}):
            yield f"Value ({value}) for parameter {key} is invalid."


@functools.cache
def _enumerations(operation: str) -> Mapping[str, frozenset[str]]:
    """Parameter of the query → its values, of those that are enumerated."""
    shapes = _model()["shapes"]
    rows: dict[str, frozenset[str]] = {}
    for name, member in _members(operation).items():
        values = shapes[member["shape"]].get("enum")
        # An instance type or a region that is newer than the model is one all the same.
        if values and member["shape"] not in ("InstanceType",):
            sent = member.get("queryName") or member.get("locationName") or name
            rows[sent[:1].upper() + sent[1:]] = frozenset(values)
    return rows
