"""Properties: no input stops the parser, a quotation is never an event, a restart changes no event."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_ami.events.reader import parser_module

grammar, kmsg, textlog = parser_module("grammar"), parser_module("kmsg"), parser_module("textlog")
tracker_module, event_module = parser_module("tracker"), parser_module("event")
CATALOGUE = parser_module("catalogue").Catalogue(policy_path=None)
LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
FRAGMENTS = st.sampled_from([
    b"NVRM: ", b"Xid ", b"SXid ", b"(PCI:", b"0000:3b:00", b".0", b" GPU-I:", b"02", b"): ", b"79", b", ", b"pid=",
    b"name=", b"'<unknown>'", b"<unknown>", b"nvidia-nvswitch3: ", b"22013", b"Data {", b"kernel: ", b"[12.5] ",
    b"<4>", b"4,1,2,-;", b"\n", b"\\x0a", b"\x00", b"\xff", b"{", b"}", b'"MESSAGE":', b'"', b"Jan  5 10:00:00 host ",
    b"The NVIDIA GPU ", b"GPU ", b"fallen off the bus and is not responding to commands.", b"caused by previous Xid ",
    b"154, GPU recovery action changed from 0x", b"149, NETIR Fatal XC0 i0 Link -1 (0x1 0x2)", b"9" * 30,
    b"2024-01-03T12:00:00Z ", b"\x1b[31m", b"NEURON_HW_ERR=", b"DMA_ERROR ", b"nd-id=3",
    b"neuron:nr_reset_thread_fn: nd0: ", b"reset request 1 failed",
])  # fmt: skip
SOUP = st.one_of(st.binary(max_size=400), st.lists(FRAGMENTS, max_size=25).map(b"".join))


def events_of(data: bytes) -> list[dict[str, Any]]:
    parser = textlog.TextParser(CATALOGUE)
    events = [event for line in textlog.read_lines(io.BytesIO(data)) for event in parser.feed(line)]
    return events + list(parser.finish())


@settings(max_examples=400, deadline=None)
@given(SOUP)
@example(b"NVRM: Xid (PCI:0000:3b:00): 79, pid=99999999999999999999, x")
@example(b'{"MESSAGE": [1, -5, 300, "x"], "_TRANSPORT": "kernel"}')
@example(b'{"MESSAGE": {"a": 1}}')
@example(b"[" * 100000)
@example(b'{"log":' * 5000)
def test_any_text_gives_valid_events(data: bytes) -> None:
    lines = data.count(b"\n") + 1
    for event in events_of(data):
        assert json.loads(json.dumps(event))["line"] in range(1, lines + 1)
        assert event["kind"] in ("xid", "sxid", "gpu_lost", "neuron", "gpu_init_failed")
        assert event["severity"] in ("info", "app", "warning", "critical", "fatal")


@settings(max_examples=400, deadline=None)
@given(SOUP)
def test_records_never_raise(data: bytes) -> None:
    record = kmsg.parse_record(data)
    if record is not None:
        assert record.seq >= 0 and "\n" not in record.text
        grammar.parse(record.text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(blacklist_characters="\n"), min_size=1, max_size=60))
@example("kernel")
@example("user.notice")
@example("Jan  5 10:00:00 host app:")
@example('"')
@example("NVRM: saw")
def test_a_quotation_is_no_event(words: str) -> None:
    """Any words of a program before the driver's text, in a kernel record or after its syslog tag, make a quotation."""
    for quoted in (f"4,5,6,-;a{words}{LINE}", f"12,5,6,-;a{words} {LINE}", f"Jan  5 10:00:00 host app: {words}{LINE}",
                   f"Jan  5 10:00:00 host kernel: a{words}{LINE}", f"[  12.500000] a: {words}{LINE}",
                   f"M\u00e4r 05 10:00:00 host app: {words}{LINE}",
                   f"Di 2026-10-06 17:59:27 CEST host app: {words}{LINE}",
                   f"10.0.0.5: user: warning: app: {words}{LINE}",
                   f"[pod/a/b] app: {words}{LINE}", f"node01: app[7]: {words}{LINE}"):  # fmt: skip
        assert events_of(quoted.encode("utf-8", "replace")) == []


