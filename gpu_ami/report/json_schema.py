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

_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_TIER = {"verdict": {"$ref": "#/$defs/Verdict"}, "reason": {"type": "string"}, "checks": {"type": "integer"}}


def schema_of(kind: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of `report` or `certificate`. Keys that it does not name are refused."""
    record, name = {
        "report": (document.Report, document.SCHEMA),
        "certificate": (certificate.Certificate, certificate.SCHEMA),
    }[kind]
    definitions: dict[str, Any] = {}
    schema = _object(record, definitions)
    derived: dict[str, Any] = {"schema": {"const": name}, "tiers": {"type": "array", "items": _tier(definitions)}}
    if kind == "report":
        derived["verdict"] = {"$ref": "#/$defs/Verdict"}
        _extend(definitions["HostReport"], {"verdict": {"$ref": "#/$defs/Verdict"}})
    _extend(schema, derived)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return head | schema | {"$defs": dict(sorted(definitions.items()))}


def schema_text(kind: str) -> str:
    """What docs/schemas/<kind>.json holds."""
    return json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"


def _extend(schema: dict[str, Any], properties: Mapping[str, Any]) -> None:
    schema["properties"] = {**schema["properties"], **properties}
    schema["required"] = sorted({*schema["required"], *properties})


def _tier(definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _object(Tier, definitions)
    _extend(schema, _TIER)
    return schema


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    fields = [entry.name for entry in dataclasses.fields(kind)]
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": {name: _kind(hints[name], definitions) for name in fields},
        "required": sorted(fields),
        "additionalProperties": False,
    }


def _kind(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
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
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {} if hint in (Any, object) else {"type": _PRIMITIVES[hint]}


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
