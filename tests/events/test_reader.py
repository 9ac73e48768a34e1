"""`gpu-ami events`: the table, JSON lines, gzipped and UTF-16 logs, a host's log, and errors."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cli import main
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.events import reader
from tests.scripted_host import ScriptedConnection

LOG = """\
Jul 20 16:33:30 gpu kernel: NVRM: GPU at PCI:0000:00:1e: GPU-12345678-1234-1234-1234-123456789abc
Jul 20 16:33:31 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 63, pid=7, name=evil\x1b[2J, Row Remapper: New row marked
Jul 20 16:33:32 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.
Jul 20 16:33:33 gpu NVRM: Xid (PCI:0000:00:1d): 79, GPU has fallen off the bus.
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_table_names_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0
    header, remap, loss, drill, _, *summary = out.splitlines()
    assert header.split() == ["TIME", "GPU", "EVENT", "SEVERITY", "WHAT", "DO", "BY"]
    assert remap.split("  ")[0] == "Jul 20 16:33:31" and "Xid 63" in remap and remap.endswith("[7]")
    assert "stop_start" in loss and "fatal" in loss
    assert drill.endswith("(drill: written by a process, not by the kernel)")
    assert summary == [
        "0000:00:1e.0 (GPU-12345678-1234-1234-1234-123456789abc): Stop and start the instance so that EC2 moves it to "
        "another host; a reboot stays on the faulty one. Cause: Xid 79, GPU has fallen off the bus.",
        "All steps, with --node eks|ecs|slurm|asg those of a node: gpu-ami runbook 79",
    ]


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("4,1,2,-;NVRM: Xid (PCI:0000:00:1e): 31, pid=7, name=a\x07b\u202ec, Ch 1\n")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "a\ufffdb\ufffdc[7]" in out


def test_gzipped_log_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(LOG.encode()))
    _, packed, _ = run(capsys, "events", str(tmp_path / "log.gz"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    _, piped, _ = run(capsys, "events", "-")
    assert packed == piped and packed.count("Xid") >= 3


def test_utf16_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PowerShell's `aws logs tail … > log` writes UTF-16."""
    (tmp_path / "log").write_text(LOG.splitlines()[1], encoding="utf-16")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    assert json.loads(out)["code"] == 63


def test_instructions_name_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes the PCI address that the line names, because an index changes when a GPU is lost."""
    (tmp_path / "log").write_text("4,1,2,-;NVRM: Xid (PCI:0000:00:1e): 48, DBE\n")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    instructions = out.splitlines()[-2]
    assert "nvidia-smi --gpu-reset -i 0000:00:1e.0" in instructions
    assert instructions.index("reboot the instance") < instructions.index("--gpu-reset")


def test_follow_up_line_without_its_first_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 24007, Severity 1 Engine instance 28 Sub-engine instance 00\n"
    (tmp_path / "log").write_text("3,1,2,-;" + text)
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "(follow-up line; the first line of this SXid is missing)" in out.splitlines()[1]


def test_policy_overrides_severity_and_action(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "policy.json").write_text(
        '{"xid": {"63": {"severity": "fatal", "action": "RESET_GPU", "note": "ours"}}}'
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json", "--policy", str(tmp_path / "policy.json"))
    first = json.loads(out.splitlines()[0])
    assert (first["severity"], first["ec2_action"], first["decided_by"]) == ("fatal", "reboot", "policy")


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object, got list"),
        ('{"xids": {}}', 'xids: expected "xid", "sxid", "gpu_lost", "neuron", "gpu_init_failed" or'),
        ('{"xid": {"63": 5}}', "xid.63: expected an object, got int"),
        ('{"xid": {"abc": {"severity": "info"}}}', "xid.abc: expected a number as code"),
        ('{"xid": {"63": {"severity": "bad"}}}', "expected one of info, app, warning, critical, fatal, got 'bad'"),
        ('{"xid": {"63": {"action": "EXPLODE"}}}', "xid.63.action: expected one of ALLOW_DMABUF, CHECK_APP/CUDA, "),
        ('{"xid": {"63": {"colour": "red"}}}', "xid.63: unknown key colour, expected severity, action or note"),
    ],
)
def test_invalid_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, complaint: str) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "policy.json").write_text(policy)
    code, _, err = run(capsys, "events", str(tmp_path / "log"), "--policy", str(tmp_path / "policy.json"))
    assert code == 2 and complaint in err


def test_host_is_read_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    from validator.transport import ssh

    host = ScriptedConnection(lambda _command: LOG)
    targets: list[Any] = []
    monkeypatch.setattr(ssh, "connect", lambda target: targets.append(target) or host)
    with reader.open_host("ssh://admin@127.0.0.1:2222", key_file=Path("/k")) as stream:
        assert [event["code"] for event in reader.read_events(stream)] == [63, 79, 79]
    assert (targets[0].user, targets[0].address, targets[0].port, targets[0].key_file) == (
        "admin",
        "127.0.0.1",
        2222,
        Path("/k"),
    )
    assert "/var/log/gpuevent.jsonl" in host.asked[0][0]


def test_unreachable_host_is_a_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from validator.transport import ssh

    def refuse(_target: object) -> None:
        raise ssh.SshError("connection refused")

    monkeypatch.setattr(ssh, "connect", refuse)
    with pytest.raises(MachineError, match="connection refused"), reader.open_host("ssh://a@b"):
        pass


def test_parser_folder_is_the_checkouts_or_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (reader.parser_folder() / "hwevents" / "textlog.py").is_file()
    monkeypatch.setattr(reader, "PACKAGE", "not_there")
    with pytest.raises(UsageError, match="event parser's code was not found; looked in"):
        reader.parser_folder()


def test_overlong_lines_are_read_in_bounded_memory() -> None:
    text = (
        b"x" * 300000
        + b"\n[1.0] NVRM: Xid (PCI:0000:00:1e): 31, "
        + b"y" * 300000
        + b"\n[2.0] NVRM: Xid (PCI:0000:00:1e): 13, z"
    )
    read = list(reader.read_events(io.BytesIO(text)))
    assert [(event["line"], event["code"]) for event in read] == [(2, 31), (3, 13)]
    assert len(read[0]["message"]) == 4096 and read[0]["truncated"] is True


QUOTATIONS = """\
> [  113.669216] NVRM: Xid (PCI:0000:00:06): 119, pid=7, name=a, Timeout after 6s
+[  114.669216] NVRM: Xid (PCI:0000:00:06): 31, pid=7, name=a, Ch 00000008
&gt; [  115.669216] NVRM: Xid (PCI:0000:00:06): 48, pid=7, name=a, DBE
Jan  5 10:00:00 gpu01 python3[99]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
"""


def test_quotations_in_a_named_file_count_and_nothing_is_dropped_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(QUOTATIONS)
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0 and out.splitlines()[-2:] == [
        "3 lines that look like quotations of kernel lines: counted, origin unknown",
        "1 line in which a program or a sentence names an Xid: not counted; if the driver printed what it quotes: "
        "gpu-ami runbook 79",
    ]
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    *events, left_out = [json.loads(line) for line in out.splitlines()]
    assert left_out["lines"][1] == {"why": "by_program", "count": 1, "lines": [4]} and left_out["may_hide_events"]
    assert [(event["code"], event["origin"], event["quoted"]) for event in events] == [
        (119, "unknown", True), (31, "unknown", True), (48, "unknown", True),
    ]  # fmt: skip


def test_quotations_in_the_live_log_do_not_count() -> None:
    assert list(reader.read_events(io.BytesIO(QUOTATIONS.encode()))) == []


def test_failures_that_are_no_event_are_not_called_a_good_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GSP that stops answering, before its Xid or without one, and a PCIe port that cannot recover."""
    (tmp_path / "log").write_text(
        "[   31.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n"
        "[   52.4] NVRM: GPU3 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 52400 timeout 5200\n"
        "[  +0.000210] nvidia 0000:5d:00.0: AER: can't recover (no error_detected callback)\n"
        "[   60.0] pcieport 0000:5c:01.0: AER: Corrected error received: 0000:5d:00.0\n"
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "-v")
    assert out.splitlines()[2:] == [
        "No Xid, SXid, lost GPU or error of Neuron in this log, but other failures (-v: their lines):",
        "1 line in which the driver reports a failure, without an event: read them",
        "  line 2",
        "1 line of uncorrected PCIe errors: no events, but a likely cause of one that follows",
        "  line 3",
    ]
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    assert {row["why"]: row["lines"] for row in json.loads(out)["lines"]} == {
        "driver_error": [2], "pcie": [3],
    }  # fmt: skip


def test_a_call_that_needs_a_reset_has_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#982: CUDA failed, and the kernel log had only this."""
    (tmp_path / "log").write_text(
        "[373871.354096] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] "
        "(0x00000062) returned from status @ kernel_channel.c:2827\n"
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert out.splitlines()[-1] == (
        "1 line in which the driver reports a failure, without an event: read them; NV_ERR_RESET_REQUIRED: a GPU needs "
        "a reset; if no event above says more, reboot the instance"
    )


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: No NVIDIA GPU found.", "driver_error"),
        ("NVRM: The NVIDIA probe routine was not called for 2 device(s).", "driver_error"),
        ("NVRM: GPU1 _kgspLogRpcTimeout: ***** GSP Timeout *****", "driver_error"),
        ("NVRM: confComputeConstructEngine_IMPL: CPU does not support confidential compute.", "driver"),
        ("NVRM: GPU at PCI:0000:00:1e: GPU-12345678-1234-1234-1234-123456789abc", ""),
        ("NVRM: cpuidInfoAMD: Unrecognized AMD processor in cpuidInfoAMD", "driver"),
        ("NVRM: Persistence mode is deprecated and will be removed in a future release. Please use it", "driver"),
        ("NVRM: gpumgrCheckRmFirmwarePolicy: Disabling GSP offload -- GPU not supported", "driver"),
        # open-gpu-kernel-modules 595.45.04: nv.c, nv-pci.c, osinit.c, linux_nvswitch.c
        ("NVRM: None of the NVIDIA devices were initialized.", "driver_error"),
        ("NVRM: Can't find an IRQ for your NVIDIA card!", "driver_error"),
        ("NVRM: This can occur when another driver was loaded and", "driver_error"),
        ("NVRM: GPU 0000:00:1e.0: GPU does not have the necessary power cables connected.", "driver_error"),
        ("NVRM: GPU 0000:00:1e.0: Device is currently unavailable", "driver_error"),
        ("nvidia-nvswitch0: Failed to initialize device : -5", "driver_error"),
        ("nvidia-nvswitch0: Interrupts disabled to avoid a storm", "driver_error"),
        ("nvidia-nvswitch: Version mismatch, kernel version 535.129.03 user version 535.161.07", "driver_error"),
        ("nvidia-nvswitch2: open (major=510)", ""),
        ("nvidia 0000:00:1e.0: Unable to change power state from D3cold to D0, device inaccessible", "pcie"),
        ("nvme 0000:00:1f.0: Unable to change power state from D3cold to D0, device inaccessible", ""),
    ],
)
def test_lines_of_the_driver_are_told_apart(line: str, kind: str) -> None:
    left_out = reader.LeftOut()
    assert list(reader.read_events(io.BytesIO(f"[  7.5] {line}\n".encode()), left_out=left_out)) == []
    assert [lines.kind for lines in left_out.lines] == [kind][: len(kind)]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("root@node4:~# dmesg -T |grep NVRM", ""),
        ("[ec2-user@ip-10-0-0-1 ~]$ sudo journalctl -k | grep -i 'Xid: 79'", ""),
        ("$ grep -E 'SXid|NVRM' /var/log/messages", ""),
        ("# we saw NVRM lines", "unread"),
        ("the driver reported Xid: 79", "by_program"),
    ],
)
def test_typed_commands_are_no_lines_of_a_log(line: str, kind: str) -> None:
    left_out = reader.LeftOut()
    assert list(reader.read_events(io.BytesIO(f"{line}\n".encode()), left_out=left_out)) == []
    assert [lines.kind for lines in left_out.lines] == [kind][: len(kind)]


