"""Records of the kernel log: /dev/kmsg, one record for each read(2).

Format: `priority,sequence,microseconds,flags[,more fields];text`, then lines that begin with a space (a dictionary).
Bytes below 32, from 127 up and the backslash come as `\\xNN`. Source: Linux, Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Iterator, NamedTuple, Optional

from . import initialisation, pcie
from .neuron import may_hold

# Larger than the kernel's limit for one record (8 KiB); with a smaller buffer read(2) fails with EINVAL for ever.
READ_SIZE = 16384
KERNEL_FACILITY = 0
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_HEADER_FIELDS = 4
# One pass over the record: eight tests for a substring take twice as long. No alternative begins with what most records
# have many of, a space or a colon: at each of them the search tries all.
_MAY_HOLD = re.compile(
    rb"NVRM|SXid|NEURON_HW_ERR=|neuron:|AER|PCIe Bus|DPC|failed with error |change power state from "
).search


class Record(NamedTuple):
    """One kernel log record. Facility 0 is the kernel itself; the kernel never gives it to a write to /dev/kmsg."""

    priority: int
    seq: int
    monotonic_us: int
    text: str

    @property
    def facility(self) -> int:
        return self.priority >> 3


def _unescape_one(match: "re.Match[bytes]") -> bytes:
    value = int(match.group(1), 16)
    # Line feeds and terminal escapes stay escaped; tab, backslash and text beyond ASCII are decoded.
    return bytes((value,)) if value >= 0x80 or value in (0x09, 0x5C) else match.group(0)


def decode_text(raw: bytes) -> str:
    """The record's text as one printable line: invalid UTF-8 becomes U+FFFD, control characters stay `\\xNN`."""
    if b"\\" in raw:
        raw = _ESCAPE.sub(_unescape_one, raw)
    return raw.decode("utf-8", "replace")


def parse_record(raw: bytes) -> Optional[Record]:
    """None for an invalid header; the caller counts it as malformed."""
    header, separator, rest = raw.partition(b";")
    fields = header.split(b",")
    if not separator or len(fields) < _HEADER_FIELDS:
        return None
    if not (fields[0].isdigit() and fields[1].isdigit() and fields[2].isdigit()):
        return None
    if len(header) > 200:  # three 64-bit numbers and flags need 70; int() of thousands of digits is slow
        return None
    text = rest.split(b"\n", 1)[0]
    return Record(int(fields[0]), int(fields[1]), int(fields[2]), decode_text(text))


def interesting(raw: bytes) -> bool:
    """A fast test whether a record can hold an event; most records need no more work."""
    if _MAY_HOLD(raw) is None:
        return False
    return b"NVRM" in raw or b"SXid" in raw or may_hold(raw) or initialisation.may_hold(raw) or pcie.may_hold(raw)


def to_raw_line(record: Record, several: bool) -> bytes:
    """The record as `dmesg` prints it, `[   12.345678] NVRM: …`, without surrounding white space.

    `several`: breaks the driver's three-line record into lines as dmesg does. No other record is broken into lines: a
    process name with a line feed must not forge one.
    """
    seconds, micros = divmod(record.monotonic_us, 1000000)
    text = "[%5d.%06d] %s" % (seconds, micros, record.text)
    lines = text.split("\\x0a") if several else [text]
    return b"".join(line.strip().encode("utf-8", "replace") + b"\n" for line in lines)


class Source:
    """/dev/kmsg, or a socket with the same behaviour, read without blocking.

    Counts `lost` records (sequence numbers have no gaps) and `malformed` headers. `last_seq`: the last record read; -1
    before the first record of this boot.
    """

    def __init__(self, fd: int, last_seq: int = -1) -> None:
        self.fd = fd
        self.last_seq = last_seq
        self.seen_seq = last_seq  # an earlier process may have read further than its checkpoint: not lost
        self.lost = 0
        self.malformed = 0
        self.records = 0
        self.overruns = 0
        self.skipped = 0
        self.ended = False

    @classmethod
    def open(cls, path: str, last_seq: int = -1) -> "Source":
        """Opens at the oldest record that the ring buffer still holds; records up to `last_seq` are skipped."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(fd, 0, os.SEEK_SET)
        return cls(fd, last_seq)

    def read(self, limit: int) -> Iterator[bytes]:
        """At most `limit` new raw records; ends when none is waiting. Raises OSError."""
        for _ in range(limit):
            try:
                raw = os.read(self.fd, READ_SIZE)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten; the next read gives the oldest that is left
                    self.overruns += 1
                    continue
                if error.errno in (errno.EINVAL, errno.EINTR):
                    self.malformed += error.errno == errno.EINVAL
                    continue
                raise
            if not raw:  # never from a device: the other end of a socket was closed
                self.ended = True
                return
            if self._is_new(raw):
                yield raw

    def _is_new(self, raw: bytes) -> bool:
        fields = raw.split(b",", 2)
        if len(fields) < 3 or not fields[1].isdigit() or len(fields[1]) > 20:
            self.records += 1
            self.malformed += 1
            return False
        seq = int(fields[1])
        if seq <= self.last_seq:
            self.skipped += 1
            return False
        self.lost += max(0, seq - max(self.last_seq, self.seen_seq) - 1)
        self.last_seq = seq
        self.records += 1
        return True

    def close(self) -> None:
        os.close(self.fd)
