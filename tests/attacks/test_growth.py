"""Attempt 9: text that somebody made to be slow. Four times the length takes about four times the time.

Ratios, not seconds: n steps 4, n² 16, n⁴ 256. The reader cuts lines above 64 KiB.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest

from gpu_ami.events import reader

Text = Callable[[int], str]
LINES: dict[str, Text] = {
    "blanks": lambda n: " " * n + "NVRM: table",
    "blanks after a brace": lambda n: "}" + " " * n + "NVRM: table",
    "digits": lambda n: "1" * n + " NVRM: table",
    "quotes": lambda n: '"' * n + "NVRM: table",
    "backslashes": lambda n: "\\" * n + "NVRM: table",
}


def ratio(work: Callable[[str], object], text: Text, size: int) -> float:
    """Time for 4 times size by time for size, the fastest of three each."""

    def seconds(given: str) -> float:
        started = time.process_time()
        work(given)
        return time.process_time() - started

    short, long = text(size), text(4 * size)
    base = min(seconds(short) for _ in range(3))
    return min(seconds(long) for _ in range(3)) / max(base, 1e-3)


def read(line: str) -> None:
    assert list(reader.read_events(io.BytesIO(f"{line}\n".encode()))) == []


# Searched at each place, each time to the end of the line: 16 times the time for four times the length.
SEARCHED: dict[str, Text] = {
    "tag of a program": lambda n: ("nv-fabricmanager: " * n)[:n] + "NVRM: table",
    "GPUs of the fabric manager": lambda n: "nv-fabricmanager: " + ("GPU " * n)[:n] + " NVSwitch",
    "switches of the fabric manager": lambda n: "nv-fabricmanager: " + ("on NVSwitch " * n)[:n],
    "tags of the driver": lambda n: "NVRM: API mismatch: the client " + ("NVRM: " * n)[:n],
    "line feeds of the driver": lambda n: "NVRM: API mismatch: the client " + ("NVRM:\\x0a" * n)[:n],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHED)
def test_a_line_is_searched_in_linear_time(name: str) -> None:
    def parse(line: str) -> None:
        list(reader.read_events(io.BytesIO(f"{line}\n".encode())))

    assert ratio(parse, SEARCHED[name], 8000) < 9


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_line_is_read_in_linear_time(name: str) -> None:
    assert ratio(read, LINES[name], 1000) < 12