COMM = st.text(alphabet=st.sampled_from("abcXYZ019 ,:[]/()=<>._-'"), min_size=1, max_size=40).map(str.strip).filter(
    lambda name: bool(name) and name not in ("<unknown>", "'<unknown>'") and not name.endswith(",")
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    code=st.integers(0, 2**32 - 1),
    domain=st.integers(0, 0xFFFF),
    bus=st.integers(0, 0xFF),
    device=st.integers(0, 0x1F),
    instance=st.one_of(st.none(), st.integers(0, 14)),
    pid=st.one_of(st.none(), st.integers(0, 4194304)),
    process=COMM,
)
def test_fields_of_the_drivers_format_are_read(
    code: int, domain: int, bus: int, device: int, instance: int | None, pid: int | None, process: str
) -> None:
    address = f"{domain:04x}:{bus:02x}:{device:02x}"
    mig = "" if instance is None else f" GPU-I:{instance:02d} GPU-CI:{instance:02d}"
    who = "" if pid is None else f"pid={pid}, name={process}, "
    fact = grammar.parse(f"NVRM: Xid (PCI:{address}{mig}): {code}, {who}Ch 00000008")
    assert (fact.code, fact.pci, fact.mig_gi, fact.mig_ci) == (code, f"{address}.0", instance, instance)
    assert fact.pid == pid
    assert fact.process == (None if pid is None else process)
    assert fact.message == "Ch 00000008"


def _moment(order: int) -> Any:
    return event_module.Moment(order, order * 1000, "kernel", {"seq": order, "boot_id": "b"})


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.sampled_from([
            "NVRM: Xid (PCI:0000:3b:00): 79, x", "NVRM: Xid (PCI:0000:3b:00): 45, Ch 1",
            "NVRM: Xid (PCI:0000:3c:00): 48, x",
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "NVRM: GPU at PCI:0000:3b:00: GPU-12345678",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 1 x",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Data {0x1}", "NVRM: Xid (PCI:0000:3b:00): 119, Timeout",
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:3b:00 (printing 1 of every 30).",
        ]),
        max_size=30,
    ),
    cut=st.integers(0, 30),
)  # fmt: skip
def test_a_restart_anywhere_changes_no_event(texts: list[str], cut: int) -> None:
    """One run, and a run that is restarted after `cut` records, give the same events."""
    facts = [(number, grammar.parse(text)) for number, text in enumerate(texts)]

    def fresh() -> Any:
        return tracker_module.Tracker(event_module.Builder(CATALOGUE))

    whole = fresh()
    expected = []
    for number, fact in facts:
        whole.feed(_moment(number), fact, number * 1000)
        expected += whole.release(number * 1000)
    expected += whole.release(everything=True)

    first = fresh()
    events = []
    for number, fact in facts[:cut]:
        first.feed(_moment(number), fact, number * 1000)
        events += first.release(number * 1000)
    oldest = first.oldest_open()
    second = fresh()
    second.remember(json.loads(json.dumps(first.memory())))
    for number, fact in facts[(cut if oldest is None else oldest) :]:
        second.feed(_moment(number), fact, number * 1000)
        events += second.release(number * 1000)
    events += second.release(everything=True)
    assert events == expected


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 0xFFFFFF), min_size=300, max_size=400, unique=True))
def test_memory_is_bounded(addresses: list[int]) -> None:
    tracker = tracker_module.Tracker(event_module.Builder(CATALOGUE))
    for number, address in enumerate(addresses):
        device = f"{address >> 8:04x}:{address & 0xFF:02x}:00"
        tracker.feed(_moment(number), grammar.parse(f"NVRM: GPU at PCI:{device}: GPU-12345678"), None)
        tracker.feed(_moment(number), grammar.parse(f"NVRM: Xid (PCI:{device}): 79, x"), None)
        tracker.release(None)
    assert all(len(table) <= 256 for table in tracker.memory().values() if isinstance(table, dict))
