"""Commands that testinfra runs on every host first, and whose results do not change during a run.

A shell runs them when it starts; later requests are answered from their output.
"""

from __future__ import annotations

from collections.abc import Mapping

from validator import remote
from validator.transport.answer import Answer

ASK = remote.text("host_constants")
CONSTANT = tuple(line.removeprefix("ask ") for line in ASK.splitlines() if line.startswith("ask "))
_SEPARATOR = b"\x1e"


def read(output: bytes) -> Mapping[str, Answer]:
    """The answer to each command, from the output of ASK; empty if that is incomplete.

    What a login script prints may come before it.
    """
    _, *records = output.split(_SEPARATOR)
    if len(records) != 2 * len(CONSTANT) + 1 or records[-1]:
        return {}
    outputs = dict(zip(CONSTANT, zip(records[::2], records[1::2], strict=False), strict=False))
    if not all(rc.isdigit() for _, rc in outputs.values()):
        return {}
    return {text: Answer(int(rc), out, b"", 0.0) for text, (out, rc) in outputs.items()}
