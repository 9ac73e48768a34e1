"""What was left out of a log, or read with a reservation, in sentences and as JSON. Nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpu_ami.errors import counted
from gpu_ami.events.archives import Unread

SCHEMA = "gpu-ami/events-left-out/1"
_SENTENCES = {
    "quoted": "{} that look like quotations of kernel lines: counted, origin unknown",
    "by_program": "{} in which a program or a sentence names an Xid: not counted",
    "unread": "{} with NVRM or SXid not understood: not counted",
    "cut": "{} cut in the address or before the end of the number: not counted",
    "format": "{} of an Xid in an unknown format: not counted",
    "overlong": "too long, with NVRM or SXid in the part that was not read: {}",
    "driver": "{} of the driver without an event",
    "consequence": "{} that repeat or follow from an event above: not counted again",
    "follow_up": "{} that belong to an SXid above: not counted again",
    "repeated": "{} that another part of this material has too: counted once",
}
# Where lines of these kinds were left out, an event may have been among them.
_MAY_HIDE = frozenset({"by_program", "unread", "cut", "format", "overlong"})


class Lines(NamedTuple):
    """Lines of one kind in one member of an archive ("" for the file itself). `numbers`: of the first thousand."""

    member: str
    kind: str
    total: int
    numbers: Sequence[int]


@dataclass
class LeftOut:
    """Filled while a log is read."""

    lines: list[Lines] = field(default_factory=list)
    unread: Sequence[Unread] = ()

    def add(self, member: str, counts: Mapping[str, int], numbers: Mapping[str, Sequence[int]]) -> None:
        self.lines += [Lines(member, kind, count, numbers[kind]) for kind, count in counts.items()]

    @property
    def may_hide_events(self) -> bool:
        """Whether "no event" would claim more than was read."""
        return bool(self.unread) or any(lines.kind in _MAY_HIDE for lines in self.lines)

    def sentences(self, *, verbose: bool = False) -> Iterator[str]:
        """A sentence for each kind, then one for each member that was not read. verbose: with line numbers."""
        for kind, sentence in _SENTENCES.items():
            of_kind = [lines for lines in self.lines if lines.kind == kind]
            if of_kind:
                yield sentence.format(counted(sum(lines.total for lines in of_kind), "line"))
                if verbose:
                    yield from (f"  {_place(lines)}" for lines in of_kind)
        for member in self.unread:
            yield f"not read: {_shown(member.name) or 'this file'} ({member.why})"

    def document(self) -> dict[str, Any]:
        """The last line of `--json`; {} where nothing was left out."""
        if not self.lines and not self.unread:
            return {}
        return {
            "schema": SCHEMA, "kind": "left_out", "may_hide_events": self.may_hide_events,
            "lines": [
                {"why": lines.kind, "count": lines.total, "lines": list(lines.numbers),
                 **({"file": lines.member} if lines.member else {})}
                for lines in self.lines
            ],
            "not_read": [{"file": member.name, "why": member.why} for member in self.unread],
        }  # fmt: skip


def _place(lines: Lines) -> str:
    more = ", …" if lines.total > len(lines.numbers) else ""
    where = f"{_shown(lines.member)}: " if lines.member else ""
    return f"{where}{'line' if lines.total == 1 else 'lines'} {', '.join(_runs(lines.numbers))}{more}"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """3, 5-7"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return (str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _shown(name: str) -> str:
    """Names in an archive are untrusted: no control characters for the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in name)
