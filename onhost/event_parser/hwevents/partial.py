"""Lines that a container runtime has cut in the log of a container: tag P for each part but the last, which has F.

CRI-O cuts the line at which 8 KiB of output end, however short it is; containerd cuts lines of more than 16 KiB. A part
is not judged alone: the kernel's text may begin within it, and behind a program's text it is a quotation.
Sources: kubernetes/design-proposals-archive, kubelet-cri-logging.md; containers/conmon c3f70a3, src/ctr_logging.c.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Tuple

_LINE = re.compile(
    rb"(?P<head>\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d) (?P<stream>stdout|stderr) )(?P<tag>[FP])(?: |(?=\s*$))(?P<text>.*)",
    re.DOTALL,
)
_LIMIT = 65536
_DOCUMENT_LIMIT = 64 << 20  # of a line that is a JSON document


class PartialLines:
    """`streams`: the lines of stdout and stderr that have no end yet. `overlong` gets what is beyond the limit of a line."""

    def __init__(self, overlong: Callable[[bytes], None]) -> None:
        self.streams = {}  # type: Dict[bytes, Tuple[int, bytearray]]
        self._overlong = overlong

    def join(self, raw: bytes, number: int) -> List[Tuple[int, bytes]]:
        """A line of the file in, the lines out that are complete with it, each with the number of its last part."""
        match = _LINE.match(raw)
        if match is None:  # another file begins
            return [*self.finish(), (number, raw)]
        stream = match.group("stream")
        if match.group("tag") == b"F":
            line = self._add(stream, match.group("text")) if stream in self.streams else raw
            self.streams.pop(stream, None)
            return [(number, bytes(line))]
        line = self._add(stream, match.group("text").rstrip(b"\r\n"), match.group("head") + b"F ")
        self.streams[stream] = (number, line)
        return []

    def _add(self, stream: bytes, text: bytes, head: bytes = b"") -> bytearray:
        _, line = self.streams.get(stream, (0, bytearray(head)))
        is_document = re.match(rb"\S+ \S+ F \s*[{\[]", line) is not None
        room = max(0, (_DOCUMENT_LIMIT if is_document else _LIMIT) - len(line))
        line += text[:room]
        if len(text) > room:
            self._overlong(text[room:])
        return line

    def finish(self) -> List[Tuple[int, bytes]]:
        """The lines that have no end, as far as they came."""
        lines = [(number, bytes(line)) for number, line in self.streams.values()]
        self.streams.clear()
        return lines
