"""docs/schemas/report.json and certificate.json: JSON Schemas, generated from the records.

`python -m gpu_ami.report.json_schema report|certificate` prints one; a test compares it with the committed file.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from gpu_ami.report import certificate, document
from validator.tiers import Tier

Schema = dict[str, object]
_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_VERDICT: Schema = {"$ref": "#/$defs/Verdict"}
_TIER: Mapping[str, Schema] = {"verdict": _VERDICT, "reason": {"type": "string"}, "checks": {"type": "integer"}}
# Keys that a document has beside the fields of its record: they follow from those, and are written for readers.
_DERIVED: Mapping[str, Mapping[str, Schema]] = {"HostReport": {"verdict": _VERDICT}}


def schema_of(kind: str) -> Schema:
    """The schema (draft 2020-12) of `report` or `certificate`. Keys that it does not name are refused."""
    record, name = {
        "report": (document.Report, document.SCHEMA),
        "certificate": (certificate.Certificate, certificate.SCHEMA),
    }[kind]
    definitions: dict[str, Schema] = {}
    tiers: Schema = {"type": "array", "items": _object(Tier, definitions, _TIER)}
    derived: dict[str, Schema] = {"schema": {"const": name}, "tiers": tiers}
    if kind == "report":
        derived["verdict"] = _VERDICT
    schema = _object(record, definitions, derived)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return head | schema | {"$defs": dict(sorted(definitions.items()))}


def schema_text(kind: str) -> str:
    """What docs/schemas/<kind>.json holds."""
    return json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"


def _object(record: Any, definitions: dict[str, Schema], derived: Mapping[str, Schema]) -> Schema:
    """The schema of a record's fields, and of the `derived` keys beside or instead of them."""
    hints = get_type_hints(record)
    fields = [entry.name for entry in dataclasses.fields(record)]
    properties = {name: derived[name] if name in derived else _kind(hints[name], definitions) for name in fields}
    return {
        "type": "object",
        "description": " ".join((record.__doc__ or "").split()),
        "properties": properties | dict(derived),
        "required": sorted({*fields, *derived}),
        "additionalProperties": False,
    }


def _kind(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_kind(argument, definitions) for argument in arguments]}
    if hint is type(None):
        return {"type": "null"}
    if origin is tuple:
        return {"type": "array", "items": _kind(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _kind(arguments[1], definitions)}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        definitions.setdefault(hint.__name__, {"enum": [str(member) for member in hint]})
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(hint, definitions, _DERIVED.get(name, {}))
        return {"$ref": f"#/$defs/{name}"}
    return {} if hint in (Any, object) else {"type": _PRIMITIVES[hint]}


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
