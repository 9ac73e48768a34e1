"""What testinfra asks of every host before it can begin, and what does not change while a run lasts.

It is asked once, as one command that travels with a shell's first batch, and answered from what came back ever after.
"""

from __future__ import annotations

from validator import remote
from validator.transport.shell import Answer, Command

_PROGRAM = remote.text("host_constants")
CONSTANT = tuple(line.removeprefix("ask ") for line in _PROGRAM.splitlines() if line.startswith("ask "))
ASK = Command(_PROGRAM, 20.0)
_SEPARATOR = b"\x1e"


def read(answer: Answer) -> dict[str, Answer]:
    """The answer to each, from the one to ASK; nothing where that is not whole."""
    before, *records = answer.stdout.split(_SEPARATOR)
    if answer.expired or before or len(records) != 2 * len(CONSTANT) + 1 or records[-1]:
        return {}
    told = dict(zip(CONSTANT, zip(records[::2], records[1::2], strict=False), strict=False))
    if not all(rc.isdigit() for _, rc in told.values()):
        return {}
    return {text: Answer(int(rc), out, b"", answer.seconds) for text, (out, rc) in told.items()}
