"""Lines as people and log shippers wrap them, and JSON of programs and people that quotes an Xid."""

from __future__ import annotations

import io
import json
import time

import pytest

from gpu_ami.events import reader

XID = "NVRM: Xid (PCI:0000:65:00): 74, pid=5120, name=vllm, NVLink: fatal error detected on link 3(0x10000, 0x0)"
DMESG = "[ 8812.404512] " + XID
SYSLOG = "Jul  2 03:14:15 h100-3 kernel: " + DMESG

WRAPPED = {
    "HTML twice": "&amp;gt; " + DMESG,
    "HTML details": f"<details><summary>{DMESG}</summary>",
    "XML": f"<message>{DMESG}</message>",
    "colours as words": f"ESC[33m{DMESG}ESC[0m",
    "colours without their escape": f"[33m{DMESG}[0m",
    "zero-width space": "\u200b" + DMESG,
    "no-break space": "\u00a0" + DMESG,
    "chat": "[3:14 PM] " + DMESG,
    "terminal frame": f"│{DMESG}│",
    "event stream": "data: " + json.dumps({"_TRANSPORT": "kernel", "MESSAGE": XID}),
    "Ansible": 'ok: [node1] => {"msg": "' + DMESG + '"}',
    "clush": "node[1-4]: " + DMESG,
    "mpirun": "[1,0]<stdout>:" + DMESG,
    "shell's prompt on a console": "root@ip-10-0-0-7:~# " + DMESG,
    "password prompt on a console": "Password: " + DMESG,
    "written over on a console": f"[  OK  ] Started x.\r{DMESG}\r\r",
    "syslog-ng": json.dumps({"PROGRAM": "kernel", "FACILITY": "kern", "HOST": "h", "MESSAGE": DMESG}),
    "OpenTelemetry": json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": XID}}]}]}]}),
    "Google Cloud": json.dumps({"textPayload": SYSLOG, "resource": {"type": "gce_instance"}, "severity": "WARNING"}),
    "Azure": json.dumps({"Facility": "kern", "ProcessName": "kernel", "SyslogMessage": XID}),
    "RFC 5424, two elements": f'<4>1 2024-07-02T03:14:15Z h kernel - - [meta seq="1"][x@1 a="b \\] c"] {DMESG}',
    "CSV with semicolons": f'2024-07-02T03:14:15Z;h100-3;"{DMESG}"',
    "Docker, several lines": json.dumps({"log": f"first\n{DMESG}\nlast\n", "stream": "stdout"}),
    "CloudWatch, several lines": json.dumps({"timestamp": 1, "message": f"x\n{SYSLOG}\n"}),
}
QUOTED_BY_PROGRAMS = {
    "a request": json.dumps({"request": {"body": DMESG}, "status": 200}),
    "an issue": json.dumps({"title": "Xid 74", "body": DMESG}),
    "a chat message": json.dumps({"text": DMESG, "channel": "C01", "user": "U02"}),
    "a prompt": json.dumps({"role": "user", "content": DMESG}),
    "a mail": json.dumps({"subject": "GPU", "text": SYSLOG}),
    "a report of several lines": json.dumps({"log": f"node is unhealthy:\n{XID}\n"}),
    "an Xid watcher": json.dumps({"event": "xid_detected", "line": DMESG, "gpu": 3}),
    "a log line of a program": json.dumps({"level": "error", "msg": SYSLOG}),
    "a console's program": f"app says \r{XID}\r",
    "syslog-ng, a program": json.dumps({"PROGRAM": "gpud", "FACILITY": "daemon", "MESSAGE": XID}),
}


def read(text: str) -> tuple[list[reader.Event], reader.LeftOut]:
    return read_bytes(text.encode() + b"\n")


def read_bytes(content: bytes) -> tuple[list[reader.Event], reader.LeftOut]:
    lines = reader.LeftOut()
    return list(reader.read_events(io.BytesIO(content), quoted=True, left_out=lines)), lines


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_wrapped_line_counts(wrapper: str) -> None:
    [event], lines = read(WRAPPED[wrapper])
    assert event["code"] == 74 and not lines.may_hide_events


@pytest.mark.parametrize("author", QUOTED_BY_PROGRAMS)
def test_quotation_of_a_program_does_not_count_and_is_said(author: str) -> None:
    events, lines = read(QUOTED_BY_PROGRAMS[author])
    assert events == [] and lines.may_hide_events


def test_several_lines_in_one_record_count_each() -> None:
    events, _ = read(json.dumps({"message": f"{SYSLOG}\n{SYSLOG.replace('74', '45')}\n"}))
    assert [event["code"] for event in events] == [74, 45]


def test_export_of_a_log_group_in_one_line_is_read_to_its_end() -> None:
    """64 KiB are enough for a line of text, not for a document."""
    rows = [{"timestamp": number, "message": "usb 1-1: new device " + "x" * 90} for number in range(30000)]
    events, lines = read(json.dumps({"events": [*rows, {"timestamp": 5, "message": SYSLOG}]}))
    assert [event["code"] for event in events] == [74] and not lines.lines


