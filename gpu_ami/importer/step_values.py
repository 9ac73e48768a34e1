"""Values that a template hands to its provisioners: environment variables of shell steps, `--extra-vars` of Ansible's.

Many templates name the driver's or CUDA's version there and nowhere else. Packer's documentation of the provisioners
"shell" (`environment_vars`, `env`) and "ansible" (`extra_arguments`, `ansible_env_vars`), read 2026-11-25.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

_VARIABLE = re.compile(r"\$\{var\.([\w-]+)\}")
_OPTION = re.compile(r"(?:-e|--extra-vars)(?:=(?P<value>.*))?", re.DOTALL)


def step_values(
    provisioners: Sequence[Mapping[str, object]], variables: Mapping[str, object]
) -> Iterator[tuple[str, str, object]]:
    """Of each value: the key path of its step, its name, and the value; a variable's value in place of its name."""
    for index, step in enumerate(provisioners):
        for key in ("environment_vars", "ansible_env_vars", "env", "extra_arguments"):
            pairs = _extra_vars(step[key]) if key == "extra_arguments" and key in step else _pairs(step.get(key))
            for name, value in pairs:
                yield f"provisioners[{index}].{key}", name, _resolved(value, variables)


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """A mapping's items, or those of a list of `NAME=value`."""
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        for item in value:
            name, is_assigned, text = str(item).partition("=")
            if is_assigned:
                yield name.strip(), text.strip().strip("'\"")


def _extra_vars(arguments: object) -> Iterator[tuple[str, object]]:
    """The variables of `-e` and `--extra-vars`, as JSON or `name=value …`; `@FILE` is not read."""
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    for position, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is None:
            continue
        text = option["value"] if option["value"] is not None else "".join(words[position + 1 : position + 2])
        if text.lstrip().startswith("{"):
            try:
                document = json.loads(text)
            except ValueError:
                continue
            yield from _pairs(document)
        else:
            try:
                yield from _pairs(shlex.split(text))
            except ValueError:  # a quotation mark without its partner
                continue


def _resolved(value: object, variables: Mapping[str, object]) -> object:
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda call: "" if (found := variables.get(call[1])) is None else str(found), value)
