"""Commands that testinfra runs on every host first, and whose results do not change during a run.

They run once, as one command in the first batch of a shell; later requests are answered from its output.
"""

from __future__ import annotations

from validator import remote
from validator.transport.shell import Answer, Command

_PROGRAM = remote.text("host_constants")
CONSTANT = tuple(line.removeprefix("ask ") for line in _PROGRAM.splitlines() if line.startswith("ask "))
ASK = Command(_PROGRAM, 20.0)
_SEPARATOR = b"\x1e"


def read(answer: Answer) -> dict[str, Answer]:
    """The answer to each command, from the output of ASK; empty if that is incomplete."""
    before, *records = answer.stdout.split(_SEPARATOR)
    if answer.expired or before or len(records) != 2 * len(CONSTANT) + 1 or records[-1]:
        return {}
    outputs = dict(zip(CONSTANT, zip(records[::2], records[1::2], strict=False), strict=False))
    if not all(rc.isdigit() for _, rc in outputs.values()):
        return {}
    return {text: Answer(int(rc), out, b"", answer.seconds) for text, (out, rc) in outputs.items()}
