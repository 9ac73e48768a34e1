"""Lines that a container runtime has cut: tag P, and F at the end (CRI logging, kubernetes#55922).

CRI-O's conmon reads 8 KiB of a container's output, and cuts the line at their end, however short it is
(containers/conmon c3f70a3, src/ctr_logging.c; cri-o#4432); containerd cuts lines of more than 16 KiB.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.test_transcripts import events_of

XID = "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"
SXID = (
    "[12346.000001] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
)
READ = 8192  # bytes of conmon's read(2)


def conmon(output: str, stream: str = "stdout") -> list[str]:
    """The log of a container's output that comes in one piece, as conmon writes it."""
    lines = []
    for position in range(0, len(output), READ):
        for line in output[position : position + READ].splitlines(keepends=True):
            tag = "F" if line.endswith("\n") else "P"
            lines.append(
                f"2026-11-29T09:00:0{position // READ % 10}.123456789+00:00 {stream} {tag} {line.rstrip(chr(10))}"
            )
    return lines


def bare(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("line", "incident")}


def cut(text: str, position: int, stream: str = "stdout") -> list[str]:
    return [
        f"2026-11-29T09:00:00.1Z {stream} P {text[:position]}",
        f"2026-11-29T09:00:00.2Z {stream} F {text[position:]}",
    ]


@pytest.mark.parametrize("text", [XID, SXID, json.dumps({"log": XID})], ids=["Xid", "SXid", "document"])
def test_line_is_read_wherever_it_was_cut(text: str) -> None:
    [whole] = events_of(f"2026-11-29T09:00:00.1Z stdout F {text}")
    for position in range(len(text) + 1):
        assert [bare(event) for event in events_of(*cut(text, position))] == [bare(whole)], position
    several = [f"2026-11-29T09:00:00.1Z stdout P {letter}" for letter in text]
    [event] = events_of("noise", *several, "2026-11-29T09:00:00.2Z stdout F")
    assert bare(event) == bare(whole) and event["line"] == len(several) + 2


def test_kernel_log_of_a_pod_under_cri_o() -> None:
    """`dmesg` in a container: each 8 KiB end within some line."""
    before = events_of(*(text := [XID.replace("12345", str(12345 + second)) for second in range(600)]))
    lines = conmon("".join(f"{line}\n" for line in text))
    assert sum(" P " in line for line in lines) > 5
    assert [bare(event) for event in events_of(*lines)] == [bare(event) for event in before]


def test_streams_are_not_joined() -> None:
    out, err = cut(XID, 20), cut(XID.replace("12345", "12399"), 45, "stderr")
    assert [event["monotonic_us"] for event in events_of(out[0], err[0], out[1], err[1])] == [12345678901, 12399678901]
    assert [event["code"] for event in events_of(out[0], f"2026-11-29T09:00:00.1Z stderr F {SXID}", out[1])] == [
        12028,
        154,
    ]


@pytest.mark.parametrize("head", ["the driver printed ", 'level=error msg="', "python3[99]: ", "[ERROR] "])
def test_quotation_that_was_cut_is_no_event(head: str) -> None:
    text = head + XID.partition("] ")[2]
    for position in range(len(text) + 1):
        assert events_of(*cut(text, position)) == [], position


def test_line_that_never_ends_is_read_as_far_as_it_came() -> None:
    first = cut(XID, len(XID) - 10)[0]
    for lines in ([first], [first, "==> 1.log <==", "2026-11-29T09:00:01.1Z stdout F [1.0] usb 1-1: new device"]):
        [event] = events_of(*lines)
        assert (event["code"], event["line"]) == (154, 1) and event["incomplete"]


def test_memory_is_bounded() -> None:
    parser = parser_module("textlog").TextParser(parser_module("catalogue").Catalogue(policy_path=None))
    for _ in range(300):
        assert list(parser.feed(b"2026-11-29T09:00:00.1Z stdout P " + b"x" * 1000 + b"\n")) == []
    assert list(parser.feed(b"2026-11-29T09:00:00.1Z stdout P NVRM: Xid (PCI:0000:00:1e): 79, a\n")) == []
    assert list(parser.feed(b"2026-11-29T09:00:00.2Z stdout F \n")) == [] == list(parser.finish())
    assert parser.left_out.counts == {"overlong": 1}
