"""docs/schemas/: the JSON Schemas of plan, report and certificate, generated from the types of what is written.

`python -m gpu_ami.json_schemas plan|report|certificate` prints one; a test compares each with the committed file.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpu_ami.plan import document as plan_file
from gpu_ami.recipes import PlanDocument, components
from gpu_ami.report import certificate, document
from validator.tiers import Tier

Schema = dict[str, object]
_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_VERDICT: Schema = {"$ref": "#/$defs/Verdict"}
_TIER: Mapping[str, Schema] = {"verdict": _VERDICT, "reason": {"type": "string"}, "checks": {"type": "integer"}}
# Keys that a document has beside the fields of its record: they follow from those, and are written for readers.
_DERIVED: Mapping[str, Mapping[str, Schema]] = {"HostReport": {"verdict": _VERDICT}}


def plan_schema() -> Schema:
    """The schema of plan.json (draft 2020-12). Keys that it does not name are refused, as they are by mypy."""
    definitions: dict[str, Schema] = {}
    constant: dict[str, Schema] = {
        "schema": {"const": plan_file.SCHEMA},
        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    }
    optional: dict[str, Schema] = {
        name: _kind(one.section, definitions) if one.section else {"type": "object"}
        for name, one in components.components().items()
        if not one.is_in_every_plan
    }
    schema = _typed_dict(PlanDocument, definitions, constant, optional)
    # Any other section is of a role of the site's own (docs/site.md).
    schema["additionalProperties"] = {"type": "object"}
    return _whole(plan_file.SCHEMA, schema, definitions)


def report_schema() -> Schema:
    """The schema of report.json. Keys that it does not name are refused."""
    return _of_tiers(document.Report, document.SCHEMA, {"verdict": _VERDICT})


def certificate_schema() -> Schema:
    """The schema of certificate.json. Keys that it does not name are refused."""
    return _of_tiers(certificate.Certificate, certificate.SCHEMA, {})


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema, "report": report_schema, "certificate": certificate_schema,
}  # fmt: skip


def schema_text(name: str) -> str:
    """What docs/schemas/<name>.json holds."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


def _whole(title: str, schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return head | schema | {"$defs": dict(sorted(definitions.items()))}


def _of_tiers(record: Any, title: str, more: Mapping[str, Schema]) -> Schema:
    """Of a record that is written with its verdicts by tier."""
    definitions: dict[str, Schema] = {}
    tiers: Schema = {"type": "array", "items": _record(Tier, definitions, _TIER)}
    derived: dict[str, Schema] = {"schema": {"const": title}, "tiers": tiers, **more}
    return _whole(title, _record(record, definitions, derived), definitions)


def _typed_dict(
    kind: Any,
    definitions: dict[str, Schema],
    known: Mapping[str, Schema] | None = None,
    more: Mapping[str, Schema] | None = None,
) -> Schema:
    """The schema of a TypedDict. known: schemas of keys, instead of those of their types. more: of optional keys."""
    hints = get_type_hints(kind, include_extras=True)
    required = [key for key, hint in hints.items() if kind.__total__ and get_origin(hint) is not NotRequired]
    own = {key: (known or {}).get(key) or _kind(hint, definitions) for key, hint in hints.items()}
    return _object(kind, dict(more or {}) | own, required)


def _record(record: Any, definitions: dict[str, Schema], derived: Mapping[str, Schema]) -> Schema:
    """The schema of a dataclass's fields, and of the `derived` keys beside or instead of them."""
    hints = get_type_hints(record)
    fields = [entry.name for entry in dataclasses.fields(record)]
    properties = {name: derived[name] if name in derived else _kind(hints[name], definitions) for name in fields}
    return _object(record, properties | dict(derived), sorted({*fields, *derived}))


def _object(kind: Any, properties: Mapping[str, Schema], required: list[str]) -> Schema:
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _kind(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return _kind(arguments[0], definitions)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_kind(argument, definitions) for argument in arguments]}
    if hint is type(None):
        return {"type": "null"}
    if origin in (list, tuple):
        return {"type": "array", "items": _kind(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _kind(arguments[1], definitions)}
    if is_typeddict(hint) or dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return _named(hint, definitions)
    return {} if hint in (Any, object) else {"type": _PRIMITIVES[hint]}


def _named(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """A reference to the definition of a type, which is made when the type is met first."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # a type may hold itself
        if is_typeddict(kind):
            definitions[name] = _typed_dict(kind, definitions)
        elif dataclasses.is_dataclass(kind):
            definitions[name] = _record(kind, definitions, _DERIVED.get(name, {}))
        else:
            definitions[name] = {"enum": [str(member) for member in kind]}
    return {"$ref": f"#/$defs/{name}"}


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
