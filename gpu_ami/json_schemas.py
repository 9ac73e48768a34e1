"""The JSON Schemas of all that is written or printed as JSON, generated from its types.

`python -m gpu_ami.json_schemas NAME` prints one (SCHEMAS names them). docs/schemas/ has those of files, which a test
compares with their types; that of what commands print is not kept.
A field's `Annotated` type says what its Python type leaves open: a tuple of strings lists the values, and another type
describes a mapping that was read from a file.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpu_ami.commands import json_types
from gpu_ami.plan import document as plan_file
from gpu_ami.publish import record
from gpu_ami.recipes import PlanDocument, components
from gpu_ami.region import provider
from gpu_ami.report import certificate, document
from validator.tiers import Tier

Schema = dict[str, object]
# Definitions of the types that a schema names; None where every type is described in its place.
Definitions = dict[str, Schema] | None
_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string"}
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


def publication_schema() -> Schema:
    """The schema of publication.json and rollback.json. Keys that it does not name are refused."""
    return _whole("publication.json, rollback.json", _kind(record.PublicationDocument, None))


def commands_schema() -> Schema:
    """What each command prints under --json: a definition for each command's name, and those of errors and progress."""
    description = (
        "What each command prints on stdout under --json, by the command's name; on failure `error` in its place, on "
        "the same stream. progress: a line on stderr. Keys hold no spaces; a key that is not listed is not printed."
    )
    schema = _whole("gpu-ami COMMAND --json", {"description": description})
    results = {**json_types.RESULTS, **provider().json_types()}
    return schema | {"$defs": {name: _result(result) for name, result in results.items()}}


def _result(result: Any) -> Schema:
    """Of a command. What has a schema of its own is referred to."""
    if get_origin(result) in (Union, types.UnionType):
        return {"anyOf": [_result(one) for one in get_args(result)]}
    file = _FILES.get(result) if isinstance(result, type) else None
    return {"$ref": file} if file else _kind(result, None)


_FILES: Mapping[Any, str] = {
    PlanDocument: "plan.json", document.Report: "report.json", certificate.Certificate: "certificate.json",
    record.PublicationDocument: "publication.json",
}  # fmt: skip
SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema, "report": report_schema, "certificate": certificate_schema,
    "publication": publication_schema, "commands": commands_schema,
}  # fmt: skip


def schema_text(name: str) -> str:
    """What docs/schemas/<name>.json holds."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


def _whole(title: str, schema: Schema, definitions: Definitions = None) -> Schema:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return head | schema | ({"$defs": dict(sorted(definitions.items()))} if definitions else {})


def _of_tiers(record: Any, title: str, more: Mapping[str, Schema]) -> Schema:
    """Of a record that is written with its verdicts by tier."""
    definitions: dict[str, Schema] = {}
    tiers: Schema = {"type": "array", "items": _record(Tier, definitions, _TIER)}
    derived: dict[str, Schema] = {"schema": {"const": title}, "tiers": tiers, **more}
    return _whole(title, _record(record, definitions, derived), definitions)


def _typed_dict(
    kind: Any,
    definitions: Definitions,
    known: Mapping[str, Schema] | None = None,
    more: Mapping[str, Schema] | None = None,
) -> Schema:
    """The schema of a TypedDict. known: schemas of keys, instead of those of their types. more: of optional keys."""
    hints = get_type_hints(kind, include_extras=True)
    required = [key for key in hints if key in kind.__required_keys__ and get_origin(hints[key]) is not NotRequired]
    own = {key: (known or {}).get(key) or _kind(hint, definitions) for key, hint in hints.items()}
    return _object(kind, dict(more or {}) | own, required)


def _record(record: Any, definitions: Definitions, derived: Mapping[str, Schema]) -> Schema:
    """The schema of a dataclass's fields, and of the `derived` keys beside or instead of them."""
    hints = get_type_hints(record, include_extras=True)
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


def _kind(hint: Any, definitions: Definitions) -> Schema:
    """The schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        more = hint.__metadata__[0]
        return {"enum": list(more)} if isinstance(more, tuple) else _kind(more, definitions)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is NotRequired:
        return _kind(arguments[0], definitions)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_kind(argument, definitions) for argument in arguments]}
    if origin is tuple and arguments[-1] is not ...:
        return _row([_kind(argument, definitions) for argument in arguments])
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _kind(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _kind(arguments[1], definitions)}
    return _plain(hint, definitions)


def _row(items: list[Schema]) -> Schema:
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _plain(hint: Any, definitions: Definitions) -> Schema:
    """Of a type without arguments."""
    if hint is type(None):
        return {"type": "null"}
    if is_typeddict(hint) or dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return _described(hint, None) if definitions is None else _named(hint, definitions)
    return {} if hint in (Any, object) else {"type": _PRIMITIVES[hint]}


def _named(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """A reference to the definition of a type, which is made when the type is met first."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # a type may hold itself
        definitions[name] = _described(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _described(kind: Any, definitions: Definitions) -> Schema:
    if is_typeddict(kind):
        return _typed_dict(kind, definitions)
    if dataclasses.is_dataclass(kind):
        return _record(kind, definitions, _DERIVED.get(getattr(kind, "__name__", ""), {}))
    return {"enum": [str(member) for member in kind]}


if __name__ == "__main__":
    sys.stdout.write(schema_text(sys.argv[1]))
