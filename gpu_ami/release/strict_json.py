"""JSON of files that are signed: a key that is there twice is refused, since two readers could read two values."""

from __future__ import annotations

import json
from typing import Any


class InvalidJson(ValueError):
    """Not JSON, or not an object. duplicate: the key that is there twice, "" otherwise."""

    def __init__(self, message: str, duplicate: str = "") -> None:
        super().__init__(message)
        self.duplicate = duplicate


def loads(data: bytes) -> dict[str, Any]:
    """The object in `data`, UTF-8. InvalidJson."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise InvalidJson(f"duplicate key {key!r}", key)
            content[key] = value
        return content

    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidJson(f"expected a JSON object, got {type(document).__name__}")
    return document