def test_advice_for_a_gpu_that_no_line_names_has_no_placeholder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("[ 12.5] NVRM: RmInitAdapter failed! (0x24:0xffff:1211)\n")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "PCI_ADDRESS" not in out and "the GPU (the line does not say which)" in out


XID = "[{:.6f}] NVRM: Xid (PCI:0000:{:02x}:00): {}, pid={}, name=python3, Ch 00000008"


def test_storm_is_a_row_with_its_number_and_the_first_cause_is_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storm = [XID.format(10 + number / 1000, 0x2A, 95, 8) for number in range(1200)]
    (tmp_path / "log").write_text("\n".join([XID.format(9.5, 0x18, 48, 7), *storm]))
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    _, first, second, empty, *_ = out.splitlines()
    assert "0000:18:00.0" in first and "Xid 48" in first and "\u00d7" not in first
    assert "0000:2a:00.0" in second and second.endswith("python3[8]  \u00d7 1,200, last up 11.199000 s") and empty == ""
    _, every_row, _ = run(capsys, "events", str(tmp_path / "log"), "--all")
    assert sum("Xid 95  " in line for line in every_row.splitlines()) == 1200 and "\u00d7" not in every_row
    _, lines, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    assert len(lines.splitlines()) == 1201


def test_texts_that_differ_in_numbers_alone_share_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("\n".join(XID.format(10 + pid, 0x18, 31, pid) for pid in range(200)))
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    rows = [line for line in out.splitlines() if "Xid 31  " in line]
    assert len(rows) == 51 and "\u00d7 150, 150 texts, last up 209.000000 s" in rows[-1]


