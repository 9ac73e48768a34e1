"""docs/schemas/plan.json: the JSON Schema of a plan, generated from the types of its document and of its sections.

`python -m gpu_ami.plan.json_schema` prints it; a test compares it with the committed file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from gpu_ami.plan.document import SCHEMA
from gpu_ami.recipes import PlanDocument, components

Schema = dict[str, object]
_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", bool: "boolean"}


def plan_schema() -> Schema:
    """The JSON Schema (draft 2020-12). Keys that it does not name are refused, as they are by mypy."""
    definitions: dict[str, Schema] = {}
    constant: dict[str, Schema] = {
        "schema": {"const": SCHEMA},
        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    }
    optional: dict[str, Schema] = {
        name: _kind(one.section, definitions) if one.section else {"type": "object"}
        for name, one in components.components().items()
        if not one.is_in_every_plan
    }
    schema = _object(PlanDocument, definitions, constant, optional)
    # Any other section is of a role of the site's own (docs/site.md).
    schema["additionalProperties"] = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """What docs/schemas/plan.json holds."""
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False) + "\n"


def _object(
    kind: Any,
    definitions: dict[str, Schema],
    known: Mapping[str, Schema] | None = None,
    more: Mapping[str, Schema] | None = None,
) -> Schema:
    """The schema of a TypedDict. known: schemas of keys, instead of those of their types. more: of optional keys."""
    hints = get_type_hints(kind, include_extras=True)
    required = [key for key, hint in hints.items() if kind.__total__ and get_origin(hint) is not NotRequired]
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": dict(more or {})
        | {key: (known or {}).get(key) or _kind(hint, definitions) for key, hint in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _kind(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin = get_origin(hint)
    if origin is NotRequired:
        return _kind(get_args(hint)[0], definitions)
    if origin is list:
        return {"type": "array", "items": _kind(get_args(hint)[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kind(get_args(hint)[1], definitions)}
    if is_typeddict(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {} if hint in (Any, object) else {"type": _PRIMITIVES[hint]}


if __name__ == "__main__":
    sys.stdout.write(schema_text())
