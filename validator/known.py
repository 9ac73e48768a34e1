"""What testinfra asks of every host before it can begin, and what does not change while a run lasts.

It is asked once, as one command that travels with a shell's first batch, and answered from what came back ever after.
"""

from __future__ import annotations

from validator.shell import Answer, Command

CONSTANT = (
    "uname -s",
    "uname -m",
    "cat /etc/os-release",
    "test -d /run/systemd/system/",
    *(f"command -v {name}" for name in ("command", "systemctl", "dpkg-query", "rpm", "sysctl", "ss", "ip", "service")),
)
_SEPARATOR = b"\x1e"
# $(…) takes the last newline away; who reads the answers puts it back.
_EACH = "o=$({text} 2>/dev/null); printf '%s\\n%s\\036' $? \"$o\""
ASK = Command("; ".join(_EACH.format(text=text) for text in CONSTANT), 20.0)


def read(answer: Answer) -> dict[str, Answer]:
    """The answer to each, from the one to ASK; nothing where that is not whole."""
    records = answer.stdout.split(_SEPARATOR)
    if answer.expired or len(records) != len(CONSTANT) + 1:
        return {}
    found = {}
    for text, record in zip(CONSTANT, records, strict=False):
        rc, _, out = record.partition(b"\n")
        if not rc.isdigit():
            return {}
        found[text] = Answer(int(rc), out + b"\n" if out else b"", b"", answer.seconds)
    return found