def test_address_of_a_missing_cause_is_the_gpu_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(
        "[9.5] NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=p, Ch 1 caused by previous Xid 48\n"
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "PCI_ADDRESS" not in out and "Stop the jobs on GPU 0000:dc:00.0 and reboot" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[Jul 09 2024 18:14:07] [ERROR] [tid 7] something else is wrong", "reports a failure, without an event"),
        ("2023-Jan-09 20:27:41.05 7:7 ERROR  TDRV:tdrv_get_dev_info   No neuron device available", "without an event"),
        ("Nov 05 13:55:26 n nvidia-persistenced[7]: Failed to query NVIDIA devices.", "without an event"),
        ("2024-05-24 10:22:29.245 ERROR [5:7] nv-hostengine: Object is in an undefined state", "without an event"),
        ("May  1 10:00:00 n sshd[7]: Accepted publickey for admin", "None of its lines is one of a kernel log"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(line + "\n")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert said in out


@pytest.mark.parametrize(
    ("first", "repeated"),
    [("", "message repeated 3 times: [ {}]"), ("[  123.456789] ", "[  123.556789] message repeated 3 times: [ {}]")],
)
def test_a_line_that_rsyslog_wrote_for_several_counts_as_these(
    first: str, repeated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """$RepeatedMsgReduction is on in Ubuntu's rsyslog.conf."""
    xid = "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=x, Ch 00000008"
    (tmp_path / "log").write_text(
        f"May  5 03:12:44 ip-10-0-0-1 kernel: {first}{xid}\n"
        f"May  5 03:12:45 ip-10-0-0-1 kernel: {repeated.format(xid)}\n"
        f"May  5 03:12:48 ip-10-0-0-1 python3[9]: message repeated 2 times: [ {xid}]\n"
    )
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0 and "\u00d7 4, last May  5 03:12:45" in out
    assert "1 line in which a program or a sentence names an Xid: not counted" in out
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    events = [json.loads(line) for line in out.splitlines()][:-1]
    assert [(event["message"], event["origin"], event.get("repeated")) for event in events] == [
        ("Ch 00000008", "kernel", None), ("Ch 00000008", "kernel", 3),
    ]  # fmt: skip


def test_codes_of_events_are_not_listed_among_those_that_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An SXid waits for lines that follow: its own line gave no event yet."""
    (tmp_path / "log").write_text(
        "[ 9134.000001] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, Link 63 ingress invalid command\n"
        "python3[9]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert out.splitlines()[-1].endswith("if the driver printed what it quotes: gpu-ami runbook 79")