def exported(message: str, transport: str = "kernel", **binary: bytes) -> bytes:
    """An entry of journalctl -o export: fields with a line feed or a control character follow their length."""
    fields = {
        "__CURSOR": b"s=0639f1a2;i=1", "__REALTIME_TIMESTAMP": b"1704279600123456", "_TRANSPORT": transport.encode(),
        "SYSLOG_FACILITY": b"0", "SYSLOG_IDENTIFIER": b"kernel", **binary, "MESSAGE": message.encode(),
        "_HOSTNAME": b"gpu",
    }  # fmt: skip
    lines = [
        name.encode() + (b"\n" + len(value).to_bytes(8, "little") if min(value) < 32 else b"=") + value
        for name, value in fields.items()
    ]
    return b"\n".join(lines) + b"\n\n"


LOST_GPU = (
    "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)


@pytest.mark.parametrize("length", [100, 138, 266, 2570, 2826])  # of 266, 2570 and 2826 a byte is a line feed
def test_journal_in_its_export_format(length: int) -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 94, pid=4, name=a, Contained: SM (0x1). RST: No, D-RST: No\x01".ljust(
        length, "y"
    )
    found = exported(line) + exported(LOST_GPU, _CMDLINE=b"a\n\nMESSAGE\nb") + exported(line, "stdout")
    events, _ = read_bytes(found)
    assert [(event["kind"], event["code"], event["pci"]) for event in events] == [
        ("xid", 94, "0000:9b:00.0"), ("gpu_lost", 79, "0000:18:00.0"),
    ]  # fmt: skip
    assert {(event["origin"], event["time"]) for event in events} == {("kernel", "2024-01-03T11:00:00.123456Z")}


@pytest.mark.parametrize("cut", ["in the message", "before the message"])
def test_export_that_ends_early_keeps_what_it_has(cut: str) -> None:
    found = exported("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\nmore")
    end = found.index(b"more") if cut == "in the message" else found.index(b"NVRM") - 3
    events, _ = read_bytes(exported(LOST_GPU) + found[:end])
    assert [event["code"] for event in events] == ([79, 79] if cut == "in the message" else [79])


def test_export_of_empty_lines_takes_linear_time() -> None:
    begin = exported(LOST_GPU).partition(b"NVRM")[0][:-8] + (1 << 20).to_bytes(8, "little")
    started = time.process_time()
    assert read_bytes(begin + b"\n" * 200000)[0] == []
    assert time.process_time() - started < 10


def test_lines_that_end_with_cr_alone() -> None:
    text = "\r".join([*("[  1.5] usb 1-1: noise" for _ in range(9000)), DMESG, "[ 9000.5] end"])
    assert [event["code"] for event in read(text)[0]] == [74]


def test_end_of_an_overlong_line_is_not_dropped_in_silence() -> None:
    events, lines = read("x" * 100000 + " " + DMESG)
    assert events == [] and lines.may_hide_events
    assert list(lines.sentences(verbose=True)) == [
        "too long, with NVRM or SXid in the part that was not read: 1 line", "  line 1",
    ]  # fmt: skip


def test_absence_is_claimed_only_where_everything_was_understood() -> None:
    from gpu_ami.events import output

    for text, is_claimed in (
        ("usb 1-1: new device", True), ("[1.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05", True),
        ("python3[7]: " + DMESG, False), ("- `Xid 48 / 171`: uncorrectable error", False),
        ("Xid=999 on GPU-1", False),
        ("what XID error 69 is", False), ("dhclient: XID 0x2a5b", True),
        ("[2.5] NVRM: Xid (PCI:0000:6", False), ("a NVRM sentence", False),
    ):  # fmt: skip
        events, lines = read(text)
        shown = list(output.table(iter(events), colour=False, left_out=lines))
        assert any(line.startswith("No Xid") for line in shown) == is_claimed, text
        assert any("not known" in line for line in shown) != is_claimed


def test_cause_that_an_xid_45_names_is_not_nothing_to_do() -> None:
    """Seen in public logs: only the cleanup lines were pasted, and the cause is an NVLink error that needs a reboot."""
    from gpu_ami.events import output

    cleanup = "[ 9.5] NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid 149\n"
    shown = "\n".join(output.table(iter(read(cleanup)[0]), colour=False))
    assert "Nothing to do" not in shown and "Cause: Xid 149, " in shown and "its own line is not in this log" in shown
    with_cause = cleanup.replace("45,", "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0 0x0 0x0 0x0)\n#") + cleanup
    assert "is not in this log" not in "\n".join(output.table(iter(read(with_cause)[0]), colour=False))


def test_line_numbers_are_said_on_request() -> None:
    _, lines = read("\n".join(["python3[7]: " + DMESG] * 3 + ["", "gpud[1]: " + XID]))
    assert list(lines.sentences(verbose=True)) == [
        "4 lines in which a program or a sentence names an Xid: not counted; if the driver printed what it quotes: "
        "gpu-ami runbook 74",
        "  lines 1-3, 5",
    ]  # fmt: skip
